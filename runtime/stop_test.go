package runtime

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/turnlane/turnlane/actor"
	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/internal/catalog"
	"github.com/turnlane/turnlane/internal/lifecycle"
	turnlanev1 "github.com/turnlane/turnlane/proto/turnlane/v1"
	"github.com/turnlane/turnlane/store"
)

// hooked is a handler with all hooks.
type hooked struct {
	start  func(context.Context) error
	stop   func(context.Context) error
	handle func(context.Context, *actor.Turn) error
}

func (h *hooked) Start(ctx context.Context, _ *actor.Worker) error {
	if h.start == nil {
		return nil
	}
	return h.start(ctx)
}

func (h *hooked) Stop(ctx context.Context) error {
	if h.stop == nil {
		return nil
	}
	return h.stop(ctx)
}

func (h *hooked) Handle(ctx context.Context, t *actor.Turn) error { return h.handle(ctx, t) }

func TestADrainFinishesTurnsOutputsAndCursors(t *testing.T) {
	g := newRig(t)
	const workers = 50
	var begun, stopped atomic.Int64
	release := make(chan struct{})
	g.types["slow"] = func(*actor.Worker) (actor.Handler, error) {
		return &hooked{
			stop: func(context.Context) error { stopped.Add(1); return nil },
			handle: func(_ context.Context, turn *actor.Turn) error {
				begun.Add(1)
				<-release
				return turn.Publish("out", &event.Event{Type: "t", Subject: turn.Worker().ID})
			},
		}, nil
	}
	p := g.run("pod-1")
	for i := range workers {
		p.place(worker{id: fmt.Sprintf("w%d", i), typ: "slow", topics: []string{"in"}})
	}
	last := g.publish("in", 1)[0]
	g.eventually("all in their turn", func() bool { return begun.Load() == workers })
	p.stop()
	close(release)
	if err := <-p.ended; err != nil {
		t.Error(err)
	}
	if out := g.read("out"); len(out) != workers {
		t.Errorf("%d outputs, want %d", len(out), workers)
	}
	if stopped.Load() != workers {
		t.Errorf("%d handlers were stopped", stopped.Load())
	}
	for i := range workers {
		id := fmt.Sprintf("w%d", i)
		d, o := g.load(id), g.owner(id)
		if at := d.Cursors[0].Position; at != last || !d.Handover || o.Live || o.State != stateStopped {
			t.Fatalf("%s left %+v, %+v: want the event done and the lease given up", id, d, o)
		}
	}
}

func TestADrainLeavesAHandlerThatWillNotEnd(t *testing.T) {
	g := newRig(t)
	g.cfg = func(c *Config) { c.DrainTimeout = 50 * time.Millisecond }
	begun, release := make(chan struct{}), make(chan struct{})
	g.handle("never", func(context.Context, *actor.Turn) error {
		close(begun)
		<-release
		return nil
	})
	p := g.run("pod-1")
	p.place(worker{id: "w", typ: "never", topics: []string{"in"}})
	first := g.publish("in", 1)[0]
	<-begun
	p.end()
	if d := g.load("w"); !d.Cursors[0].Position.Less(first) || !d.Handover || g.owner("w").Live {
		t.Errorf("it left %+v, %+v", d, g.owner("w"))
	}
	close(release)
}

// A handler that returns an error because its worker is stopped has not failed.
func TestAStopWhileInTurnCountsNoAttempt(t *testing.T) {
	g := newRig(t)
	g.cfg = func(c *Config) { c.DrainTimeout = 30 * time.Millisecond }
	var got seen
	begun := make(chan struct{}, 9)
	g.handle("wait", func(ctx context.Context, turn *actor.Turn) error {
		got.add(fmt.Sprintf("%d %v", turn.Attempt(), turn.Replayed()))
		begun <- struct{}{}
		if got.len() > 1 {
			return nil
		}
		<-ctx.Done()
		return ctx.Err()
	})
	p := g.run("pod-1")
	p.place(worker{id: "w", typ: "wait", topics: []string{"in"}, attempts: 1})
	g.publish("in", 1)
	<-begun
	p.unplace("w")
	g.eventually("the worker stopped", func() bool { return p.r.Workers() == 0 })
	p.place(worker{id: "w", typ: "wait", topics: []string{"in"}, attempts: 1, gen: 2})
	<-begun
	if want := "1 false 1 true"; got.text() != want {
		t.Errorf("attempts %q, want %q", got.text(), want)
	}
	if r := g.reported(lifecycle.TypeExhausted); len(r) != 0 {
		t.Error("the event was given up")
	}
}

