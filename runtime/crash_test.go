package runtime

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/turnlane/turnlane/actor"
	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/internal/lifecycle"
	"github.com/turnlane/turnlane/store"
)

// script is a worker with two lanes: every event has an output, those of lane b have one to another
// topic too, and two events are poisoned.
type script struct {
	mu       sync.Mutex
	starts   map[string]int      // of handlers, by event
	handled  map[string][]string // pods that handled an event, with "*" if it was marked as a repeat
	order    map[string][]string // first handling, by lane
	attempts map[string]int      // the highest that a handler saw
}

const scriptEvents = 5

func (s *script) handle(m *mortal, turn *actor.Turn) error {
	if !m.of(turn) {
		return nil
	}
	what := turn.Topic() + "/" + turn.Event().ID
	s.mu.Lock()
	s.starts[what]++
	s.attempts[what] = max(s.attempts[what], turn.Attempt())
	s.mu.Unlock()
	switch what {
	case "a/e2":
		return errBoom
	case "b/e3":
		return actor.Permanent(errBoom)
	}
	for _, topic := range map[string][]string{"a": {"out.a"}, "b": {"out.b", "out.c"}}[turn.Topic()] {
		if err := turn.Publish(topic, &event.Event{Type: "t", Subject: what}); err != nil {
			return err
		}
	}
	if !m.of(turn) {
		return nil // the process has ended meanwhile
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.handled[what]) == 0 {
		s.order[turn.Topic()] = append(s.order[turn.Topic()], what)
	}
	mark := ""
	if turn.Replayed() {
		mark = "*"
	}
	s.handled[what] = append(s.handled[what], turn.Worker().Pod+mark)
	return nil
}

// events lists a lane's events but for the poisoned one.
func (s *script) events(lane, poison string) (list []string) {
	for i := range scriptEvents {
		if what := fmt.Sprintf("%s/e%d", lane, i); what != poison {
			list = append(list, what)
		}
	}
	return list
}

// The process ends at the n-th durable write, for every n, before the write or just after it; another
// one goes on. Outputs and dead letters are there exactly once, everything is handled, repeats are
// marked, lanes keep their order, and no attempt is lost but for one at the end.
func TestTheProcessEndsAtAnyWrite(t *testing.T) {
	for _, applied := range []bool{false, true} {
		t.Run(map[bool]string{false: "before", true: "after"}[applied], func(t *testing.T) {
			for n := 1; ; n++ {
				writes := endAtWrite(t, n, applied)
				if t.Failed() {
					t.Fatalf("the process ended at write %d", n)
				}
				if writes < n {
					t.Logf("%d writes", writes)
					return
				}
			}
		})
	}
}

// endAtWrite runs the script with an end at the n-th write, and returns how many there were.
func endAtWrite(t *testing.T, n int, applied bool) int {
	m := newMortal(t)
	s := &script{starts: map[string]int{}, handled: map[string][]string{}, order: map[string][]string{}, attempts: map[string]int{}}
	m.handle("w", func(_ context.Context, turn *actor.Turn) error { return s.handle(m, turn) })
	var writes atomic.Int64
	m.fault = func(f *faulty) {
		count := func(skip bool) error {
			if skip || int(writes.Add(1)) != n {
				return nil
			}
			f.dead.Store(true)
			m.jump.Add(int64(2 * 60e9))
			if applied {
				return store.ErrOutcomeUnknown
			}
			return store.ErrUnavailable
		}
		f.append = func(topic string, _ []store.Batch) error { return count(topic == lifecycle.Topic) }
		f.commit = func(commits []store.Commit) error {
			err := count(false)
			if err != nil && applied {
				_, _ = f.Store.Commit(context.Background(), commits)
			}
			return err
		}
	}
	w := worker{id: "w", typ: "w", topics: []string{"a", "b"}, attempts: 2, backoff: 1}
	ends := m.publish("a", scriptEvents)[scriptEvents-1:]
	ends = append(ends, m.publish("b", scriptEvents)[scriptEvents-1])
	m.live(w)
	done := func() bool {
		d := m.load("w")
		return len(d.Cursors) == 2 && d.Cursors[0].Position == ends[0] && d.Cursors[1].Position == ends[1]
	}
	m.eventually("its end, or that of the work", func() bool { return m.dead() || done() })
	killed := m.dead()
	if killed {
		m.kills++
		m.live(w)
		m.eventually("the work is done", done)
	}
	m.present.end()

	for topic, want := range map[string][]string{"out.a": s.events("a", "a/e2"), "out.b": s.events("b", "b/e3"), "out.c": s.events("b", "b/e3")} {
		var got []string
		for _, e := range m.read(topic) {
			got = append(got, e.Subject)
		}
		if !slices.Equal(got, want) {
			t.Errorf("outputs on %s are %v, want %v", topic, got, want)
		}
	}
	for lane, poison := range map[string]string{"a": "e2", "b": "e3"} {
		originals, facts := m.letters("dlq." + lane)
		if len(facts) != 1 || originals[0].ID != poison {
			t.Errorf("dead letters of lane %s: %+v", lane, facts)
			continue
		}
		starts := s.starts[lane+"/"+poison]
		if counted := int(facts[0].Attempts); counted > starts || counted < starts-m.kills {
			t.Errorf("%s/%s: %d attempts counted of %d starts, with %d kills", lane, poison, counted, starts, m.kills)
		}
		if got, want := s.order[lane], s.events(lane, lane+"/"+poison); !slices.Equal(got, want) {
			t.Errorf("lane %s was handled as %v, want %v", lane, got, want)
		}
	}
	for what, pods := range s.handled {
		for i, pod := range pods {
			if i > 0 && !strings.HasSuffix(pod, "*") {
				t.Errorf("%s was handled by %v: a repeat without a mark", what, pods)
			}
		}
	}
	if left := m.load("w").Attempts; len(left) != 0 {
		t.Errorf("records of attempts are left: %+v", left)
	}
	return int(writes.Load())
}
