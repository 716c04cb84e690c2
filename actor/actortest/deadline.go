package actortest

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/turnlane/turnlane/actor"
)

// deadline is a context whose deadline can be moved.
type deadline struct {
	context.Context
	cancel  context.CancelCauseFunc
	started time.Time
	timeout time.Duration

	mu    sync.Mutex
	timer *time.Timer
	at    time.Time
	err   error
}

func newDeadline(parent context.Context, timeout time.Duration) *deadline {
	now := time.Now()
	d := &deadline{started: now, timeout: timeout, at: now.Add(timeout)}
	d.Context, d.cancel = context.WithCancelCause(parent)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.timer = time.AfterFunc(timeout, func() { d.end(context.DeadlineExceeded) })
	return d
}

func (d *deadline) end(err error) {
	d.mu.Lock()
	if d.err == nil {
		d.err = err
		d.timer.Stop()
	}
	d.mu.Unlock()
	d.cancel(err)
}

// Deadline implements context.Context.
func (d *deadline) Deadline() (time.Time, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.at, true
}

// Err implements context.Context.
func (d *deadline) Err() error {
	if d.Context.Err() == nil {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.err != nil {
		return d.err
	}
	return d.Context.Err()
}

// host is what turns of an Activation are run by.
type host struct{ ctx *deadline }

// Extend implements actor.Host as a runtime does.
func (h host) Extend(by time.Duration) error {
	d := h.ctx
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.err != nil {
		return d.err
	}
	most := actor.MaxTurn(d.timeout)
	now := time.Now()
	left := d.started.Add(most).Sub(now)
	if at := now.Add(min(by, left)); at.After(d.at) {
		d.at = at
		d.timer.Reset(min(by, left))
	}
	if by > left {
		return fmt.Errorf("the turn has had all the time that it may have: %s at most with a handler timeout of %s", most, d.timeout)
	}
	return nil
}

// Progress implements actor.Host; nobody looks on.
func (host) Progress(string) {}
