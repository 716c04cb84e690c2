package pebblestore

import (
	"context"
	"fmt"
	"time"

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
	c.marks.bound, c.owners.bound, c.leaders.bound, c.commits.bound = 1, 1, 1, 1
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

func (s *Store) SetLayout(version uint64) error {
	w := newWriter(4)
	w.uint(version)
	return s.db.Set(formatKey, w.seal(), pebble.Sync)
}

func (s *Store) Flush() { s.db.Flush() }

// LookAtDisk looks at the free space now.
func (s *Store) LookAtDisk() { s.submit(context.Background(), &lookOp{}) }

type lookOp struct{ ticket }

func (*lookOp) grows() bool        { return false }
func (*lookOp) publish(*Store)     {}
func (*lookOp) stage(c *committer) { c.s.space.look(time.Now()) }

// AwaitCompactions returns when the space of large trims is free.
func (s *Store) AwaitCompactions() { s.submit(context.Background(), &awaitOp{}) }

type awaitOp struct{ ticket }

func (*awaitOp) grows() bool        { return false }
func (*awaitOp) publish(*Store)     {}
func (*awaitOp) stage(c *committer) { c.compactions.Wait() }

// Stall keeps the committer busy until the returned function is called.
func (s *Store) Stall() (release func()) {
	op := &stallOp{begun: make(chan struct{}), end: make(chan struct{})}
	done := make(chan struct{})
	go func() { s.submit(context.Background(), op); close(done) }()
	<-op.begun
	return func() { close(op.end); <-done; s.Check(context.Background()) }
}

type stallOp struct {
	ticket
	begun, end chan struct{}
}

func (*stallOp) grows() bool         { return false }
func (*stallOp) publish(*Store)      {}
func (op *stallOp) stage(*committer) { close(op.begun); <-op.end }

// Queued is how many operations wait for the committer.
func (s *Store) Queued() int {
	s.queue.mu.Lock()
	defer s.queue.mu.Unlock()
	return len(s.queue.ops)
}

// TableBytes is the size of the database's tables, without those about to be deleted.
func (s *Store) TableBytes() int64 {
	total := s.db.Metrics().Total()
	return total.AggregateSize()
}

// Abandon closes the database of a store that failed, whatever it says.
func (s *Store) Abandon() {
	defer func() { recover() }()
	s.db.Close()
}

// CachedTopics is how many topics are in memory.
func (s *Store) CachedTopics() int {
	s.topics.mu.RLock()
	defer s.topics.mu.RUnlock()
	return len(s.topics.m)
}
