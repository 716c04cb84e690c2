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

	mu    sync.Mutex
	dirty cursors.Dirty[*activation]
	idle  chan struct{} // closed when no round is under way
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
	return &flusher{r: r, idle: idle}
}

// add has the activation's dirty lanes stored with the next flush.
func (f *flusher) add(a *activation, now time.Time) {
	f.mu.Lock()
	f.dirty.Mark(a)
	f.mu.Unlock()
	f.pending.CompareAndSwap(0, now.UnixNano())
}

// run flushes until ctx ends.
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
			f.flush(ctx)
		}
	}
}

// flush is one round.
func (f *flusher) flush(ctx context.Context) {
	f.mu.Lock()
	took := f.dirty.Take()
	if len(took) > 0 {
		f.idle = make(chan struct{})
	}
	idle := f.idle
	f.mu.Unlock()
	if len(took) == 0 {
		return
	}
	oldest := f.pending.Swap(0)
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
		found, state, ok := a.takeDirty()
		if !ok {
			continue
		}
		commits = append(commits, store.Commit{Owner: store.Owner{Worker: a.owner.Worker, Session: a.owner.Session, Token: a.owner.Token},
			Start: a.start, Cursors: found, State: state})
		of = append(of, a)
		n += len(found)
		for i := range state {
			size += len(state[i].Key) + len(state[i].Value)
		}
		if len(commits) >= maxCommits || n >= maxCommitCursors || size >= maxCommitState {
			write()
		}
	}
	write()
	f.mu.Lock()
	f.dirty.Put(took, func(a *activation) bool { return again[a] })
	close(idle)
	f.mu.Unlock()
	if len(again) > 0 {
		f.pending.Store(oldest)
	}
	f.flushes.Add(1)
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
			a.stateStored()
		case refusal(one):
			a.refused(one)
		default:
			if a.dirtyAgain(commits[i].Cursors, commits[i].State) {
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

// takeDirty returns the cursors that moved since they were stored last and the changes of the state that
// they cover, and takes both for stored. It returns false if there is neither.
func (a *activation) takeDirty() ([]store.Cursor, []store.StateChange, bool) {
	a.mu.Lock()
	if a.closing || a.frozen {
		a.dirty = a.dirty[:0]
		a.mu.Unlock()
		return nil, nil, false
	}
	lanes := slices.Clone(a.dirty)
	a.mu.Unlock()
	for _, i := range lanes {
		a.lanes[i].cursor() // the floor learns of what the feed has examined
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closing || a.frozen {
		return nil, nil, false
	}
	// One moment for all lanes and the state: a turn that ends now is either in both, or in neither.
	lanes = a.dirty // with those that became dirty meanwhile
	a.dirty = nil
	slices.Sort(lanes)
	found := make([]store.Cursor, 0, len(lanes))
	for _, i := range lanes {
		l := &a.lanes[i]
		l.dirty = false
		if c := l.cursorLocked(event.Position{}); c.Position != l.stored {
			l.stored = c.Position
			found = append(found, c)
		}
	}
	state := a.state.take()
	return found, state, len(found) > 0 || len(state) > 0
}

// unstored is a cursor that differs from any other.
var unstored = event.MaxPosition

// dirtyAgain takes back that cursors and changes of the state are stored. It reports whether they are to be
// written again.
func (a *activation) dirtyAgain(cursors []store.Cursor, state []store.StateChange) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.frozen {
		return false
	}
	k := 0
	for i := range a.lanes {
		if l := &a.lanes[i]; k < len(cursors) && l.topic == cursors[k].Topic {
			k++
			l.stored = unstored
			l.markDirtyLocked()
		}
	}
	a.state.putBack(state)
	return !a.closing
}

// stateStored takes note that a commit was written.
func (a *activation) stateStored() {
	a.mu.Lock()
	rings := a.roomLocked()
	a.mu.Unlock()
	if rings {
		a.cell.Ring()
	}
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
