package runtime

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/turnlane/turnlane/cursors"
	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/store"
)

// flusher stores the cursors that moved, of all activations together, once per interval.
type flusher struct {
	r       *Runtime
	pending atomic.Int64 // when the oldest change that is not stored was made, Unix nanoseconds; 0 for none
	flushes atomic.Int64
	failing bool // only used by the run loop

	wake chan struct{} // of size 1: something is urgent

	mu    sync.Mutex
	dirty cursors.Dirty[*activation]
	rush  cursors.Dirty[*activation] // those of which something waits for what is stored
	idle  chan struct{}              // closed when no round is under way
}

// Bounds of one commit call.
const (
	maxCommits       = 1024
	maxCommitCursors = 8192
	maxCommitState   = 4 << 20 // bytes
	// sweepEvery is how often cursors that moved only over events of others are stored, and memory of
	// lanes that went quiet is given back.
	sweepEvery = 5 * time.Second
)

func newFlusher(r *Runtime) *flusher {
	idle := make(chan struct{})
	close(idle)
	return &flusher{r: r, idle: idle, wake: make(chan struct{}, 1)}
}

// add has the activation's dirty lanes stored with the next flush.
func (f *flusher) add(a *activation, now time.Time) {
	f.mu.Lock()
	f.dirty.Mark(a)
	f.mu.Unlock()
	f.pending.CompareAndSwap(0, now.UnixNano())
}

// urgent has the activation's dirty lanes stored at once.
func (f *flusher) urgent(a *activation) {
	f.mu.Lock()
	f.rush.Mark(a)
	f.mu.Unlock()
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// run flushes until ctx ends. What is urgent and could not be stored is tried again with the next tick.
func (f *flusher) run(ctx context.Context) {
	tick := time.NewTicker(f.r.cfg.CursorFlushInterval)
	defer tick.Stop()
	swept := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			if now.Sub(swept) >= sweepEvery {
				f.sweep()
				swept = now
			}
			f.pass(ctx, &f.rush)
			f.flush(ctx)
		case <-f.wake:
			f.pass(ctx, &f.rush)
		}
	}
}

// flush is one round for all that is dirty.
func (f *flusher) flush(ctx context.Context) {
	oldest := f.pending.Swap(0)
	if again := f.pass(ctx, &f.dirty); again {
		f.pending.Store(oldest)
	}
	f.flushes.Add(1)
}

// pass stores what a set of activations has, and reports whether some of it must be stored again.
func (f *flusher) pass(ctx context.Context, set *cursors.Dirty[*activation]) bool {
	f.mu.Lock()
	took := set.Take()
	if len(took) > 0 {
		f.idle = make(chan struct{})
	}
	idle := f.idle
	f.mu.Unlock()
	if len(took) == 0 {
		return false
	}
	again := map[*activation]bool{}
	var commits []store.Commit
	var of []*activation
	n, size := 0, 0
	write := func() {
		if len(commits) > 0 {
			f.write(ctx, of, commits, again)
		}
		commits, of, n, size = nil, nil, 0, 0
	}
	for _, a := range took {
		c := store.Commit{Owner: store.Owner{Worker: a.owner.Worker, Session: a.owner.Session, Token: a.owner.Token}, Start: a.start}
		if !a.takeDirty(&c) {
			continue
		}
		commits = append(commits, c)
		of = append(of, a)
		n += len(c.Cursors) + len(c.Attempts)
		for i := range c.State {
			size += len(c.State[i].Key) + len(c.State[i].Value)
		}
		if len(commits) >= maxCommits || n >= maxCommitCursors || size >= maxCommitState {
			write()
		}
	}
	write()
	f.mu.Lock()
	set.Put(took, func(a *activation) bool { return again[a] })
	close(idle)
	f.mu.Unlock()
	return len(again) > 0
}

// write is one commit call. Activations whose cursors must be written again are put into again.
func (f *flusher) write(ctx context.Context, of []*activation, commits []store.Commit, again map[*activation]bool) {
	errs, err := f.r.cfg.Store.Commit(ctx, commits)
	if (err != nil) != f.failing {
		if f.failing = err != nil; f.failing {
			f.r.log.Warn("cursors cannot be stored; trying again", "error", err)
		} else {
			f.r.log.Info("cursors are stored again")
		}
	}
	for i, a := range of {
		one := err
		if err == nil {
			one = errs[i]
		}
		switch {
		case one == nil:
			a.told()
		case refusal(one):
			a.refused(one)
		default:
			if a.dirtyAgain(&commits[i]) {
				again[a] = true
			}
		}
	}
}

