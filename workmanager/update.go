package workmanager

import (
	"context"
	"fmt"
	"maps"
	"strconv"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/turnlane/turnlane/internal/catalog"
	"github.com/turnlane/turnlane/internal/rpcerr"
	turnlanev1 "github.com/turnlane/turnlane/proto/turnlane/v1"
)

// UpdateWorker changes tags, config and policy of a worker that is as the caller knows it. A running one
// takes them over between two turns: the placement is changed in the same step as the record.
func (m *Manager) UpdateWorker(ctx context.Context, req *turnlanev1.UpdateWorkerRequest) (*turnlanev1.UpdateWorkerResponse, error) {
	w, err := m.find(ctx, req.GetWorker())
	if err != nil {
		return nil, err
	}
	var p problems
	if req.GetRevision() == 0 {
		p.add("revision", "is missing or 0", "give the revision of the worker that you read, so that nobody else's change is lost")
	}
	if req.Tags == nil && req.Config == nil && req.GetPolicy() == nil {
		p.add("tags", "is not set, and neither is config nor policy, so that there is nothing to change",
			"set tags, config or policy; to change the type, topics or group delete the worker and create it anew")
	}
	checkTags(&p, req.GetTags().GetTags())
	checkConfig(&p, req.GetConfig().GetConfig())
	if err := p.err(); err != nil {
		return nil, err
	}
	err = m.retry(ctx, func() (err error) {
		w, err = m.update(ctx, w.GetId(), req)
		return err
	})
	if err != nil {
		return nil, rpcerr.From(err)
	}
	worker, err := m.view(ctx, w)
	if err != nil {
		return nil, err
	}
	return &turnlanev1.UpdateWorkerResponse{Worker: worker}, nil
}

// update is one attempt to update a worker. A conflict is one of its placement, or will be found to be
// one of its record.
func (m *Manager) update(ctx context.Context, id string, req *turnlanev1.UpdateWorkerRequest) (record, error) {
	w, err := m.existing(ctx, id)
	if err != nil {
		return w, err
	}
	if w.revision != req.GetRevision() {
		return w, rpcerr.New(codes.Aborted, rpcerr.Conflict,
			fmt.Sprintf("worker %s is at revision %d by now, and the change is for %d; read it, and make the change to what it is", id, w.revision, req.GetRevision()),
			map[string]string{"worker": id, "revision": strconv.FormatUint(w.revision, 10)})
	}
	next := w.next(time.Now())
	if req.Tags != nil {
		next.Tags = req.GetTags().GetTags()
	}
	if req.Config != nil {
		next.Config = req.GetConfig().GetConfig()
	}
	next.Policy = completePolicy(w.GetPolicy())
	if req.GetPolicy() != nil {
		var p problems
		next.Policy = definePolicy(&p, mergePolicy(next.Policy, req.GetPolicy()), w.GetTopics())
		if err := p.err(); err != nil {
			return w, err
		}
	}
	if maps.Equal(next.Tags, w.Tags) && maps.Equal(next.Config, w.Config) && proto.Equal(next.Policy, completePolicy(w.GetPolicy())) {
		return w, nil
	}
	next.Edition++
	moves, err := m.moves(ctx, next)
	if err != nil {
		return w, err
	}
	return m.write(ctx, next, moves)
}

// PauseWorker holds a worker's events back from its next turn on; commands go on. One that is paused
// stays so, with the reason that it has.
func (m *Manager) PauseWorker(ctx context.Context, req *turnlanev1.PauseWorkerRequest) (*turnlanev1.PauseWorkerResponse, error) {
	reason, err := pauseReason(req.GetReason())
	if err != nil {
		return nil, err
	}
	worker, err := m.setPaused(ctx, req.GetWorker(), true, reason)
	if err != nil {
		return nil, err
	}
	return &turnlanev1.PauseWorkerResponse{Worker: worker}, nil
}

// ResumeWorker ends a pause, whoever began it.
func (m *Manager) ResumeWorker(ctx context.Context, req *turnlanev1.ResumeWorkerRequest) (*turnlanev1.ResumeWorkerResponse, error) {
	worker, err := m.setPaused(ctx, req.GetWorker(), false, "")
	if err != nil {
		return nil, err
	}
	return &turnlanev1.ResumeWorkerResponse{Worker: worker}, nil
}

func (m *Manager) setPaused(ctx context.Context, ref string, paused bool, reason string) (*turnlanev1.Worker, error) {
	w, err := m.find(ctx, ref)
	if err != nil {
		return nil, err
	}
	id := w.GetId()
	err = m.retry(ctx, func() (err error) {
		if w, err = m.existing(ctx, id); err != nil || w.GetPaused() == paused {
			return err
		}
		next := w.next(time.Now())
		next.Paused, next.PauseReason = paused, reason
		moves, err := m.moves(ctx, next)
		if err != nil {
			return err
		}
		w, err = m.write(ctx, next, moves)
		return err
	})
	if err != nil {
		return nil, rpcerr.From(err)
	}
	return m.view(ctx, w)
}

// pauseReason checks the reason of a pause.
func pauseReason(reason string) (string, error) {
	if n := len(reason); n > catalog.MaxReason {
		return "", rpcerr.Invalid("reason", fmt.Sprintf("has %d bytes; at most %d are allowed", n, catalog.MaxReason), "shorten it")
	}
	return catalog.CleanReason(reason), nil
}