func TestAStopWhileRetryingLeavesTheEvent(t *testing.T) {
	g := newRig(t)
	var got seen
	g.handle("fail", func(context.Context, *actor.Turn) error { got.add("x"); return actor.RetryAfter(time.Hour) })
	p := g.run("pod-1")
	p.place(worker{id: "w", typ: "fail", topics: []string{"in"}})
	first := g.publish("in", 1)[0]
	g.eventually("an attempt", func() bool { return got.len() == 1 })
	p.unplace("w")
	g.eventually("the worker stopped", func() bool { return g.owner("w").State == stateStopped })
	if at := g.load("w").Cursors[0].Position; !at.Less(first) {
		t.Errorf("the cursor %v passed the event that waits for its retry", at)
	}
}

func TestAStopDuringTheStartEndsIt(t *testing.T) {
	g := newRig(t)
	begun, release := make(chan struct{}), make(chan struct{})
	var stopped atomic.Bool
	g.types["slow"] = func(*actor.Worker) (actor.Handler, error) {
		return &hooked{
			start:  func(context.Context) error { close(begun); <-release; return nil },
			stop:   func(context.Context) error { stopped.Store(true); return nil },
			handle: func(context.Context, *actor.Turn) error { t.Error("a turn of a stopped worker"); return nil },
		}, nil
	}
	p := g.run("pod-1")
	p.place(worker{id: "w", typ: "slow", topics: []string{"in"}})
	<-begun
	p.unplace("w")
	close(release)
	g.eventually("the worker stopped", func() bool {
		o := g.owner("w")
		return !o.Live && o.State == stateStopped && p.r.Workers() == 0
	})
	if !stopped.Load() {
		t.Error("the handler was started and not stopped")
	}
}

func TestStartFailuresAreReportedAndNotTriedAgain(t *testing.T) {
	for _, c := range []struct {
		name    string
		factory actor.Factory
		reason  string
	}{
		{"factory fails", func(*actor.Worker) (actor.Handler, error) { return nil, errBoom }, "make the handler: boom"},
		{"factory panics", func(*actor.Worker) (actor.Handler, error) { panic("ouch") }, "make the handler: panic: ouch"},
		{"factory exits", func(*actor.Worker) (actor.Handler, error) { goexit(); return nil, nil }, "make the handler: the handler ended its goroutine"},
		{"factory makes nothing", func(*actor.Worker) (actor.Handler, error) { return nil, nil }, "returned no handler"},
		{"start fails", func(*actor.Worker) (actor.Handler, error) {
			return &hooked{start: func(context.Context) error { return errBoom }}, nil
		}, "start the handler: boom"},
		{"start hangs", func(*actor.Worker) (actor.Handler, error) {
			return &hooked{start: func(ctx context.Context) error { <-ctx.Done(); return nil }}, nil
		}, "start the handler: the handler did not return before its deadline"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			g := newRig(t)
			var tries atomic.Int64
			g.types["bad"] = func(w *actor.Worker) (actor.Handler, error) { tries.Add(1); return c.factory(w) }
			p := g.run("pod-1")
			w := worker{id: "w", typ: "bad", topics: []string{"in"}, timeout: 300 * time.Millisecond, grace: time.Second}
			p.place(w)
			g.eventually("FAILED", func() bool { o := g.owner("w"); return o.State == stateFailed && !o.Live })
			if o := g.owner("w"); !strings.Contains(o.Reason, c.reason) {
				t.Errorf("the reason is %q, want %q", o.Reason, c.reason)
			}
			if d := g.load("w"); d.Start != (store.Start{Run: 1, Generation: 1}) {
				t.Errorf("reported for %+v", d.Start)
			}
			p.place(w) // the same again is no reason to try again
			g.types["bad"] = nil
			w.gen = 2
			p.place(w)
			g.eventually("a second try, for another generation", func() bool { return g.load("w").Start.Generation == 2 })
			if n := tries.Load(); n != 2 {
				t.Errorf("%d tries", n)
			}
		})
	}
}

