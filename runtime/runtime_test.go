package runtime

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/turnlane/turnlane/actor"
	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/inbox"
	"github.com/turnlane/turnlane/internal/lifecycle"
)

func TestEventsAreHandledOutputsStoredAndCursorsKept(t *testing.T) {
	g := newRig(t)
	var got seen
	g.handle("copy", func(_ context.Context, turn *actor.Turn) error {
		got.add(turn.Event().ID)
		return turn.Publish("out", &event.Event{Type: "copied", Subject: turn.Event().ID})
	})
	p := g.run("pod-1")
	g.publish("in", 3)
	p.place(worker{id: "w", typ: "copy", topics: []string{"in"}})
	g.eventually("three events", func() bool { return got.len() == 3 })
	last := g.publish("in", 2)[1]
	g.eventually("the cursor at the end", func() bool {
		d := g.load("w")
		return len(d.Cursors) == 1 && d.Cursors[0].Position == last
	})
	out := g.read("out")
	if len(out) != 5 {
		t.Fatalf("%d outputs, want 5", len(out))
	}
	if want := fmt.Sprintf("w.1.in.%s.0", last); out[4].ID != want || out[4].Source != "/turnlane/copy/w" {
		t.Errorf("output is %q from %q, want %q", out[4].ID, out[4].Source, want)
	}
	if o := g.owner("w"); o.State != stateRunning || o.Pod != "pod-1" || !o.Live {
		t.Errorf("owner is %+v", o)
	}
	p.unplace("w")
	g.eventually("the lease given up", func() bool { return !g.owner("w").Live })
	if o := g.owner("w"); o.State != stateStopped {
		t.Errorf("owner is %+v, want stopped", o)
	}
	if d := g.load("w"); !d.Handover || d.Cursors[0].Position != last {
		t.Errorf("it left %+v", d)
	}
	if n := p.r.Workers(); n != 0 {
		t.Errorf("%d workers left", n)
	}
	p.end()
}

// Overflow must pause a lane, never skip: whatever the sizes, a worker sees its topic in order.
func TestATinyLaneAndASlowHandlerKeepTheOrder(t *testing.T) {
	g := newRig(t)
	g.cfg = func(c *Config) { c.Lane = inbox.Limits{Events: 4} }
	const n, workers = 2000, 5
	var got [workers]seen
	g.types["slow"] = func(w *actor.Worker) (actor.Handler, error) {
		mine := &got[w.ID[1]-'0']
		return actor.HandlerFunc(func(_ context.Context, turn *actor.Turn) error {
			mine.add(turn.Event().ID)
			if d := rand.N(400); d < 20 {
				time.Sleep(time.Duration(d) * 10 * time.Microsecond)
			}
			return nil
		}), nil
	}
	p := g.run("pod-1")
	for i := range workers {
		p.place(worker{id: fmt.Sprintf("w%d", i), typ: "slow", topics: []string{"in"}})
	}
	for range n / 100 {
		g.publish("in", 100)
	}
	for i := range got {
		g.eventually("all events", func() bool { return got[i].len() >= n })
		want := strings.TrimSpace(strings.Repeat(ids(100)+" ", n/100))
		if got[i].text() != want {
			t.Errorf("worker %d saw them out of order", i)
		}
	}
}

func TestAThousandWorkersOnOneTopic(t *testing.T) {
	g := newRig(t)
	const workers, events = 1000, 20
	var total atomic.Int64
	g.types["count"] = func(*actor.Worker) (actor.Handler, error) {
		next := 0
		return actor.HandlerFunc(func(_ context.Context, turn *actor.Turn) error {
			if want := fmt.Sprintf("e%d", next); turn.Event().ID != want {
				t.Errorf("%s got %s, want %s", turn.Worker().ID, turn.Event().ID, want)
			}
			next++
			total.Add(1)
			return nil
		}), nil
	}
	p := g.run("pod-1")
	for i := range workers {
		p.place(worker{id: fmt.Sprintf("w%d", i), typ: "count", topics: []string{"in"}})
	}
	g.eventually("all running", func() bool { return p.r.Workers() == workers })
	g.publish("in", events)
	g.eventually("every event at every worker", func() bool { return total.Load() == workers*events })
	p.end()
	if d := g.load("w999"); !d.Handover {
		t.Errorf("a worker left %+v", d)
	}
}

