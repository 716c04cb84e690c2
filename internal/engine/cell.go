package engine

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/asynkron/protoactor-go/actor"
)

// Turn is one run of a handler. It embeds a Context, which makes it the handler's context too.
type Turn interface {
	context.Context
	// Handle runs the handler. It may do whatever a handler can do to its goroutine.
	Handle() error
	base() *Context
}

// Body is what a cell does: where its turns come from and where they go. No two of its methods are
// called at once, but for Ended with a Stuck or Cancelled turn.
type Body interface {
	// Name names the cell's actor; no two cells of an engine have one name.
	Name() string
	// Next returns the next turn, nil if there is none. It does not block.
	Next() Turn
	// Ended is told once of each turn how it ended. It does not block. A Stuck turn has closed the
	// cell; it is told on a goroutine of its own.
	Ended(Turn, Result)
}

// Cell is one activation. Init it before use. Its methods are safe for concurrent use.
type Cell struct {
	engine *Engine
	body   Body
	state  atomic.Uint32

	mu        sync.Mutex
	timeout   time.Duration
	grace     time.Duration
	pid       *actor.PID
	timer     *time.Timer // made at the first turn, and set at most once per deadline
	armed     bool        // the timer will fire at, or before, the present turn's deadline
	fires     time.Time   // when, if armed
	overdue   bool        // the present turn has passed its deadline; the timer is set for its grace
	cancelled bool        // by Cancel
	closed    bool        // no turn begins any more
	turn      Turn        // present, until it is settled
	settled   chan struct{}
}

// States of a cell.
const (
	idle uint32 = iota
	rung
	running
	again // running, and rung meanwhile
)

// Init makes c a cell of e. A turn's deadline is timeout after it began, and a handler that ignores
// it is given up grace later.
func (c *Cell) Init(e *Engine, body Body, timeout, grace time.Duration) {
	c.engine, c.body, c.timeout, c.grace = e, body, timeout, grace // nobody else has it yet
}

// SetLimits changes what Init was given, for the turns that begin from now on.
func (c *Cell) SetLimits(timeout, grace time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.timeout, c.grace = timeout, grace
}

// Extend moves the deadline of the present turn to d from now, but not beyond most after its beginning, and
// never back. It fails with ErrTimedOut for a turn that has passed its deadline, with ErrCancelled for one
// that is not present any more, and with ErrExtended if the deadline could not go as far.
func (c *Cell) Extend(t Turn, d, most time.Duration) error {
	x := t.base()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.turn != t || x.phase != handling || c.cancelled {
		return ErrCancelled
	}
	now := time.Now()
	if !now.Before(x.deadline) {
		return ErrTimedOut
	}
	left := x.started.Add(most).Sub(now) // of what it may take in all
	at := now.Add(min(d, left))
	if at.After(x.deadline) && !x.setDeadline(at) {
		return ErrTimedOut
	}
	// The watchdog fires at the former deadline, sees the new one and is set for that.
	if d > left {
		return ErrExtended
	}
	return nil
}

// Ring tells the cell that its body may have a turn. It never blocks.
func (c *Cell) Ring() {
	for {
		switch c.state.Load() {
		case idle:
			if c.state.CompareAndSwap(idle, rung) {
				c.send()
				return
			}
		case running:
			if c.state.CompareAndSwap(running, again) {
				return
			}
		default:
			return
		}
	}
}

// send puts the doorbell into the actor's mailbox. Whoever made the state rung sends.
func (c *Cell) send() {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return
	}
	if c.pid == nil {
		pid, err := c.engine.system.Root.SpawnNamed(c.engine.props, c.body.Name())
		if err != nil {
			c.mu.Unlock()
			panic("engine: " + err.Error()) // two cells with one name are a bug
		}
		c.pid = pid
		c.engine.spawned.Add(1)
	}
	pid := c.pid
	c.mu.Unlock()
	c.engine.system.Root.Send(pid, c)
}

// run takes turns. It is the only one that does so: the state is rung or running from the doorbell on.
func (c *Cell) run() {
	c.state.Store(running)
	returns := false
	defer func() {
		if !returns { // a handler ended this goroutine; another one goes on
			c.state.Store(rung)
			c.send()
		}
	}()
	returns = c.turns()
}

// turns always returns true, or not at all.
func (c *Cell) turns() bool {
	now := time.Now()
	for n := 0; n < c.engine.burst; {
		t := c.body.Next()
		if t == nil {
			if c.state.CompareAndSwap(running, idle) {
				return true
			}
			c.state.Store(running) // rung since, so look again
			continue
		}
		n++
		var ok bool
		if now, ok = c.take(t, now); !ok {
			return true
		}
	}
	c.state.Store(rung)
	c.send()
	return true
}

// take runs one turn. False means that the cell is closed. If the handler exits the goroutine the turn
// is settled all the same, but take does not return. A panic does not tell that it came while the
// goroutine was exiting, and recovering it does not stop the exit: so run looks at whether it comes back.
func (c *Cell) take(t Turn, now time.Time) (end time.Time, ok bool) {
	x := t.base()
	if !c.begin(t, x, now) {
		c.body.Ended(t, Result{Kind: Cancelled, Err: ErrCancelled, End: now})
		return now, false
	}
	c.engine.running.Add(1)
	r := Result{Kind: Exited, Err: ErrExited}
	defer func() {
		if r.Kind == Exited {
			if v := recover(); v != nil {
				r = panicked(v)
			}
		}
		end = time.Now()
		ok = c.end(t, x, r, end)
	}()
	err := t.Handle()
	r = Result{Kind: Returned, Err: err}
	return
}