func TestAnUnknownTypeIsAFailure(t *testing.T) {
	g := newRig(t)
	p := g.run("pod-1")
	p.place(worker{id: "w", typ: "nobody", topics: []string{"in"}})
	g.eventually("FAILED", func() bool { return g.owner("w").State == stateFailed })
	if o := g.owner("w"); !strings.Contains(o.Reason, `"nobody"`) {
		t.Errorf("the reason is %q", o.Reason)
	}
}

func TestAFailingStopHookDoesNotKeepTheWorker(t *testing.T) {
	for _, stop := range []func(context.Context) error{
		func(context.Context) error { return errBoom },
		func(context.Context) error { panic("ouch") },
		func(context.Context) error { goexit(); return nil },
	} {
		g := newRig(t)
		g.types["bad"] = func(*actor.Worker) (actor.Handler, error) { return &hooked{stop: stop}, nil }
		p := g.run("pod-1")
		p.place(worker{id: "w", typ: "bad", topics: []string{"in"}})
		g.running("w", 0)
		p.unplace("w")
		g.eventually("the worker stopped", func() bool { return g.owner("w").State == stateStopped })
	}
}

// The process dies with work in hand, and another one takes over: with cursors nothing is lost, every
// repeat is marked, and every output is there once.
func TestAfterACrashNothingIsLostAndOutputsAreThereOnce(t *testing.T) {
	g := newRig(t)
	const n = 400
	var first, second seen
	die, release := make(chan struct{}), make(chan struct{})
	defer close(release)
	var one *process
	g.handle("copy", func(_ context.Context, turn *actor.Turn) error {
		to := &second
		if turn.Worker().Pod == "pod-1" {
			to = &first
			if first.len() == n/2 {
				close(die)
				<-release
			}
		}
		mark := ""
		if turn.Replayed() {
			mark = "*"
		}
		to.add(turn.Event().ID + mark)
		return turn.Publish("out", &event.Event{Type: "t", Subject: turn.Event().ID})
	})
	one = g.run("pod-1")
	one.place(worker{id: "w", typ: "copy", topics: []string{"in"}})
	g.running("w", 0)
	g.publish("in", n)
	<-die
	one.die()
	two := g.run("pod-2")
	two.place(worker{id: "w", typ: "copy", topics: []string{"in"}})
	g.eventually("every output", func() bool { return len(g.read("out")) >= n })
	two.end()
	var out []string
	for _, e := range g.read("out") {
		out = append(out, e.Subject)
	}
	if got := strings.Join(out, " "); got != ids(n) {
		t.Errorf("outputs are not each there once and in order: %d of them", len(out))
	}
	known := map[string]bool{}
	for _, id := range first.all() {
		known[id] = true
	}
	repeats := 0
	for _, id := range second.all() {
		if plain, marked := strings.CutSuffix(id, "*"); known[plain] {
			if repeats++; !marked {
				t.Errorf("%s is a repeat and not marked", plain)
			}
		}
	}
	t.Logf("%d events by the first, %d by the second, %d of them repeats", first.len(), second.len(), repeats)
}

func TestALostSessionDropsTheWorkersAndTheNextOneTakesThemUp(t *testing.T) {
	g := newRig(t)
	g.ttl = 300 * time.Millisecond
	var got seen
	begun, release := make(chan struct{}, 9), make(chan struct{})
	refused := make(chan error, 1)
	g.handle("w", func(_ context.Context, turn *actor.Turn) error {
		got.add(turn.Event().ID)
		begun <- struct{}{}
		if got.len() == 1 {
			<-release
			refused <- turn.Publish("out", &event.Event{Type: "late"})
		}
		return nil
	})
	p := g.run("pod-1")
	p.place(worker{id: "w", typ: "w", topics: []string{"in"}})
	g.publish("in", 1)
	<-begun
	old := p.session
	p.faults.dead.Store(true)
	g.eventually("the workers dropped", func() bool { return p.r.Workers() == 0 })
	p.faults.dead.Store(false)
	close(release)
	if err := <-refused; !errors.Is(err, actor.ErrTurnClosed) {
		t.Errorf("Publish of a dropped worker: %v", err)
	}
	g.eventually("another session", func() bool {
		p.session, _ = p.keeper.Current()
		return p.session != "" && p.session != old
	})
	p.place(worker{id: "w", typ: "w", topics: []string{"in"}})
	<-begun
	if got.text() != "e0 e0" {
		t.Errorf("handled %q", got.text())
	}
}

