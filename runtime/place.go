package runtime

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/turnlane/turnlane/internal/catalog"
	storev1 "github.com/turnlane/turnlane/proto/turnlane/store/v1"
	"github.com/turnlane/turnlane/store"
)

// place is one worker's place on this process: what is wanted of it, and what there is. A place is
// settled by one goroutine at a time, which starts and stops activations until there is what is wanted.
// Its fields are guarded by Runtime.mu.
type place struct {
	worker  string
	session string       // that the placement was written for
	want    *store.Start // nil: nothing
	edition uint64       // of the record, wanted
	paused  bool         // as the placement said last
	pauses  int          // changes of it
	current *activation

	busy    bool // queued, or being settled
	again   bool // something changed meanwhile
	failed  *store.Start
	fails   int                // starts that did not succeed, in a row
	retryAt time.Time          // no start before it
	timer   *time.Timer        // for retryAt
	abort   context.CancelFunc // ends the start under way; nil if there is none
}

// follow keeps to the session until ctx ends.
func (r *Runtime) follow(ctx context.Context) {
	for {
		changed := r.cfg.Session.Changes()
		id, ok := r.cfg.Session.Current()
		if ok {
			r.serve(ctx, id)
			if ctx.Err() == nil {
				r.freeze("the process's session was lost")
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
	}
}

// serve follows the placements of one session until ctx ends or the session does.
func (r *Runtime) serve(ctx context.Context, id string) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r.work.Go(func() {
		defer cancel()
		for {
			changed := r.cfg.Session.Changes()
			if !r.cfg.Session.Holds(id) {
				return
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return
			}
		}
	})
	for n := 0; ctx.Err() == nil; n++ {
		err := r.watch(ctx, id)
		if ctx.Err() != nil {
			return
		}
		r.log.Warn("placements cannot be read; trying again", "session", id, "error", err)
		sleep(ctx, backoff(n, 50*time.Millisecond, 2*time.Second))
	}
}

// watch reads the placements and follows their changes until something fails.
func (r *Runtime) watch(ctx context.Context, id string) error {
	prefix := catalog.SessionPlaces(id)
	bell, err := r.cfg.Store.WatchKeys(ctx, prefix)
	if err != nil {
		return err
	}
	defer bell.Close()
	if err := r.readPlaces(ctx, id); err != nil {
		return err
	}
	for {
		keys, err := bell.Wait(ctx)
		if err != nil {
			return err
		}
		if len(keys) > 64 && len(keys) > r.placed()/8 { // cheaper than one by one
			err = r.readPlaces(ctx, id)
		} else {
			for _, key := range keys {
				if err = r.readPlace(ctx, id, key); err != nil {
					break
				}
			}
		}
		if err != nil {
			return err
		}
	}
}

func (r *Runtime) readPlace(ctx context.Context, id, key string) error {
	item, err := r.cfg.Store.Get(ctx, key)
	switch {
	case errors.Is(err, store.ErrNotFound):
		if _, worker, ok := catalog.SplitPlace(key); ok {
			r.want(id, worker, nil, 0)
		}
		return nil
	case err != nil:
		return err
	}
	r.take(id, item)
	return nil
}

// readPlaces reads all placements of the session; workers without one are wanted no more.
func (r *Runtime) readPlaces(ctx context.Context, id string) error {
	seen := map[string]bool{}
	prefix := catalog.SessionPlaces(id)
	for after := prefix; ; {
		items, err := r.cfg.Store.List(ctx, prefix, after, 1000)
		if err != nil {
			return err
		}
		for _, item := range items {
			after = item.Key
			if worker := r.take(id, item); worker != "" {
				seen[worker] = true
			}
		}
		if len(items) < 1000 {
			break
		}
	}
	var gone []string
	r.mu.Lock()
	for worker, p := range r.places {
		if p.want != nil && !seen[worker] {
			gone = append(gone, worker)
		}
	}
	r.mu.Unlock()
	for _, worker := range gone {
		r.want(id, worker, nil, 0)
	}
	return nil
}

func (r *Runtime) placed() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.places)
}

// take takes note of one placement, and returns the worker that it is for.
func (r *Runtime) take(id string, item store.Item) string {
	_, worker, ok := catalog.SplitPlace(item.Key)
	if !ok {
		return ""
	}
	p, err := catalog.Decode(item, &storev1.Placement{})
	if err != nil {
		r.log.Error("placement cannot be read; the worker is left as it is", "worker", worker, "error", err)
		return worker
	}
	r.want(id, worker, &store.Start{Run: p.GetRun(), Generation: p.GetGeneration()}, p.GetEdition())
	r.pause(worker, p.GetPaused())
	return worker
}