func (c *Cell) begin(t Turn, x *Context, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	x.started, x.phase = now, handling
	x.setDeadline(now.Add(c.timeout))
	c.turn = t
	if !c.armed || c.fires.After(now.Add(c.timeout)) { // it was set for a turn that was extended
		c.arm(c.timeout)
	}
	return true
}

// end settles a turn that came back from its handler, unless it was given up before.
func (c *Cell) end(t Turn, x *Context, r Result, now time.Time) (mine bool) {
	c.mu.Lock()
	if x.phase != handling {
		c.mu.Unlock()
		c.engine.leaked.Add(-1)
		return false
	}
	x.phase = ending
	switch {
	case c.cancelled && (r.Kind != Returned || r.Err != nil):
		r.Kind, r.Err = Cancelled, ErrCancelled
	case r.Kind == Returned && !now.Before(x.deadline):
		r.Kind, r.Err = TimedOut, ErrTimedOut
	}
	c.mu.Unlock()
	c.engine.running.Add(-1)
	x.end(context.Canceled)
	r.Took, r.End = now.Sub(x.started), now
	c.body.Ended(t, r)
	c.mu.Lock()
	c.turn = nil
	if c.overdue { // the timer is set for this turn's grace, which the next one need not wait for
		c.overdue, c.armed = false, false
	}
	c.tellSettled()
	c.mu.Unlock()
	return true
}

func (c *Cell) tellSettled() {
	if c.settled != nil {
		close(c.settled)
		c.settled = nil
	}
}

func (c *Cell) arm(d time.Duration) {
	c.armed, c.fires = true, time.Now().Add(d)
	if c.timer == nil {
		c.timer = time.AfterFunc(d, c.tick)
	} else {
		c.timer.Reset(d)
	}
}

// tick is the watchdog. The timer is not touched by turns that end in time: it fires once per timeout
// at most, looks at the turn that is present then, and is set for that one's deadline.
func (c *Cell) tick() {
	c.mu.Lock()
	if c.turn == nil || c.turn.base().phase != handling {
		c.armed, c.overdue = false, false
		c.mu.Unlock()
		return
	}
	t, x := c.turn, c.turn.base()
	now := time.Now()
	switch left := x.deadline.Sub(now); {
	case left > 0:
		c.overdue = false
		c.arm(left)
		c.mu.Unlock()
	case left+c.grace > 0:
		c.overdue = true
		c.arm(left + c.grace)
		c.mu.Unlock()
		x.end(context.DeadlineExceeded)
	default:
		c.giveUp(t, x, context.DeadlineExceeded, Result{Kind: Stuck, Err: ErrStuck, Took: now.Sub(x.started), End: now})
	}
}

// giveUp takes the present turn from its handler, and unlocks. The goroutine counts as leaked until it
// ends.
func (c *Cell) giveUp(t Turn, x *Context, why error, r Result) {
	x.phase = abandoned
	c.mu.Unlock()
	c.Close()
	c.engine.running.Add(-1)
	c.engine.leaked.Add(1)
	x.end(why)
	c.body.Ended(t, r)
	c.mu.Lock()
	c.turn = nil
	c.tellSettled()
	c.mu.Unlock()
}

// Close keeps further turns from beginning. The present one goes on.
func (c *Cell) Close() {
	c.mu.Lock()
	c.closed = true
	pid := c.pid
	c.pid = nil
	c.mu.Unlock()
	if pid != nil {
		c.engine.system.Root.Stop(pid)
		c.engine.spawned.Add(-1)
	}
}

// Wait waits for the present turn to be settled, or for ctx.
func (c *Cell) Wait(ctx context.Context) error {
	for {
		c.mu.Lock()
		if c.turn == nil {
			c.mu.Unlock()
			return nil
		}
		if c.settled == nil {
			c.settled = make(chan struct{})
		}
		settled := c.settled
		c.mu.Unlock()
		select {
		case <-settled:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Cancel ends the present turn's context. If its handler returns an error then, the turn is Cancelled.
// The cell must be closed.
func (c *Cell) Cancel() {
	c.mu.Lock()
	c.cancelled = true
	t := c.turn
	c.mu.Unlock()
	if t != nil {
		t.base().end(context.Canceled)
	}
}

// Abandon closes the cell and gives up the present turn, if there is one: the body is told that it was
// Cancelled, now, and the handler's goroutine counts as leaked until it ends.
func (c *Cell) Abandon() {
	c.Close()
	c.mu.Lock()
	t := c.turn
	if t == nil || t.base().phase != handling {
		c.mu.Unlock()
		return
	}
	x, now := t.base(), time.Now()
	c.giveUp(t, x, context.Canceled, Result{Kind: Cancelled, Err: ErrCancelled, Took: now.Sub(x.started), End: now})
}

// Turning returns the present turn, if there is one.
func (c *Cell) Turning() (Turn, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.turn, c.turn != nil
}
