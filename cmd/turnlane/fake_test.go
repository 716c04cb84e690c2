package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"

	cepb "github.com/cloudevents/sdk-go/binding/format/protobuf/v2/pb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/internal/rpcerr"
	turnlanev1 "github.com/turnlane/turnlane/proto/turnlane/v1"
)

// fake is a server that is just enough for the verbs: topics in memory, workers that do nothing.
type fake struct {
	turnlanev1.UnimplementedGatewayServiceServer
	turnlanev1.UnimplementedWorkManagerServiceServer

	mu       sync.Mutex
	news     chan struct{} // closed and replaced when something is stored
	topics   map[string][]*turnlanev1.StoredEvent
	settings map[string]*turnlanev1.Retention
	workers  []*turnlanev1.Worker
	created  []*turnlanev1.CreateWorkerRequest
	starting int  // how often a started worker is seen STARTING first
	fail     bool // started workers fail
	refuse   func(*cepb.CloudEvent) error
	gap      *turnlanev1.Gap
	others   int // updates that somebody else makes first
	updates  []*turnlanev1.UpdateWorkerRequest
	commands []*turnlanev1.SendCommandRequest
	removed  string // of all topics
}

// serve starts the fake on an address, "" for a free one, and returns it with how to end it at once.
func (f *fake) serve(t *testing.T, addr string) (string, func()) {
	t.Helper()
	if addr == "" {
		addr = "127.0.0.1:0"
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	turnlanev1.RegisterGatewayServiceServer(s, f)
	turnlanev1.RegisterWorkManagerServiceServer(s, f)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(l)
	}()
	stop := sync.OnceFunc(func() {
		s.Stop()
		<-done
	})
	t.Cleanup(stop)
	return l.Addr().String(), stop
}

// start returns a fake that is served, and its address.
func start(t *testing.T) (*fake, string) {
	t.Helper()
	f := newFake()
	addr, _ := f.serve(t, "")
	return f, addr
}

func newFake() *fake {
	return &fake{
		news: make(chan struct{}), topics: make(map[string][]*turnlanev1.StoredEvent),
		settings: make(map[string]*turnlanev1.Retention),
	}
}

// result is what a command line did.
type result struct {
	code           int
	stdout, stderr string
}

// cli runs a command line against a server.
func cli(t *testing.T, addr string, args ...string) result {
	t.Helper()
	return cliInput(t, addr, "", args...)
}

func cliInput(t *testing.T, addr, stdin string, args ...string) result {
	t.Helper()
	var stdout, stderr bytes.Buffer
	code := run(t.Context(), args, strings.NewReader(stdin), &stdout, &stderr, func(name string) string {
		if name == "TURNLANE_ADDR" {
			return addr
		}
		return ""
	})
	return result{code, stdout.String(), stderr.String()}
}

// ok fails the test unless the command line succeeded, and returns its output.
func (r result) ok(t *testing.T) string {
	t.Helper()
	if r.code != exitDone {
		t.Fatalf("exit code %d\n%s%s", r.code, r.stdout, r.stderr)
	}
	return r.stdout
}

func (f *fake) append(topic string, events []*cepb.CloudEvent) ([]string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if strings.HasPrefix(topic, "sys.") && topic != "sys.workmanager.worker.lifecycle" {
		return nil, rpcerr.Invalid("topic", `"`+topic+`" is written by Turnlane itself`, "choose another")
	}
	for i, e := range events {
		if f.refuse != nil {
			if err := f.refuse(e); err != nil {
				return nil, rpcerr.Invalid(fmt.Sprintf("events[%d].id", i), err.Error(), "send another")
			}
		}
	}
	var positions []string
	for _, e := range events {
		p := event.Position{Ms: 1_700_000_000_000, Seq: uint64(len(f.topics[topic]))}.String()
		f.topics[topic] = append(f.topics[topic], &turnlanev1.StoredEvent{Position: p, Event: e})
		positions = append(positions, p)
	}
	close(f.news)
	f.news = make(chan struct{})
	return positions, nil
}

func (f *fake) PublishEvents(_ context.Context, req *turnlanev1.PublishEventsRequest) (*turnlanev1.PublishEventsResponse, error) {
	positions, err := f.append(req.GetTopic(), req.GetEvents())
	return &turnlanev1.PublishEventsResponse{Positions: positions}, err
}

func (f *fake) PublishStream(stream turnlanev1.GatewayService_PublishStreamServer) error {
	for {
		req, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		resp := &turnlanev1.PublishStreamResponse{}
		if resp.Positions, err = f.append(req.GetTopic(), req.GetEvents()); err != nil {
			info := rpcerr.Info(err)
			resp.Error = &turnlanev1.Error{
				Code: int32(status.Code(err)), Message: status.Convert(err).Message(),
				Reason: info.GetReason(), Metadata: info.GetMetadata(),
			}
		}
		if err := stream.Send(resp); err != nil {
			return err
		}
	}
}

