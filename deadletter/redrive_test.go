package deadletter_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/internal/admission"
	"github.com/turnlane/turnlane/internal/catalog"
	format "github.com/turnlane/turnlane/internal/deadletter"
	"github.com/turnlane/turnlane/internal/rpcerr"
	storev1 "github.com/turnlane/turnlane/proto/turnlane/store/v1"
	v1 "github.com/turnlane/turnlane/proto/turnlane/v1"
	"github.com/turnlane/turnlane/store"
)

func TestARedriveBringsEventsBackToTheirWorkers(t *testing.T) {
	w := newWorld(t)
	w.worker("a", "echo", false)
	w.worker("b", "settler", false)
	w.worker("gone", "echo", true)
	w.worker("other", "settler", false) // once it was an echo
	var originals []*event.Event
	for i := range 10 {
		e, _ := w.die("orders", []string{"a", "b", "gone", "never", "other"}[i%5], []string{"echo", "settler", "echo", "echo", "echo"}[i%5], format.Failed, "boom")
		originals = append(originals, e)
	}
	w.append("dlq.orders", event.Record("\x01aaaaBBBBBBBB\xff\xff\xff"), nil)                                 // no event at all
	w.append("dlq.orders", admission.Encode(&event.Event{ID: "x", Source: "/s", Type: "t"}, time.Now()), nil) // no dead letter
	w.append("dlq.orders", admission.Encode(format.WrapUndecodable("orders", event.Position{Ms: 9}, []byte("?"), errors.New("?"), time.Now()), time.Now()), nil)

	p := w.service(w.store, true)
	dry, err := p.redrive(t.Context(), &v1.RedriveRequest{Filter: &v1.DeadLetterFilter{Topic: "dlq.orders"}, DryRun: true})
	if err != nil || dry.GetTotal() != 13 || dry.GetDone() != 4 || dry.GetSkipped() != 9 || !dry.GetFinished() {
		t.Fatal("dry run:", dry, err)
	}
	if n := len(w.read("wrk.echo.redrive.a")); n != 0 {
		t.Fatalf("the dry run brought %d back", n)
	}
	got, err := p.redrive(t.Context(), fast("dlq.orders"))
	if err != nil || got.GetTotal() != 13 || got.GetDone() != 4 || got.GetSkipped() != 9 || !got.GetFinished() || got.GetId() == "" {
		t.Fatal(got, err)
	}
	for topic, want := range map[string][]int{"wrk.echo.redrive.a": {0, 5}, "wrk.settler.redrive.b": {1, 6}} {
		events := w.read(topic)
		if len(events) != len(want) {
			t.Fatalf("%s has %s", topic, ids(events))
		}
		for i, n := range want {
			e, f, err := format.Redriven(events[i])
			if err != nil || !e.Equal(originals[n]) || f.Redrives != 1 || f.Topic != "orders" || f.Position.Ms != uint64(n+1) {
				t.Errorf("%s: %+v %+v %v", topic, e, f, err)
			}
		}
	}
	b, _ := w.store.Bounds(t.Context(), "dlq.orders")
	if b.Entries != 9 || !b.Removed.IsZero() {
		t.Errorf("left: %+v", b)
	}

	again, err := p.redrive(t.Context(), fast("dlq.orders"))
	if err != nil || again.GetDone() != 0 || again.GetTotal() != 9 || len(w.read("wrk.echo.redrive.a")) != 2 {
		t.Errorf("again: %v %v", again, err)
	}

	// A failure there is a new dead letter that knows how often it came back.
	back := w.read("wrk.echo.redrive.a")[0]
	e, f, err := format.Redriven(back)
	if err != nil {
		t.Fatal(err)
	}
	f.Reason, f.WorkerID, f.WorkerType, f.Run = format.Failed, "a", "echo", 1
	w.append(format.Topic(f.Topic, "echo", ""), admission.Encode(format.Wrap(e, f), time.Now()), format.Mark("a", 1, 1, "wrk.echo.redrive.a", event.Position{Ms: 1}))
	if got, err := p.redrive(t.Context(), fast("dlq.orders")); err != nil || got.GetDone() != 1 {
		t.Fatal(got, err)
	}
	if _, f, _ := format.Redriven(w.read("wrk.echo.redrive.a")[2]); f.Redrives != 2 || f.Position.Ms != 1 {
		t.Errorf("came back %d times, from %s", f.Redrives, f.Position)
	}
}

