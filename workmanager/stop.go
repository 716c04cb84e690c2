package workmanager

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/turnlane/turnlane/internal/catalog"
	"github.com/turnlane/turnlane/internal/command"
	"github.com/turnlane/turnlane/internal/rpcerr"
	storev1 "github.com/turnlane/turnlane/proto/turnlane/store/v1"
	turnlanev1 "github.com/turnlane/turnlane/proto/turnlane/v1"
	"github.com/turnlane/turnlane/store"
)

// StopWorker sets the desired state to STOPPED and waits, within the drain limit, until the worker's
// running turn has ended and nobody owns it.
func (m *Manager) StopWorker(ctx context.Context, req *turnlanev1.StopWorkerRequest) (*turnlanev1.StopWorkerResponse, error) {
	w, err := m.find(ctx, req.GetWorker())
	if err != nil {
		return nil, err
	}
	if w, err = m.change(ctx, w, m.stop); err != nil {
		return nil, err
	}
	seen, err := m.awaitReleased(ctx, w)
	if err != nil {
		return nil, err
	}
	warnings, err := m.warnings(ctx, w)
	if err != nil {
		return nil, err
	}
	if seen.state == stopping {
		warnings = append(warnings, stillEnding(w.GetId(), seen.pod, m.cfg.DrainLimit))
	}
	return &turnlanev1.StopWorkerResponse{Worker: show(w, seen), Warnings: warnings}, nil
}

func stillEnding(id, pod string, limit time.Duration) string {
	return fmt.Sprintf("worker %s is still in a turn on %s after %s; it stops when that ends", id, pod, limit)
}

// DeleteWorker removes a worker from any state: it stops it, waits within the drain limit, and leaves
// a tombstone. A worker whose record cannot be read is removed by its id.
func (m *Manager) DeleteWorker(ctx context.Context, req *turnlanev1.DeleteWorkerRequest) (*turnlanev1.DeleteWorkerResponse, error) {
	if id := req.GetWorker(); validID(id) {
		if _, err := m.get(ctx, id); errors.Is(err, store.ErrCorrupt) {
			return m.deleteBroken(ctx, id)
		}
	}
	w, err := m.find(ctx, req.GetWorker())
	if err != nil {
		return nil, err
	}
	was := w
	var seen observation
	for removed := false; !removed; {
		if w, err = m.change(ctx, w, m.stop); err != nil {
			return nil, err
		}
		if seen, err = m.awaitReleased(ctx, w); err != nil {
			return nil, err
		}
		err := m.remove(ctx, w)
		switch {
		case errors.Is(err, store.ErrConflict): // changed or started meanwhile: stop it again
			if w, err = m.existing(ctx, w.GetId()); err != nil {
				return nil, err
			}
		case err != nil:
			return nil, rpcerr.From(err)
		default:
			removed = true
		}
	}
	var warnings []string
	if was.wanted() {
		if warnings, err = m.warnings(ctx, was); err != nil {
			return nil, err
		}
	}
	if seen.state == stopping {
		warnings = append(warnings, stillEnding(w.GetId(), seen.pod, m.cfg.DrainLimit))
	}
	return &turnlanev1.DeleteWorkerResponse{Warnings: warnings}, nil
}