// refusal reports whether an error says that the activation is not the worker's owner any more.
func refusal(err error) bool {
	return errors.Is(err, store.ErrStaleToken) || errors.Is(err, store.ErrSessionExpired)
}

// wait waits until the round under way is over, if there is one.
func (f *flusher) wait(ctx context.Context) error {
	f.mu.Lock()
	idle := f.idle
	f.mu.Unlock()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// takeDirty puts what changed since it was stored last into a commit, and takes it for stored: the cursors
// that moved, what is known of attempts, and the changes of the state that the cursors cover. It reports
// whether there is anything.
func (a *activation) takeDirty(c *store.Commit) bool {
	a.mu.Lock()
	if a.closing || a.frozen {
		a.dirty = a.dirty[:0]
		a.mu.Unlock()
		return false
	}
	lanes := slices.Clone(a.dirty)
	a.mu.Unlock()
	for _, i := range lanes {
		a.lanes[i].cursor() // the floor learns of what the feed has examined
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closing || a.frozen {
		return false
	}
	// One moment for all lanes and the state: a turn that ends now is either in both, or in neither.
	lanes = a.dirty // with those that became dirty meanwhile
	a.dirty = nil
	slices.Sort(lanes)
	c.Cursors = make([]store.Cursor, 0, len(lanes))
	for _, i := range lanes {
		l := &a.lanes[i]
		l.dirty = false
		at := l.stored
		if at == unstored {
			at = event.Position{}
		}
		if now := l.cursorLocked(event.Position{}); now.Position != l.stored {
			l.stored, at = now.Position, now.Position
			c.Cursors = append(c.Cursors, now)
		}
		c.Attempts = l.changesLocked(at, c.Attempts)
		if l.next.what != nothing {
			l.next.sent = true
		}
	}
	c.State = a.state.take()
	return len(c.Cursors)+len(c.Attempts)+len(c.State) > 0
}

// unstored is a cursor that differs from any other.
var unstored = event.MaxPosition

// told lets those lanes go on that waited for what is stored now, and turns that waited for room. The flusher
// has one commit of an activation under way at a time.
func (a *activation) told() {
	for i := range a.lanes {
		l := &a.lanes[i]
		a.mu.Lock()
		do := l.next
		if do.sent {
			l.next = next{}
		}
		a.mu.Unlock()
		if do.sent {
			a.goOn(l, do)
		}
	}
	a.mu.Lock()
	rings := a.roomLocked()
	a.mu.Unlock()
	if rings {
		a.cell.Ring()
	}
}

// dirtyAgain takes back that a commit is stored. It reports whether it is to be written again.
func (a *activation) dirtyAgain(c *store.Commit) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.frozen {
		return false
	}
	k := 0
	for i := range a.lanes {
		l := &a.lanes[i]
		if k < len(c.Cursors) && l.topic == c.Cursors[k].Topic {
			k++
			l.stored = unstored
			l.markDirtyLocked()
		}
		if len(c.Attempts) > 0 {
			l.tellAgainLocked(c.Attempts)
			if len(l.known)+len(l.gone) > 0 || l.next.what != nothing {
				l.markDirtyLocked()
			}
		}
	}
	a.state.putBack(c.State)
	return !a.closing
}

// sweep looks at all activations.
func (f *flusher) sweep() {
	f.r.mu.Lock()
	all := make([]*activation, 0, len(f.r.places))
	for _, p := range f.r.places {
		if p.current != nil {
			all = append(all, p.current)
		}
	}
	f.r.mu.Unlock()
	now := time.Now()
	for _, a := range all {
		if a.sweep() {
			f.add(a, now)
		}
	}
}

// sweep gives back memory, and marks cursors that moved over events of other members dirty. It reports
// whether there are any.
func (a *activation) sweep() (dirty bool) {
	a.mu.Lock()
	if a.warm && !a.frozen {
		a.warm = false
		a.box.Compact()
		for i := range a.lanes {
			a.lanes[i].floor.Compact()
			a.warm = a.warm || a.lanes[i].floor.Open() > 0 || a.box.Len(i) > 0
		}
	}
	member := !a.slots.All() && !a.frozen && !a.closing
	a.mu.Unlock()
	if !member {
		return false
	}
	for i := range a.lanes {
		l := &a.lanes[i]
		c, _, _ := l.cursor()
		a.mu.Lock()
		if c.Position != l.stored && l.markDirtyLocked() {
			dirty = true
		}
		a.mu.Unlock()
	}
	return dirty
}
