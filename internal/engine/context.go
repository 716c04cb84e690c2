package engine

import (
	"context"
	"sync"
	"time"
)

// Context is the context of one turn, part of the turn itself: it allocates nothing until somebody
// waits on it. It ends at the turn's deadline, by Cell.Cancel, and when the turn has ended.
type Context struct {
	started time.Time
	phase   phase // guarded by the cell's lock

	mu       sync.Mutex
	deadline time.Time // written under the cell's lock too, so that either will do for reading
	err      error
	done     chan struct{}
	afters   []*after
}

type phase uint8

const (
	fresh     phase = iota
	handling        // the handler has it
	ending          // the handler gave it back; it is being settled
	abandoned       // it was taken from the handler
)

var _ context.Context = (*Context)(nil)

func (c *Context) base() *Context { return c }

// Started returns when the handler began.
func (c *Context) Started() time.Time { return c.started }

// Deadline implements context.Context. It moves when the turn is extended.
func (c *Context) Deadline() (time.Time, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.deadline, !c.deadline.IsZero()
}

// setDeadline is called with the cell's lock held. It returns false if the context has ended.
func (c *Context) setDeadline(at time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return false
	}
	c.deadline = at
	return true
}

var closed = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// Done implements context.Context.
func (c *Context) Done() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.done == nil {
		if c.err != nil {
			c.done = closed
		} else {
			c.done = make(chan struct{})
		}
	}
	return c.done
}

// Err implements context.Context.
func (c *Context) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Value implements context.Context; a turn carries none.
func (c *Context) Value(any) any { return nil }

type after struct{ f func() }

// AfterFunc lets package context follow a turn without a goroutine for each derived context.
func (c *Context) AfterFunc(f func()) (stop func() bool) {
	a := &after{f}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		go f()
		return func() bool { return false }
	}
	c.afters = append(c.afters, a)
	return func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		for i, other := range c.afters {
			if other == a {
				c.afters = append(c.afters[:i], c.afters[i+1:]...)
				return true
			}
		}
		return false
	}
}

// end ends the context, once.
func (c *Context) end(err error) {
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return
	}
	c.err = err
	if c.done != nil {
		close(c.done)
	}
	afters := c.afters
	c.afters = nil
	c.mu.Unlock()
	for _, a := range afters {
		go a.f()
	}
}
