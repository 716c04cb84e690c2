package runtime

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/turnlane/turnlane/actor"
	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/internal/catalog"
	"github.com/turnlane/turnlane/internal/deadletter"
	"github.com/turnlane/turnlane/internal/lifecycle"
	storev1 "github.com/turnlane/turnlane/proto/turnlane/store/v1"
	"github.com/turnlane/turnlane/store"
)

// letters returns the dead letters of a topic, taken apart.
func (g *rig) letters(topic string) (originals []*event.Event, facts []deadletter.Facts) {
	g.t.Helper()
	for _, e := range g.read(topic) {
		original, f, err := deadletter.Unwrap(e)
		if err != nil {
			g.t.Fatal(err)
		}
		originals, facts = append(originals, original), append(facts, f)
	}
	return originals, facts
}

func (g *rig) cursorAt(id string, pos event.Position) {
	g.t.Helper()
	g.eventually("the cursor of "+id+" at "+pos.String(), func() bool {
		d := g.load(id)
		return len(d.Cursors) == 1 && d.Cursors[0].Position == pos
	})
}

func TestAnEventOutOfAttemptsBecomesADeadLetterBesideItsFacts(t *testing.T) {
	g := newRig(t)
	g.cfg = func(c *Config) { c.Version = "v9" }
	g.handle("bad", func(_ context.Context, turn *actor.Turn) error {
		if turn.Event().ID == "e1" {
			return errBoom
		}
		return nil
	})
	p := g.run("pod-1")
	p.place(worker{id: "w", typ: "bad", topics: []string{"in"}, attempts: 2})
	all := g.publish("in", 3)
	g.cursorAt("w", all[2])
	originals, facts := g.letters("dlq.in")
	if len(facts) != 1 {
		t.Fatalf("%d dead letters, want one", len(facts))
	}
	if e := originals[0]; e.ID != "e1" || e.Source != "/test" || e.Subject != "s1" || len(e.Extensions) != 0 {
		t.Errorf("the event in it is %+v", e)
	}
	f := facts[0]
	if f.FirstFailed.IsZero() || f.LastFailed.Before(f.FirstFailed) {
		t.Errorf("it failed first at %s and last at %s", f.FirstFailed, f.LastFailed)
	}
	f.FirstFailed, f.LastFailed = time.Time{}, time.Time{}
	want := deadletter.Facts{Reason: "failed", Error: "boom", Attempts: 2, WorkerID: "w", WorkerType: "bad", Version: "v9", Run: 1,
		Topic: "in", Position: all[1], Key: "s1"}
	if f != want {
		t.Errorf("its facts are %+v, want %+v", f, want)
	}
	if d := g.load("w"); len(d.Attempts) != 0 {
		t.Errorf("attempts of settled events are left: %+v", d.Attempts)
	}
	g.eventually("a report", func() bool { return len(g.reported(lifecycle.TypeExhausted)) == 1 })
	data := string(g.reported(lifecycle.TypeExhausted)[0].Data)
	page, err := g.store.Read(t.Context(), "dlq.in", event.Position{}, store.ReadLimit{})
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{`"dead_letter_topic":"dlq.in"`, `"dead_letter_position":"` + page.Entries[0].Pos.String() + `"`} {
		if !strings.Contains(data, part) {
			t.Errorf("the report lacks %s: %s", part, data)
		}
	}
}

func TestWhatBecomesOfAnEventThatIsGivenUp(t *testing.T) {
	for _, c := range []struct {
		name, in string
		w        worker
		dlq      string
	}{
		{"the worker's own topic", "in", worker{dead: "dlq.mine"}, "dlq.mine"},
		{"drop", "in", worker{then: onDrop}, ""},
		{"from a topic of dead letters", "dlq.in", worker{}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := newRig(t)
			g.handle("bad", func(context.Context, *actor.Turn) error { return actor.Permanent(errBoom) })
			p := g.run("pod-1")
			c.w.id, c.w.typ, c.w.topics = "w", "bad", []string{c.in}
			p.place(c.w)
			g.cursorAt("w", g.publish(c.in, 2)[1])
			g.eventually("two reports", func() bool { return len(g.reported(lifecycle.TypeExhausted)) == 2 })
			topics, err := g.store.Topics(t.Context(), "dlq.", "", 10)
			if err != nil {
				t.Fatal(err)
			}
			var names []string
			for _, topic := range topics {
				if topic.Topic != c.in {
					names = append(names, topic.Topic)
				}
			}
			if got := strings.Join(names, " "); got != c.dlq {
				t.Errorf("topics of dead letters: %q, want %q", got, c.dlq)
			}
			if c.dlq != "" && len(g.read(c.dlq)) != 2 {
				t.Errorf("%d dead letters", len(g.read(c.dlq)))
			}
		})
	}
}