func TestAFilterAndATargetChoose(t *testing.T) {
	w := newWorld(t)
	w.worker("a", "echo", false)
	w.worker("b", "settler", false)
	w.die("orders", "a", "echo", format.Failed, "seat 1 is taken")
	w.die("orders", "b", "settler", format.Failed, "seat 2 is taken")
	w.die("orders", "a", "echo", format.Failed, "no route")
	e4, at4 := w.die("orders", "gone", "echo", format.Failed, "no route")
	p := w.service(w.store, true)
	for i, c := range []struct {
		filter *v1.DeadLetterFilter
		to     string
		topic  string
		want   string
	}{
		{&v1.DeadLetterFilter{Topic: "dlq.orders", Type: "settler"}, "", "wrk.settler.redrive.b", "2"},
		{&v1.DeadLetterFilter{Topic: "dlq.orders", Type: "echo", Fingerprint: format.Fingerprint(format.Failed, "seat 77 is taken")}, "", "wrk.echo.redrive.a", "1"},
		{&v1.DeadLetterFilter{Topic: "dlq.orders", Position: at4.String()}, "elsewhere", "elsewhere", "4"},
		{&v1.DeadLetterFilter{Topic: "dlq.orders"}, "elsewhere", "elsewhere", "4 3"},
	} {
		got, err := p.redrive(t.Context(), &v1.RedriveRequest{Filter: c.filter, To: c.to, Rate: 100_000})
		if err != nil || got.GetDone() != 1 || got.GetTotal() != 1 {
			t.Fatalf("case %d: %v %v", i, got, err)
		}
		if s := ids(w.read(c.topic)); s != c.want {
			t.Errorf("case %d: %s has %q, want %q", i, c.topic, s, c.want)
		}
	}
	if got := w.read("elsewhere")[0]; !got.Equal(e4) {
		t.Errorf("not the plain original: %+v", got)
	}
	if n := len(w.read("dlq.orders")); n != 0 {
		t.Errorf("%d are left", n)
	}
	if got, err := p.redrive(t.Context(), fast("dlq.orders")); err != nil || !got.GetFinished() || got.GetTotal() != 0 {
		t.Error("nothing to do:", got, err)
	}
	if got, err := p.redrive(t.Context(), fast("dlq.nobody")); err != nil || !got.GetFinished() {
		t.Error("no such topic:", got, err)
	}
}