// Another owner has taken over. The first write that is refused ends the activation.
func TestARefusedWriteEndsTheActivation(t *testing.T) {
	for _, how := range []string{"cursor", "output"} {
		t.Run(how, func(t *testing.T) {
			g := newRig(t)
			var got seen
			g.handle("w", func(_ context.Context, turn *actor.Turn) error {
				got.add(turn.Worker().Pod)
				if how == "output" {
					return turn.Publish("out", &event.Event{Type: "t"})
				}
				return nil
			})
			p := g.run("pod-1")
			p.place(worker{id: "w", typ: "w", topics: []string{"in"}})
			o := g.running("w", 0)
			g.jump.Add(int64(time.Minute)) // the store lets the session expire; the process has not noticed
			s, err := g.store.OpenSession(t.Context(), store.SessionInfo{Pod: "pod-2"}, time.Hour)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := g.store.Acquire(t.Context(), "w", s.ID); err != nil {
				t.Fatal(err)
			}
			if how == "output" { // the successor's first output raises the mark
				_, err := g.store.Append(t.Context(), "out", []store.Batch{{Records: nil,
					Turn: &store.TurnMark{Worker: "w", Token: o.Token + 1, Run: 1, Topic: "in", Position: event.Position{Seq: 1}}}})
				if err != nil {
					t.Skip("the store takes no empty batch")
				}
			}
			g.publish("in", 1)
			g.eventually("the worker dropped", func() bool { return p.r.Workers() == 0 })
			if after := g.owner("w"); after.Session != s.ID {
				t.Errorf("the new owner is gone: %+v", after)
			}
			if d := g.load("w"); !d.Cursors[0].Position.IsZero() {
				t.Errorf("the cursor moved: %+v", d)
			}
		})
	}
}

func TestWhereAnActivationBegins(t *testing.T) {
	const off, cursor = turnlanev1.ReplayMode_REPLAY_MODE_OFF, turnlanev1.ReplayMode_REPLAY_MODE_CURSOR
	for _, c := range []struct {
		name   string
		mode   turnlanev1.ReplayMode
		crash  bool
		gen    uint64
		run    uint64
		sees   string // after the restart; e3 to e5 were published while it was down, e6 to e8 after
		skips  bool
		marked bool
	}{
		{"cursor, in order", cursor, false, 2, 1, "e3 e4 e5 e6 e7 e8", false, true},
		{"cursor, after a crash", cursor, true, 1, 1, "e3 e4 e5 e6 e7 e8", false, true},
		{"cursor, sought", cursor, false, 2, 2, "e0 e1 e2 e3 e4 e5 e6 e7 e8", false, true},
		{"off, handed over", off, false, 1, 1, "e3 e4 e5 e6 e7 e8", false, true},
		{"off, after a crash", off, true, 1, 1, "e6 e7 e8", true, false},
		{"off, started again", off, false, 2, 1, "e0 e1 e2 e3 e4 e5 e6 e7 e8", false, true}, // the test's record begins at the earliest
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			g := newRig(t)
			var first, second, marked seen
			g.handle("w", func(_ context.Context, turn *actor.Turn) error {
				if turn.Worker().Pod == "pod-1" {
					first.add(turn.Event().ID)
					return nil
				}
				if turn.Replayed() {
					marked.add(turn.Event().ID)
				}
				second.add(turn.Event().ID)
				return nil
			})
			next := 0
			publish := func(n int) (last event.Position) {
				for range n {
					last = g.publishEvent("in", numbered(next))
					next++
				}
				return last
			}
			one := g.run("pod-1")
			last := publish(3)
			one.place(worker{id: "w", typ: "w", topics: []string{"in"}, replay: c.mode})
			g.eventually("the cursor at the third", func() bool {
				d := g.load("w")
				return len(d.Cursors) == 1 && d.Cursors[0].Position == last
			})
			if c.crash {
				one.die()
			} else {
				one.end()
			}
			end := publish(3)
			two := g.run("pod-2")
			two.place(worker{id: "w", typ: "w", topics: []string{"in"}, replay: c.mode, gen: c.gen, run: c.run})
			g.running("w", 1)
			publish(3)
			g.eventually("the last event", func() bool { return strings.HasSuffix(second.text(), "e8") })
			if second.text() != c.sees {
				t.Errorf("saw %q, want %q", second.text(), c.sees)
			}
			if got := strings.Contains(marked.text(), "e5"); got != c.marked || strings.Contains(marked.text(), "e6") {
				t.Errorf("marked as replayed: %q", marked.text())
			}
			two.end()
			gaps := g.reported(lifecycle.TypeGap)
			if c.skips != (len(gaps) == 1) {
				t.Fatalf("%d gaps are reported", len(gaps))
			}
			if c.skips {
				data := string(gaps[0].Data)
				if !strings.Contains(data, `"kind":"skipped"`) || !strings.Contains(data, fmt.Sprintf(`"first":"%s","last":"%s"`, last.Next(), end)) {
					t.Errorf("the gap is %s", data)
				}
			}
		})
	}
}