// The record is a dead letter of the topic that gateways use too, once.
func TestAnUndecodableRecordBecomesADeadLetter(t *testing.T) {
	g := newRig(t)
	g.handle("w", func(context.Context, *actor.Turn) error { return nil })
	p := g.run("pod-1")
	record := slices.Concat(event.AppendRecord(nil, numbered(1), 0, time.Now())[:13], []byte{0xff, 0xff, 0xff})
	g.appendRecord("in", record)
	last := g.publish("in", 1)[0]
	for _, id := range []string{"w1", "w2"} {
		p.place(worker{id: id, typ: "w", topics: []string{"in"}})
		g.cursorAt(id, last)
	}
	originals, facts := g.letters(deadletter.Pubsub)
	if len(facts) != 1 || facts[0].Reason != deadletter.Undecodable || string(originals[0].Data) != string(record) {
		t.Errorf("dead letters %+v", facts)
	}
}

// A failed attempt is in the store before its pause begins, so that no end of an activation or of the
// process begins the counting again.
func TestAttemptsGoOnWhereverTheActivationEnds(t *testing.T) {
	for _, c := range []struct {
		name string
		end  func(p *process)
	}{
		{"killed", func(p *process) { p.die() }},
		{"drained", func(p *process) { p.end() }},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := newRig(t)
			var got seen
			g.handle("bad", func(_ context.Context, turn *actor.Turn) error {
				if turn.Event().ID == "e0" {
					got.add(fmt.Sprint(turn.Attempt()))
					return actor.RetryAfter(time.Hour) // so that the next attempt is the next activation's
				}
				return nil
			})
			var last event.Position
			for n := 1; n <= 4; n++ {
				if n == 1 {
					last = g.publish("in", 2)[1]
				}
				p := g.run(fmt.Sprintf("pod-%d", n))
				p.place(worker{id: "w", typ: "bad", topics: []string{"in"}, attempts: 4, gen: uint64(n)})
				if n == 4 {
					break
				}
				g.eventually("an attempt that is stored", func() bool {
					d := g.load("w")
					return len(d.Attempts) == 1 && d.Attempts[0].Attempts == uint32(n) && d.Attempts[0].Error == "retry after 1h0m0s"
				})
				c.end(p)
			}
			g.cursorAt("w", last)
			if got.text() != "1 2 3 4" {
				t.Errorf("attempts %q", got.text())
			}
			if _, facts := g.letters("dlq.in"); len(facts) != 1 || facts[0].Attempts != 4 {
				t.Errorf("dead letters %+v", facts)
			}
		})
	}
}

// mortal is a rig of which one process after the other dies.
type mortal struct {
	*rig
	mu      sync.Mutex
	present *process
	kills   int
	release chan struct{}
}

func newMortal(t *testing.T) *mortal {
	return &mortal{rig: newRig(t), release: make(chan struct{})}
}

// live starts the next process with its workers.
func (m *mortal) live(ws ...worker) {
	p := m.run(fmt.Sprintf("pod-%d", m.kills))
	m.t.Cleanup(sync.OnceFunc(func() {
		select {
		case <-m.release:
		default:
			close(m.release)
		}
	}))
	m.mu.Lock()
	m.present = p
	m.mu.Unlock()
	for _, w := range ws {
		p.place(w)
	}
}

// of tells whether a turn is one of the process that lives.
func (m *mortal) of(turn *actor.Turn) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.present.r.cfg.Pod == turn.Worker().Pod && !m.present.faults.dead.Load()
}

// kill ends the present process with its handlers where they are.
func (m *mortal) kill() {
	m.mu.Lock()
	m.kills++
	m.present.die()
	m.mu.Unlock()
	<-m.release
}

func (m *mortal) dead() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.present.faults.dead.Load()
}

