package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/binding/format/protobuf/v2/pb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/internal/rpcerr"
	turnlanev1 "github.com/turnlane/turnlane/proto/turnlane/v1"
	"github.com/turnlane/turnlane/store"
)

func TestPublishBatchIsAllOrNothing(t *testing.T) {
	s := newServer(t)
	ctx := deadline(t)
	big := numbered(0, 3)
	big[1].Data = &cloudevents.CloudEvent_BinaryData{BinaryData: make([]byte, 1<<20)}
	broken := numbered(0, 3)
	broken[2].Source = ""
	ours := numbered(0, 1)
	ours[0].Attributes = map[string]*cloudevents.CloudEventAttributeValue{
		"dlqreason": {Attr: &cloudevents.CloudEventAttributeValue_CeString{CeString: "x"}}}
	empty := numbered(0, 1)
	empty[0].Attributes = map[string]*cloudevents.CloudEventAttributeValue{
		"subject": {Attr: &cloudevents.CloudEventAttributeValue_CeString{}}}

	for _, c := range []struct {
		name, topic string
		events      []*cloudevents.CloudEvent
		field       string
	}{
		{"no topic", "", numbered(0, 1), "topic"},
		{"a topic of 201 bytes", strings.Repeat("t", 201), numbered(0, 1), "topic"},
		{"a topic with a brace", "{t}", numbered(0, 1), "topic"},
		{"a topic of the system's", "sys.log", numbered(0, 1), "topic"},
		{"dead letters", "dlq.t", numbered(0, 1), "topic"},
		{"a command", "wrk.echo.command.1", numbered(0, 1), "topic"},
		{"no events", "t", nil, "events"},
		{"one too large", "t", big, "events[1]"},
		{"one without a source", "t", broken, "events[2].source"},
		{"one that is nil", "t", []*cloudevents.CloudEvent{nil}, "spec_version"},
		{"an extension of ours", "t", ours, "dlqreason"},
		{"an empty subject", "t", empty, "subject"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := s.client.PublishEvents(ctx, &turnlanev1.PublishEventsRequest{Topic: c.topic, Events: c.events})
			wantRefused(t, err, codes.InvalidArgument, rpcerr.InvalidField, c.field)
		})
	}
	if topics, err := s.client.ListTopics(ctx, &turnlanev1.ListTopicsRequest{}); err != nil || len(topics.GetTopics()) != 0 {
		t.Errorf("refused batches left %v, %v", topics, err)
	}
}

func TestPublishForTheProcessItself(t *testing.T) {
	s := newServer(t)
	e := &event.Event{ID: "1", Source: "/s", Type: "t"}
	for _, topic := range []string{"sys.workmanager.worker.lifecycle", "dlq.t", strings.Repeat("t", 255)} {
		if p, err := s.g.Publish(deadline(t), topic, e, e); err != nil || len(p) != 2 {
			t.Errorf("%s: %v, %v", topic, p, err)
		}
	}
	for topic, want := range map[string]bool{"t": true, "sys.x": false, "dlq.t": false, "wrk.a.command.b": false} {
		if _, err := s.g.ForHandlers().Publish(deadline(t), topic, e); (err == nil) != want {
			t.Errorf("a handler to %s: %v", topic, err)
		}
	}
	if _, err := s.g.Publish(deadline(t), "t", e, &event.Event{}); !errors.Is(err, event.ErrInvalid) {
		t.Errorf("an event without anything: %v", err)
	}
	if p, err := s.g.Publish(deadline(t), "t"); p != nil || err != nil {
		t.Errorf("nothing to publish: %v, %v", p, err)
	}
}