// pause takes over whether the worker's events are held back. Only a change counts: an activation that
// starts knows from the worker's record.
func (r *Runtime) pause(worker string, paused bool) {
	r.mu.Lock()
	p := r.places[worker]
	if p == nil || p.paused == paused {
		r.mu.Unlock()
		return
	}
	p.paused = paused
	p.pauses++
	a := p.current
	r.mu.Unlock()
	if a != nil {
		a.setPaused(paused)
	}
}

// want sets what is wanted of a worker.
func (r *Runtime) want(session, worker string, start *store.Start, edition uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.places[worker]
	if p == nil {
		if start == nil {
			return
		}
		p = &place{worker: worker}
		r.places[worker] = p
	}
	p.session, p.edition = session, edition
	if p.want == nil || start == nil || *p.want != *start {
		p.want, p.failed, p.fails, p.retryAt = start, nil, 0, time.Time{}
		if p.abort != nil {
			p.abort()
		}
	}
	r.kickLocked(p)
}

// kickLocked has a place settled.
func (r *Runtime) kickLocked(p *place) {
	if p.busy {
		p.again = true
		return
	}
	p.busy = true
	r.queue = append(r.queue, p)
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// settleAll settles places, as many at a time as there are slots.
func (r *Runtime) settleAll(ctx context.Context) {
	for {
		r.mu.Lock()
		var p *place
		if len(r.queue) > 0 {
			p = r.queue[0]
			r.queue[0] = nil
			r.queue = r.queue[1:]
			if len(r.queue) == 0 {
				r.queue = nil
			}
			r.work.Add(1)
		}
		r.mu.Unlock()
		if p == nil {
			select {
			case <-r.wake:
				continue
			case <-ctx.Done():
				return
			}
		}
		r.slots <- struct{}{}
		go func() {
			defer r.work.Done()
			defer func() { <-r.slots }()
			r.settle(p)
		}()
	}
}

// unslotted runs something that may take long without holding a slot.
func (r *Runtime) unslotted(f func()) {
	<-r.slots
	defer func() { r.slots <- struct{}{} }()
	f()
}

// settle starts and stops activations of a worker until there is what is wanted.
func (r *Runtime) settle(p *place) {
	for {
		r.mu.Lock()
		p.again = false
		want, current := p.want, p.current
		if r.draining.Load() {
			want = nil
		}
		switch {
		case current != nil && (want == nil || *want != current.start || current.ended.Load()):
			r.mu.Unlock()
			r.stop(current, want)
			r.mu.Lock()
			p.current = nil
			r.hosted.Add(-1)
			if current.failure != nil && want != nil && *want == current.start {
				p.failed = want
			}
			if current.wasRefused.Load() { // it may be again, at once
				p.retryAt = time.Now().Add(backoff(p.fails, 20*time.Millisecond, 2*time.Second))
				p.fails++
			}
			r.mu.Unlock()
			continue
		case current != nil && current.edition != p.edition:
			if !r.updateLocked(p, current) {
				return
			}
			continue
		case current == nil && want != nil && (p.failed == nil || *p.failed != *want):
			if r.waitLocked(p) {
				return
			}
			session, pauses, edition := p.session, p.pauses, p.edition
			ctx, abort := context.WithCancel(r.starting)
			p.abort = abort
			r.mu.Unlock()
			a, err := r.start(ctx, session, p, *want)
			aborted := ctx.Err() != nil
			abort()
			r.mu.Lock()
			p.abort = nil
			if a != nil {
				a.edition = edition
			}
			r.startedLocked(p, *want, a, err, aborted)
			changed, paused := p.pauses != pauses, p.paused
			r.mu.Unlock()
			if a != nil && changed { // while it started
				a.setPaused(paused)
			}
			continue
		}
		if p.again {
			r.mu.Unlock()
			continue
		}
		p.busy = false
		if (p.want == nil || r.draining.Load()) && p.current == nil && r.places[p.worker] == p {
			delete(r.places, p.worker)
			r.quietLocked()
		}
		r.mu.Unlock()
		return
	}
}

// waitLocked has a place settled again when its pause is over. It returns false if there is none; else it has
// unlocked, and the place is not busy any more.
func (r *Runtime) waitLocked(p *place) bool {
	wait := time.Until(p.retryAt)
	if wait <= 0 {
		return false
	}
	p.timer = time.AfterFunc(wait, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.kickLocked(p)
	})
	p.busy = false
	r.mu.Unlock()
	return true
}