// An event that ends the process is found: the first end cannot be told from others, since ordinary
// turns have no mark. Its neighbours, in its lane and in another, are never blamed.
func TestAnEventThatEndsTheProcessIsFound(t *testing.T) {
	for _, crashes := range []uint32{1, 3} {
		t.Run(fmt.Sprint(crashes), func(t *testing.T) {
			m := newMortal(t)
			var got seen
			var starts atomic.Int64
			m.handle("w", func(_ context.Context, turn *actor.Turn) error {
				if !m.of(turn) {
					return nil
				}
				if turn.Topic() == "in" && turn.Event().ID == "e3" {
					starts.Add(1)
					m.kill()
					return nil
				}
				got.add(turn.Topic() + "/" + turn.Event().ID)
				return turn.Publish("out", &event.Event{Type: "t", Subject: turn.Event().ID})
			})
			w := worker{id: "w", typ: "w", topics: []string{"in", "other"}, crashes: crashes}
			m.publish("in", 8)
			m.publish("other", 8)
			done := func() bool {
				seen := map[string]bool{}
				for _, one := range got.all() {
					seen[one] = true
				}
				return len(seen) == 15 && len(m.read("dlq.in")) == 1
			}
			for range 10 {
				m.live(w)
				m.eventually("its end, or that of the work", func() bool { return m.dead() || done() })
				if !m.dead() {
					break
				}
			}
			if n := int64(crashes) + 1; starts.Load() != n || m.kills != int(n) {
				t.Errorf("%d starts and %d kills, want %d: one without a mark", starts.Load(), m.kills, n)
			}
			originals, facts := m.letters("dlq.in")
			if len(facts) != 1 || originals[0].ID != "e3" || facts[0].Reason != deadletter.Crashed || facts[0].Crashes != crashes || facts[0].Attempts != 0 {
				t.Errorf("dead letters %+v", facts)
			}
			m.eventually("all outputs", func() bool { return len(m.read("out")) == 15 })
			m.eventually("no record left", func() bool { return len(m.load("w").Attempts) == 0 })
			if left := m.read("dlq.other"); len(left) != 0 {
				t.Errorf("the other lane has %d dead letters", len(left))
			}
		})
	}
}

// A neighbour that was done, waited, or was held when the process ended has no crash.
func TestOnlyTheEventInHandIsBlamed(t *testing.T) {
	m := newMortal(t)
	m.handle("w", func(_ context.Context, turn *actor.Turn) error {
		if !m.of(turn) {
			return nil
		}
		switch turn.Topic() + turn.Event().ID {
		case "ae0":
			return actor.RetryAfter(time.Hour)
		case "be2":
			m.kill()
		}
		return nil
	})
	w := worker{id: "w", typ: "w", topics: []string{"a", "b"}, crashes: 9, attempts: 99}
	held := m.publish("a", 3)[0]
	killer := m.publish("b", 4)[2]
	for n := range uint32(4) {
		m.live(w)
		m.eventually("its end", m.dead)
		for _, k := range m.load("w").Attempts {
			switch k.Position {
			case held:
				if k.Crashes != 0 || k.Started {
					t.Errorf("the event that waits for its retry is blamed: %+v", k)
				}
			case killer:
				if n > 0 && (k.Crashes != n-1 || !k.Started) {
					t.Errorf("after kill %d the store has %+v", n+1, k)
				}
			default:
				if k.Crashes != 0 {
					t.Errorf("a neighbour is blamed: %+v", k)
				}
			}
		}
	}
}

// With on_exhausted pause the event stays, the worker's events wait, over a restart too, and once they
// are resumed the event has all of its attempts again.
func TestAPauseKeepsTheEventUntilItIsResumed(t *testing.T) {
	g := newRig(t)
	var got seen
	var well atomic.Bool
	note := func(turn *actor.Turn) {
		got.add(fmt.Sprintf("%s/%s/%d", turn.Topic(), turn.Event().ID, turn.Attempt()))
	}
	g.types["w"] = func(*actor.Worker) (actor.Handler, error) {
		return &teller{
			handle: func(_ context.Context, turn *actor.Turn) error {
				note(turn)
				if !well.Load() {
					return errBoom
				}
				return nil
			},
			commands: actor.Commands{"test": func(_ context.Context, turn *actor.Turn) (actor.Reply, error) {
				note(turn)
				return actor.Reply{}, nil
			}}}, nil
	}
	p := g.run("pod-1")
	w := worker{id: "w", typ: "w", topics: []string{"in"}, attempts: 2, then: onPause}
	p.place(w)
	g.publish("in", 2)
	record := func() *storev1.WorkerRecord {
		item, err := g.store.Get(t.Context(), catalog.WorkerKey("w"))
		if err != nil {
			t.Fatal(err)
		}
		rec, err := catalog.DecodeWorker(item)
		if err != nil {
			t.Fatal(err)
		}
		return rec
	}
	g.eventually("the pause in the catalog, and a fresh set of attempts", func() bool {
		return record().GetPaused() && len(g.load("w").Attempts) == 0
	})
	if reason := record().GetPauseReason(); !strings.Contains(reason, "boom") || !strings.Contains(reason, "in") {
		t.Errorf("the reason is %q", reason)
	}
	g.publish("wrk.w.command.w", 1)
	g.eventually("the command", func() bool { return got.len() == 3 })
	p.end()
	p = g.run("pod-2")
	w.paused = true
	p.place(w)
	g.publish("wrk.w.command.w", 1)
	g.eventually("the command after the restart", func() bool { return got.len() == 4 })
	well.Store(true)
	w.paused = false
	p.place(w)
	g.eventually("the events", func() bool { return got.len() == 6 })
	want := "in/e0/1 in/e0/2 wrk.w.command.w/e0/1 wrk.w.command.w/e0/1 in/e0/1 in/e1/1"
	if got.text() != want {
		t.Errorf("handled %q, want %q", got.text(), want)
	}
	if n := len(g.read("dlq.in")); n != 0 {
		t.Errorf("%d dead letters", n)
	}
}