func TestBadRedrivesAreRefused(t *testing.T) {
	w := newWorld(t)
	p := w.service(w.store, true)
	for _, c := range []struct {
		req   *v1.RedriveRequest
		field string
	}{
		{&v1.RedriveRequest{}, "filter.topic"},
		{fast("orders"), "filter.topic"},
		{fast("dlq.a b"), "topic"},
		{&v1.RedriveRequest{Filter: &v1.DeadLetterFilter{Topic: "dlq.x", Type: "a b"}}, "filter.type"},
		{&v1.RedriveRequest{Filter: &v1.DeadLetterFilter{Topic: "dlq.x", Fingerprint: "abc"}}, "filter.fingerprint"},
		{&v1.RedriveRequest{Filter: &v1.DeadLetterFilter{Topic: "dlq.x", Position: "1"}}, "filter.position"},
		{&v1.RedriveRequest{Filter: &v1.DeadLetterFilter{Topic: "dlq.x", Position: "0-0"}}, "filter.position"},
		{&v1.RedriveRequest{Filter: &v1.DeadLetterFilter{Topic: "dlq.x"}, Rate: 2_000_000}, "rate"},
		{&v1.RedriveRequest{Filter: &v1.DeadLetterFilter{Topic: "dlq.x"}, To: "dlq.x"}, "to"},
		{&v1.RedriveRequest{Filter: &v1.DeadLetterFilter{Topic: "dlq.x"}, To: "wrk.echo.command.a"}, "to"},
		{&v1.RedriveRequest{Filter: &v1.DeadLetterFilter{Topic: "dlq.x"}, To: "a b"}, "to"},
	} {
		_, err := p.redrive(t.Context(), c.req)
		if status.Code(err) != codes.InvalidArgument || rpcerr.Info(err).GetMetadata()["field"] != c.field {
			t.Errorf("%v: %v, want field %s", c.req, err, c.field)
		}
	}
}

// A redrive ends the process at its n-th write, for every n, before the write or with its answer lost;
// so does the process that goes on. The third one brings it to its end.
func TestARedriveSurvivesTheEndOfTheProcessAtAnyWrite(t *testing.T) {
	for n := 1; ; n++ {
		ended := false
		for _, after := range []bool{false, true} {
			for _, second := range []int{1, 2, 3} {
				if crashRedrive(t, n, second, after) {
					ended = true
				}
			}
		}
		if !ended {
			t.Logf("%d writes", n-1)
			if n < 10 {
				t.Fatal("the redrive hardly writes")
			}
			return
		}
	}
}

func crashRedrive(t *testing.T, n, second int, after bool) (ended bool) {
	w := newWorld(t)
	defer w.store.Close()
	w.worker("a", "echo", false)
	w.worker("b", "echo", false)
	want := map[string][]string{}
	for i := range 11 {
		e, _ := w.die("orders", string("ab"[i%2]), "echo", format.Failed, "boom")
		want[string("ab"[i%2])] = append(want[string("ab"[i%2])], e.ID)
	}
	w.die("orders", "gone", "echo", format.Failed, "boom")

	starter := w.service(w.store, false)
	ctx, stop := context.WithCancel(t.Context())
	_, err := func() (*v1.RedriveResponse, error) {
		s := &stream[v1.RedriveResponse]{ctx: ctx, on: func(*v1.RedriveResponse) { stop() }} // the caller goes as soon as it is recorded
		err := starter.Redrive(fast("dlq.orders"), s)
		return s.last(), err
	}()
	if status.Code(err) != codes.Canceled {
		t.Fatal(err)
	}
	for _, at := range []int{n, second} {
		view := newDying(w.store, at, after)
		p := w.service(view, false)
		p.BoundChunks(3)
		p.run()
		select {
		case <-view.dead:
			ended = ended || at == n
		case <-finished(w, "dlq.orders"):
		}
		p.end()
	}
	p := w.service(w.store, false)
	p.BoundChunks(3)
	p.run()
	<-finished(w, "dlq.orders")
	p.end()
	for worker, ids := range want {
		var got []string
		for _, e := range w.read("wrk.echo.redrive." + worker) {
			got = append(got, e.ID)
		}
		if !slices.Equal(got, ids) {
			t.Fatalf("ended at write %d and %d (after it: %t): worker %s got %v, want %v", n, second, after, worker, got, ids)
		}
	}
	rec := record(w, "dlq.orders")
	if left := ids(w.read("dlq.orders")); left != "12" || rec.GetDone() != 11 || rec.GetSkipped() != 1 || rec.GetTotal() != 12 {
		t.Fatalf("ended at write %d and %d (after it: %t): left %q, %v", n, second, after, left, rec)
	}
	return ended
}

