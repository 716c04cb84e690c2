package pebblestore

import (
	"context"
	"fmt"

	"github.com/turnlane/turnlane/store"
)

// row is what a Txn has to know of a registry record.
type row struct {
	revision uint64 // Absent without a record
	broken   error
}

func encodeItem(revision uint64, value []byte) []byte {
	w := newWriter(10 + 5 + len(value))
	w.uint(revision)
	w.bytes(value)
	return w.seal()
}

// decodeItem returns a value that is a slice of what was read.
func decodeItem(stored []byte) (revision uint64, value []byte, err error) {
	r := open(stored)
	revision, value = r.uint(), r.bytes()
	return revision, value, r.done()
}

func checkKey(key string) error {
	if !nameable(key) {
		return fmt.Errorf("registry key of %d bytes: want 1 to %d", len(key), maxName)
	}
	return nil
}

// Get returns the record of a key.
func (s *Store) Get(ctx context.Context, key string) (store.Item, error) {
	if err := s.begin(); err != nil {
		return store.Item{}, fmt.Errorf("get %s: %w", key, err)
	}
	defer s.life.RUnlock()
	stored, err := s.get(named(spaceRegistry, key))
	if err == nil {
		err = s.synced.wait(ctx)
	}
	switch {
	case err != nil:
		return store.Item{}, fmt.Errorf("get %s: %w", key, err)
	case stored == nil:
		return store.Item{}, fmt.Errorf("get %s: %w", key, store.ErrNotFound)
	}
	revision, value, err := decodeItem(stored)
	if err != nil {
		return store.Item{}, corrupt(err, "registry record %q", key)
	}
	return store.Item{Key: key, Value: value, Revision: revision}, nil
}

// List returns records by key. A limit of 0 or less is none.
func (s *Store) List(ctx context.Context, prefix, after string, limit int) ([]store.Item, error) {
	if err := s.begin(); err != nil {
		return nil, fmt.Errorf("list %q: %w", prefix, err)
	}
	defer s.life.RUnlock()
	var items []store.Item
	err := s.scan(ctx, named(spaceRegistry, prefix), named(spaceRegistry, after), func(key, stored []byte) (bool, error) {
		item := store.Item{Key: string(key[1:])}
		revision, value, err := decodeItem(append([]byte(nil), stored...))
		if err != nil {
			item.Err = corrupt(err, "registry record %q", item.Key)
		} else {
			item.Revision, item.Value = revision, value
		}
		items = append(items, item)
		return limit <= 0 || len(items) < limit, nil
	})
	if err == nil {
		err = s.synced.wait(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("list %q: %w", prefix, err)
	}
	return items, nil
}

// Txn makes all changes or none. All conditions are about the records as they were before it. A broken
// record can only be changed or deleted under the condition Any.
func (s *Store) Txn(ctx context.Context, changes ...store.Change) ([]uint64, error) {
	for _, ch := range changes {
		if err := checkKey(ch.Key); err != nil {
			return nil, err
		}
	}
	op := &txnOp{changes: changes, revisions: make([]uint64, len(changes))}
	if len(changes) == 0 {
		return op.revisions, nil
	}
	if err := s.submit(ctx, op); err != nil {
		return nil, fmt.Errorf("registry transaction: %w", err)
	}
	return op.revisions, nil
}

type txnOp struct {
	ticket
	changes   []store.Change
	revisions []uint64
	written   bool
}

// grows: a transaction that only deletes is let through when the disk is full.
func (op *txnOp) grows() bool {
	for _, ch := range op.changes {
		if !ch.Check && !ch.Delete {
			return true
		}
	}
	return false
}

func (op *txnOp) stage(c *committer) {
	for i, ch := range op.changes {
		now, err := c.row(ch.Key)
		switch {
		case err != nil:
			op.err = err
			return
		case ch.If == store.Any || now.broken == nil && now.revision == ch.If:
			continue
		case now.broken != nil:
			op.err = now.broken
			return
		}
		op.err = &store.ConflictError{Index: i, Key: ch.Key, Revision: now.revision}
		return
	}
	for i, ch := range op.changes {
		if ch.Check {
			continue
		}
		op.written, c.group.rows = true, true
		key := named(spaceRegistry, ch.Key)
		if ch.Delete {
			c.delete(key)
			c.changed[ch.Key] = row{revision: store.Absent}
			continue
		}
		c.counters.revision++
		c.counted = true
		op.revisions[i] = c.counters.revision
		c.set(key, encodeItem(c.counters.revision, ch.Value))
		c.changed[ch.Key] = row{revision: c.counters.revision}
	}
}

func (op *txnOp) publish(s *Store) {
	if !op.written {
		return
	}
	for _, ch := range op.changes {
		if !ch.Check {
			s.watches.ring(ch.Key)
		}
	}
}

// row looks a record up, as decided so far.
func (c *committer) row(key string) (row, error) {
	if r, ok := c.changed[key]; ok {
		return r, nil
	}
	stored, err := c.s.get(named(spaceRegistry, key))
	if err != nil || stored == nil {
		return row{revision: store.Absent}, err
	}
	revision, _, err := decodeItem(stored)
	if err != nil {
		return row{broken: corrupt(err, "registry record %q", key)}, nil
	}
	return row{revision: revision}, nil
}
