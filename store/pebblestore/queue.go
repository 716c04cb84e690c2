package pebblestore

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/turnlane/turnlane/store"
)

// operation is one write on its way: queued → staged → durable → published → answered.
type operation interface {
	// stage decides the outcome and puts what it writes into the batch. Called by the committer, in
	// the order of arrival; everything staged before is decided, but may not be durable yet.
	stage(c *committer)
	// publish shows the outcome to readers, once it is durable.
	publish(s *Store)
	// grows reports whether it needs space, so that it is refused when there is none.
	grows() bool
	base() *ticket
}

// The states of a ticket.
const (
	queued int32 = iota
	taken
	abandoned
)

// ticket is the part of an operation that its caller waits on.
type ticket struct {
	state atomic.Int32
	done  chan struct{} // one token when it is answered
	err   error         // of the whole call; written before done
}

func (t *ticket) base() *ticket { return t }

// queue holds the operations that the committer has not taken yet. It is as long as there are callers.
type queue struct {
	mu     sync.Mutex
	ops    []operation
	closed bool
	ring   chan struct{}
}

func (q *queue) init() { q.ring = make(chan struct{}, 1) }

func (q *queue) push(op operation) bool {
	q.mu.Lock()
	if q.closed {
		q.mu.Unlock()
		return false
	}
	q.ops = append(q.ops, op)
	first := len(q.ops) == 1
	q.mu.Unlock()
	if first {
		q.wake()
	}
	return true
}

func (q *queue) wake() {
	select {
	case q.ring <- struct{}{}:
	default:
	}
}

// take waits for operations and returns all there are, leaving spare for the next ones. It returns
// false when the queue is closed and empty.
func (q *queue) take(spare []operation) ([]operation, bool) {
	for {
		q.mu.Lock()
		ops, closed := q.ops, q.closed
		if len(ops) > 0 {
			q.ops = spare[:0]
			q.mu.Unlock()
			return ops, true
		}
		q.mu.Unlock()
		if closed {
			return nil, false
		}
		<-q.ring
	}
}

// close refuses what comes from now on. It returns false if that was so already.
func (q *queue) close() bool {
	q.mu.Lock()
	was := q.closed
	q.closed = true
	q.mu.Unlock()
	q.wake()
	return !was
}

// submit hands an operation to the committer and waits until it is answered or ctx ends. An operation
// that ctx ended must not be used again.
func (s *Store) submit(ctx context.Context, op operation) error {
	if err := ctx.Err(); err != nil {
		return notWritten(ctx)
	}
	t := op.base()
	if t.done == nil {
		t.done = make(chan struct{}, 1)
	}
	if !s.queue.push(op) {
		return store.ErrClosed
	}
	select {
	case <-t.done:
		return t.err
	case <-ctx.Done():
	}
	if t.state.CompareAndSwap(queued, abandoned) {
		return notWritten(ctx)
	}
	select {
	case <-t.done:
		return t.err
	default:
		return fmt.Errorf("%w: %w", store.ErrOutcomeUnknown, context.Cause(ctx))
	}
}

func notWritten(ctx context.Context) error {
	return fmt.Errorf("%w: nothing was written: %w", store.ErrUnavailable, context.Cause(ctx))
}
