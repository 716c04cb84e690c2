package pebblestore

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/turnlane/turnlane/store"
)

// In memory the topics share one limit. When an append would pass it, the oldest entries of the topics
// that hold most are trimmed: a busy topic takes nothing from quiet ones. No topic loses more than half
// at once, and something more than needed goes, so that trims are few.

// trimShare of the limit is trimmed at once.
const trimShare = 32

// grew and shrank keep the sizes of topics; on disk nobody needs them.

func (c *committer) grew(t *topic, bytes uint64) {
	if c.sizes != nil {
		c.logBytes += bytes
		c.sizes[t.name] += bytes
	}
}

func (c *committer) shrank(t *topic, bytes uint64) {
	if c.sizes == nil {
		return
	}
	bytes = min(bytes, c.sizes[t.name])
	c.logBytes -= bytes
	if c.sizes[t.name] -= bytes; c.sizes[t.name] == 0 {
		delete(c.sizes, t.name)
	}
}

// makeRoom trims until size more bytes fit in memory.
func (c *committer) makeRoom(size int) error {
	limit := c.s.opts.MemoryLimit
	if c.sizes == nil || c.logBytes+uint64(size) <= limit {
		return nil
	}
	if uint64(size) > limit {
		return fmt.Errorf("%w: an append of %d bytes is more than the memory limit of %d", store.ErrExhausted, size, limit)
	}
	target := limit - max(uint64(size), limit/trimShare)
	for c.logBytes > target {
		before := c.logBytes
		if err := c.trimLargest(target); err != nil {
			return err
		}
		if c.logBytes == before {
			break
		}
	}
	return nil
}

// trimLargest trims topics, largest first, each by half at most, until the target is reached.
func (c *committer) trimLargest(target uint64) error {
	type sized struct {
		name  string
		bytes uint64
	}
	all := make([]sized, 0, len(c.sizes))
	for name, bytes := range c.sizes {
		all = append(all, sized{name, bytes})
	}
	slices.SortFunc(all, func(a, b sized) int {
		return cmp.Or(cmp.Compare(b.bytes, a.bytes), cmp.Compare(a.name, b.name))
	})
	for _, x := range all {
		if c.logBytes <= target {
			return nil
		}
		t, err := c.s.topic(x.name)
		if err != nil {
			return err
		}
		keep := x.bytes - min(c.logBytes-target, (x.bytes+1)/2)
		if _, err := c.trim(t, store.TrimLimit{MaxBytes: max(1, keep)}); err != nil {
			return err
		}
	}
	return nil
}
