package gateway

import (
	"bytes"
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/binding/format/protobuf/v2/pb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/internal/rpcerr"
	turnlanev1 "github.com/turnlane/turnlane/proto/turnlane/v1"
	"github.com/turnlane/turnlane/store"
)

// fakeStream is the server's side of a Subscribe whose client takes a message when the test says so.
type fakeStream struct {
	turnlanev1.GatewayService_SubscribeServer
	ctx  context.Context
	msgs chan *turnlanev1.SubscribeResponse
}

func newFakeStream(t *testing.T) *fakeStream {
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	return &fakeStream{ctx: ctx, msgs: make(chan *turnlanev1.SubscribeResponse)}
}

func (f *fakeStream) Context() context.Context     { return f.ctx }
func (f *fakeStream) SetHeader(metadata.MD) error  { return nil }
func (f *fakeStream) SendHeader(metadata.MD) error { return nil }
func (f *fakeStream) Send(m *turnlanev1.SubscribeResponse) error {
	select {
	case f.msgs <- m:
		return nil
	case <-f.ctx.Done():
		return f.ctx.Err()
	}
}

// subscribe runs the handler as a gRPC server would: the stream's context ends when it returns.
func (f *fakeStream) subscribe(g *Gateway, req *turnlanev1.SubscribeRequest) <-chan error {
	ctx, cancel := context.WithCancel(f.ctx)
	f.ctx = ctx
	ended := make(chan error, 1)
	go func() {
		defer cancel()
		ended <- g.Subscribe(req, f)
	}()
	return ended
}

// A subscriber that takes nothing is closed after the stall limit, not before it has been blocked for
// that long, and finds the place to come back at in the error.
func TestStalledSubscriberIsClosed(t *testing.T) {
	s := newServer(t, func(c *Config) { c.StallAfter = 300 * time.Millisecond; c.BufferEvents = 16 })
	f := newFakeStream(t)
	ended := f.subscribe(s.g, &turnlanev1.SubscribeRequest{Topic: "t", From: earliest()})
	if m := <-f.msgs; m.GetStarted() == nil {
		t.Fatal(m)
	}
	s.publish("t", 0, 5)
	var last string
	for got := 0; got < 5; {
		b := (<-f.msgs).GetBatch()
		got += len(b.GetEvents())
		last = b.GetTo()
	}
	// Nothing waits now, so it may be idle for as long as it likes. Then events come and it takes none.
	s.publish("t", 5, 1000)
	err := <-ended
	wantCode := codes.ResourceExhausted
	if status.Code(err) != wantCode || rpcerr.Reason(err) != rpcerr.SubscriberStalled {
		t.Fatalf("got %v, want %s with %s", err, wantCode, rpcerr.SubscriberStalled)
	}
	back := rpcerr.Info(err).GetMetadata()["position"]
	if want := mustPosition(t, last).Next().String(); back != want || !strings.Contains(err.Error(), back) {
		t.Errorf("come back at %s, want %s: %v", back, want, err)
	}
	if n := s.g.instruments.stalled.Load(); n != 1 {
		t.Errorf("%d are counted as stalled", n)
	}
	sub := s.subscribe(&turnlanev1.SubscribeRequest{Topic: "t", From: at(back), Until: tail()})
	if got := sub.rest(); !slices.Equal(got, ids(5, 1000)) || len(sub.gaps) > 0 {
		t.Errorf("coming back gives %d events from %s on, %v", len(got), got[0], sub.gaps)
	}
}

// The same over a real connection, whose windows are full: what was sent comes before the error, and the
// place to come back at follows on it.
func TestStalledSubscriberOverGRPC(t *testing.T) {
	s := newServer(t, func(c *Config) { c.StallAfter = 200 * time.Millisecond })
	sub := s.subscribe(&turnlanev1.SubscribeRequest{Topic: "t"})
	events := numbered(0, 5000)
	for _, e := range events {
		e.Attributes = map[string]*cloudevents.CloudEventAttributeValue{
			"subject": {Attr: &cloudevents.CloudEventAttributeValue_CeString{CeString: strings.Repeat("x", 1000)}}}
	}
	if _, err := s.client.PublishEvents(deadline(t), &turnlanev1.PublishEventsRequest{Topic: "t", Events: events}); err != nil {
		t.Fatal(err)
	}
	for s.g.instruments.stalled.Load() == 0 {
		runtime.Gosched()
	}
	var err error
	for err == nil {
		err = sub.next()
	}
	if rpcerr.Reason(err) != rpcerr.SubscriberStalled {
		t.Fatal(err)
	}
	n := len(sub.ids)
	if n == 0 || n == 5000 || !slices.Equal(sub.ids, ids(0, n)) {
		t.Errorf("%d events came, or not in order", n)
	}
	if back, want := rpcerr.Info(err).GetMetadata()["position"], mustPosition(t, sub.covered).Next().String(); back != want {
		t.Errorf("come back at %s, want %s", back, want)
	}
}