// Many callers, each with a sequence of its own, share topics: each topic holds the sequence of every
// caller in order, and each position belongs to its event.
func TestPublishConcurrently(t *testing.T) {
	s := newServer(t)
	const callers, rounds, topics = 16, 50, 3
	var all sync.WaitGroup
	for c := range callers {
		all.Go(func() {
			topic := fmt.Sprintf("t%d", c%topics)
			for n := range rounds {
				events := []*event.Event{
					{ID: fmt.Sprintf("%d.%d.a", c, n), Source: "/s", Type: "t"},
					{ID: fmt.Sprintf("%d.%d.b", c, n), Source: "/s", Type: "t"},
				}
				p, err := s.g.Publish(context.Background(), topic, events...)
				if err != nil || len(p) != 2 || !p[0].Less(p[1]) {
					t.Errorf("%v, %v", p, err)
					return
				}
				page, err := s.store.Read(context.Background(), topic, p[0].Prev(), store.ReadLimit{Entries: 2})
				if err != nil || len(page.Entries) != 2 {
					t.Errorf("%v, %v", page, err)
					return
				}
				for i, entry := range page.Entries {
					if e, err := event.DecodeRecord(entry.Record); err != nil || e.ID != events[i].ID || entry.Pos != p[i] {
						t.Errorf("at %s is %v, %v; want %s at %s", entry.Pos, e, err, events[i].ID, p[i])
					}
				}
			}
		})
	}
	all.Wait()
	for n := range topics {
		sub := s.subscribe(&turnlanev1.SubscribeRequest{Topic: fmt.Sprintf("t%d", n), From: earliest(), Until: tail()})
		next := map[string]int{}
		for i, id := range sub.rest() {
			var c, r int
			var half string
			if _, err := fmt.Sscanf(strings.ReplaceAll(id, ".", " "), "%d %d %s", &c, &r, &half); err != nil {
				t.Fatal(err)
			}
			key := fmt.Sprint(c)
			if want := next[key]; 2*r+int(half[0]-'a') != want || i > 0 && half == "b" && sub.ids[i-1] != fmt.Sprintf("%d.%d.a", c, r) {
				t.Fatalf("caller %d: %s comes in place of number %d", c, id, want)
			}
			next[key]++
		}
	}
}

// gateLog is a log whose appends wait to be let through, and that counts them.
type gateLog struct {
	store.Store
	gate  chan struct{}
	calls chan []store.Batch
	fail  error
}

func newGateLog() *gateLog {
	return &gateLog{gate: make(chan struct{}), calls: make(chan []store.Batch, 1000)}
}

func (l *gateLog) Append(ctx context.Context, _ string, batches []store.Batch) ([]store.Appended, error) {
	l.calls <- slices.Clone(batches)
	select {
	case <-l.gate:
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: %w", store.ErrOutcomeUnknown, ctx.Err())
	}
	if l.fail != nil {
		return nil, l.fail
	}
	out := make([]store.Appended, len(batches))
	for i, b := range batches {
		out[i].Positions = make([]event.Position, len(b.Records))
	}
	return out, nil
}

func record(size int) event.Record { return append(event.Record{1}, make([]byte, size-1)...) }

// What comes while an append is under way goes to the store together.
func TestAppenderCoalesces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := newGateLog()
		a := newAppender(log, 1<<20, func(string, int, int) {})
		const callers = 40
		for range callers {
			go func() {
				if _, err := a.append(t.Context(), "t", []event.Record{record(100)}); err != nil {
					t.Error(err)
				}
			}()
			synctest.Wait()
		}
		if got := len(<-log.calls); got != 1 {
			t.Errorf("the first append has %d batches, want 1", got)
		}
		log.gate <- struct{}{}
		synctest.Wait()
		if got := len(<-log.calls); got != callers-1 {
			t.Errorf("the second append has %d batches, want %d", got, callers-1)
		}
		log.gate <- struct{}{}
		synctest.Wait()
		if len(a.shard("t").lines) != 0 || a.inFlight.Load() != 0 {
			t.Error("something is left behind")
		}
		a.close(time.Second)
		if _, err := a.append(t.Context(), "t", []event.Record{record(100)}); rpcerr.Reason(err) != rpcerr.ShuttingDown {
			t.Errorf("after close: %v", err)
		}
	})
}

