package runtime

import (
	"fmt"
	"maps"
	"slices"

	"github.com/turnlane/turnlane/actor"
	"github.com/turnlane/turnlane/cursors"
	storev1 "github.com/turnlane/turnlane/proto/turnlane/store/v1"
	turnlanev1 "github.com/turnlane/turnlane/proto/turnlane/v1"
	"github.com/turnlane/turnlane/store"
)

// ledger keeps the turns of a worker with state in the order in which they ran, whatever lane their events
// came on, until they are settled: done, and their outputs stored. What a turn did to the state may rest on
// what the turn before it did, also on another lane; so the floors of all lanes pass only over the longest
// run of settled turns from the front, and the changes of exactly these go with the next commit:
//
//	turns in order   A lane 1   B lane 2   C lane 1   D lane 2
//	                 settled    settled    waits      settled
//	committed        └── floors and changes ──┘       later, with C's
//
// A ledger is guarded by its activation's lock. A nil ledger is one of a worker that has no state yet; turns
// before the first that changes it rest on nothing.
type ledger struct {
	lines   []*done // in the order of the turns
	bytes   int     // of the changes in lines
	pending map[string]store.StateChange
	size    int // bytes of pending
}

// done is a turn that succeeded.
type done struct {
	lane    int
	ticket  cursors.Ticket
	settled bool
	changes []actor.StateChange
	bytes   int
}

// Bounds of a ledger: above them a worker takes no turn.
const (
	maxLines   = 4              // times the bound on turns in the outbox
	maxPending = actor.MaxState // bytes of changes that could not be stored for some time
)

// full reports whether a worker must wait until more is settled, given bounds of the outbox.
func (g *ledger) full(turns, bytes int) bool {
	if g == nil {
		return false
	}
	return len(g.lines) > 0 && (len(g.lines) >= maxLines*turns || g.bytes >= bytes) || g.size > maxPending
}

// enter writes a turn that succeeded into the ledger, and lets the turns that follow see its changes.
func (a *activation) enter(t *turn, changes []actor.StateChange) {
	if len(changes) > 0 { // no turn is open but this one, which is closed
		a.values.Apply(changes)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.state == nil {
		if len(changes) == 0 {
			return
		}
		a.state = &ledger{}
	}
	d := &done{lane: t.item.Lane, ticket: t.ticket, changes: changes}
	for i := range changes {
		d.bytes += len(changes[i].Key) + len(changes[i].Value)
	}
	t.done = d
	a.state.lines = append(a.state.lines, d)
	a.state.bytes += d.bytes
}

// settledLocked takes note that a turn is settled. It reports whether the activation must be told to the
// flusher.
func (a *activation) settledLocked(t *turn) (tell bool) {
	if t.done == nil {
		l := t.lane()
		return l.floor.Done(t.ticket) && l.markDirtyLocked()
	}
	t.done.settled = true
	g := a.state
	n := 0
	for ; n < len(g.lines) && g.lines[n].settled; n++ {
		d := g.lines[n]
		g.lines[n] = nil
		l := &a.lanes[d.lane]
		if l.floor.Done(d.ticket) && l.markDirtyLocked() || len(d.changes) > 0 {
			tell = true
		}
		g.bytes -= d.bytes
		for _, c := range d.changes {
			g.change(store.StateChange(c))
		}
	}
	if g.lines = g.lines[n:]; len(g.lines) == 0 {
		g.lines = nil
	}
	return tell
}

func (g *ledger) change(c store.StateChange) {
	if g.pending == nil {
		g.pending = make(map[string]store.StateChange)
	}
	if old, ok := g.pending[c.Key]; ok {
		g.size -= len(old.Key) + len(old.Value)
	}
	g.pending[c.Key] = c
	g.size += len(c.Key) + len(c.Value)
}

// take returns the changes to be committed, in the order of their keys.
func (g *ledger) take() []store.StateChange {
	if g == nil || len(g.pending) == 0 {
		return nil
	}
	changes := make([]store.StateChange, 0, len(g.pending))
	for _, key := range slices.Sorted(maps.Keys(g.pending)) {
		changes = append(changes, g.pending[key])
	}
	g.pending, g.size = nil, 0
	return changes
}

// putBack takes back that changes were committed; those made since go before.
func (g *ledger) putBack(changes []store.StateChange) {
	for _, c := range changes {
		if _, newer := g.pending[c.Key]; !newer {
			g.change(c)
		}
	}
}

// keepState gives an activation the state that the worker has stored, or says why it can have none.
func (a *activation) keepState(rec *storev1.WorkerRecord, stored map[string][]byte) {
	if mode := rec.GetReplay().GetMode(); mode == turnlanev1.ReplayMode_REPLAY_MODE_OFF {
		a.values = *actor.NoState(fmt.Errorf("worker %s has replay off, and so no state: what a crash took would be lost to it; create the worker anew with replay cursor", a.worker.ID))
		return
	}
	if len(stored) > 0 {
		a.values = *actor.NewValues(stored)
		a.state = &ledger{}
	}
}
