package workmanager

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/turnlane/turnlane/internal/catalog"
	storev1 "github.com/turnlane/turnlane/proto/turnlane/store/v1"
	"github.com/turnlane/turnlane/store"
)

// placeBatch is how many workers are placed in one step of the store.
const placeBatch = 200

// job is the change of one worker's placement.
type job struct {
	e       *entry
	host    *host // where it is to be; nil for nowhere
	changes []store.Change
}

// place brings the placements of the workers to be reconciled in line with what is wanted.
func (l *leader) place(ctx context.Context) error {
	for len(l.orphans) > 0 {
		some := l.orphans[:min(len(l.orphans), placeBatch)]
		changes := make([]store.Change, len(some), len(some)+1)
		for i, key := range some {
			changes[i] = store.Change{Key: key, Delete: true, If: store.Any}
		}
		if err := l.write(ctx, changes...); err != nil {
			return fmt.Errorf("remove placements: %w", err)
		}
		l.orphans = l.orphans[len(some):]
	}
	l.orphans = nil
	for id, e := range l.reconcile {
		// A runtime may have come since the sessions were looked at last: look again before saying that
		// there is none.
		if e.wanted && !e.failed() && e.host == nil && len(l.placer.byType[e.typ]) == 0 && l.waiting[e.typ][id] == nil {
			if err := l.poll(ctx); err != nil {
				return err
			}
			break
		}
	}
	var batch []job
	// In the order of the keys: a store reads neighbours faster than keys from all over the place.
	for _, id := range slices.Sorted(maps.Keys(l.reconcile)) {
		e := l.reconcile[id]
		j, err := l.plan(e)
		if err != nil {
			return err
		}
		if j.changes == nil {
			delete(l.reconcile, id)
			continue
		}
		// The choice counts from here on, so that the next one finds this host fuller.
		l.assign(e, j.host)
		if batch = append(batch, j); len(batch) == placeBatch {
			if err := l.carryOut(ctx, batch); err != nil {
				return err
			}
			batch = nil
		}
	}
	return l.carryOut(ctx, batch)
}

// plan says what is to be changed about a worker's placement. No changes mean that it is right, or that
// nothing can be done.
func (l *leader) plan(e *entry) (job, error) {
	now := e.host
	if !e.wanted || e.failed() {
		l.unwait(e)
		if now == nil {
			return job{}, nil
		}
		return job{e: e, changes: []store.Change{{Key: catalog.PlaceKey(now.session, e.id), Delete: true, If: store.Any}}}, nil
	}
	target := now
	if now == nil || now.draining {
		if h := l.placer.pick(e.id, e.typ); h != nil {
			target = h
		}
	}
	switch {
	case target == nil:
		l.wait(e)
		if e.seen.state != running {
			l.see(e, observation{state: starting, reason: noRuntime(e.typ), token: e.seen.token}, false)
		}
		return job{}, nil
	case target == now && e.placed == e.toPlace():
		l.unwait(e)
		return job{}, nil
	}
	put, err := catalog.Put(catalog.PlaceKey(target.session, e.id),
		&storev1.Placement{WorkerId: e.id, Run: e.begin.Run, Generation: e.begin.Generation, Edition: e.edition, Paused: e.paused}, store.Any)
	if err != nil {
		return job{}, err
	}
	// The worker is still wanted as it is known here: else the placement would outlive a stop that
	// looked for one just before.
	changes := []store.Change{{Key: catalog.WorkerKey(e.id), Check: true, If: e.revision}, put}
	if now != nil && now != target {
		changes = append(changes, store.Change{Key: catalog.PlaceKey(now.session, e.id), Delete: true, If: store.Any})
	}
	return job{e, target, changes}, nil
}

// assign moves an entry in the index.
func (l *leader) assign(e *entry, h *host) {
	if h == nil {
		l.placer.take(e)
		e.placed = placed{}
		return
	}
	l.unwait(e)
	l.placer.put(e, h)
	e.placed = e.toPlace()
}

func (l *leader) wait(e *entry) {
	if l.waiting[e.typ] == nil {
		l.waiting[e.typ] = map[string]*entry{}
	}
	l.waiting[e.typ][e.id] = e
}

func (l *leader) unwait(e *entry) {
	delete(l.waiting[e.typ], e.id)
	if len(l.waiting[e.typ]) == 0 {
		delete(l.waiting, e.typ)
	}
}

// carryOut writes a batch. A worker that changed meanwhile is left out and read again.
func (l *leader) carryOut(ctx context.Context, batch []job) error {
	for len(batch) > 0 {
		var changes []store.Change
		var owner []int // of each change
		for i, j := range batch {
			for _, c := range j.changes {
				changes, owner = append(changes, c), append(owner, i)
			}
		}
		err := l.write(ctx, changes...)
		if err == nil {
			break
		}
		conflict, ok := errors.AsType[*store.ConflictError](err)
		if !ok || conflict.Index >= len(owner) {
			return fmt.Errorf("place workers: %w", err)
		}
		i := owner[conflict.Index]
		e := batch[i].e
		e.placed = placed{} // what stands there is not what the index says
		l.stale[e.id] = true
		delete(l.reconcile, e.id)
		batch = append(batch[:i:i], batch[i+1:]...)
	}
	now := time.Now()
	for _, j := range batch {
		delete(l.reconcile, j.e.id)
		if j.e.settled() {
			continue
		}
		l.agenda.soon(j.e, now)
	}
	return nil
}
