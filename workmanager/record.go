package workmanager

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/turnlane/turnlane/internal/catalog"
	"github.com/turnlane/turnlane/internal/rpcerr"
	storev1 "github.com/turnlane/turnlane/proto/turnlane/store/v1"
	turnlanev1 "github.com/turnlane/turnlane/proto/turnlane/v1"
	"github.com/turnlane/turnlane/store"
)

// record is a worker's record at a revision.
type record struct {
	*storev1.WorkerRecord
	revision uint64
}

func (r record) wanted() bool {
	return r.GetDesired() == turnlanev1.DesiredState_DESIRED_STATE_RUNNING
}

func (r record) begin() store.Start {
	return store.Start{Run: r.GetRun(), Generation: r.GetGeneration()}
}

func (r record) off() bool {
	return r.GetReplay().GetMode() == turnlanev1.ReplayMode_REPLAY_MODE_OFF
}

// next is a copy of the record for the next revision.
func (r record) next(now time.Time) record {
	n := proto.CloneOf(r.WorkerRecord)
	n.UpdatedAt = timestamp(now)
	return record{n, r.revision}
}

// put is the change that stores the record over the revision that it was read at.
func (r record) put() (store.Change, error) {
	return catalog.Put(catalog.WorkerKey(r.GetId()), r.WorkerRecord, r.revision)
}

// get reads the record of a worker, which may be a tombstone. It returns store.ErrNotFound, or
// store.ErrCorrupt for a record that cannot be read.
func (m *Manager) get(ctx context.Context, id string) (record, error) {
	item, err := m.store.Get(ctx, catalog.WorkerKey(id))
	if err != nil {
		return record{}, err
	}
	w, err := catalog.DecodeWorker(item)
	return record{w, item.Revision}, err
}

// existing is get for a worker that exists, with an error for the caller of the service.
func (m *Manager) existing(ctx context.Context, id string) (record, error) {
	r, err := m.get(ctx, id)
	switch {
	case errors.Is(err, store.ErrNotFound), err == nil && r.GetDeleted():
		return record{}, unknownWorker(id)
	case errors.Is(err, store.ErrCorrupt):
		return record{}, brokenWorker(id, err)
	}
	return r, rpcerr.From(err)
}

// find reads a worker by its id or, if there is none, by its name.
func (m *Manager) find(ctx context.Context, ref string) (record, error) {
	if ref == "" {
		return record{}, rpcerr.Invalid("worker", "is missing or empty", "give a worker's id or its name")
	}
	isID := validID(ref)
	if isID {
		r, err := m.get(ctx, ref)
		switch {
		case errors.Is(err, store.ErrNotFound), err == nil && r.GetDeleted(): // maybe a name
		case errors.Is(err, store.ErrCorrupt):
			return record{}, brokenWorker(ref, err)
		default:
			return r, rpcerr.From(err)
		}
	}
	if problem := nameProblem(ref); problem != "" {
		return record{}, rpcerr.Invalid("worker", quote(ref)+" is neither a worker's id nor a name: "+problem, "give a worker's id or its name")
	}
	item, err := m.store.Get(ctx, catalog.NameKey(ref))
	if errors.Is(err, store.ErrNotFound) {
		return record{}, unknownWorker(ref)
	} else if err != nil {
		return record{}, rpcerr.From(err)
	}
	r, err := m.existing(ctx, string(item.Value))
	if err == nil && r.GetName() != ref {
		return record{}, unknownWorker(ref)
	}
	return r, err
}

func unknownWorker(ref string) error {
	return rpcerr.New(codes.NotFound, rpcerr.NotFound,
		fmt.Sprintf("no worker has the id or name %s; list the workers to see what there is", quote(ref)),
		map[string]string{"worker": ref})
}

func brokenWorker(id string, err error) error {
	return rpcerr.New(codes.DataLoss, rpcerr.Internal,
		fmt.Sprintf("the catalog record of worker %s cannot be read, so it is left out of everything: %v; delete the worker and create it again", id, err),
		map[string]string{"worker": id})
}

// maxConflicts bounds how often a change is tried again when somebody else was faster.
const maxConflicts = 64

// retry runs an attempt, which reads what it changes, until it meets no conflict.
func (m *Manager) retry(ctx context.Context, attempt func() error) error {
	for n := 0; ; n++ {
		err := attempt()
		if n >= maxConflicts || !errors.Is(err, store.ErrConflict) {
			return err
		}
		if err := sleep(ctx, rand.N(time.Millisecond<<min(n, 5))); err != nil {
			return err
		}
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

const maxQuoted = 96

// quote makes any text fit for an error message.
func quote(s string) string {
	if len(s) > maxQuoted {
		return strconv.Quote(s[:maxQuoted]) + "…"
	}
	return strconv.Quote(s)
}
