package workmanager

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/turnlane/turnlane/internal/catalog"
	"github.com/turnlane/turnlane/internal/rpcerr"
	storev1 "github.com/turnlane/turnlane/proto/turnlane/store/v1"
	turnlanev1 "github.com/turnlane/turnlane/proto/turnlane/v1"
	"github.com/turnlane/turnlane/store"
)

// CreateWorker stores a STOPPED worker.
func (m *Manager) CreateWorker(ctx context.Context, req *turnlanev1.CreateWorkerRequest) (*turnlanev1.CreateWorkerResponse, error) {
	w, err := define(req)
	if err != nil {
		return nil, err
	}
	if w.Id == "" {
		w.Id = uuid.Must(uuid.NewV7()).String()
	}
	unlock, err := m.ids.lock(ctx, w.GetId())
	if err != nil {
		return nil, rpcerr.From(err)
	}
	defer unlock()
	var stored record
	err = m.retry(ctx, func() (err error) {
		stored, err = m.create(ctx, w)
		return err
	})
	if err != nil {
		return nil, rpcerr.From(err)
	}
	worker, err := m.view(ctx, stored)
	if err != nil {
		return nil, err
	}
	return &turnlanev1.CreateWorkerResponse{Worker: worker}, nil
}

// create is one attempt to store a definition. It is called with the id's lock.
func (m *Manager) create(ctx context.Context, def *storev1.WorkerRecord) (record, error) {
	w := record{proto.CloneOf(def), store.Absent}
	w.Run = 1
	switch old, err := m.get(ctx, w.GetId()); {
	case errors.Is(err, store.ErrNotFound):
	case errors.Is(err, store.ErrCorrupt):
		return record{}, brokenWorker(w.GetId(), err)
	case err != nil:
		return record{}, err
	case !old.GetDeleted():
		if fields := differences(old.WorkerRecord, def); len(fields) > 0 {
			return record{}, rpcerr.New(codes.AlreadyExists, rpcerr.AlreadyExists,
				fmt.Sprintf("worker %s exists with another definition: %s differ; use another id, or delete that worker first",
					old.GetId(), strings.Join(fields, ", ")),
				map[string]string{"worker": old.GetId(), "fields": strings.Join(fields, ",")})
		}
		return old, nil
	default:
		if old, err = m.scrub(ctx, old); err != nil {
			return record{}, err
		}
		w.revision, w.Run, w.Generation = old.revision, old.GetRun()+1, old.GetGeneration()
	}
	// Commands count from here on, also while the worker was never started. Those to a former worker of
	// the id are not for this one.
	starts, err := m.resolveAll(ctx, lanes(w), nil)
	if err != nil {
		return record{}, err
	}
	w.Starts = starts
	now := timestamp(time.Now())
	w.CreatedAt, w.UpdatedAt = now, now
	put, err := w.put()
	if err != nil {
		return record{}, err
	}
	changes := []store.Change{put}
	apart, err := m.apart(ctx, w)
	if err != nil {
		return record{}, err
	}
	changes = append(changes, apart...)
	if name := w.GetName(); name != "" {
		reserve, err := m.reserve(ctx, name, w.GetId())
		if err != nil {
			return record{}, err
		}
		changes = append(changes, reserve)
	}
	revisions, err := m.store.Txn(ctx, changes...)
	if err != nil {
		return record{}, fmt.Errorf("store worker %s: %w", w.GetId(), err)
	}
	w.revision = revisions[0]
	return w, nil
}