func TestStoreTroubleIsWaitedOut(t *testing.T) {
	g := newRig(t)
	trouble := func() error {
		switch rand.N(4) {
		case 0:
			return nil
		case 1:
			return store.ErrOutcomeUnknown
		case 2:
			return store.ErrExhausted
		}
		return store.ErrUnavailable
	}
	g.fault = func(f *faulty) {
		f.append = func(topic string, _ []store.Batch) error {
			if topic == lifecycle.Topic {
				return nil
			}
			return trouble()
		}
		f.commit = func([]store.Commit) error { return trouble() }
	}
	g.handle("copy", func(_ context.Context, turn *actor.Turn) error {
		turn.Publish("out-a", &event.Event{Type: "t", Subject: turn.Event().ID})
		return turn.Publish("out-b", &event.Event{Type: "t", Subject: turn.Event().ID})
	})
	p := g.run("pod-1")
	p.place(worker{id: "w", typ: "copy", topics: []string{"in"}})
	last := g.publish("in", 50)[49]
	g.eventually("the cursor at the end", func() bool {
		d := g.load("w")
		return len(d.Cursors) == 1 && d.Cursors[0].Position == last
	})
	for _, topic := range []string{"out-a", "out-b"} {
		var got []string
		for _, e := range g.read(topic) {
			got = append(got, e.Subject)
		}
		if strings.Join(got, " ") != ids(50) {
			t.Errorf("%s has %d events: %v", topic, len(got), got)
		}
	}
}

// When outputs cannot be stored, a worker takes a bounded number of further turns, and goes on later.
func TestTheOutboxIsBounded(t *testing.T) {
	g := newRig(t)
	g.cfg = func(c *Config) { c.OutboxTurns = 8 }
	var shut atomic.Bool
	shut.Store(true)
	g.fault = func(f *faulty) {
		f.append = func(topic string, _ []store.Batch) error {
			if topic == "out" && shut.Load() {
				return store.ErrUnavailable
			}
			return nil
		}
	}
	var got seen
	g.handle("copy", func(_ context.Context, turn *actor.Turn) error {
		got.add(turn.Event().ID)
		return turn.Publish("out", &event.Event{Type: "t", Subject: turn.Event().ID})
	})
	p := g.run("pod-1")
	first := g.publish("in", 100)[0]
	p.place(worker{id: "w", typ: "copy", topics: []string{"in"}})
	g.eventually("a full outbox", func() bool { return got.len() == 8 })
	time.Sleep(30 * time.Millisecond)
	if n := got.len(); n != 8 {
		t.Errorf("%d turns with 8 in the outbox", n)
	}
	if at := g.load("w").Cursors[0].Position; !at.Less(first) {
		t.Errorf("the cursor %v passed events whose outputs are not stored", at)
	}
	shut.Store(false)
	g.eventually("all outputs", func() bool { return len(g.read("out")) == 100 })
	if p.end(); p.r.Stats().OutboxBytes != 0 {
		t.Errorf("%d bytes are left in the outbox", p.r.Stats().OutboxBytes)
	}
}

func TestADeletedRecordEndsNothingAndStartsNothing(t *testing.T) {
	g := newRig(t)
	g.handle("w", func(context.Context, *actor.Turn) error { return nil })
	p := g.run("pod-1")
	g.txn(store.Change{Key: catalog.PlaceKey(p.session, "ghost"), Value: []byte{0x10, 1, 0x18, 1}, If: store.Any})
	p.place(worker{id: "w", typ: "w", topics: []string{"in"}})
	g.running("w", 0)
	if o := g.owner("ghost"); o.Token != 0 {
		t.Errorf("a worker without a record was acquired: %+v", o)
	}
}
