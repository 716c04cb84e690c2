package pebblestore

import (
	"context"
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"github.com/turnlane/turnlane/event"
)

// Lift makes to the last position of a topic, for tests of the ceiling.
func (s *Store) Lift(name string, to event.Position) error {
	return s.submit(context.Background(), &liftOp{name: name, to: to})
}

type liftOp struct {
	ticket
	name string
	to   event.Position
}

func (*liftOp) grows() bool    { return true }
func (*liftOp) publish(*Store) {}

func (op *liftOp) stage(c *committer) {
	t, err := c.s.topic(op.name)
	if err != nil {
		op.err = err
		return
	}
	t.c.last = op.to
	t.mu.Lock()
	t.v.bounds.Last = op.to
	t.mu.Unlock()
	c.touch(t)
}

// SetRaw writes a value under the key of a space, past everything.
func (s *Store) SetRaw(space byte, name string, value []byte) error {
	return s.db.Set(named(space, name), value, pebble.NoSync)
}

const (
	SpaceFormat   = spaceFormat
	SpaceTopic    = spaceTopic
	SpaceRegistry = spaceRegistry
	SpaceOwner    = spaceOwner
)

// BoundCaches makes all caches as small as they can be.
func (s *Store) BoundCaches() {
	op := &boundOp{}
	s.submit(context.Background(), op)
}

type boundOp struct{ ticket }

func (*boundOp) grows() bool    { return false }
func (*boundOp) publish(*Store) {}
func (*boundOp) stage(c *committer) {
	c.marks.bound, c.owners.bound, c.leaders.bound, c.heads.bound = 1, 1, 1, 1
	c.s.topics.bound = 2
}

// Describe tells where the memory is.
func (s *Store) Describe() string {
	used := int64(0)
	if s.memory != nil {
		used = int64(s.memory.arena.used)
	}
	return fmt.Sprintf("pieces %d MiB\n%s", used>>20, s.db.Metrics())
}
