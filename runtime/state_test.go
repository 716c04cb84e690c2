package runtime

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/turnlane/turnlane/actor"
	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/internal/lifecycle"
	turnlanev1 "github.com/turnlane/turnlane/proto/turnlane/v1"
	"github.com/turnlane/turnlane/store"
)

func addTo(turn *actor.Turn, key string, n int) (int, error) {
	old, _ := turn.State().Get(key)
	sum, _ := strconv.Atoi(string(old))
	sum += n
	return sum, turn.State().Set(key, strconv.AppendInt(nil, int64(sum), 10))
}

// Given a worker whose turns on three lanes all count in one key, some of them with outputs that take long to
// be stored, when its process dies again and again at random moments, then the count is that of the events:
// no turn counts twice, and none is lost, whatever lane it was on.
func TestStateAndCursorsAgreeAfterAnyCrash(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	g := newRig(t)
	g.fault = func(f *faulty) {
		f.append = func(topic string, _ []store.Batch) error {
			if topic != lifecycle.Topic {
				time.Sleep(time.Duration(rand.N(3000)) * time.Microsecond)
				if rand.N(4) == 0 {
					return store.ErrOutcomeUnknown
				}
			}
			return nil
		}
		f.commit = func([]store.Commit) error {
			if rand.N(4) == 0 {
				return store.ErrUnavailable
			}
			return nil
		}
	}
	g.handle("count", func(_ context.Context, turn *actor.Turn) error {
		n, _ := strconv.Atoi(strings.TrimPrefix(turn.Event().ID, "e"))
		if _, err := addTo(turn, "all", 1); err != nil {
			return err
		}
		sum, err := addTo(turn, turn.Topic(), n)
		if err != nil {
			return err
		}
		if n%7 == 3 && turn.Attempt() == 1 {
			return errBoom // after it changed the state
		}
		if n%2 == 0 {
			return turn.Publish("out-"+turn.Topic(), &event.Event{Type: "t", Subject: strconv.Itoa(sum)})
		}
		return nil
	})
	const each = 300
	topics := []string{"a", "b", "c"}
	w := worker{id: "w", typ: "count", topics: topics, attempts: 20, backoff: time.Millisecond}
	for _, topic := range topics {
		g.publish(topic, each)
	}
	for life := range 6 {
		p := g.run(fmt.Sprintf("pod-%d", life))
		p.place(w)
		g.running("w", uint64(life))
		if life < 5 {
			time.Sleep(time.Duration(20+random.IntN(100)) * time.Millisecond)
			p.die()
			p.stop()
			<-p.ended
			continue
		}
		g.eventually("all turns", func() bool { return string(g.load("w").State["all"]) == strconv.Itoa(3*each) })
		p.end()
	}
	state := g.load("w").State
	for _, topic := range topics {
		if got := string(state[topic]); got != strconv.Itoa(each*(each-1)/2) {
			t.Errorf("the sum of topic %s is %s", topic, got)
		}
		// What was published is what the sum was, once: outputs agree with the state that they came from.
		sum, n := 0, 0
		out := g.read("out-" + topic)
		for i := range each {
			if sum += i; i%2 == 0 {
				if n >= len(out) || out[n].Subject != strconv.Itoa(sum) {
					t.Fatalf("output %d of topic %s is not %d", n, topic, sum)
				}
				n++
			}
		}
		if n != len(out) {
			t.Errorf("%d outputs on %s, want %d", len(out), topic, n)
		}
	}
	if len(state) != 4 {
		t.Errorf("the state is %v", state)
	}
}

// A turn on one lane that rests on the state which a turn on another lane left must not be stored before it.
func TestATurnIsNotStoredBeforeTheOneItRestsOn(t *testing.T) {
	g := newRig(t)
	var blocked atomic.Bool
	blocked.Store(true)
	g.fault = func(f *faulty) {
		f.append = func(topic string, _ []store.Batch) error {
			if topic == "out" && blocked.Load() {
				return store.ErrUnavailable
			}
			return nil
		}
	}
	var turns seen
	g.handle("s", func(_ context.Context, turn *actor.Turn) error {
		sum, err := addTo(turn, "n", 1)
		if err != nil {
			return err
		}
		turns.add(fmt.Sprint(turn.Topic(), sum))
		if turn.Topic() == "a" {
			return turn.Publish("out", &event.Event{Type: "t"})
		}
		return nil
	})
	p := g.run("pod-1")
	p.place(worker{id: "w", typ: "s", topics: []string{"a", "b"}})
	g.running("w", 0)
	g.publish("a", 1)
	g.eventually("a turn on a", func() bool { return turns.len() == 1 })
	last := g.publish("b", 3)[2]
	g.eventually("turns on b", func() bool { return turns.len() == 4 })
	time.Sleep(30 * time.Millisecond) // some flushes
	d := g.load("w")
	for _, c := range d.Cursors {
		if !c.Position.IsZero() {
			t.Errorf("the cursor of %s is at %s while the first turn's output is not stored", c.Topic, c.Position)
		}
	}
	if len(d.State) != 0 {
		t.Errorf("the state is stored: %v", d.State)
	}
	blocked.Store(false)
	g.eventually("all of it stored", func() bool {
		d := g.load("w")
		return string(d.State["n"]) == "4" && len(d.Cursors) == 2 && d.Cursors[1].Position == last
	})
	// The next activation goes on with it, also after a seek.
	p.unplace("w")
	g.eventually("stopped", func() bool { return p.r.Workers() == 0 })
	g.publish("b", 1)
	p.place(worker{id: "w", typ: "s", topics: []string{"a", "b"}, run: 2})
	g.eventually("six more", func() bool { return strings.Contains(turns.text(), "9") })
	p.end()
	if got := string(g.load("w").State["n"]); got != "9" {
		t.Errorf("after the seek n is %s: %s", got, turns.text())
	}
}

