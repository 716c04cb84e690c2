package workmanager_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/internal/admission"
	"github.com/turnlane/turnlane/internal/command"
	"github.com/turnlane/turnlane/internal/fanout"
	"github.com/turnlane/turnlane/internal/lifecycle"
	"github.com/turnlane/turnlane/internal/rpcerr"
	v1 "github.com/turnlane/turnlane/proto/turnlane/v1"
	"github.com/turnlane/turnlane/store"
	"github.com/turnlane/turnlane/workmanager"
)

// publisher stores what is published on the world's store, but for lifecycle events.
type publisher struct{ w *world }

func (p publisher) Publish(ctx context.Context, topic string, events ...*event.Event) ([]event.Position, error) {
	if topic == lifecycle.Topic {
		return p.w.events.Publish(ctx, topic, events...)
	}
	var records []event.Record
	for _, e := range events {
		if err := admission.Event(e, 0); err != nil {
			return nil, err
		}
		records = append(records, admission.Encode(e, time.Now()))
	}
	out, err := p.w.store.Append(ctx, topic, []store.Batch{{Records: records}})
	if err != nil {
		return nil, err
	}
	return out[0].Positions, out[0].Err
}

// follower reads a world's topics by their fan-out.
type follower struct{ hub *fanout.Hub }

func (f follower) Follow(ctx context.Context, topic string, each func(event.Entry) bool) (func(), error) {
	feed, err := f.hub.Open(ctx, topic, fanout.Options{Start: fanout.Tail(), Sink: sink(each)})
	if err != nil {
		return nil, err
	}
	return feed.Close, nil
}

type sink func(event.Entry) bool

func (s sink) Offer(entries []event.Entry) int {
	for _, e := range entries {
		s(e)
	}
	return len(entries)
}
func (s sink) Room() bool { return true }

func (w *world) hub() *fanout.Hub {
	h := fanout.New(fanout.Config{Upstream: w.store})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = h.Run(ctx)
	}()
	w.t.Cleanup(func() { cancel(); <-done })
	return h
}

func commanding(w *world) func(*workmanager.Config) {
	hub := w.hub()
	return func(c *workmanager.Config) { c.Publisher, c.Follower = publisher{w}, follower{hub} }
}

// answering answers the commands to a worker as its activation would: each is answered twice, as after
// a crash, by what answer gives.
func (w *world) answering(typ, id string, answer func(command.Command) *event.Event) {
	w.t.Helper()
	queue := make(chan event.Entry, 1000)
	closing, err := follower{w.hub()}.Follow(w.t.Context(), command.Topic(typ, id), func(e event.Entry) bool {
		queue <- e
		return true
	})
	if err != nil {
		w.t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for entry := range queue {
			e, err := event.DecodeRecord(entry.Record)
			if err != nil {
				w.t.Error(err)
				return
			}
			c, err := command.Parse(e, typ, id)
			if err != nil {
				w.t.Error(err)
				return
			}
			reply := answer(c)
			if reply == nil {
				continue
			}
			for range 2 {
				if _, err := (publisher{w}).Publish(context.Background(), c.ReplyTo, reply); err != nil {
					w.t.Error(err)
				}
			}
		}
	}()
	w.t.Cleanup(func() { closing(); close(queue); <-done })
}

func TestACommandAndItsReply(t *testing.T) {
	w := newWorld(t)
	m := w.manager(commanding(w))
	w.runtime("pod-1", "echo")
	req := dedicated("a")
	req.Name = "an echo"
	m.create(t, req)
	m.start(t, "a")
	w.answering("echo", "a", func(c command.Command) *event.Event {
		switch c.Name {
		case "fail":
			return command.ErrorReply(c, "echo", "a", "NO_SEAT", "there is none", time.Now())
		case "ignore":
			return nil
		}
		if c.Deadline.IsZero() || c.Correlation != c.ID {
			t.Errorf("command %+v", c)
		}
		return command.Reply(c, "echo", "a", c.Data, c.ContentType, time.Now())
	})
	send := func(req *v1.SendCommandRequest) (*v1.SendCommandResponse, error) {
		if req.Worker == "" {
			req.Worker = "an echo"
		}
		return m.SendCommand(t.Context(), req)
	}
	wait := durationpb.New(time.Minute)

	resp, err := send(&v1.SendCommandRequest{Command: "ping", Data: []byte(`{"n":1}`), Wait: wait})
	if err != nil {
		t.Fatal(err)
	}
	if r := resp.GetReply(); r.GetId() != resp.GetId()+".reply" || string(r.GetData()) != `{"n":1}` || r.GetDatacontenttype() != "application/json" || r.GetErrorReason() != "" {
		t.Errorf("reply %v", resp)
	}
	if resp.GetTopic() != "wrk.echo.command.a" || resp.GetPosition() == "" {
		t.Errorf("stored at %v", resp)
	}
	resp, err = send(&v1.SendCommandRequest{Command: "fail", Id: "mine", Wait: wait})
	if err != nil || resp.GetId() != "mine" || resp.GetReply().GetErrorReason() != "NO_SEAT" || resp.GetReply().GetError() != "there is none" || resp.GetReply().GetData() != nil {
		t.Errorf("a command that fails: %v, %v", resp, err)
	}

	// Without waiting there is no reply, and it says where it will be.
	resp, err = send(&v1.SendCommandRequest{Command: "ignore", Data: []byte("text"), Datacontenttype: "text/plain"})
	if err != nil || resp.GetReply() != nil {
		t.Errorf("%v, %v", resp, err)
	}
	page, err := w.store.Read(t.Context(), "wrk.echo.command.a", event.Position{}, store.ReadLimit{})
	if err != nil || len(page.Entries) != 3 || page.Entries[2].Pos.String() != resp.GetPosition() {
		t.Fatalf("%v, %v", page, err)
	}
	e, err := event.DecodeRecord(page.Entries[2].Record)
	if err != nil || e.Type != "ignore" || e.DataKind != event.TextData || e.Source != command.Source {
		t.Errorf("%+v, %v", e, err)
	}

	// Nobody answers.
	_, err = send(&v1.SendCommandRequest{Command: "ignore", Id: "lost", Wait: durationpb.New(30 * time.Millisecond)})
	wantError(t, err, codes.DeadlineExceeded, rpcerr.NoReply, "wrk.echo.command.a", "may still run", "lost", "30ms")

	// Many at once, each gets its own.
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			data := strings.Repeat("7", i+1)
			resp, err := send(&v1.SendCommandRequest{Command: "ping", Data: []byte(data), Wait: wait})
			if err != nil || string(resp.GetReply().GetData()) != data {
				t.Errorf("%d: %v, %v", i, resp, err)
			}
		})
	}
	wg.Wait()
}