func record(w *world, topic string) *storev1.RedriveRecord {
	item, err := w.store.Get(context.Background(), catalog.RedriveKey(topic))
	if errors.Is(err, store.ErrClosed) {
		return nil // the test is over
	}
	if err != nil {
		w.t.Error(err)
		return nil
	}
	rec, err := catalog.Decode(item, &storev1.RedriveRecord{})
	if err != nil {
		w.t.Error(err)
	}
	return rec
}

// finished is closed when the redrive of a topic has ended.
func finished(w *world, topic string) <-chan struct{} {
	c := make(chan struct{})
	bell, err := w.store.WatchKeys(context.Background(), catalog.RedriveKey(topic))
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { bell.Close() })
	go func() {
		defer close(c)
		for !record(w, topic).GetFinished() {
			if _, err := bell.Wait(context.Background()); err != nil {
				return
			}
		}
	}()
	return c
}

func TestOneRedriveOfATopicAtATime(t *testing.T) {
	w := newWorld(t)
	w.worker("a", "echo", false)
	for range 20 {
		w.die("orders", "a", "echo", format.Failed, "boom")
	}
	p := w.service(w.store, false) // nobody leads yet
	slow := &v1.RedriveRequest{Filter: &v1.DeadLetterFilter{Topic: "dlq.orders"}, Rate: 100_000}
	first := &stream[v1.RedriveResponse]{ctx: t.Context()}
	begun := make(chan string, 1)
	first.on = func(r *v1.RedriveResponse) {
		select {
		case begun <- r.GetId():
		default:
		}
	}
	done := make(chan error, 1)
	go func() { done <- p.Redrive(slow, first) }()
	id := <-begun

	_, err := p.redrive(t.Context(), fast("dlq.orders"))
	if status.Code(err) != codes.FailedPrecondition || rpcerr.Reason(err) != rpcerr.RedriveUnderWay || rpcerr.Info(err).GetMetadata()["id"] != id {
		t.Errorf("another one: %v", err)
	}
	_, err = p.PurgeDeadLetters(t.Context(), &v1.PurgeDeadLettersRequest{Filter: slow.GetFilter()})
	if rpcerr.Reason(err) != rpcerr.RedriveUnderWay {
		t.Errorf("a purge: %v", err)
	}
	p.run()
	same, err := p.redrive(t.Context(), slow) // the same one: follows
	if err != nil || same.GetId() != id && same.GetTotal() != 0 {
		t.Errorf("the same one: %v %v", same, err)
	}
	if err := <-done; err != nil || first.last().GetDone() != 20 {
		t.Errorf("%v %v", first.last(), err)
	}
	if n := len(w.read("wrk.echo.redrive.a")); n != 20 {
		t.Errorf("%d came back", n)
	}
}

func TestARedriveKeepsItsRateAndCanBeCancelled(t *testing.T) {
	w := newWorld(t)
	w.worker("a", "echo", false)
	for range 200 {
		w.die("orders", "a", "echo", format.Failed, "boom")
	}
	p := w.service(w.store, true)
	s := &stream[v1.RedriveResponse]{ctx: t.Context()}
	start := time.Now()
	s.on = func(r *v1.RedriveResponse) {
		if r.GetDone() >= 10 && !r.GetFinished() {
			got, err := p.CancelRedrive(t.Context(), &v1.CancelRedriveRequest{Topic: "dlq.orders"})
			if err != nil || got.GetId() != r.GetId() {
				t.Error(got, err)
			}
		}
	}
	if err := p.Redrive(&v1.RedriveRequest{Filter: &v1.DeadLetterFilter{Topic: "dlq.orders"}, Rate: 50}, s); err != nil {
		t.Fatal(err)
	}
	r := s.last()
	if elapsed := time.Since(start); !r.GetCancelled() || float64(r.GetDone()) > 50*elapsed.Seconds()+5 {
		t.Errorf("%v after %s", r, elapsed)
	}
	if back, left := len(w.read("wrk.echo.redrive.a")), len(w.read("dlq.orders")); back != int(r.GetDone()) || back+left != 200 {
		t.Errorf("%d came back, %d are left, %v", back, left, r)
	}
	// What is left is brought back by another one.
	if got, err := p.redrive(t.Context(), fast("dlq.orders")); err != nil || got.GetDone() != 200-r.GetDone() {
		t.Error(got, err)
	}
	if n := len(w.read("wrk.echo.redrive.a")); n != 200 {
		t.Errorf("%d came back", n)
	}
	if got, err := p.CancelRedrive(t.Context(), &v1.CancelRedriveRequest{Topic: "dlq.orders"}); err != nil || got.GetId() != "" {
		t.Error("nothing to cancel:", got, err)
	}
}