// reserve is the change that gives a name to a worker, unless one that exists has it.
func (m *Manager) reserve(ctx context.Context, name, id string) (store.Change, error) {
	change := store.Change{Key: catalog.NameKey(name), Value: []byte(id), If: store.Absent}
	item, err := m.store.Get(ctx, change.Key)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return change, nil
	case err != nil:
		return change, err
	}
	change.If = item.Revision
	other := string(item.Value)
	if has, err := m.hasName(ctx, other, name); err != nil {
		return change, err
	} else if has {
		return change, rpcerr.New(codes.AlreadyExists, rpcerr.NameTaken,
			fmt.Sprintf("name: %s is the name of worker %s; choose another name, or delete that worker first", quote(name), other),
			map[string]string{"field": "name", "rule": "names are unique among workers", "fix": "choose another name", "worker": other})
	}
	return change, nil
}

// apart are the conditions that no worker has the new one's id as its name, nor its name as its id, so
// that either means one worker only. A worker may be named like itself.
func (m *Manager) apart(ctx context.Context, w record) ([]store.Change, error) {
	id, name := w.GetId(), w.GetName()
	if name == id {
		return nil, nil
	}
	changes := []store.Change{{Key: catalog.NameKey(id), Check: true, If: store.Absent}}
	switch item, err := m.store.Get(ctx, changes[0].Key); {
	case errors.Is(err, store.ErrNotFound):
	case err != nil:
		return nil, err
	default:
		other := string(item.Value)
		if has, err := m.hasName(ctx, other, id); err != nil {
			return nil, err
		} else if has {
			return nil, rpcerr.New(codes.AlreadyExists, rpcerr.NameTaken,
				fmt.Sprintf("id: %s is the name of worker %s, so that it would mean two workers; choose another id, or delete that worker first", quote(id), other),
				map[string]string{"field": "id", "rule": "no worker's id is the name of another", "fix": "choose another id", "worker": other})
		}
		changes[0].If = item.Revision
	}
	if !validID(name) {
		return changes, nil
	}
	change := store.Change{Key: catalog.WorkerKey(name), Check: true, If: store.Absent}
	switch other, err := m.get(ctx, name); {
	case errors.Is(err, store.ErrNotFound):
	case err != nil && !errors.Is(err, store.ErrCorrupt):
		return nil, err
	case err == nil && other.GetDeleted():
		change.If = other.revision
	default:
		return nil, rpcerr.New(codes.AlreadyExists, rpcerr.NameTaken,
			fmt.Sprintf("name: %s is the id of worker %s, so that it would mean two workers; choose another name, or delete that worker first", quote(name), name),
			map[string]string{"field": "name", "rule": "no worker's name is the id of another", "fix": "choose another name", "worker": name})
	}
	return append(changes, change), nil
}

// hasName tells whether a worker that exists has the name. One whose record is broken keeps it.
func (m *Manager) hasName(ctx context.Context, id, name string) (bool, error) {
	w, err := m.get(ctx, id)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return false, nil
	case errors.Is(err, store.ErrCorrupt):
		return true, nil
	case err != nil:
		return false, err
	}
	return !w.GetDeleted() && w.GetName() == name, nil
}

// differences names the fields in which two definitions differ. The order of topics has no meaning.
func differences(a, b *storev1.WorkerRecord) []string {
	var fields []string
	for _, f := range []struct {
		name string
		same bool
	}{
		{"name", a.GetName() == b.GetName()},
		{"type", a.GetType() == b.GetType()},
		{"topics", slices.Equal(slices.Sorted(slices.Values(a.GetTopics())), slices.Sorted(slices.Values(b.GetTopics())))},
		{"group", a.GetGroup() == b.GetGroup()},
		{"group_size", a.GetGroupSize() == b.GetGroupSize()},
		{"group_index", a.GetGroupIndex() == b.GetGroupIndex()},
		{"config", maps.Equal(a.GetConfig(), b.GetConfig())},
		{"tags", maps.Equal(a.GetTags(), b.GetTags())},
		{"policy", proto.Equal(completePolicy(a.GetPolicy()), completePolicy(b.GetPolicy()))},
		{"replay", proto.Equal(a.GetReplay(), b.GetReplay())},
	} {
		if !f.same {
			fields = append(fields, f.name)
		}
	}
	return fields
}