func TestCommandsToWorkersThatDoNotRun(t *testing.T) {
	w := newWorld(t)
	m := w.manager(commanding(w))
	r := w.runtime("pod-1", "echo")
	m.create(t, dedicated("a"))
	send := func(fail bool, wait time.Duration) error {
		_, err := m.SendCommand(t.Context(), &v1.SendCommandRequest{Worker: "a", Command: "ping", FailIfStopped: fail, Wait: durationpb.New(wait)})
		return err
	}
	wantError(t, send(true, 0), codes.FailedPrecondition, rpcerr.WorkerStopped, "STOPPED", "nothing was sent")
	if b, err := w.store.Bounds(t.Context(), "wrk.echo.command.a"); err != nil || b.Incarnation != "" {
		t.Errorf("%v, %v", b, err)
	}
	if err := send(false, 0); err != nil {
		t.Error(err)
	}
	wantError(t, send(false, 10*time.Millisecond), codes.DeadlineExceeded, rpcerr.NoReply, "which is STOPPED")

	r.failing("a", "no database")
	m.start(t, "a")
	eventually(t, "it fails", func() bool { return m.state(t, "a") == failed })
	wantError(t, send(true, 0), codes.FailedPrecondition, rpcerr.WorkerStopped, "FAILED", "no database")
	r.failing("a", "")
	m.start(t, "a")
	eventually(t, "it runs", func() bool { return m.state(t, "a") == running })
	if err := send(true, 0); err != nil {
		t.Error(err)
	}
}