func TestAWorkerOnAThousandTopics(t *testing.T) {
	g := newRig(t)
	var total atomic.Int64
	g.handle("count", func(context.Context, *actor.Turn) error { total.Add(1); return nil })
	p := g.run("pod-1")
	topics := make([]string, 1000)
	for i := range topics {
		topics[i] = fmt.Sprintf("t%d", i)
	}
	p.place(worker{id: "w", typ: "count", topics: topics})
	g.running("w", 0)
	for _, topic := range topics {
		g.publish(topic, 2)
	}
	g.eventually("every event", func() bool { return total.Load() == 2000 })
	p.end()
	if d := g.load("w"); len(d.Cursors) != 1000 {
		t.Errorf("%d cursors", len(d.Cursors))
	}
}

func TestGroupMembersSplitATopicAndTheirCursorsPassWhatOthersOwn(t *testing.T) {
	g := newRig(t)
	var mu sync.Mutex
	by := map[string][]string{}
	g.handle("part", func(_ context.Context, turn *actor.Turn) error {
		mu.Lock()
		defer mu.Unlock()
		by[turn.Event().ID] = append(by[turn.Event().ID], turn.Worker().ID)
		return nil
	})
	p := g.run("pod-1")
	for i := range uint32(4) {
		p.place(worker{id: fmt.Sprintf("m%d", i), typ: "part", topics: []string{"in"}, group: "g", size: 4, index: i})
	}
	last := g.publish("in", 400)[399]
	g.eventually("each event at one member", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(by) == 400
	})
	for id, members := range by {
		if len(members) != 1 {
			t.Errorf("%s was handled by %v", id, members)
		}
	}
	p.end()
	for i := range 4 {
		if d := g.load(fmt.Sprintf("m%d", i)); d.Cursors[0].Position != last {
			t.Errorf("member %d stopped at %v, want the end, which another member may own", i, d.Cursors[0].Position)
		}
	}
}

// One worker that hangs costs the others nothing.
func TestAHangingHandlerHoldsUpNobodyElse(t *testing.T) {
	g := newRig(t)
	release := make(chan struct{})
	var got seen
	g.handle("hang", func(ctx context.Context, _ *actor.Turn) error {
		select {
		case <-release:
		case <-ctx.Done():
		}
		return nil
	})
	g.handle("good", func(_ context.Context, turn *actor.Turn) error { got.add(turn.Event().ID); return nil })
	p := g.run("pod-1")
	p.place(worker{id: "h", typ: "hang", topics: []string{"in"}})
	p.place(worker{id: "w", typ: "good", topics: []string{"in"}})
	g.publish("in", 3000) // more than a lane holds
	g.eventually("the good one is done", func() bool { return got.len() == 3000 })
	facts, ok := p.r.Inspect("h")
	if !ok || facts[0].LaneEvents < 1000 || facts[0].Feed.String() != "FEED_STATE_STALLED" {
		t.Errorf("the hanging worker looks like %v", facts)
	}
	close(release)
}

func TestFailuresAreAttemptsAndTheLastOneIsReported(t *testing.T) {
	var nilMap map[string]int
	for _, c := range []struct {
		name     string
		fail     func() error
		attempts int
		reason   string
	}{
		{"error", func() error { return errBoom }, 3, "failed"},
		{"permanent", func() error { return actor.Permanent(errBoom) }, 1, "permanent"},
		{"retry after", func() error { return actor.RetryAfter(time.Millisecond) }, 3, "failed"},
		{"panic", func() error { panic("boom \x1b[31m\n") }, 3, "panic"},
		{"panic with nil", func() error { panic(nil) }, 3, "panic"},
		{"nil map", func() error { nilMap["a"] = 1; return nil }, 3, "panic"},
		{"goexit", func() error { goexit(); return nil }, 3, "goexit"},
		{"timeout", func() error { time.Sleep(30 * time.Millisecond); return nil }, 3, "timeout"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			g := newRig(t)
			var got seen
			g.handle("bad", func(_ context.Context, turn *actor.Turn) error {
				got.add(fmt.Sprintf("%s/%d", turn.Event().ID, turn.Attempt()))
				turn.Publish("out", &event.Event{Type: "t", Subject: turn.Event().ID})
				if turn.Event().ID == "e1" {
					return c.fail()
				}
				return nil
			})
			p := g.run("pod-1")
			p.place(worker{id: "w", typ: "bad", topics: []string{"in"}, timeout: 20 * time.Millisecond, grace: 10 * time.Second})
			last := g.publish("in", 3)[2]
			g.eventually("the cursor behind all three", func() bool {
				d := g.load("w")
				return len(d.Cursors) == 1 && d.Cursors[0].Position == last
			})
			want := "e0/1"
			for n := range c.attempts {
				want += fmt.Sprintf(" e1/%d", n+1)
			}
			if got := got.text(); got != want+" e2/1" {
				t.Errorf("attempts %q, want %q", got, want+" e2/1")
			}
			if out := g.read("out"); len(out) != 2 {
				t.Errorf("%d outputs, want those of the good events", len(out))
			}
			g.eventually("one report", func() bool { return len(g.reported(lifecycle.TypeExhausted)) == 1 })
			data := string(g.reported(lifecycle.TypeExhausted)[0].Data)
			for _, part := range []string{`"worker_id":"w"`, `"event_id":"e1"`, `"topic":"in"`, `"position":"`, fmt.Sprintf(`"attempts":%d`, c.attempts), `"reason":"` + c.reason + `"`} {
				if !strings.Contains(data, part) {
					t.Errorf("the report lacks %s: %s", part, data)
				}
			}
			if c.name == "panic" && !strings.Contains(data, `boom \\u001b`) {
				t.Errorf("the control characters are not escaped in the report: %s", data)
			}
		})
	}
}

