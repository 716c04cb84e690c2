package pebblestore

import (
	"context"
	"sort"

	"github.com/cockroachdb/pebble/v2"

	"github.com/turnlane/turnlane/event"
)

// entryReader reads the blocks and entries of one incarnation of a topic, also those that readers may
// not see yet: whoever uses it stops at the bounds that readers have.
type entryReader interface {
	// block returns the closed block that ends at p or after, and where it ends.
	block(p event.Position) (end event.Position, b block, ok bool, err error)
	// scan visits the entries in [from, to] until visit returns false. The record is only valid during
	// the call.
	scan(from, to event.Position, visit func(p event.Position, record []byte) (more bool, err error)) error
	// last returns the last entry at or before p, which is where a block ends or an entry is.
	last(p event.Position) (event.Position, error)
	close() error
}

// entries opens a reader of a topic's incarnation.
func (s *Store) entries(ctx context.Context, topic uint64) (entryReader, error) {
	if s.memory != nil {
		if m := s.memory.topic(topic); m != nil {
			return m, nil
		}
		return &memoryTopic{}, nil
	}
	iter, err := s.db.NewIterWithContext(ctx, nil)
	if err != nil {
		return nil, s.readError(err)
	}
	return &diskEntries{s: s, iter: iter, topic: topic}, nil
}

// diskEntries reads from the database, all of it as it was at one moment.
type diskEntries struct {
	s     *Store
	iter  *pebble.Iterator
	topic uint64
}

func (d *diskEntries) failed() error {
	if err := d.iter.Error(); err != nil {
		return d.s.readError(err)
	}
	return nil
}

func (d *diskEntries) block(p event.Position) (end event.Position, b block, ok bool, err error) {
	_, upper := topicSpan(spaceBlock, d.topic)
	d.iter.SetBounds(entryKey(spaceBlock, d.topic, p), upper)
	if !d.iter.First() {
		return end, b, false, d.failed()
	}
	if end, ok = keyPosition(d.iter.Key()); !ok {
		return end, b, false, corrupt(errGarbled, "a block's key %x", d.iter.Key())
	}
	value, err := d.iter.ValueAndErr()
	if err != nil {
		return end, b, false, d.s.readError(err)
	}
	if b, err = decodeBlock(value); err != nil {
		return end, b, false, corrupt(err, "the block of entries up to %s", end)
	}
	return end, b, true, nil
}

func (d *diskEntries) scan(from, to event.Position, visit func(event.Position, []byte) (bool, error)) error {
	d.iter.SetBounds(entryKey(spaceEntry, d.topic, from), endKey(spaceEntry, d.topic, to))
	for ok := d.iter.First(); ok; ok = d.iter.Next() {
		p, fits := keyPosition(d.iter.Key())
		if !fits {
			return corrupt(errGarbled, "an entry's key %x", d.iter.Key())
		}
		record, err := d.iter.ValueAndErr()
		if err != nil {
			return d.s.readError(err)
		}
		if more, err := visit(p, record); err != nil || !more {
			return err
		}
	}
	return d.failed()
}

func (d *diskEntries) last(p event.Position) (event.Position, error) {
	lower, _ := topicSpan(spaceEntry, d.topic)
	d.iter.SetBounds(lower, endKey(spaceEntry, d.topic, p))
	if !d.iter.Last() {
		return p, d.failed()
	}
	at, fits := keyPosition(d.iter.Key())
	if !fits {
		return p, corrupt(errGarbled, "an entry's key %x", d.iter.Key())
	}
	return at, nil
}

func (d *diskEntries) close() error {
	if err := d.iter.Close(); err != nil {
		return d.s.readError(err)
	}
	return nil
}

// putEntry adds an entry to a topic.
func (c *committer) putEntry(topic uint64, p event.Position, r event.Record) error {
	if c.s.memory != nil {
		return c.s.memory.put(topic, p, r)
	}
	w := c.group.batch.SetDeferred(entryKeyLen, len(r))
	putEntryKey(w.Key, spaceEntry, topic, p)
	copy(w.Value, r)
	must(w.Finish())
	return nil
}

// closeBlock ends the open block of a topic at its last entry.
func (c *committer) closeBlock(m *meta) {
	m.open.prefix = m.newest
	if c.s.memory != nil {
		c.s.memory.closeBlock(m.id, m.open)
	} else {
		c.set(entryKey(spaceBlock, m.id, m.last), m.open.encode())
	}
	m.open = block{}
}

// cutEntries removes what a trim has planned.
func (c *committer) cutEntries(m *meta, p *trimPlan) {
	if c.s.memory != nil {
		c.s.memory.cut(m.id, p)
		return
	}
	lower, upper := entryKey(spaceEntry, m.id, m.first), endKey(spaceEntry, m.id, p.cut)
	c.deleteRange(lower, upper)
	if p.blocks > 0 {
		c.deleteRange(entryKey(spaceBlock, m.id, m.first), endKey(spaceBlock, m.id, p.blockCut))
	}
	if p.shortened {
		c.set(entryKey(spaceBlock, m.id, p.shortEnd), p.short.encode())
	}
	c.cleared(p.bytes, lower, upper)
}

// dropEntries removes all entries of a deleted incarnation.
func (c *committer) dropEntries(m *meta) {
	if c.s.memory != nil {
		c.s.memory.drop(m.id)
		return
	}
	lower, upper := topicSpan(spaceEntry, m.id)
	c.deleteRange(lower, upper)
	c.deleteRange(topicSpan(spaceBlock, m.id))
	c.cleared(m.bytes, lower, upper)
}

// search returns the index of the first segment that ends at p or after.
func search(segments []segment, p event.Position) int {
	return sort.Search(len(segments), func(i int) bool { return !segments[i].end.Less(p) })
}
