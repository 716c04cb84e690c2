package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/turnlane/turnlane/internal/rpcerr"
	turnlanev1 "github.com/turnlane/turnlane/proto/turnlane/v1"
)

func (f *fake) UpdateWorker(_ context.Context, req *turnlanev1.UpdateWorkerRequest) (*turnlanev1.UpdateWorkerResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	w, err := f.find(req.GetWorker())
	if err != nil {
		return nil, err
	}
	if f.others > 0 { // somebody else is faster
		f.others--
		w.Revision++
	}
	if req.GetRevision() != w.GetRevision() {
		return nil, rpcerr.New(codes.Aborted, rpcerr.Conflict, fmt.Sprintf("worker is at revision %d by now", w.GetRevision()), nil)
	}
	f.updates = append(f.updates, req)
	w.Revision++
	if req.Tags != nil {
		w.Tags = req.GetTags().GetTags()
	}
	if req.Config != nil {
		w.Config = req.GetConfig().GetConfig()
	}
	return &turnlanev1.UpdateWorkerResponse{Worker: proto.CloneOf(w)}, nil
}

func (f *fake) PauseWorker(_ context.Context, req *turnlanev1.PauseWorkerRequest) (*turnlanev1.PauseWorkerResponse, error) {
	w, err := f.pause(req.GetWorker(), true, req.GetReason())
	return &turnlanev1.PauseWorkerResponse{Worker: w}, err
}

func (f *fake) ResumeWorker(_ context.Context, req *turnlanev1.ResumeWorkerRequest) (*turnlanev1.ResumeWorkerResponse, error) {
	w, err := f.pause(req.GetWorker(), false, "")
	return &turnlanev1.ResumeWorkerResponse{Worker: w}, err
}

func (f *fake) pause(name string, paused bool, reason string) (*turnlanev1.Worker, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	w, err := f.find(name)
	if err != nil {
		return nil, err
	}
	w.Paused, w.PauseReason = paused, reason
	return proto.CloneOf(w), nil
}

// SendCommand is answered by the name of the command: "fail" fails, "lose" is not answered, and others
// get their own data back.
func (f *fake) SendCommand(_ context.Context, req *turnlanev1.SendCommandRequest) (*turnlanev1.SendCommandResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	w, err := f.find(req.GetWorker())
	if err != nil {
		return nil, err
	}
	f.commands = append(f.commands, req)
	resp := &turnlanev1.SendCommandResponse{Id: req.GetId(), Topic: "wrk.echo.command." + w.GetId(), Position: "17-0"}
	if resp.Id == "" {
		resp.Id = "c1"
	}
	switch {
	case req.GetWait() == nil:
	case req.GetCommand() == "fail":
		resp.Reply = &turnlanev1.CommandReply{Id: resp.GetId() + ".reply", ErrorReason: "NO_SEAT", Error: "there is none\n"}
	case req.GetCommand() == "lose":
		return nil, rpcerr.New(codes.DeadlineExceeded, rpcerr.NoReply, "no reply came; it may still run", nil)
	default:
		resp.Reply = &turnlanev1.CommandReply{Id: resp.GetId() + ".reply", Data: req.GetData(), Datacontenttype: req.GetDatacontenttype()}
	}
	return resp, nil
}

func (f *fake) GetWorkerState(_ context.Context, req *turnlanev1.GetWorkerStateRequest) (*turnlanev1.GetWorkerStateResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	state := map[string][]byte{"sum/JFK": []byte(`{"n": 7}`), "sum/LAX": []byte("plain"), "bytes": {0xff, 0}, "empty": {}}
	maps.DeleteFunc(state, func(key string, _ []byte) bool { return !strings.HasPrefix(key, req.GetPrefix()) })
	return &turnlanev1.GetWorkerStateResponse{State: state}, nil
}

// GetEventStatus gives a page a worker.
func (f *fake) GetEventStatus(_ context.Context, req *turnlanev1.GetEventStatusRequest) (*turnlanev1.GetEventStatusResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if req.GetTopic() == "quiet" {
		return &turnlanev1.GetEventStatusResponse{}, nil
	}
	all := []*turnlanev1.EventAtWorker{
		{WorkerId: "w0", Fate: turnlanev1.EventFate_EVENT_FATE_DONE},
		{WorkerId: "w1", WorkerName: "second", Fate: turnlanev1.EventFate_EVENT_FATE_RETRYING, Attempt: 2, Error: "no\nseat",
			RetryAt: &timestamppb.Timestamp{Seconds: 1_700_000_000}},
		{WorkerId: "w2", Fate: turnlanev1.EventFate_EVENT_FATE_DEAD, DeadLetterTopic: "dlq.t", DeadLetterPosition: "18-0"},
	}
	i := max(0, slices.IndexFunc(all, func(w *turnlanev1.EventAtWorker) bool { return w.GetWorkerId() == req.GetPageToken() }))
	resp := &turnlanev1.GetEventStatusResponse{Held: true, Workers: all[i : i+1], Incomplete: i == 1}
	if i+1 < len(all) {
		resp.NextPageToken = all[i+1].GetWorkerId()
	}
	return resp, nil
}