// A process ends between the two steps, and then somebody cancels: what is in both places is settled.
func TestACancelledRedriveLeavesNothingInBothPlaces(t *testing.T) {
	for n := 1; n < 14; n++ {
		w := newWorld(t)
		w.worker("a", "echo", false)
		for range 12 {
			w.die("orders", "a", "echo", format.Failed, "boom")
		}
		starter := w.service(w.store, false)
		ctx, stop := context.WithCancel(t.Context())
		starter.Redrive(fast("dlq.orders"), &stream[v1.RedriveResponse]{ctx: ctx, on: func(*v1.RedriveResponse) { stop() }})
		view := newDying(w.store, n, true)
		p := w.service(view, false)
		p.BoundChunks(3)
		p.run()
		<-view.dead
		p.end()
		if _, err := starter.CancelRedrive(t.Context(), &v1.CancelRedriveRequest{Topic: "dlq.orders"}); err != nil {
			t.Fatal(err)
		}
		p = w.service(w.store, false)
		p.BoundChunks(2)
		p.run()
		<-finished(w, "dlq.orders")
		if got, err := p.redrive(t.Context(), fast("dlq.orders")); err != nil || !got.GetFinished() {
			t.Fatal(got, err)
		}
		if s := ids(w.read("wrk.echo.redrive.a")); s != "1 2 3 4 5 6 7 8 9 10 11 12" {
			t.Errorf("ended after write %d: %s came back", n, s)
		}
		p.end()
	}
}

// stubborn refuses appends until it is told to take them.
type stubborn struct {
	store.Store
	err atomic.Pointer[error]
}

func (s *stubborn) Append(ctx context.Context, topic string, b []store.Batch) ([]store.Appended, error) {
	if err := s.err.Load(); err != nil {
		return nil, *err
	}
	return s.Store.Append(ctx, topic, b)
}

func TestARedriveWaitsOutTrouble(t *testing.T) {
	w := newWorld(t)
	w.worker("a", "echo", false)
	w.die("orders", "a", "echo", format.Failed, "boom")
	view := &stubborn{Store: w.store}
	trouble := fmt.Errorf("the disk is full: %w", store.ErrExhausted)
	view.err.Store(&trouble)
	p := w.service(view, true)
	seen := false
	s := &stream[v1.RedriveResponse]{ctx: t.Context(), on: func(r *v1.RedriveResponse) {
		if strings.Contains(r.GetTrouble(), "the disk is full") {
			seen = true
			view.err.Store(nil)
		}
	}}
	if err := p.Redrive(fast("dlq.orders"), s); err != nil || s.last().GetDone() != 1 || s.last().GetTrouble() != "" || !seen {
		t.Error(s.last(), err, seen)
	}

	// One that is cancelled meanwhile ends without it.
	w.die("orders", "a", "echo", format.Failed, "boom")
	view.err.Store(&trouble)
	s = &stream[v1.RedriveResponse]{ctx: t.Context(), on: func(r *v1.RedriveResponse) {
		if r.GetTrouble() != "" {
			p.CancelRedrive(t.Context(), &v1.CancelRedriveRequest{Topic: "dlq.orders"})
		}
	}}
	if err := p.Redrive(fast("dlq.orders"), s); err != nil || !s.last().GetCancelled() || len(w.read("dlq.orders")) != 1 {
		t.Error(s.last(), err)
	}
}

