package workmanager

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/turnlane/turnlane/internal/catalog"
	"github.com/turnlane/turnlane/internal/rpcerr"
	turnlanev1 "github.com/turnlane/turnlane/proto/turnlane/v1"
	"github.com/turnlane/turnlane/store"
)

// StartWorker sets the desired state to RUNNING and fixes where the worker starts to read. A worker
// that has FAILED is started again.
func (m *Manager) StartWorker(ctx context.Context, req *turnlanev1.StartWorkerRequest) (*turnlanev1.StartWorkerResponse, error) {
	w, err := m.find(ctx, req.GetWorker())
	if err != nil {
		return nil, err
	}
	if w, err = m.change(ctx, w, m.start); err != nil {
		return nil, err
	}
	seen, err := m.awaitRunning(ctx, w)
	if err != nil {
		return nil, err
	}
	warnings, err := m.warnings(ctx, w)
	if err != nil {
		return nil, err
	}
	return &turnlanev1.StartWorkerResponse{Worker: show(w, seen), Warnings: warnings}, nil
}

// change makes a change of a worker's desired state, under the lock of its group, again on conflict.
func (m *Manager) change(ctx context.Context, w record, edit func(context.Context, record) (record, error)) (record, error) {
	if group := w.GetGroup(); group != "" {
		unlock, err := m.groups.lock(ctx, group)
		if err != nil {
			return w, rpcerr.From(err)
		}
		defer unlock()
	}
	id, again := w.GetId(), false
	err := m.retry(ctx, func() (err error) {
		if again {
			if w, err = m.existing(ctx, id); err != nil {
				return err
			}
		}
		again = true
		w, err = edit(ctx, w)
		return err
	})
	return w, rpcerr.From(err)
}

// start is one attempt to start a worker.
func (m *Manager) start(ctx context.Context, w record) (record, error) {
	if w.wanted() {
		if seen, err := m.observeOne(ctx, w); err != nil || seen.state != failed {
			return w, err
		}
	}
	next := w.next(time.Now())
	next.Desired = turnlanev1.DesiredState_DESIRED_STATE_RUNNING
	next.Generation++
	var err error
	if next.Starts, err = m.begin(ctx, w); err != nil {
		return w, err
	}
	claims, err := m.claims(ctx, next)
	if err != nil {
		return w, err
	}
	return m.write(ctx, next, claims)
}

// stop is one attempt to set the desired state to STOPPED.
func (m *Manager) stop(ctx context.Context, w record) (record, error) {
	if !w.wanted() {
		return w, nil
	}
	next := w.next(time.Now())
	next.Desired = turnlanev1.DesiredState_DESIRED_STATE_STOPPED
	if next.off() {
		for _, s := range next.GetStarts() {
			s.Spent = !isLane(next, s.GetTopic())
		}
	}
	ends, err := m.ends(ctx, w)
	if err != nil {
		return w, err
	}
	return m.write(ctx, next, ends)
}

// write stores a worker's record together with other changes.
func (m *Manager) write(ctx context.Context, w record, others []store.Change) (record, error) {
	put, err := w.put()
	if err != nil {
		return w, err
	}
	revisions, err := m.store.Txn(ctx, slices.Concat([]store.Change{put}, others)...)
	if err != nil {
		return w, fmt.Errorf("store worker %s: %w", w.GetId(), err)
	}
	w.revision = revisions[0]
	return w, nil
}

// ends are the changes that end a worker's claims and its placement. The leader removes a placement
// that it makes at the same time.
func (m *Manager) ends(ctx context.Context, w record) ([]store.Change, error) {
	changes, err := m.releases(ctx, w)
	if err != nil {
		return nil, err
	}
	places, err := m.places(ctx, w.GetId())
	if err != nil {
		return nil, err
	}
	for _, item := range places {
		changes = append(changes, store.Change{Key: item.Key, Delete: true, If: store.Any})
	}
	return changes, nil
}

// moves are the changes that tell the runtime of a worker what its record says by now: another run and
// generation replace the activation, another edition or a pause it takes over.
func (m *Manager) moves(ctx context.Context, w record) ([]store.Change, error) {
	places, err := m.places(ctx, w.GetId())
	if err != nil {
		return nil, err
	}
	var changes []store.Change
	for _, item := range places {
		revision := item.Revision
		if item.Err != nil {
			revision = store.Any
		}
		put, err := catalog.Put(item.Key, catalog.PlacementOf(w.WorkerRecord), revision)
		if err != nil {
			return nil, err
		}
		changes = append(changes, put)
	}
	return changes, nil
}

// places reads the placements of a worker on live runtimes: one at the most, but for a moment.
func (m *Manager) places(ctx context.Context, id string) ([]store.Item, error) {
	live, err := m.hosts(ctx)
	if err != nil {
		return nil, err
	}
	keys := make([]string, len(live))
	for i, s := range live {
		keys[i] = catalog.PlaceKey(s.ID, id)
	}
	return m.items(ctx, keys)
}