// A paused worker ends the turn that it has.
func TestAPauseTakesHoldBetweenTwoTurns(t *testing.T) {
	g := newRig(t)
	var got seen
	begun, release := make(chan struct{}), make(chan struct{})
	g.handle("w", func(_ context.Context, turn *actor.Turn) error {
		if turn.Event().ID == "e0" {
			close(begun)
			<-release
		}
		got.add(turn.Event().ID)
		return nil
	})
	p := g.run("pod-1")
	w := worker{id: "w", typ: "w", topics: []string{"in"}}
	p.place(w)
	all := g.publish("in", 3)
	<-begun
	w.paused = true
	p.place(w)
	g.eventually("the pause", func() bool {
		p.r.mu.Lock()
		defer p.r.mu.Unlock()
		return p.r.places["w"].paused
	})
	close(release)
	g.cursorAt("w", all[0])
	w.paused = false
	p.place(w)
	g.cursorAt("w", all[2])
	if got.text() != ids(3) {
		t.Errorf("handled %q", got.text())
	}
}

// Long turns of one type have their bound, fairly, and another type has its own.
func TestMaxTurnsBoundsATypeAndNoOther(t *testing.T) {
	g := newRig(t)
	const workers, events = 20, 5
	g.cfg = func(c *Config) { c.MaxTurns = map[string]int{"long": 3} }
	var now, most, total atomic.Int64
	var order seen
	release := make(chan struct{})
	g.handle("long", func(_ context.Context, turn *actor.Turn) error {
		n := now.Add(1)
		defer now.Add(-1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		<-release
		order.add(turn.Event().ID)
		total.Add(1)
		return nil
	})
	var quick atomic.Int64
	g.handle("quick", func(context.Context, *actor.Turn) error { quick.Add(1); return nil })
	p := g.run("pod-1")
	for i := range workers {
		p.place(worker{id: fmt.Sprintf("l%d", i), typ: "long", topics: []string{"in"}})
	}
	p.place(worker{id: "q", typ: "quick", topics: []string{"in"}})
	g.publish("in", events)
	g.eventually("the quick one is done, and the long ones wait", func() bool {
		_, waiting := p.r.types["long"].limit.counts()
		return quick.Load() == events && now.Load() == 3 && waiting == workers-3
	})
	close(release)
	g.eventually("all are done", func() bool { return total.Load() == workers*events })
	if most.Load() != 3 {
		t.Errorf("%d at the same time", most.Load())
	}
	// Nobody is two events ahead of one that waits, but for those that asked before others had events.
	list := order.all()
	first := map[string]int{}
	for i, id := range list {
		if _, ok := first[id]; !ok {
			first[id] = i
		}
	}
	if first["e2"] < workers-3 {
		t.Errorf("a worker had its third turn before others had their first: %v", list)
	}
	g.eventually("nothing held", func() bool {
		taken, waiting := p.r.types["long"].limit.counts()
		return taken == 0 && waiting == 0
	})
}

func TestInspectTellsOfTheEventInHand(t *testing.T) {
	g := newRig(t)
	release := make(chan struct{})
	g.handle("w", func(_ context.Context, turn *actor.Turn) error {
		if turn.Topic() == "a" {
			return actor.RetryAfter(time.Hour)
		}
		<-release
		return nil
	})
	p := g.run("pod-1")
	p.place(worker{id: "w", typ: "w", topics: []string{"a", "b"}})
	failing, long := g.publish("a", 1)[0], g.publish("b", 1)[0]
	g.eventually("both", func() bool {
		f, ok := p.r.Inspect("w")
		return ok && f[0].GetInTurn() == failing.String() && f[0].GetAttempt() == 2 && time.Until(f[0].GetRetryAt().AsTime()) > 50*time.Minute &&
			f[1].GetInTurn() == long.String() && f[1].GetAttempt() == 1 && f[1].GetRetryAt() == nil
	})
	close(release)
}