func TestAnotherProcessTakesRedrivesOver(t *testing.T) {
	w := newWorld(t)
	w.worker("a", "echo", false)
	for range 60 {
		w.die("orders", "a", "echo", format.Failed, "boom")
	}
	first := w.service(w.store, true)
	second := w.service(w.store, true)
	s := &stream[v1.RedriveResponse]{ctx: t.Context()}
	var once atomic.Bool
	s.on = func(r *v1.RedriveResponse) {
		if r.GetDone() > 0 && once.CompareAndSwap(false, true) {
			first.end()
		}
	}
	if err := second.Redrive(&v1.RedriveRequest{Filter: &v1.DeadLetterFilter{Topic: "dlq.orders"}, Rate: 100}, s); err != nil {
		t.Fatal(err)
	}
	if r := s.last(); r.GetDone() != 60 || len(w.read("wrk.echo.redrive.a")) != 60 || len(w.read("dlq.orders")) != 0 {
		t.Error(r)
	}
}

func TestAStopEndsTheStreamAndNotTheRedrive(t *testing.T) {
	w := newWorld(t)
	w.worker("a", "echo", false)
	w.die("orders", "a", "echo", format.Failed, "boom")
	p := w.service(w.store, false)
	s := &stream[v1.RedriveResponse]{ctx: t.Context(), on: func(*v1.RedriveResponse) { p.Shutdown() }}
	if err := p.Redrive(fast("dlq.orders"), s); status.Code(err) != codes.Unavailable || rpcerr.Reason(err) != rpcerr.ShuttingDown {
		t.Fatal(err)
	}
	q := w.service(w.store, true)
	<-finished(w, "dlq.orders")
	if n := len(w.read("wrk.echo.redrive.a")); n != 1 {
		t.Errorf("%d came back", n)
	}
	q.end()
}

// paused stops a process before an append, for as long as a test wants.
type paused struct {
	store.Store
	reached, goOn chan struct{}
	once          sync.Once
}

func (s *paused) Append(ctx context.Context, topic string, b []store.Batch) ([]store.Appended, error) {
	s.once.Do(func() { close(s.reached) })
	<-s.goOn
	return s.Store.Append(context.WithoutCancel(ctx), topic, b)
}

// A leader stands still just before it appends, loses its session without knowing, and goes on after
// another one has brought everything back, or a part of it.
func TestALeaderThatStoodStillBringsNothingBackTwice(t *testing.T) {
	w := newWorld(t)
	w.worker("a", "echo", false)
	for range 9 {
		w.die("orders", "a", "echo", format.Failed, "boom")
	}
	view := &paused{Store: w.store, reached: make(chan struct{}), goOn: make(chan struct{})}
	first := w.service(view, false)
	first.BoundChunks(3)
	first.run()
	ctx, stop := context.WithCancel(t.Context())
	first.Redrive(fast("dlq.orders"), &stream[v1.RedriveResponse]{ctx: ctx, on: func(*v1.RedriveResponse) { stop() }})
	<-view.reached
	id, _ := first.session.Current()
	if err := w.store.CloseSession(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	second := w.service(w.store, false)
	second.BoundChunks(2)
	second.run()
	<-finished(w, "dlq.orders")
	close(view.goOn)
	first.end()
	if got, left := ids(w.read("wrk.echo.redrive.a")), len(w.read("dlq.orders")); got != "1 2 3 4 5 6 7 8 9" || left != 0 {
		t.Errorf("came back: %s, left: %d", got, left)
	}
	if rec := record(w, "dlq.orders"); rec.GetDone() != 9 || !rec.GetFinished() {
		t.Error(rec)
	}
}