// A slow subscriber holds its buffer and no more, however much is published; nobody else waits, and in
// the end it has had everything in order.
func TestSlowSubscriberIsBounded(t *testing.T) {
	const n, size, bound = 5_000, 2 << 10, 64
	s := newServer(t, func(c *Config) { c.BufferEvents = bound })
	slow := newFakeStream(t)
	ended := slow.subscribe(s.g, &turnlanev1.SubscribeRequest{Topic: "t"})
	if m := <-slow.msgs; m.GetStarted() == nil {
		t.Fatal(m)
	}
	fast := s.subscribe(&turnlanev1.SubscribeRequest{Topic: "t"})

	batch := make([]*event.Event, 100)
	for done := 0; done < n; done += len(batch) {
		for i := range batch {
			batch[i] = &event.Event{ID: fmt.Sprint(done + i), Source: "/s", Type: "t", Data: make([]byte, size), DataKind: event.BinaryData}
		}
		if _, err := s.g.Publish(deadline(t), "t", batch...); err != nil {
			t.Fatal(err)
		}
	}
	fast.take(n)
	fast.events = nil
	if !slices.Equal(fast.ids, ids(0, n)) {
		t.Error("the fast one did not get everything in order")
	}

	got := 0
	for got < n {
		b := (<-slow.msgs).GetBatch()
		for _, e := range b.GetEvents() {
			if id := e.GetEvent().GetId(); id != fmt.Sprint(got) {
				t.Fatalf("the slow one gets %s, want %d", id, got)
			}
			got++
		}
		if len(b.GetEvents()) > bound {
			t.Fatalf("%d events at once from a buffer of %d", len(b.GetEvents()), bound)
		}
	}
	s.g.Shutdown()
	if err := <-ended; rpcerr.Reason(err) != rpcerr.ShuttingDown {
		t.Error(err)
	}
}

// A client that is blocked does not hold up the end of the gateway.
func TestShutdownWithABlockedSubscriber(t *testing.T) {
	s := newServer(t)
	f := newFakeStream(t)
	ended := f.subscribe(s.g, &turnlanev1.SubscribeRequest{Topic: "t", From: earliest()})
	<-f.msgs
	s.publish("t", 0, 1000)
	s.stop()
	if err := <-ended; rpcerr.Reason(err) != rpcerr.ShuttingDown {
		t.Error(err)
	}
	if err := <-s.done; err != nil {
		t.Error(err)
	}
}

// Retention under a reader is a gap with exact ends, told where it belongs.
func TestTrimUnderAReader(t *testing.T) {
	s := newServer(t, func(c *Config) { c.BufferEvents = 10 })
	f := newFakeStream(t)
	f.subscribe(s.g, &turnlanev1.SubscribeRequest{Topic: "t", From: earliest(), Until: at("99999999999999-0")})
	<-f.msgs
	p := s.publish("t", 0, 5000)
	first := (<-f.msgs).GetBatch() // then it is blocked with a message and a buffer
	seen := len(first.GetEvents())
	if _, err := s.store.Trim(deadline(t), "t", store.TrimLimit{UpTo: mustPosition(t, p[3999])}); err != nil {
		t.Fatal(err)
	}
	covered := first.GetTo()
	var gap *turnlanev1.Gap
	for seen < 5000 {
		m := <-f.msgs
		if g := m.GetGap(); g != nil {
			if gap != nil {
				t.Fatalf("a second gap: %v", g)
			}
			gap = g
			if want := mustPosition(t, covered).Next().String(); g.GetFirst() != want || g.GetLast() != p[3999] || g.GetKind() != "trimmed" {
				t.Fatalf("gap %v, want from %s to %s", g, want, p[3999])
			}
			covered, seen = g.GetLast(), 4000
			continue
		}
		b := m.GetBatch()
		if b.GetFrom() != covered {
			t.Fatalf("a batch from %s, want %s", b.GetFrom(), covered)
		}
		for _, e := range b.GetEvents() {
			if e.GetPosition() != p[seen] {
				t.Fatalf("event %s, want %s", e.GetPosition(), p[seen])
			}
			seen++
		}
		covered = b.GetTo()
	}
	if gap == nil {
		t.Error("4,000 entries went and no gap was told")
	}
}