func TestAppenderBoundsAFlush(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := newGateLog()
		a := newAppender(log, 64<<20, func(string, int, int) {})
		submit := func(events, size int) {
			records := make([]event.Record, events)
			for i := range records {
				records[i] = record(size)
			}
			if _, err := a.submit(t.Context(), "t", records); err != nil {
				t.Fatal(err)
			}
		}
		submit(1, 100)
		synctest.Wait()
		submit(flushEvents, 10)  // alone: full by count
		submit(1, 2*flushBytes)  // alone: too large
		submit(1, flushBytes-50) // with the next one
		submit(1, 50)
		submit(1, 100)
		for i, want := range []int{1, 1, 1, 2, 1} {
			synctest.Wait()
			if got := len(<-log.calls); got != want {
				t.Errorf("append %d has %d batches, want %d", i, got, want)
			}
			log.gate <- struct{}{}
		}
		synctest.Wait()
		a.close(time.Second)
	})
}

// A caller that goes away takes back what still waits; what is on its way has an open outcome.
func TestAppenderCallerGoesAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := newGateLog()
		a := newAppender(log, 1<<20, func(string, int, int) {})
		first, err := a.submit(t.Context(), "t", []event.Record{record(100)})
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		waits, err := a.submit(t.Context(), "t", []event.Record{record(100)})
		if err != nil {
			t.Fatal(err)
		}
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := a.wait(gone, first); !errors.Is(err, store.ErrOutcomeUnknown) {
			t.Errorf("on its way: %v, want an open outcome", err)
		}
		if s := status.Convert(rpcerr.From(err)); s.Code() == codes.Canceled {
			t.Errorf("an open outcome is told as %s", s.Code())
		}
		if _, err := a.wait(gone, waits); !errors.Is(err, context.Canceled) || errors.Is(err, store.ErrOutcomeUnknown) {
			t.Errorf("still waiting: %v, want that it was cancelled", err)
		}
		if got := len(<-log.calls); got != 1 {
			t.Errorf("%d batches", got)
		}
		log.gate <- struct{}{}
		synctest.Wait()
		if len(log.calls) > 0 {
			t.Error("what was taken back went to the store")
		}
		if a.inFlight.Load() != 0 {
			t.Errorf("%d bytes are still counted", a.inFlight.Load())
		}
		if _, err := a.append(gone, "t", []event.Record{record(100)}); !errors.Is(err, context.Canceled) {
			t.Errorf("gone before: %v", err)
		}
		a.close(time.Second)
	})
}

func TestAppenderBackPressure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := newGateLog()
		a := newAppender(log, 1000, func(string, int, int) {})
		if _, err := a.submit(t.Context(), "a", []event.Record{record(600)}); err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() {
			_, err := a.submit(t.Context(), "b", []event.Record{record(5000)}) // more than there ever is
			done <- err
		}()
		synctest.Wait()
		impatient, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := a.submit(impatient, "c", []event.Record{record(100)}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("no room: %v", err)
		}
		if len(done) > 0 {
			t.Error("1,000 bytes held 5,600")
		}
		log.gate <- struct{}{}
		if err := <-done; err != nil {
			t.Error(err)
		}
		log.gate <- struct{}{}
		a.close(time.Second)
	})
}

// A store that hangs holds up the end for the limit, no longer, and tells callers the truth.
func TestAppenderClosesInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := newGateLog()
		a := newAppender(log, 1<<20, func(string, int, int) {})
		b, err := a.submit(t.Context(), "t", []event.Record{record(100)})
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		a.close(5 * time.Second)
		if took := time.Since(start); took != 5*time.Second {
			t.Errorf("closed after %s", took)
		}
		if _, err := a.wait(t.Context(), b); !errors.Is(err, store.ErrOutcomeUnknown) {
			t.Errorf("cut short: %v", err)
		}
	})
}

func TestAppenderPassesErrorsOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := newGateLog()
		log.fail = fmt.Errorf("append: %w", store.ErrExhausted)
		close(log.gate)
		a := newAppender(log, 1<<20, func(string, int, int) { t.Error("counted as stored") })
		if _, err := a.append(t.Context(), "t", []event.Record{record(100)}); !errors.Is(err, store.ErrExhausted) {
			t.Error(err)
		}
		a.close(time.Second)
	})
}