func TestStateIsBoundedWhileOutputsWait(t *testing.T) {
	g := newRig(t)
	var blocked atomic.Bool
	blocked.Store(true)
	g.fault = func(f *faulty) {
		f.append = func(topic string, _ []store.Batch) error {
			if topic == "out" && blocked.Load() {
				return store.ErrUnavailable
			}
			return nil
		}
	}
	g.cfg = func(c *Config) { c.OutboxTurns = 4 }
	var turns seen
	g.handle("s", func(_ context.Context, turn *actor.Turn) error {
		turns.add(turn.Topic())
		if _, err := addTo(turn, "n", 1); err != nil || turn.Topic() != "a" {
			return err
		}
		return turn.Publish("out", &event.Event{Type: "t"})
	})
	p := g.run("pod-1")
	p.place(worker{id: "w", typ: "s", topics: []string{"a", "b"}})
	g.publish("a", 1)
	g.eventually("a turn on a", func() bool { return turns.len() == 1 })
	g.publish("b", 100)
	g.eventually("the bound", func() bool { return turns.len() == 16 })
	time.Sleep(20 * time.Millisecond)
	if turns.len() != 16 {
		t.Errorf("%d turns while the first one's output cannot be stored", turns.len())
	}
	blocked.Store(false)
	g.eventually("the rest", func() bool { return string(g.load("w").State["n"]) == "101" })
	p.end()
}

func TestWithReplayOffThereIsNoState(t *testing.T) {
	g := newRig(t)
	g.handle("s", func(_ context.Context, turn *actor.Turn) error {
		turn.State().Get("n") // which cannot say so
		return nil
	})
	p := g.run("pod-1")
	p.place(worker{id: "w", typ: "s", topics: []string{"in"}, replay: turnlanev1.ReplayMode_REPLAY_MODE_OFF})
	g.publish("in", 1)
	g.eventually("a report", func() bool { return len(g.reported(lifecycle.TypeExhausted)) == 1 })
	data := string(g.reported(lifecycle.TypeExhausted)[0].Data)
	for _, says := range []string{"worker w has replay off", "create the worker anew with replay cursor", `"reason":"permanent"`, `"attempts":1`} {
		if !strings.Contains(data, says) {
			t.Errorf("the report does not say %s: %s", says, data)
		}
	}
	p.end()
}

func TestTurnsAreExtendedAndTellTheirProgress(t *testing.T) {
	g := newRig(t)
	next := make(chan struct{})
	g.handle("long", func(ctx context.Context, turn *actor.Turn) error {
		for i := range 3 {
			turn.Progress(fmt.Sprintf("step %d", i))
			select {
			case <-next:
			case <-ctx.Done():
				return ctx.Err()
			}
			if err := turn.Extend(time.Minute); err != nil {
				return err
			}
		}
		if d, _ := ctx.Deadline(); time.Until(d) < 30*time.Second {
			t.Errorf("the deadline is %s", d)
		}
		if err := turn.Extend(2 * time.Hour); err == nil || !strings.Contains(err.Error(), "1h0m0s at most") {
			t.Errorf("Extend by two hours gives %v", err)
		}
		return turn.Publish("out", &event.Event{Type: "t"})
	})
	p := g.run("pod-1")
	p.place(worker{id: "w", typ: "long", topics: []string{"in"}, timeout: 20 * time.Second})
	g.publish("in", 1)
	for i := range 3 {
		want := fmt.Sprintf("step %d", i)
		g.eventually(want, func() bool { return p.r.Progress("w") == want })
		next <- struct{}{}
	}
	g.eventually("the output", func() bool { return len(g.read("out")) == 1 })
	g.eventually("no progress after the turn", func() bool { return p.r.Progress("w") == "" })
	if p.r.Progress("nobody") != "" {
		t.Error("a worker that is not here makes progress")
	}
	p.end()
}