func TestADroppedEventIsPassedWithoutOutputs(t *testing.T) {
	g := newRig(t)
	g.handle("drop", func(_ context.Context, turn *actor.Turn) error {
		turn.Publish("out", &event.Event{Type: "t"})
		return actor.Drop("not for us")
	})
	p := g.run("pod-1")
	p.place(worker{id: "w", typ: "drop", topics: []string{"in"}})
	last := g.publish("in", 3)[2]
	g.eventually("the cursor at the end", func() bool {
		d := g.load("w")
		return len(d.Cursors) == 1 && d.Cursors[0].Position == last
	})
	if out, told := g.read("out"), g.reported(lifecycle.TypeExhausted); len(out)+len(told) != 0 {
		t.Errorf("%d outputs and %d reports", len(out), len(told))
	}
}

func TestAnOutputThatCannotBeStoredFailsItsTurn(t *testing.T) {
	g := newRig(t)
	g.handle("bad", func(_ context.Context, turn *actor.Turn) error {
		turn.Publish("out", &event.Event{Type: "t"})
		turn.Publish("sys.secret", &event.Event{Type: "t"})
		return nil // it does not even look
	})
	p := g.run("pod-1")
	p.place(worker{id: "w", typ: "bad", topics: []string{"in"}, attempts: 1})
	g.publish("in", 1)
	g.eventually("one report", func() bool { return len(g.reported(lifecycle.TypeExhausted)) == 1 })
	if data := string(g.reported(lifecycle.TypeExhausted)[0].Data); !strings.Contains(data, "sys.secret") {
		t.Errorf("the report does not name the topic: %s", data)
	}
	if out := g.read("out"); len(out) != 0 {
		t.Errorf("%d outputs of a failed turn", len(out))
	}
}

// While an event waits for its retry, its lane waits and the worker's other lanes go on.
func TestARetryHoldsItsLaneAlone(t *testing.T) {
	g := newRig(t)
	var got seen
	var open atomic.Bool
	g.handle("w", func(_ context.Context, turn *actor.Turn) error {
		if turn.Topic() == "a" && turn.Event().ID == "e0" && !open.Load() {
			return actor.RetryAfter(5 * time.Millisecond)
		}
		got.add(turn.Topic() + "/" + turn.Event().ID)
		return nil
	})
	p := g.run("pod-1")
	p.place(worker{id: "w", typ: "w", topics: []string{"a", "b"}, attempts: 1_000_000})
	g.publish("a", 2)
	g.publish("b", 100)
	g.eventually("lane b is done", func() bool { return got.len() == 100 })
	if slices.ContainsFunc(got.all(), func(s string) bool { return s[0] == 'a' }) {
		t.Fatal("lane a did not wait")
	}
	open.Store(true)
	g.eventually("lane a is done", func() bool { return got.len() == 102 })
	if tail := got.all()[100:]; tail[0] != "a/e0" || tail[1] != "a/e1" {
		t.Errorf("lane a came as %v", tail)
	}
}

func TestAnUndecodableRecordIsGivenUpAtOnce(t *testing.T) {
	g := newRig(t)
	var got seen
	g.handle("w", func(_ context.Context, turn *actor.Turn) error { got.add(turn.Event().ID); return nil })
	p := g.run("pod-1")
	p.place(worker{id: "w", typ: "w", topics: []string{"in"}})
	g.publish("in", 1)
	record := slices.Concat(event.AppendRecord(nil, numbered(1), 0, time.Now())[:13], []byte{0xff, 0xff, 0xff})
	g.appendRecord("in", record)
	g.publish("in", 1)
	g.eventually("the good ones", func() bool { return got.len() == 2 })
	g.eventually("one report", func() bool { return len(g.reported(lifecycle.TypeExhausted)) == 1 })
	if data := string(g.reported(lifecycle.TypeExhausted)[0].Data); !strings.Contains(data, `"reason":"undecodable"`) {
		t.Errorf("the report is %s", data)
	}
}

