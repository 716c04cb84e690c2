package runtime

import (
	"context"
	"errors"
	"time"

	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/store"
)

// stop ends an activation in order: nothing more comes in; the present turn ends, by itself or because
// its context does or because it is given up; its outputs are stored; its cursors are, and say that
// they can be resumed, with what is known of events that failed; then the lease is given up. An
// activation whose session is lost, or which was refused, is dropped.
func (r *Runtime) stop(a *activation, want *store.Start) {
	if !r.cfg.Session.Holds(a.owner.Session) {
		a.freeze()
	}
	a.cell.Close()
	a.mu.Lock()
	a.closing = true // before the feeds are closed: one that opens now closes itself
	a.stopTimersLocked()
	a.mu.Unlock()
	a.closeFeeds()
	a.ended.Store(true)
	if _, turning := a.cell.Turning(); turning {
		r.unslotted(func() { r.finishTurn(a) })
	}
	if !a.isFrozen() {
		if !a.lost.Load() { // else the handler still runs
			r.stopHandler(a)
		}
		r.settleStopped(a, want)
	}
	if a.typ != nil {
		a.typ.limit.leave(a)
	}
	a.mu.Lock()
	a.frozen = true
	a.ready = nil
	a.box.Clear()
	a.mu.Unlock()
}

// finishTurn waits for the present turn within the drain limit.
func (r *Runtime) finishTurn(a *activation) {
	if a.isFrozen() {
		return
	}
	limit, cancel := context.WithTimeout(r.ctx, r.cfg.DrainTimeout)
	defer cancel()
	if a.cell.Wait(limit) == nil {
		return
	}
	a.cell.Cancel()
	grace, cancel := context.WithTimeout(r.ctx, min(a.policy().grace, r.cfg.DrainTimeout))
	defer cancel()
	if a.cell.Wait(grace) == nil {
		return
	}
	r.log.Error("worker stopped while its handler runs on: the handler ignored that its context ended", "worker", a.worker.ID)
	a.lost.Store(true)
	a.cell.Abandon()
}

// settleStopped stores what is left to store, and gives up the lease.
func (r *Runtime) settleStopped(a *activation, want *store.Start) {
	limit, cancel := context.WithTimeout(r.ctx, r.cfg.DrainTimeout)
	defer cancel()
	replaced := want != nil && *want == a.start && a.failure == nil
	var err error
	if a.outboxBusy() {
		r.unslotted(func() { err = a.waitStored(limit) })
	}
	if err != nil {
		r.log.Error("worker stopped with outputs that are not stored; their events will be repeated", "worker", a.worker.ID)
	}
	if a.isFrozen() {
		return
	}
	if replaced {
		// Its successor here needs the store anyway, and must know of failed attempts.
		limit = r.ctx
	}
	if err := r.flush.wait(limit); err != nil {
		r.log.Error("worker stopped while its cursors are being stored; events will be repeated", "worker", a.worker.ID)
		return
	}
	last := store.Commit{Owner: a.owner, Start: a.start, Handover: true}
	a.snapshot(&last)
	switch {
	case a.failure != nil && want != nil && *want == a.start:
		last.Owner.State, last.Owner.Reason = stateFailed, clean(a.failure.Error())
	case !replaced:
		last.Owner.State = stateStopped
	}
	last.Owner.Pod = r.cfg.Pod
	for n := 0; ; n++ {
		err := r.starts.commit(limit, last)
		if err == nil {
			break
		}
		if a.isFrozen() {
			return
		}
		if refusal(err) {
			r.log.Error("worker stopped, but its last cursors were refused", "worker", a.worker.ID, "error", err)
			return
		}
		again := false
		r.unslotted(func() { again = sleep(limit, backoff(n, 10*time.Millisecond, time.Second)) })
		if errors.Is(err, store.ErrClosed) || !again {
			r.log.Error("worker stopped, but its cursors cannot be stored; events will be repeated", "worker", a.worker.ID, "error", err)
			return
		}
	}
	if replaced {
		return // its successor here takes the lease over
	}
	for n := 0; ; n++ {
		err := r.cfg.Store.Release(limit, last.Owner)
		if err == nil || refusal(err) {
			return
		}
		if errors.Is(err, store.ErrClosed) || !sleep(limit, backoff(n, 10*time.Millisecond, time.Second)) {
			r.log.Error("worker stopped, but its lease cannot be given up; it ends with the process's session", "worker", a.worker.ID, "error", err)
			return
		}
	}
}

// snapshot puts the cursors of all lanes, the changes of the state that they cover, and what is known of
// attempts into the last commit.
func (a *activation) snapshot(last *store.Commit) {
	for i := range a.lanes {
		a.lanes[i].cursor() // the floor learns of what the feed has examined
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range a.lanes {
		l := &a.lanes[i]
		c := l.cursorLocked(event.Position{})
		last.Cursors = appendCursor(last.Cursors, l, c)
		last.Attempts = l.lastWordsLocked(c.Position, last.Attempts)
	}
	last.State = a.state.take()
}

// appendCursor adds a cursor, unless it is that of a worker's own topic that nothing was ever sent to.
func appendCursor(all []store.Cursor, l *lane, c store.Cursor) []store.Cursor {
	if l.kind != topicLane && c.Incarnation == "" && c.Position.IsZero() {
		return all
	}
	return append(all, c)
}

func (a *activation) outboxBusy() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.outTurns > 0
}