// updateLocked has the activation take over the edition of the record that is wanted, and unlocks. It returns
// false if that has to wait, and the place is not busy any more.
func (r *Runtime) updateLocked(p *place, a *activation) bool {
	if r.waitLocked(p) {
		return false
	}
	edition := p.edition
	ctx, abort := context.WithCancel(r.starting)
	p.abort = abort
	r.mu.Unlock()
	err := r.update(ctx, a, edition)
	abort()
	r.mu.Lock()
	defer r.mu.Unlock()
	p.abort = nil
	switch {
	case err == nil:
		p.fails, p.retryAt = 0, time.Time{}
	case errors.Is(err, errNotWanted):
		a.edition = edition // another placement is about to come
	case ctx.Err() == nil:
		p.retryAt = time.Now().Add(backoff(p.fails, 20*time.Millisecond, 2*time.Second))
		p.fails++
		r.log.Warn("worker cannot be updated; trying again", "worker", p.worker, "attempts", p.fails, "error", err)
	}
	return true
}

// startedLocked takes note of how a start ended. One that was aborted is no longer wanted, so that its
// error says nothing.
func (r *Runtime) startedLocked(p *place, want store.Start, a *activation, err error, aborted bool) {
	switch {
	case err == nil:
		p.current, p.retryAt = a, time.Time{}
		r.hosted.Add(1)
	case errors.Is(err, errFailed):
		p.failed = &want
	case errors.Is(err, errNotWanted):
		p.failed = &want // until the placement changes, which it is about to
	default:
		p.retryAt = time.Now().Add(backoff(p.fails, 20*time.Millisecond, 2*time.Second))
		p.fails++
		if !aborted && (p.fails == 1 || p.fails%10 == 0) {
			r.log.Warn("worker cannot be started; trying again", "worker", p.worker, "attempts", p.fails, "error", err)
		}
	}
}

// replace has an activation stopped, and another one started if it is still wanted.
func (r *Runtime) replace(a *activation) {
	a.ended.Store(true)
	r.mu.Lock()
	defer r.mu.Unlock()
	if p := r.places[a.worker.ID]; p != nil && (p.current == a || p.busy) {
		r.kickLocked(p)
	}
}

// drain has every activation stopped, and waits until there is none or the work's context ends.
func (r *Runtime) drain() {
	r.mu.Lock()
	for _, p := range r.places {
		r.kickLocked(p)
	}
	r.quietLocked()
	r.mu.Unlock()
	// A turn may take DrainTimeout, and its outputs and cursors as long again.
	limit := time.AfterFunc(2*r.cfg.DrainTimeout+time.Second, r.cancel)
	defer limit.Stop()
	select {
	case <-r.quiet:
	case <-r.ctx.Done():
	}
}

// quietLocked tells drain when there is nothing left.
func (r *Runtime) quietLocked() {
	if r.draining.Load() && len(r.places) == 0 && !r.isQuiet {
		r.isQuiet = true
		close(r.quiet)
	}
}

// freeze drops all activations without a write.
func (r *Runtime) freeze(why string) {
	r.mu.Lock()
	var frozen []*activation
	for worker, p := range r.places {
		p.want = nil
		if p.abort != nil {
			p.abort()
		}
		if p.timer != nil {
			p.timer.Stop()
		}
		if p.current != nil {
			frozen = append(frozen, p.current)
		}
		if !p.busy && p.current == nil {
			delete(r.places, worker)
		}
	}
	r.mu.Unlock()
	if len(frozen) > 0 {
		r.log.Error("workers dropped", "workers", len(frozen), "reason", why)
	}
	for _, a := range frozen {
		a.freeze()
	}
	for _, a := range frozen {
		r.replace(a)
	}
}

// backoff is the n-th pause: doubled each time up to longest, and jittered down to half.
func backoff(n int, first, longest time.Duration) time.Duration {
	d := longest
	if n < 20 && first<<n < longest {
		d = first << n
	}
	return d/2 + rand.N(d/2+1)
}

// sleep waits for d; false means that ctx ended.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