// A handler that ignores its deadline is left behind: another activation goes on, under another token,
// and what the old one still does has no effect.
func TestAStuckHandlerIsReplaced(t *testing.T) {
	g := newRig(t)
	var got seen
	release := make(chan struct{})
	late := make(chan error, 1)
	g.handle("stuck", func(_ context.Context, turn *actor.Turn) error {
		got.add(fmt.Sprintf("%s/%d", turn.Event().ID, turn.Attempt()))
		if turn.Event().ID == "e1" && turn.Attempt() == 1 {
			<-release
			late <- turn.Publish("out", &event.Event{Type: "late"})
			return nil
		}
		return turn.Publish("out", &event.Event{Type: "good"})
	})
	p := g.run("pod-1")
	p.place(worker{id: "w", typ: "stuck", topics: []string{"in"}, timeout: 30 * time.Millisecond, grace: 30 * time.Millisecond})
	first := g.running("w", 0)
	g.publish("in", 3)
	g.eventually("all handled", func() bool { return got.len() == 4 })
	if want := "e0/1 e1/1 e1/2 e2/1"; got.text() != want {
		t.Errorf("handled %q, want %q", got.text(), want)
	}
	if second := g.running("w", first.Token); p.r.Stats().Leaked != 1 {
		t.Errorf("under %+v, %d handlers are leaked, want 1", second, p.r.Stats().Leaked)
	}
	close(release)
	if err := <-late; err == nil {
		t.Error("the late Publish was taken")
	}
	g.eventually("nothing leaked", func() bool { return p.r.Stats().Leaked == 0 })
	g.eventually("three outputs", func() bool { return len(g.read("out")) == 3 })
	g.eventually("a report", func() bool { return len(g.reported(lifecycle.TypeStuck)) == 1 })
}

// A handler that hangs for good at every attempt uses up its attempts, activation after activation.
func TestAnEventThatHangsEveryHandlerIsGivenUp(t *testing.T) {
	g := newRig(t)
	release := make(chan struct{})
	var got seen
	g.handle("stuck", func(_ context.Context, turn *actor.Turn) error {
		got.add(fmt.Sprintf("%s/%d", turn.Event().ID, turn.Attempt()))
		if turn.Event().ID == "e0" {
			<-release
		}
		return nil
	})
	p := g.run("pod-1")
	p.place(worker{id: "w", typ: "stuck", topics: []string{"in"}, attempts: 3, timeout: 10 * time.Millisecond, grace: 10 * time.Millisecond})
	g.publish("in", 2)
	g.eventually("the next event", func() bool { return got.len() == 4 })
	if want := "e0/1 e0/2 e0/3 e1/1"; got.text() != want {
		t.Errorf("handled %q, want %q", got.text(), want)
	}
	g.eventually("a report", func() bool { return len(g.reported(lifecycle.TypeExhausted)) == 1 })
	close(release)
	g.eventually("nothing leaked", func() bool { return p.r.Stats().Leaked == 0 })
}

// A worker that waits for an answer that only it can give ends at its deadline, with an error.
func TestWaitingForItselfEndsAtTheDeadline(t *testing.T) {
	g := newRig(t)
	var got seen
	asked, answered := make(chan struct{}), make(chan struct{})
	g.handle("self", func(ctx context.Context, turn *actor.Turn) error {
		if turn.Topic() == "answers" {
			got.add("answer")
			close(answered)
			return nil
		}
		close(asked)
		select {
		case <-answered: // it can't be: this worker takes one turn at a time
			return nil
		case <-ctx.Done():
			got.add(ctx.Err().Error())
			return ctx.Err()
		}
	})
	p := g.run("pod-1")
	p.place(worker{id: "w", typ: "self", topics: []string{"in", "answers"}, attempts: 1, timeout: 30 * time.Millisecond, grace: time.Second})
	g.publish("in", 1)
	<-asked
	g.publish("answers", 1)
	g.eventually("the end of both", func() bool { return got.len() == 2 })
	g.eventually("a report that names the wait", func() bool {
		r := g.reported(lifecycle.TypeExhausted)
		return len(r) == 1 && strings.Contains(string(r[0].Data), "deadline")
	})
}
