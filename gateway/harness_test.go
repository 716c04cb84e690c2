package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http/httptest"
	"testing"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/binding/format/protobuf/v2/pb"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/internal/fanout"
	"github.com/turnlane/turnlane/internal/rpcerr"
	turnlanev1 "github.com/turnlane/turnlane/proto/turnlane/v1"
	"github.com/turnlane/turnlane/store"
	"github.com/turnlane/turnlane/store/pebblestore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// server is a running gateway on a store in memory, behind real gRPC and HTTP servers.
type server struct {
	t      testing.TB
	g      *Gateway
	hub    *fanout.Hub
	store  store.Store
	grpc   *grpc.Server
	http   *httptest.Server
	client turnlanev1.GatewayServiceClient
	stop   context.CancelFunc // ends the gateway's Run
	done   chan error         // what it returned
}

func newServer(t testing.TB, edits ...func(*Config)) *server {
	t.Helper()
	s := &server{t: t, done: make(chan error, 1)}
	log, err := pebblestore.Open(pebblestore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	s.store = log
	t.Cleanup(func() { _ = log.Close() })

	cfg := Config{Store: log}
	for _, edit := range edits {
		edit(&cfg)
	}
	s.hub = runHub(t, cfg.Store)
	cfg.Hub = s.hub
	if s.g, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	s.stop = stop
	ended := make(chan struct{})
	go func() { defer close(ended); s.done <- s.g.Run(ctx) }()

	listener := bufconn.Listen(1 << 20)
	s.grpc = grpc.NewServer(grpc.MaxRecvMsgSize(MaxMessageBytes))
	turnlanev1.RegisterGatewayServiceServer(s.grpc, s.g)
	go func() { _ = s.grpc.Serve(listener) }()
	t.Cleanup(s.grpc.Stop)
	// Before the gRPC server stops: its streams end with the gateway.
	t.Cleanup(func() { stop(); <-ended })
	s.client = s.dial(listener)

	s.http = httptest.NewServer(s.g.HTTP())
	t.Cleanup(s.http.Close)
	return s
}

// runHub runs a hub until the test's end.
func runHub(t testing.TB, log store.Log) *fanout.Hub {
	return runHubWith(t, fanout.Config{Upstream: log})
}

func runHubWith(t testing.TB, cfg fanout.Config) *fanout.Hub {
	hub := fanout.New(cfg)
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = hub.Run(ctx) }()
	t.Cleanup(func() { stop(); <-done })
	return hub
}

func (s *server) dial(listener *bufconn.Listener, opts ...grpc.DialOption) turnlanev1.GatewayServiceClient {
	s.t.Helper()
	conn, err := grpc.NewClient("passthrough:bufconn", append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(MaxMessageBytes)),
	}, opts...)...)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = conn.Close() })
	return turnlanev1.NewGatewayServiceClient(conn)
}

