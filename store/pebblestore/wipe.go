package pebblestore

import (
	"bytes"
	"context"
	"fmt"
	"math"
)

// wipe is a deletion of a part of a worker's data, to be staged later.
type wipe struct {
	lower, upper []byte
	keys         [][]byte // all of it; nil if that isn't known, or too many
}

// maxWipeKeys is how many keys are deleted one by one.
const maxWipeKeys = 256

// wipe prepares to delete the kinds of a worker's data from first to last. Every deletion of a range
// that is not yet flushed makes all reads slower, and a deployment brings one for each of many workers:
// so the keys are looked up, unless there are very many, or the group under way, which can't be read,
// has some.
func (c *committer) wipe(worker string, l lastCommit, first, last byte) (wipe, error) {
	if !l.stored {
		return wipe{}, nil
	}
	w := wipe{lower: workerKey(worker, first), upper: successor(workerKey(worker, last))}
	if l.group == c.group.seq {
		return w, nil
	}
	keys := make([][]byte, 0, 4)
	err := c.s.scanRange(context.Background(), w.lower, w.upper, func(key, _ []byte) (bool, error) {
		keys = append(keys, bytes.Clone(key))
		return len(keys) <= maxWipeKeys, nil
	})
	if len(keys) <= maxWipeKeys {
		w.keys = keys
	}
	return w, err
}

func (c *committer) stageWipe(w wipe) {
	if w.keys == nil && w.lower != nil {
		c.deleteRange(w.lower, w.upper)
	}
	for _, key := range w.keys {
		c.delete(key)
	}
}

// Forget removes a worker's data, but not its owner record.
func (s *Store) Forget(ctx context.Context, worker string) error {
	if err := checkWorker(worker); err != nil {
		return fmt.Errorf("forget: %w", err)
	}
	if err := s.submit(ctx, &forgetOp{worker: worker}); err != nil {
		return fmt.Errorf("forget %s: %w", worker, err)
	}
	return nil
}

type forgetOp struct {
	ticket
	worker string
}

func (*forgetOp) grows() bool    { return false }
func (*forgetOp) publish(*Store) {}

func (op *forgetOp) stage(c *committer) {
	l, err := c.lastCommit(op.worker)
	if err != nil {
		op.err = err
		return
	}
	w, err := c.wipe(op.worker, l, kindHead, math.MaxUint8)
	if err != nil {
		op.err = err
		return
	}
	c.group.rows = true
	c.stageWipe(w)
	c.commits.put(op.worker, lastCommit{group: c.group.seq})
}
