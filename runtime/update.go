package runtime

import (
	"context"
	"errors"
	"maps"
	"sync"
	"sync/atomic"

	"github.com/turnlane/turnlane/actor"
)

// pause keeps an activation from its next turn while something about it is changed.
type pause struct {
	wanted atomic.Bool

	mu    sync.Mutex
	ended chan struct{} // closed when the present turn is over; nil if nobody waits
}

// turnEnded tells that the present turn is over, and everything that follows from it is done.
//
// Next looks at wanted under the activation's lock before it sets inTurn; whoever pauses sets wanted and
// then, under that lock, looks at inTurn. So either Next saw wanted and gives out nothing, or the turn that it
// gave out is seen, and its end is told: inTurn is false before wanted is looked at here.
func (a *activation) turnEnded() {
	a.inTurn.Store(false)
	if !a.pause.wanted.Load() {
		return
	}
	a.pause.mu.Lock()
	defer a.pause.mu.Unlock()
	if a.pause.ended != nil {
		close(a.pause.ended)
		a.pause.ended = nil
	}
}

// betweenTurns calls do while no turn is present and none begins, once the present one is over. It fails if
// ctx ends before that.
func (a *activation) betweenTurns(ctx context.Context, do func()) error {
	p := &a.pause
	ended := make(chan struct{})
	p.mu.Lock()
	p.ended = ended
	p.mu.Unlock()
	a.mu.Lock()
	p.wanted.Store(true)
	present := a.inTurn.Load()
	a.mu.Unlock()
	defer func() {
		p.mu.Lock()
		p.ended = nil
		p.mu.Unlock()
		p.wanted.Store(false)
		a.cell.Ring()
	}()
	if present {
		select {
		case <-ended:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	do()
	return nil
}

// update has an activation take over the edition of its worker's record that its placement names, between
// two turns: tags and policy as they are, and a changed config by another handler, since that was made from
// the former one. The former handler is stopped before. If the new one cannot be made the activation ends,
// and is reported as FAILED. The caller has a slot.
func (r *Runtime) update(ctx context.Context, a *activation, edition uint64) error {
	rec, err := r.record(ctx, a.worker.ID, a.start)
	if err != nil {
		return err
	}
	was := a.shown // nobody else changes it
	now := *was
	now.Config, now.Tags = rec.GetConfig(), rec.GetTags()
	if was.Name != rec.GetName() {
		now.Name = rec.GetName()
	}
	err = errors.New("the turn did not end")
	r.unslotted(func() {
		err = a.betweenTurns(ctx, func() {
			r.slotted(func() { r.takeOver(ctx, a, &now, policyOf(rec.GetPolicy()), !maps.Equal(was.Config, now.Config)) })
		})
	})
	if err != nil {
		return err
	}
	a.edition = edition
	return nil
}

func (r *Runtime) takeOver(ctx context.Context, a *activation, now *actor.Worker, p policy, reconfigured bool) {
	if a.isFrozen() || a.ended.Load() {
		return // another activation reads the record
	}
	a.rules.Store(&p)
	a.cell.SetLimits(p.timeout, p.grace)
	a.mu.Lock()
	a.shown = now
	a.mu.Unlock()
	if !reconfigured {
		r.log.Info("worker updated", "worker", a.worker.ID)
		return
	}
	r.stopHandler(a)
	a.handler, a.commands = nil, nil
	if err := r.makeHandler(ctx, a); err != nil {
		a.ended.Store(true)
		a.cell.Close()
		if ctx.Err() != nil {
			return // something else is wanted; if it is this worker again, it starts anew
		}
		r.log.Error("worker failed after its config was changed; it needs a person", "worker", a.worker.ID, "type", a.worker.Type, "error", clean(err.Error()))
		a.failure = err
		return
	}
	r.log.Info("worker updated", "worker", a.worker.ID, "handler", "made anew")
}

// slotted runs something with a slot, in what was called unslotted.
func (r *Runtime) slotted(f func()) {
	r.slots <- struct{}{}
	defer func() { <-r.slots }()
	f()
}