func (f *fake) Subscribe(req *turnlanev1.SubscribeRequest, stream turnlanev1.GatewayService_SubscribeServer) error {
	f.mu.Lock()
	at, end := len(f.topics[req.GetTopic()]), -1
	switch from := req.GetFrom().GetAt().(type) {
	case *turnlanev1.Start_Earliest:
		at = 0
	case *turnlanev1.Start_Position:
		p, _ := event.ParsePosition(from.Position)
		at = int(p.Seq)
	}
	if req.GetUntil() != nil {
		end = len(f.topics[req.GetTopic()])
	}
	gap := f.gap
	f.mu.Unlock()
	after := event.Position{Ms: 1_700_000_000_000, Seq: uint64(at)}.Prev().String()
	if err := stream.Send(&turnlanev1.SubscribeResponse{Response: &turnlanev1.SubscribeResponse_Started{
		Started: &turnlanev1.Started{After: after}}}); err != nil {
		return err
	}
	if gap != nil {
		if err := stream.Send(&turnlanev1.SubscribeResponse{Response: &turnlanev1.SubscribeResponse_Gap{Gap: gap}}); err != nil {
			return err
		}
	}
	for {
		f.mu.Lock()
		events, news := f.topics[req.GetTopic()][at:], f.news
		f.mu.Unlock()
		if len(events) > 0 {
			to := events[len(events)-1].GetPosition()
			err := stream.Send(&turnlanev1.SubscribeResponse{Response: &turnlanev1.SubscribeResponse_Batch{
				Batch: &turnlanev1.EventBatch{From: after, To: to, Events: events}}})
			if err != nil {
				return err
			}
			at, after = at+len(events), to
		}
		if end >= 0 && at >= end {
			return nil
		}
		select {
		case <-news:
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}

func (f *fake) topic(name string) *turnlanev1.Topic {
	t := &turnlanev1.Topic{Topic: name, Entries: uint64(len(f.topics[name])), Incarnation: "i1", Retention: f.settings[name], Removed: f.removed}
	if n := len(f.topics[name]); n > 0 {
		t.First, t.Last, t.Bytes = f.topics[name][0].GetPosition(), f.topics[name][n-1].GetPosition(), uint64(100*n)
	}
	return t
}

func (f *fake) ListTopics(_ context.Context, req *turnlanev1.ListTopicsRequest) (*turnlanev1.ListTopicsResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	resp := &turnlanev1.ListTopicsResponse{}
	for _, name := range sortedKeys(f.topics) {
		if !strings.HasPrefix(name, req.GetPrefix()) || name <= req.GetPageToken() {
			continue
		}
		if len(resp.Topics) == 1 { // pages of one, whatever was asked for
			resp.NextPageToken = resp.Topics[0].GetTopic()
			break
		}
		resp.Topics = append(resp.Topics, f.topic(name))
	}
	return resp, nil
}

func (f *fake) GetTopic(_ context.Context, req *turnlanev1.GetTopicRequest) (*turnlanev1.GetTopicResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.topics[req.GetTopic()] == nil && f.settings[req.GetTopic()] == nil {
		return nil, rpcerr.New(codes.NotFound, rpcerr.NotFound, "topic: there is no "+req.GetTopic()+"; check the name", nil)
	}
	return &turnlanev1.GetTopicResponse{Topic: f.topic(req.GetTopic())}, nil
}

func (f *fake) SetTopic(_ context.Context, req *turnlanev1.SetTopicRequest) (*turnlanev1.SetTopicResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.settings[req.GetTopic()] = req.GetRetention()
	return &turnlanev1.SetTopicResponse{Topic: f.topic(req.GetTopic())}, nil
}

func (f *fake) find(name string) (*turnlanev1.Worker, error) {
	i := slices.IndexFunc(f.workers, func(w *turnlanev1.Worker) bool { return w.GetId() == name || name != "" && w.GetName() == name })
	if i < 0 {
		return nil, rpcerr.New(codes.NotFound, rpcerr.NotFound, fmt.Sprintf("worker: there is none with the id or name %q; see worker list", name), nil)
	}
	return f.workers[i], nil
}

func (f *fake) CreateWorker(_ context.Context, req *turnlanev1.CreateWorkerRequest) (*turnlanev1.CreateWorkerResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, err := f.find(req.GetName()); err == nil {
		return nil, rpcerr.New(codes.AlreadyExists, rpcerr.NameTaken, "name: "+req.GetName()+" is taken; choose another", nil)
	}
	id := req.GetId()
	if id == "" {
		id = fmt.Sprintf("w-%d", len(f.created))
	}
	f.created = append(f.created, req)
	f.workers = append(f.workers, &turnlanev1.Worker{
		Id: id, Name: req.GetName(), Type: req.GetType(), Topics: req.GetTopics(), Group: req.GetGroup(),
		GroupSize: req.GetGroupSize(), GroupIndex: req.GetGroupIndex(), Config: req.GetConfig(), Tags: req.GetTags(),
		Policy: req.GetPolicy(), Replay: req.GetReplay(),
		State: turnlanev1.WorkerState_WORKER_STATE_STOPPED, Desired: turnlanev1.DesiredState_DESIRED_STATE_STOPPED,
	})
	return &turnlanev1.CreateWorkerResponse{Worker: proto.CloneOf(f.workers[len(f.workers)-1])}, nil
}

func (f *fake) GetWorker(_ context.Context, req *turnlanev1.GetWorkerRequest) (*turnlanev1.GetWorkerResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	w, err := f.find(req.GetWorker())
	if err != nil {
		return nil, err
	}
	if w.GetState() == turnlanev1.WorkerState_WORKER_STATE_STARTING {
		f.starting--
		if f.starting == 0 {
			w.State = turnlanev1.WorkerState_WORKER_STATE_RUNNING
		}
	}
	w = proto.CloneOf(w)
	for _, topic := range w.GetTopics() {
		w.TopicStatus = append(w.TopicStatus, &turnlanev1.WorkerTopic{Topic: topic, LagEntries: 7, Feed: turnlanev1.FeedState_FEED_STATE_LIVE})
	}
	return &turnlanev1.GetWorkerResponse{Worker: w}, nil
}

func (f *fake) ListWorkers(_ context.Context, req *turnlanev1.ListWorkersRequest) (*turnlanev1.ListWorkersResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	resp := &turnlanev1.ListWorkersResponse{}
	for _, w := range f.workers {
		if req.GetState() != 0 && w.GetState() != req.GetState() || req.GetType() != "" && w.GetType() != req.GetType() {
			continue
		}
		resp.Workers = append(resp.Workers, proto.CloneOf(w))
	}
	return resp, nil
}

func (f *fake) StartWorker(_ context.Context, req *turnlanev1.StartWorkerRequest) (*turnlanev1.StartWorkerResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	w, err := f.find(req.GetWorker())
	if err != nil {
		return nil, err
	}
	w.Desired, w.State = turnlanev1.DesiredState_DESIRED_STATE_RUNNING, turnlanev1.WorkerState_WORKER_STATE_RUNNING
	switch {
	case f.fail:
		w.State, w.Reason = turnlanev1.WorkerState_WORKER_STATE_FAILED, "config: out is missing"
	case f.starting != 0:
		w.State, w.Reason = turnlanev1.WorkerState_WORKER_STATE_STARTING, "no live runtime has the type"
	}
	resp := &turnlanev1.StartWorkerResponse{Worker: proto.CloneOf(w)}
	if warning := f.coverage(w.GetGroup()).GetWarning(); warning != "" {
		resp.Warnings = []string{warning}
	}
	return resp, nil
}

func (f *fake) StopWorker(_ context.Context, req *turnlanev1.StopWorkerRequest) (*turnlanev1.StopWorkerResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	w, err := f.find(req.GetWorker())
	if err != nil {
		return nil, err
	}
	w.Desired, w.State = turnlanev1.DesiredState_DESIRED_STATE_STOPPED, turnlanev1.WorkerState_WORKER_STATE_STOPPED
	return &turnlanev1.StopWorkerResponse{Worker: proto.CloneOf(w)}, nil
}

func (f *fake) DeleteWorker(_ context.Context, req *turnlanev1.DeleteWorkerRequest) (*turnlanev1.DeleteWorkerResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	w, err := f.find(req.GetWorker())
	if err != nil {
		return nil, err
	}
	f.workers = slices.DeleteFunc(f.workers, func(x *turnlanev1.Worker) bool { return x == w })
	return &turnlanev1.DeleteWorkerResponse{}, nil
}

func (f *fake) SeekWorker(_ context.Context, req *turnlanev1.SeekWorkerRequest) (*turnlanev1.SeekWorkerResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	w, err := f.find(req.GetWorker())
	if err != nil {
		return nil, err
	}
	w.Run++
	w.Reason = req.GetTo().String()
	return &turnlanev1.SeekWorkerResponse{Worker: proto.CloneOf(w)}, nil
}

func (f *fake) GetGroup(_ context.Context, req *turnlanev1.GetGroupRequest) (*turnlanev1.GetGroupResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	resp := &turnlanev1.GetGroupResponse{Group: req.GetGroup()}
	if c := f.coverage(req.GetGroup()); c != nil {
		resp.Topics = append(resp.Topics, c)
	}
	return resp, nil
}

// coverage takes all members of a group to be on the same topic.
func (f *fake) coverage(group string) *turnlanev1.GroupCoverage {
	var c *turnlanev1.GroupCoverage
	for _, w := range f.workers {
		if group == "" || w.GetGroup() != group {
			continue
		}
		if c == nil {
			c = &turnlanev1.GroupCoverage{Topic: w.GetTopics()[0], GroupSize: w.GetGroupSize()}
			for slot := range w.GetGroupSize() {
				c.Slots = append(c.Slots, &turnlanev1.GroupSlot{Slot: slot})
			}
		}
		s := c.Slots[w.GetGroupIndex()]
		s.WorkerId, s.WorkerName, s.State = w.GetId(), w.GetName(), w.GetState()
		if w.GetState() == turnlanev1.WorkerState_WORKER_STATE_RUNNING {
			c.Running++
		}
	}
	if c != nil && c.Running < c.GroupSize {
		c.Warning = fmt.Sprintf("group %s on [%s] has %d of %d members running", group, c.Topic, c.Running, c.GroupSize)
	}
	return c
}