func TestPublishStream(t *testing.T) {
	s := newServer(t)
	stream, err := s.client.PublishStream(deadline(t))
	if err != nil {
		t.Fatal(err)
	}
	const batches = 200
	bad := map[int]string{50: "events[1].source", 51: "topic", 120: "events"}
	go func() {
		for i := range batches {
			req := &turnlanev1.PublishStreamRequest{Topic: fmt.Sprintf("t%d", i%2), Events: numbered(i*10, 10)}
			switch i {
			case 50:
				req.Events[1].Source = ""
			case 51:
				req.Topic = "sys.x"
			case 120:
				req.Events = nil
			}
			if err := stream.Send(req); err != nil {
				t.Error(err)
				return
			}
		}
		if err := stream.CloseSend(); err != nil {
			t.Error(err)
		}
	}()
	want := [2][]string{}
	last := [2]event.Position{}
	for i := range batches {
		resp, err := stream.Recv()
		if err != nil {
			t.Fatalf("answer %d: %v", i, err)
		}
		if field, refused := bad[i]; refused {
			e := resp.GetError()
			if codes.Code(e.GetCode()) != codes.InvalidArgument || e.GetReason() != rpcerr.InvalidField || e.GetMetadata()["field"] != field || len(resp.GetPositions()) > 0 {
				t.Errorf("answer %d: %v, want field %s refused", i, resp, field)
			}
			continue
		}
		if resp.GetError() != nil || len(resp.GetPositions()) != 10 {
			t.Fatalf("answer %d: %v", i, resp)
		}
		for _, text := range resp.GetPositions() {
			pos := mustPosition(t, text)
			if !last[i%2].Less(pos) {
				t.Fatalf("answer %d: %s after %s", i, pos, last[i%2])
			}
			last[i%2] = pos
		}
		want[i%2] = append(want[i%2], ids(i*10, 10)...)
	}
	if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("at the end: %v", err)
	}
	for n, want := range want {
		sub := s.subscribe(&turnlanev1.SubscribeRequest{Topic: fmt.Sprintf("t%d", n), From: earliest(), Until: tail()})
		if got := sub.rest(); !slices.Equal(got, want) {
			t.Errorf("t%d holds %v, want %v", n, got, want)
		}
	}
}

// Open streams, also those whose client does nothing, do not hold up the end.
func TestShutdownEndsStreams(t *testing.T) {
	s := newServer(t)
	publishing, err := s.client.PublishStream(deadline(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := publishing.Send(&turnlanev1.PublishStreamRequest{Topic: "t", Events: numbered(0, 1)}); err != nil {
		t.Fatal(err)
	}
	if _, err := publishing.Recv(); err != nil {
		t.Fatal(err)
	}
	sub := s.subscribe(&turnlanev1.SubscribeRequest{Topic: "t"})
	s.g.Shutdown()
	for name, recv := range map[string]func() error{
		"publishing":  func() error { _, err := publishing.Recv(); return err },
		"subscribing": sub.next,
	} {
		if err := recv(); status.Code(err) != codes.Unavailable || rpcerr.Reason(err) != rpcerr.ShuttingDown {
			t.Errorf("%s: %v", name, err)
		}
	}
	_, err = s.client.PublishEvents(deadline(t), &turnlanev1.PublishEventsRequest{Topic: "t", Events: numbered(0, 1)})
	if rpcerr.Reason(err) != rpcerr.ShuttingDown {
		t.Errorf("a user's publish: %v", err)
	}
	if _, err := s.g.Publish(deadline(t), "t", &event.Event{ID: "1", Source: "/s", Type: "t"}); err != nil {
		t.Errorf("the process's own publish: %v", err)
	}
	s.stop()
	if err := <-s.done; err != nil {
		t.Errorf("Run returned %v", err)
	}
	if _, err := s.g.Publish(deadline(t), "t", &event.Event{ID: "1", Source: "/s", Type: "t"}); rpcerr.Reason(err) != rpcerr.ShuttingDown {
		t.Errorf("after Run: %v", err)
	}
}
