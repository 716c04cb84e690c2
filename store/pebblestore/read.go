package pebblestore

import (
	"bytes"
	"context"
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/store"
)

const (
	defaultReadEntries = 1000
	defaultReadBytes   = 1 << 20
	// maxReadBuffer is the largest buffer that entries share; a larger entry has one of its own.
	maxReadBuffer = 64 << 10
	// A reader looks at its context every so many entries.
	checkEvery = 1024
)

// Read returns a page of a topic's log. What is new is served from memory.
func (s *Store) Read(ctx context.Context, topic string, after event.Position, limit store.ReadLimit) (store.Page, error) {
	if limit.Entries <= 0 {
		limit.Entries = defaultReadEntries
	}
	if limit.Bytes <= 0 {
		limit.Bytes = defaultReadBytes
	}
	if err := s.begin(); err != nil {
		return store.Page{}, fmt.Errorf("read %s: %w", topic, err)
	}
	defer s.life.RUnlock()
	for {
		if err := ctx.Err(); err != nil {
			return store.Page{}, fmt.Errorf("read %s: %w", topic, context.Cause(ctx))
		}
		t, err := s.topic(topic)
		if err != nil {
			return store.Page{}, fmt.Errorf("read %s: %w", topic, err)
		}
		if page, ok := t.readTail(after, limit); ok {
			return page, nil
		}
		page, again, err := s.readLog(ctx, t, after, limit)
		if err != nil {
			return store.Page{}, fmt.Errorf("read %s after %s: %w", topic, after, err)
		}
		if !again {
			return page, nil
		}
	}
}

// readLog reads from the database. It asks to be called again if the topic was deleted meanwhile.
func (s *Store) readLog(ctx context.Context, t *topic, after event.Position, limit store.ReadLimit) (page store.Page, again bool, err error) {
	was := t.see()
	last := was.bounds.Last
	if was.id == 0 || !after.Less(last) {
		return page, true, nil // readTail knows the answer
	}
	log, err := s.entries(ctx, was.id)
	if err != nil {
		return page, false, err
	}
	p := pager{limit: limit, mean: meanBytes(was.bounds)}
	page.From, page.To = after, last
	err = log.scan(after.Next(), last, func(pos event.Position, record []byte) (bool, error) {
		if !p.add(pos, record) {
			page.To = p.entries[len(p.entries)-1].Pos
			return false, nil
		}
		if len(p.entries)%checkEvery == 0 && ctx.Err() != nil {
			return false, context.Cause(ctx)
		}
		return true, nil
	})
	if e := log.close(); err == nil {
		err = e
	}
	if err != nil {
		return page, false, err
	}
	// The bounds come after the entries: what was missed was taken away before, and they say so. What
	// was met but is removed now is left out, so that the bounds are right about it too.
	now := t.see()
	if now.id != was.id {
		return page, true, nil
	}
	for len(p.entries) > 0 && !now.bounds.Removed.Less(p.entries[0].Pos) {
		p.entries = p.entries[1:]
	}
	page.Bounds = now.bounds
	page.Entries, page.Examined = p.entries, len(p.entries)
	return page, false, nil
}

func meanBytes(b store.Bounds) int {
	if b.Entries == 0 {
		return 0
	}
	return int(b.Bytes / b.Entries)
}

// pager collects copies of entries within a limit, in buffers that several share.
type pager struct {
	limit   store.ReadLimit
	mean    int
	entries []event.Entry
	bytes   int
	buf     []byte
}

// add takes an entry, or returns false if the page is full.
func (p *pager) add(pos event.Position, record []byte) bool {
	if n := len(p.entries); n > 0 && (n >= p.limit.Entries || p.bytes+len(record) > p.limit.Bytes) {
		return false
	}
	if len(record) > cap(p.buf)-len(p.buf) {
		left := min(p.limit.Entries-len(p.entries), 1+(p.limit.Bytes-p.bytes)/max(1, p.mean))
		p.buf = make([]byte, 0, max(len(record), min(maxReadBuffer, left*p.mean)))
	}
	start := len(p.buf)
	p.buf = append(p.buf, record...)
	p.entries = append(p.entries, event.Entry{Pos: pos, Record: p.buf[start:len(p.buf):len(p.buf)]})
	p.bytes += len(record)
	return true
}

// Bounds tells about one topic.
func (s *Store) Bounds(ctx context.Context, topic string) (store.Bounds, error) {
	if err := s.begin(); err != nil {
		return store.Bounds{}, fmt.Errorf("bounds of %s: %w", topic, err)
	}
	defer s.life.RUnlock()
	t, err := s.topic(topic)
	if err != nil {
		return store.Bounds{}, fmt.Errorf("bounds of %s: %w", topic, err)
	}
	return t.see().bounds, nil
}

// Topics lists topics by name. A limit of 0 or less is none.
func (s *Store) Topics(ctx context.Context, prefix, after string, limit int) ([]store.TopicInfo, error) {
	if err := s.begin(); err != nil {
		return nil, fmt.Errorf("list topics: %w", err)
	}
	defer s.life.RUnlock()
	var list []store.TopicInfo
	err := s.scan(ctx, named(spaceTopic, prefix), named(spaceTopic, after), func(key, value []byte) (bool, error) {
		name := string(key[1:])
		info := store.TopicInfo{Topic: name}
		if t := s.cached(name); t != nil {
			info.Bounds = t.see().bounds
		} else {
			m, err := decodeMeta(value)
			if err != nil {
				return false, corrupt(err, "the facts of topic %q", name)
			}
			if m.exists {
				info.Bounds = m.bounds()
			}
		}
		if info.Incarnation != "" {
			list = append(list, info)
		}
		return limit <= 0 || len(list) < limit, nil
	})
	if err != nil {
		return nil, fmt.Errorf("list topics: %w", err)
	}
	return list, nil
}

// scan visits the keys that start with prefix and come after the given key, until visit returns false.
// What it passes is only valid during the call.
func (s *Store) scan(ctx context.Context, prefix, after []byte, visit func(key, value []byte) (bool, error)) error {
	lower := prefix
	if bytes.Compare(after, prefix) >= 0 {
		lower = append(bytes.Clone(after), 0)
	}
	upper := successor(prefix)
	if upper != nil && bytes.Compare(lower, upper) >= 0 {
		return nil
	}
	return s.scanRange(ctx, lower, upper, visit)
}

// scanRange calls visit for the keys from lower to before upper, as scan does.
func (s *Store) scanRange(ctx context.Context, lower, upper []byte, visit func(key, value []byte) (bool, error)) (err error) {
	iter, err := s.db.NewIterWithContext(ctx, &pebble.IterOptions{LowerBound: lower, UpperBound: upper})
	if err != nil {
		return s.readError(err)
	}
	defer func() {
		if e := iter.Close(); e != nil && err == nil {
			err = s.readError(e)
		}
	}()
	n := 0
	for ok := iter.First(); ok; ok = iter.Next() {
		if n++; n%checkEvery == 0 && ctx.Err() != nil {
			return context.Cause(ctx)
		}
		value, err := iter.ValueAndErr()
		if err != nil {
			return s.readError(err)
		}
		if more, err := visit(iter.Key(), value); err != nil || !more {
			return err
		}
	}
	if err := iter.Error(); err != nil {
		return s.readError(err)
	}
	return nil
}