func TestCommandsAreCheckedAtTheDoor(t *testing.T) {
	w := newWorld(t)
	m := w.manager(commanding(w))
	m.create(t, dedicated("a"))
	wait := durationpb.New(time.Second)
	for name, c := range map[string]struct {
		req    *v1.SendCommandRequest
		fields string // "" for good ones
	}{
		"as it is":             {&v1.SendCommandRequest{Command: "ping"}, ""},
		"no name":              {&v1.SendCommandRequest{}, "command"},
		"longest name":         {&v1.SendCommandRequest{Command: strings.Repeat("x", 128)}, ""},
		"name too long":        {&v1.SendCommandRequest{Command: strings.Repeat("x", 129)}, "command"},
		"name with a space":    {&v1.SendCommandRequest{Command: "a b"}, "command"},
		"name with a zero":     {&v1.SendCommandRequest{Command: "a\x00"}, "command"},
		"id of all kinds":      {&v1.SendCommandRequest{Command: "ping", Id: "a/b é 😀"}, ""},
		"id too long":          {&v1.SendCommandRequest{Command: "ping", Id: strings.Repeat("x", 257)}, "id"},
		"id with a newline":    {&v1.SendCommandRequest{Command: "ping", Id: "a\nb"}, "id"},
		"id that is no text":   {&v1.SendCommandRequest{Command: "ping", Id: "\xff"}, "id"},
		"a type that is none":  {&v1.SendCommandRequest{Command: "ping", Datacontenttype: "json"}, "datacontenttype"},
		"data that is no JSON": {&v1.SendCommandRequest{Command: "ping", Data: []byte("{")}, "data"},
		"bytes":                {&v1.SendCommandRequest{Command: "ping", Data: []byte("{\xff"), Datacontenttype: "application/octet-stream"}, ""},
		"too much":             {&v1.SendCommandRequest{Command: "ping", Data: make([]byte, 1<<20), Datacontenttype: "application/octet-stream"}, "event"},
		"a wait below zero":    {&v1.SendCommandRequest{Command: "ping", Wait: durationpb.New(-1)}, "wait"},
		"a wait too long":      {&v1.SendCommandRequest{Command: "ping", Wait: durationpb.New(time.Hour + 1)}, "wait"},
		"a wait that is none":  {&v1.SendCommandRequest{Command: "ping", Wait: &durationpb.Duration{Seconds: 1, Nanos: -1}}, "wait"},
		"to a topic":           {&v1.SendCommandRequest{Command: "ping", ReplyTo: "answers"}, ""},
		"to a topic and here":  {&v1.SendCommandRequest{Command: "ping", ReplyTo: "answers", Wait: wait}, "reply_to"},
		"to ours":              {&v1.SendCommandRequest{Command: "ping", ReplyTo: "sys.x"}, "reply_to"},
		"to a worker":          {&v1.SendCommandRequest{Command: "ping", ReplyTo: "wrk.echo.command.a"}, "reply_to"},
		"to no topic":          {&v1.SendCommandRequest{Command: "ping", ReplyTo: "a b"}, "reply_to"},
		"all of it": {&v1.SendCommandRequest{Command: "", Id: "\n", Data: []byte("{"), Wait: durationpb.New(-1), ReplyTo: "a b"},
			"command,id,data,wait,reply_to"},
	} {
		t.Run(name, func(t *testing.T) {
			c.req.Worker = "a"
			_, err := m.SendCommand(t.Context(), c.req)
			if c.fields == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			wantError(t, err, codes.InvalidArgument, rpcerr.InvalidField)
			if info := rpcerr.Info(err).GetMetadata(); info["field"] != c.fields || info["rule"] == "" {
				t.Errorf("%v: facts %v, want field %s", err, info, c.fields)
			}
		})
	}
	_, err := m.SendCommand(t.Context(), &v1.SendCommandRequest{Worker: "nobody", Command: "ping"})
	wantError(t, err, codes.NotFound, rpcerr.NotFound, "nobody")

	// A process without a publisher, or without a reader, says so.
	bare := w.manager(func(c *workmanager.Config) { c.Publisher = nil })
	_, err = bare.SendCommand(t.Context(), &v1.SendCommandRequest{Worker: "a", Command: "ping"})
	wantError(t, err, codes.FailedPrecondition, rpcerr.NoCommands)
	deaf := w.manager(func(c *workmanager.Config) { c.Publisher = publisher{w} })
	_, err = deaf.SendCommand(t.Context(), &v1.SendCommandRequest{Worker: "a", Command: "ping", Wait: wait})
	wantError(t, err, codes.FailedPrecondition, rpcerr.NoCommands, "wrk.echo.reply.a")
}

// The end of the process does not wait for replies that may never come.
func TestTheEndOfWaiting(t *testing.T) {
	w := newWorld(t)
	m := w.manager(commanding(w))
	m.create(t, dedicated("a"))
	failed := make(chan error, 1)
	go func() {
		_, err := m.SendCommand(context.Background(), &v1.SendCommandRequest{Worker: "a", Command: "ping", Wait: durationpb.New(time.Hour)})
		failed <- err
	}()
	eventually(t, "the command is stored", func() bool {
		b, err := w.store.Bounds(t.Context(), "wrk.echo.command.a")
		return err == nil && b.Entries == 1
	})
	m.EndWaiting()
	m.EndWaiting()
	wantError(t, <-failed, codes.Unavailable, rpcerr.ShuttingDown, "wrk.echo.command.a", "may still run")
}

func TestWorkerState(t *testing.T) {
	w := newWorld(t)
	m := w.manager()
	w.runtime("pod-1", "echo")
	m.create(t, dedicated("a"))
	read := func(prefix string) map[string][]byte {
		t.Helper()
		resp, err := m.GetWorkerState(t.Context(), &v1.GetWorkerStateRequest{Worker: "a", Prefix: prefix})
		if err != nil {
			t.Fatal(err)
		}
		return resp.GetState()
	}
	if s := read(""); len(s) != 0 {
		t.Errorf("before it ran: %v", s)
	}
	m.start(t, "a")
	owner, err := w.store.Owner(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	_, err = w.store.Commit(t.Context(), []store.Commit{{Owner: owner, Start: store.Start{Run: 1, Generation: 1}, State: []store.StateChange{
		{Key: "sum/JFK", Value: []byte("7")}, {Key: "sum/LAX", Value: []byte{0xff}}, {Key: "other\xff", Value: []byte("x")},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	if s := read(""); len(s) != 3 || string(s["other�"]) != "x" {
		t.Errorf("all of it: %v", s)
	}
	if s := read("sum/"); len(s) != 2 || string(s["sum/JFK"]) != "7" || string(s["sum/LAX"]) != "\xff" {
		t.Errorf("sums: %v", s)
	}
	_, err = m.GetWorkerState(t.Context(), &v1.GetWorkerStateRequest{Worker: "b"})
	wantError(t, err, codes.NotFound, rpcerr.NotFound)
}