// remove puts a tombstone in the place of a stopped worker, frees its name and removes its data and the
// topics of its own. A tombstone that has a time still has something to be removed, now or by the leader.
func (m *Manager) remove(ctx context.Context, w record) error {
	id := w.GetId()
	unlock, err := m.ids.lock(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	owner, err := m.store.Owner(ctx, id)
	if err != nil {
		return err
	}
	changes, err := m.ends(ctx, w)
	if err != nil {
		return err
	}
	if name := w.GetName(); name != "" {
		item, err := m.store.Get(ctx, catalog.NameKey(name))
		switch {
		case errors.Is(err, store.ErrNotFound):
		case err != nil:
			return err
		case string(item.Value) == id:
			changes = append(changes, store.Change{Key: item.Key, Delete: true, If: item.Revision})
		}
	}
	grave := tombstone(id, w.GetRun(), w.GetGeneration(), w.revision)
	topics, err := m.ownTopics(ctx, w)
	if err != nil {
		return err
	}
	if owner.Token > 0 || len(topics) > 0 { // it ran, or was sent commands, so it may have data
		grave.Type, grave.UpdatedAt = w.GetType(), timestamp(time.Now())
	}
	if grave, err = m.write(ctx, grave, changes); err != nil {
		return err
	}
	if _, err := m.scrub(ctx, grave); err != nil {
		m.log.Warn("the data of a deleted worker remains for now", "worker", id, "error", err)
	}
	return nil
}

func tombstone(id string, run, generation, revision uint64) record {
	return record{&storev1.WorkerRecord{Id: id, Run: run, Generation: generation, Deleted: true}, revision}
}

// scrub removes the data of a deleted worker and marks its tombstone as clean. It is called with the
// id's lock.
//
// It takes the worker over first: from then on no activation can write, neither a former one that
// would not end nor one of a worker that another process creates of the same id; and if that happened
// already, the tombstone is found changed.
func (m *Manager) scrub(ctx context.Context, grave record) (record, error) {
	id := grave.GetId()
	if grave.GetUpdatedAt() == nil {
		return grave, nil
	}
	session, ok := m.cfg.Session.Current()
	if !ok {
		return grave, fmt.Errorf("remove the data of worker %s: %w: this process has no session at the moment", id, store.ErrUnavailable)
	}
	owner, err := m.store.Acquire(ctx, id, session)
	if errors.Is(err, store.ErrOwned) {
		return grave, fmt.Errorf("remove the data of worker %s: %w: its former activation on %s has not ended", id, store.ErrUnavailable, owner.Pod)
	} else if err != nil {
		return grave, fmt.Errorf("remove the data of worker %s: %w", id, err)
	}
	defer func() {
		if err := m.store.Release(context.WithoutCancel(ctx), owner); err != nil {
			m.log.Warn("a deleted worker could not be released", "worker", id, "error", err)
		}
	}()
	now, err := m.get(ctx, id)
	if err != nil {
		return grave, err
	}
	if now.revision != grave.revision {
		return grave, fmt.Errorf("remove the data of worker %s: %w", id, store.ErrConflict)
	}
	if err := m.store.Forget(ctx, id); err != nil {
		return grave, fmt.Errorf("remove the data of worker %s: %w", id, err)
	}
	topics, err := m.ownTopics(ctx, grave)
	if err != nil {
		return grave, err
	}
	for _, topic := range topics {
		if err := m.store.DeleteTopic(ctx, topic); err != nil {
			return grave, fmt.Errorf("remove topic %s of worker %s: %w", topic, id, err)
		}
	}
	return m.write(ctx, tombstone(id, grave.GetRun(), grave.GetGeneration(), grave.revision), nil)
}

// ownTopics are those topics of a worker's own that there are. A worker whose type is not known, since
// its record could not be read, has them found by its id among those of all workers.
func (m *Manager) ownTopics(ctx context.Context, w record) ([]string, error) {
	var found []string
	if w.GetType() != "" {
		for _, topic := range command.Topics(w.GetType(), w.GetId()) {
			b, err := m.store.Bounds(ctx, topic)
			if err != nil {
				return nil, fmt.Errorf("read the bounds of topic %s: %w", topic, err)
			}
			if b.Incarnation != "" {
				found = append(found, topic)
			}
		}
		return found, nil
	}
	for after := ""; ; {
		page, err := m.store.Topics(ctx, command.Prefix, after, pageSize)
		if err != nil {
			return nil, fmt.Errorf("list the topics of workers: %w", err)
		}
		if len(page) == 0 {
			return found, nil
		}
		for _, t := range page {
			if _, _, id, ok := command.ParseTopic(t.Topic); ok && id == w.GetId() {
				found = append(found, t.Topic)
			}
		}
		after = page[len(page)-1].Topic
	}
}

// deleteBroken removes a worker whose record cannot be read. Its name and claims, which only the
// record knew, are freed when somebody else wants them.
func (m *Manager) deleteBroken(ctx context.Context, id string) (*turnlanev1.DeleteWorkerResponse, error) {
	unlock, err := m.ids.lock(ctx, id)
	if err != nil {
		return nil, rpcerr.From(err)
	}
	defer unlock()
	err = m.retry(ctx, func() error {
		items, err := m.store.List(ctx, catalog.WorkerKey(id), "", 1)
		if err != nil || len(items) == 0 || items[0].Key != catalog.WorkerKey(id) {
			return err
		}
		if _, err := catalog.DecodeWorker(items[0]); err == nil {
			return fmt.Errorf("delete worker %s: %w", id, store.ErrConflict)
		}
		data, err := m.store.Load(ctx, id)
		if err != nil {
			return err
		}
		places, err := m.places(ctx, id)
		if err != nil {
			return err
		}
		var changes []store.Change
		for _, item := range places {
			changes = append(changes, store.Change{Key: item.Key, Delete: true, If: store.Any})
		}
		revision := items[0].Revision
		if items[0].Err != nil {
			revision = store.Any // the store does not know the revision of what it cannot read
		}
		grave := tombstone(id, data.Start.Run, data.Start.Generation, revision)
		grave.UpdatedAt = timestamp(time.Now())
		grave, err = m.write(ctx, grave, changes)
		if err != nil {
			return err
		}
		if _, err := m.scrub(ctx, grave); err != nil {
			m.log.Warn("the data of a deleted worker remains for now", "worker", id, "error", err)
		}
		return nil
	})
	if err != nil {
		return nil, rpcerr.From(err)
	}
	return &turnlanev1.DeleteWorkerResponse{Warnings: []string{"the catalog record of worker " + id + " could not be read; it was removed without stopping the worker first"}}, nil
}
