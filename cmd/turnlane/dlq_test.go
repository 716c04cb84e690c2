package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/types/known/timestamppb"

	keeper "github.com/turnlane/turnlane/deadletter"
	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/internal/admission"
	"github.com/turnlane/turnlane/internal/catalog"
	"github.com/turnlane/turnlane/internal/client"
	"github.com/turnlane/turnlane/internal/deadletter"
	storev1 "github.com/turnlane/turnlane/proto/turnlane/store/v1"
	turnlanev1 "github.com/turnlane/turnlane/proto/turnlane/v1"
	"github.com/turnlane/turnlane/store"
	"github.com/turnlane/turnlane/store/pebblestore"
)

// serveGRPC serves what register registers, until the test ends.
func serveGRPC(t *testing.T, register func(*grpc.Server)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	register(s)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(l)
	}()
	t.Cleanup(func() { s.Stop(); <-done })
	return l.Addr().String()
}

type sessionID string

func (s sessionID) Current() (string, bool) { return string(s), true }

// letters is a server that keeps dead letters, with three of them: two of worker a, one of a worker that
// is gone.
func letters(t *testing.T) (store.Store, string) {
	t.Helper()
	quiet := slog.New(slog.DiscardHandler)
	s, err := pebblestore.Open(pebblestore.Options{Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	session, err := s.OpenSession(t.Context(), store.SessionInfo{}, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	change, err := catalog.Put(catalog.WorkerKey("a"), &storev1.WorkerRecord{Id: "a", Type: "echo"}, store.Any)
	if err == nil {
		_, err = s.Txn(t.Context(), change)
	}
	if err != nil {
		t.Fatal(err)
	}
	for n, worker := range []string{"a", "gone", "a"} {
		e := &event.Event{ID: fmt.Sprint("e", n), Source: "/s", Type: "t", Subject: "JFK", DataContentType: "application/json",
			Data: fmt.Appendf(nil, `{"n":%d}`, n), DataKind: event.JSONData}
		dead := deadletter.Wrap(e, deadletter.Facts{Reason: deadletter.Failed, Error: fmt.Sprintf("seat %d is taken", n), Attempts: 3,
			WorkerID: worker, WorkerType: "echo", Topic: "orders", Position: event.Position{Ms: uint64(n)}, Group: "g", Slot: 2})
		if _, err := s.Append(t.Context(), "dlq.orders", []store.Batch{{Records: []event.Record{admission.Encode(dead, time.Now())}}}); err != nil {
			t.Fatal(err)
		}
	}
	service, err := keeper.New(keeper.Config{Store: s, Session: sessionID(session.ID), Logger: quiet, Poll: 10 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { service.Run(ctx) })
	t.Cleanup(func() { cancel(); wg.Wait() })
	return s, serveGRPC(t, func(g *grpc.Server) { turnlanev1.RegisterDeadLetterServiceServer(g, service) })
}

func entries(t *testing.T, s store.Store, topic string) int {
	t.Helper()
	b, err := s.Bounds(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	return int(b.Entries)
}

func TestDeadLettersFromListToRedrive(t *testing.T) {
	s, addr := letters(t)
	g := decode[letterGroup](t, cli(t, addr, "dlq", "list", "-o", "json").ok(t))
	if len(g) != 1 || g[0].Topic != "dlq.orders" || g[0].Type != "echo" || g[0].Reason != "failed" || g[0].Count != 3 || g[0].Error != "seat 2 is taken" {
		t.Fatalf("%+v", g)
	}
	if text := cli(t, addr, "dlq", "list").ok(t); !strings.Contains(text, "FINGERPRINT") || !strings.Contains(text, g[0].Fingerprint) {
		t.Error(text)
	}

	v := decode[letterView](t, cli(t, addr, "dlq", "show", "--topic", "dlq.orders", "-o", "json").ok(t))
	if len(v) != 3 || v[1].WorkerID != "gone" || v[1].FromTopic != "orders" || v[1].FromPos != "1-0" || *v[1].Slot != 2 ||
		!strings.Contains(string(v[1].Event), `"id":"e1"`) || strings.Contains(string(v[1].Event), "dlq") {
		t.Fatalf("%+v", v)
	}
	text := cli(t, addr, "dlq", "show", "--topic", "dlq.orders", "--position", v[2].Position).ok(t)
	for _, want := range []string{"dlq.orders " + v[2].Position, "orders 2-0", "a, g/2", "seat 2 is taken", "3 attempts, 0 crashes", `{"n":2}`} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}

	r := cli(t, addr, "dlq", "redrive", "--topic", "dlq.orders", "--dry-run")
	if r.ok(t) != "dlq.orders: 2 of 3 dead letters would be brought back\n" || !strings.Contains(r.stderr, "1 stay where they are") || entries(t, s, "dlq.orders") != 3 {
		t.Errorf("%+v", r)
	}
	r = cli(t, addr, "dlq", "redrive", "--topic", "dlq.orders", "--fingerprint", g[0].Fingerprint, "--rate", "5000/s", "-o", "json")
	if got := decode[redriven](t, r.ok(t))[0]; got.Done != 2 || got.Skipped != 1 || got.Total != 3 || got.ID == "" ||
		entries(t, s, "dlq.orders") != 1 || entries(t, s, "wrk.echo.redrive.a") != 2 {
		t.Errorf("%+v", r)
	}
	cli(t, addr, "dlq", "redrive", "--topic", "dlq.orders", "--to", "again").ok(t)
	if entries(t, s, "again") != 1 || entries(t, s, "dlq.orders") != 0 {
		t.Error("--to did not take the last one")
	}
}

func TestDeadLettersArePurged(t *testing.T) {
	s, addr := letters(t)
	if got := cli(t, addr, "dlq", "purge", "--topic", "dlq.orders", "--dry-run").ok(t); got != "3 dead letters would be removed\n" || entries(t, s, "dlq.orders") != 3 {
		t.Error(got)
	}
	if got := cli(t, addr, "dlq", "purge", "--type", "echo").ok(t); got != "3 dead letters removed\n" || entries(t, s, "dlq.orders") != 0 {
		t.Error(got)
	}
	if got := cli(t, addr, "dlq", "list").ok(t); !strings.HasPrefix(got, "TOPIC") || strings.Count(got, "\n") != 1 {
		t.Error(got)
	}
}

func TestDeadLetterVerbsSayWhatIsWrong(t *testing.T) {
	_, addr := letters(t)
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"dlq"}, exitUsage, "a verb is missing"},
		{[]string{"dlq", "purge"}, exitUsage, "say what to remove"},
		{[]string{"dlq", "redrive"}, exitUsage, "--topic is missing"},
		{[]string{"dlq", "redrive", "--topic", "dlq.x", "--rate", "0/s"}, exitUsage, "--rate"},
		{[]string{"dlq", "redrive", "--topic", "dlq.x", "--cancel", "--to", "y"}, exitUsage, "--to is given"},
		{[]string{"dlq", "redrive", "--topic", "dlq.orders", "--cancel"}, exitFailed, "no redrive of dlq.orders is under way"},
		{[]string{"dlq", "redrive", "--topic", "orders"}, exitFailed, "no topic of dead letters"},
		{[]string{"dlq", "show", "--topic", "dlq.orders", "--position", "1-1"}, exitFailed, "has no dead letter at 1-1"},
		{[]string{"dlq", "list", "--fingerprint", "x"}, exitFailed, "12 hexadecimal digits"},
	} {
		got := cli(t, addr, c.args...)
		if got.code != c.code || !strings.Contains(got.stderr, c.want) {
			t.Errorf("%v: %+v, want code %d and %q", c.args, got, c.code, c.want)
		}
	}
}

// checked is a fake whose workers' readers are as a test says.
type checked struct {
	*fake
	status func(*turnlanev1.Worker) []*turnlanev1.WorkerTopic
}

func (f checked) GetWorker(ctx context.Context, req *turnlanev1.GetWorkerRequest) (*turnlanev1.GetWorkerResponse, error) {
	resp, err := f.fake.GetWorker(ctx, req)
	if err == nil {
		resp.Worker.TopicStatus = f.status(resp.GetWorker())
	}
	return resp, err
}

func TestCheckTellsEveryProblem(t *testing.T) {
	calls := 0
	var mu sync.Mutex
	f := checked{newFake(), func(w *turnlanev1.Worker) []*turnlanev1.WorkerTopic {
		mu.Lock()
		defer mu.Unlock()
		calls++
		s := &turnlanev1.WorkerTopic{Topic: "orders", Cursor: "5-0", LagEntries: 3}
		switch w.GetId() {
		case "idle":
			s.LagEntries = 0
		case "moves":
			s.Cursor = fmt.Sprintf("%d-0", calls)
		case "busy":
			s.InTurn = "6-0"
		case "retries":
			s.RetryAt = timestamppb.Now()
		}
		return []*turnlanev1.WorkerTopic{s}
	}}
	ready := health.NewServer()
	addr := serveGRPC(t, func(g *grpc.Server) {
		turnlanev1.RegisterGatewayServiceServer(g, f)
		turnlanev1.RegisterWorkManagerServiceServer(g, f)
		healthv1.RegisterHealthServer(g, ready)
	})
	got := cli(t, addr, "check", "-o", "json")
	if p := decode[problem](t, got.stdout); got.code != exitFailed || len(p) != 1 || p[0].Problem != "server" || p[0].Subject != addr {
		t.Fatalf("not ready: %+v", got)
	}
	ready.SetServingStatus(client.ReadyService, healthv1.HealthCheckResponse_SERVING)
	if got := cli(t, addr, "check", "--max-dead-letters", "0"); got.ok(t) != "all is well: 0 workers started, 0 groups, 0 dead letters\n" {
		t.Errorf("%+v", got)
	}

	running := func(id string) *turnlanev1.Worker {
		return &turnlanev1.Worker{Id: id, Topics: []string{"orders"}, State: turnlanev1.WorkerState_WORKER_STATE_RUNNING, Desired: turnlanev1.DesiredState_DESIRED_STATE_RUNNING}
	}
	failed, paused, member, stopped := running("failed"), running("paused"), running("idle"), running("stopped")
	failed.State, failed.Reason = turnlanev1.WorkerState_WORKER_STATE_FAILED, "config: out is missing"
	paused.Paused, paused.PauseReason = true, "out of attempts"
	member.Group, member.GroupSize = "pairs", 2
	stopped.State, stopped.Desired = turnlanev1.WorkerState_WORKER_STATE_STOPPED, turnlanev1.DesiredState_DESIRED_STATE_STOPPED
	f.workers = []*turnlanev1.Worker{failed, paused, member, stopped, running("moves"), running("busy"), running("retries"), running("stuck")}
	f.topics["dlq.orders"] = make([]*turnlanev1.StoredEvent, 3)
	for i := range f.topics["dlq.orders"] {
		f.topics["dlq.orders"][i] = &turnlanev1.StoredEvent{Position: fmt.Sprintf("%d-0", i)}
	}
	got = cli(t, addr, "check", "--max-dead-letters", "2", "--stuck-after", "1s")
	want := `worker failed: it is FAILED: config: out is missing
worker paused: it is paused: out of attempts
group pairs on orders: 1 of 2 members are running
reader stuck on orders: it has events to read, and has been at 5-0 for 1s
dead_letters dlq.*: there are 3, and at most 2 are allowed; see dlq list
`
	if got.code != exitFailed || got.stdout != want || got.stderr != "" {
		t.Errorf("got\n%s\n%+v\nwant\n%s", got.stdout, got, want)
	}
	f.workers = nil
	if got := cli(t, addr, "check", "--max-dead-letters", "3").ok(t); !strings.Contains(got, "3 dead letters") {
		t.Error(got)
	}
}

func TestCheckOfAServerThatIsNotThere(t *testing.T) {
	got := cli(t, "127.0.0.1:1", "check", "-o", "json")
	if p := decode[problem](t, got.stdout); got.code != exitFailed || len(p) != 1 || p[0].Problem != "server" || !strings.Contains(p[0].Text, "connection refused") {
		t.Errorf("%+v", got)
	}
}