// deadline is generous: it only turns a test that hangs into one that fails.
func deadline(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func numbered(from, n int) []*cloudevents.CloudEvent {
	events := make([]*cloudevents.CloudEvent, n)
	for i := range events {
		events[i] = &cloudevents.CloudEvent{Id: fmt.Sprint(from + i), Source: "/test", SpecVersion: "1.0", Type: "t",
			Data: &cloudevents.CloudEvent_TextData{TextData: fmt.Sprintf(`{"n":%d}`, from+i)}}
	}
	return events
}

func (s *server) publish(topic string, from, n int) []string {
	s.t.Helper()
	resp, err := s.client.PublishEvents(deadline(s.t), &turnlanev1.PublishEventsRequest{Topic: topic, Events: numbered(from, n)})
	if err != nil {
		s.t.Fatal(err)
	}
	if len(resp.GetPositions()) != n {
		s.t.Fatalf("%d positions for %d events", len(resp.GetPositions()), n)
	}
	return resp.GetPositions()
}

// subscriber reads a subscription and checks what holds for all of them: batches follow on each other,
// and positions increase.
type subscriber struct {
	t       testing.TB
	stream  turnlanev1.GatewayService_SubscribeClient
	started *turnlanev1.Started
	covered string
	ids     []string
	gaps    []*turnlanev1.Gap
	events  []*cloudevents.CloudEvent
	log     []string // ids, and gaps as kind:first:last, in order
	cancel  context.CancelFunc
}

func (s *server) subscribe(req *turnlanev1.SubscribeRequest) *subscriber {
	s.t.Helper()
	ctx, cancel := context.WithCancel(deadline(s.t))
	s.t.Cleanup(cancel)
	stream, err := s.client.Subscribe(ctx, req)
	if err != nil {
		s.t.Fatal(err)
	}
	first, err := stream.Recv()
	if err != nil {
		s.t.Fatal(err)
	}
	if first.GetStarted() == nil {
		s.t.Fatalf("the first response is %v, want started", first)
	}
	return &subscriber{t: s.t, stream: stream, started: first.GetStarted(), covered: first.GetStarted().GetAfter(), cancel: cancel}
}

// next takes one response; io.EOF is the end.
func (s *subscriber) next() error {
	resp, err := s.stream.Recv()
	if err != nil {
		return err
	}
	switch {
	case resp.GetGap() != nil:
		g := resp.GetGap()
		s.gaps = append(s.gaps, g)
		s.log = append(s.log, g.GetKind()+":"+g.GetFirst()+":"+g.GetLast())
		switch last := mustPosition(s.t, g.GetLast()); {
		case g.GetKind() == "incarnation":
			s.covered = "0-0" // another log, from its start
		case mustPosition(s.t, s.covered).Less(last):
			s.covered = g.GetLast()
		}
	case resp.GetBatch() != nil:
		b := resp.GetBatch()
		if b.GetFrom() != s.covered {
			s.t.Errorf("a batch begins at %s, want %s, where the last one ended", b.GetFrom(), s.covered)
		}
		last := mustPosition(s.t, b.GetFrom())
		for _, e := range b.GetEvents() {
			pos := mustPosition(s.t, e.GetPosition())
			if !last.Less(pos) {
				s.t.Errorf("position %s after %s", pos, last)
			}
			last = pos
			s.ids = append(s.ids, e.GetEvent().GetId())
			s.log = append(s.log, e.GetEvent().GetId())
			s.events = append(s.events, e.GetEvent())
		}
		s.covered = b.GetTo()
		if mustPosition(s.t, s.covered).Less(last) {
			s.t.Errorf("a batch covers up to %s, and holds %s", s.covered, last)
		}
	default:
		s.t.Errorf("unexpected response %v", resp)
	}
	return nil
}

// take reads until it has n events.
func (s *subscriber) take(n int) []string {
	s.t.Helper()
	for len(s.ids) < n {
		if err := s.next(); err != nil {
			s.t.Fatalf("after %d of %d events: %v", len(s.ids), n, err)
		}
	}
	return s.ids
}

// rest reads to the end, which must be an orderly one.
func (s *subscriber) rest() []string {
	s.t.Helper()
	for {
		switch err := s.next(); {
		case err == nil:
		case errors.Is(err, io.EOF):
			return s.ids
		default:
			s.t.Fatalf("after %d events: %v", len(s.ids), err)
		}
	}
}

func mustPosition(t testing.TB, s string) event.Position {
	t.Helper()
	p, err := event.ParsePosition(s)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func ids(from, n int) []string {
	list := make([]string, n)
	for i := range list {
		list[i] = fmt.Sprint(from + i)
	}
	return list
}

func wantRefused(t testing.TB, err error, code codes.Code, reason, field string) {
	t.Helper()
	if status.Code(err) != code || rpcerr.Reason(err) != reason {
		t.Errorf("got %v with reason %q, want %s with %s", err, rpcerr.Reason(err), code, reason)
		return
	}
	if got := rpcerr.Info(err).GetMetadata()["field"]; got != field {
		t.Errorf("field %q, want %q: %v", got, field, err)
	}
}

func tail() *turnlanev1.Start { return &turnlanev1.Start{At: &turnlanev1.Start_Tail{Tail: true}} }
func earliest() *turnlanev1.Start {
	return &turnlanev1.Start{At: &turnlanev1.Start_Earliest{Earliest: true}}
}
func at(position string) *turnlanev1.Start {
	return &turnlanev1.Start{At: &turnlanev1.Start_Position{Position: position}}
}