// The end of a subscription can be passed without an entry: its entry is gone, or cannot be read.
func TestUntilWithoutAnEntry(t *testing.T) {
	s := newServer(t)
	p := s.publish("trimmed", 0, 10)
	if _, err := s.store.Trim(deadline(t), "trimmed", store.TrimLimit{UpTo: mustPosition(t, p[9])}); err != nil {
		t.Fatal(err)
	}
	for name, from := range map[string]*turnlanev1.Start{"earliest": earliest(), "a position": at(p[2])} {
		sub := s.subscribe(&turnlanev1.SubscribeRequest{Topic: "trimmed", From: from, Until: tail()})
		if got := sub.rest(); len(got) > 0 {
			t.Errorf("%s: %v", name, got)
		}
		if name == "a position" && !slices.Equal(sub.log, []string{"trimmed:" + p[2] + ":" + p[9]}) {
			t.Errorf("%s: %v", name, sub.log)
		}
	}

	s.publish("broken", 0, 3)
	future := append(event.Record{1}, make([]byte, 12)...) // a header, and then nothing like an event
	future = append(future, 0xFF)
	out, err := s.store.Append(deadline(t), "broken", []store.Batch{{Records: []event.Record{future}}})
	if err != nil {
		t.Fatal(err)
	}
	sub := s.subscribe(&turnlanev1.SubscribeRequest{Topic: "broken", From: earliest(), Until: tail()})
	text := out[0].Positions[0].String()
	if sub.rest(); !slices.Equal(sub.log, append(ids(0, 3), gapUndecodable+":"+text+":"+text)) {
		t.Errorf("got %v", sub.log)
	}
}

// newer is a store in which the record of some events was written by a newer program: one whose id
// begins with "newer".
type newer struct{ store.Store }

func (n newer) Read(ctx context.Context, topic string, after event.Position, limit store.ReadLimit) (store.Page, error) {
	page, err := n.Store.Read(ctx, topic, after, limit)
	page.Entries = slices.Clone(page.Entries)
	for i, e := range page.Entries {
		if bytes.Contains(e.Record, []byte("newer")) {
			page.Entries[i].Record = append(event.Record{99}, e.Record[1:]...)
		}
	}
	return page, err
}

// A record whose header is broken is a gap with exact ends to those who replay it and to those who are
// live, and what follows it comes.
func TestARecordWithABrokenHeaderIsAGap(t *testing.T) {
	s := newServer(t, func(c *Config) { c.Store = newer{c.Store} })
	live := s.subscribe(&turnlanev1.SubscribeRequest{Topic: "t"})
	s.publish("t", 0, 3)
	broken := numbered(0, 2)
	broken[0].Id, broken[1].Id = "newer-1", "newer-2"
	out, err := s.client.PublishEvents(deadline(t), &turnlanev1.PublishEventsRequest{Topic: "t", Events: broken})
	if err != nil {
		t.Fatal(err)
	}
	s.publish("t", 3, 2)
	want := ids(0, 3)
	for _, pos := range out.GetPositions() {
		want = append(want, gapUndecodable+":"+pos+":"+pos)
	}
	want = append(want, ids(3, 2)...)
	if live.take(5); !slices.Equal(live.log, want) {
		t.Errorf("live: %v, want %v", live.log, want)
	}
	replay := s.subscribe(&turnlanev1.SubscribeRequest{Topic: "t", From: earliest(), Until: tail()})
	if replay.rest(); !slices.Equal(replay.log, want) {
		t.Errorf("replay: %v, want %v", replay.log, want)
	}
}

// An end given as a time to come ends the stream then, also when nothing comes.
func TestUntilATimeToCome(t *testing.T) {
	s := newServer(t)
	s.publish("t", 0, 3)
	when := time.Now().Add(200 * time.Millisecond)
	until := timeStart(when.Unix())
	until.GetTime().Nanos = int32(when.Nanosecond())
	sub := s.subscribe(&turnlanev1.SubscribeRequest{Topic: "t", From: earliest(), Until: until})
	if got := sub.rest(); !slices.Equal(got, ids(0, 3)) {
		t.Errorf("got %v", got)
	}
	if time.Now().Before(when) {
		t.Error("it ended before its time")
	}
}

// A topic that is deleted and comes again is a gap, and the new events come.
func TestTopicComesAgain(t *testing.T) {
	s := newServer(t)
	s.publish("t", 0, 3)
	sub := s.subscribe(&turnlanev1.SubscribeRequest{Topic: "t", From: earliest()})
	sub.take(3)
	if err := s.store.DeleteTopic(deadline(t), "t"); err != nil {
		t.Fatal(err)
	}
	s.publish("t", 3, 2)
	for len(sub.gaps) == 0 {
		if err := sub.next(); err != nil {
			t.Fatal(err)
		}
	}
	if sub.gaps[0].GetKind() != "incarnation" {
		t.Errorf("gap %v", sub.gaps[0])
	}
	if got := sub.take(5); !slices.Equal(got, ids(0, 5)) {
		t.Errorf("got %v", got)
	}
}

// Many subscribers share one reader of their topic, and leave nothing behind.
func TestManySubscribers(t *testing.T) {
	s := newServer(t)
	before := runtime.NumGoroutine()
	subs := make([]*subscriber, 200)
	for i := range subs {
		subs[i] = s.subscribe(&turnlanev1.SubscribeRequest{Topic: "t"})
	}
	s.publish("t", 0, 300)
	for _, sub := range subs {
		if got := sub.take(300); !slices.Equal(got, ids(0, 300)) {
			t.Fatalf("got %v", got)
		}
	}
	for _, sub := range subs {
		sub.cancel()
	}
	for s.g.instruments.subscribers.Load() > 0 || runtime.NumGoroutine() > before+20 {
		runtime.Gosched()
	}
}
