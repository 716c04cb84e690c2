package storetest

import (
	"fmt"
	"sync"
	"testing"

	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/store"
)

// turn makes the batch of a turn of worker w on topic in.
func turn(token, run, ms uint64, bodies ...string) store.Batch {
	return store.Batch{
		Records: records(bodies...),
		Turn:    &store.TurnMark{Worker: "w", Token: token, Run: run, Topic: "in", Position: event.Position{Ms: ms}},
	}
}

func appendTurn(t *testing.T, s store.Store, b store.Batch) store.Appended {
	t.Helper()
	out, err := s.Append(t.Context(), "out", []store.Batch{b})
	check(t, "append", err)
	return out[0]
}

var turnStories = []story{
	{"the outputs of a turn are stored once", func(t *testing.T, h *Harness) {
		first := appendTurn(t, h.Store, turn(1, 1, 10, "a", "b"))
		equal(t, "positions", len(first.Positions), 2)
		verify := func() {
			t.Helper()
			again := appendTurn(t, h.Store, turn(1, 1, 10, "a", "b"))
			equal(t, "again", again, store.Appended{Repeat: true})
			equal(t, "an earlier one", appendTurn(t, h.Store, turn(1, 1, 9, "c")), store.Appended{Repeat: true})
			equal(t, "bodies", bodies(read(t, h.Store, "out", event.Position{})), []string{"a", "b"})
		}
		verify()
		if h.Reopen != nil {
			h.Reopen()
			verify()
		}
	}},
	{"a lower token is refused and leaves no trace", func(t *testing.T, h *Harness) {
		s := h.Store
		appendTurn(t, s, turn(5, 1, 10, "a"))
		was := bounds(t, s, "out")
		wantErr(t, "token 4", appendTurn(t, s, turn(4, 1, 11, "b")).Err, store.ErrStaleToken)
		equal(t, "bounds", bounds(t, s, "out"), was)
		equal(t, "the turn itself", len(appendTurn(t, s, turn(5, 1, 11, "b")).Positions), 1)
	}},
	{"a token that came with a repeat fences too", func(t *testing.T, h *Harness) {
		s := h.Store
		appendTurn(t, s, turn(5, 1, 10, "a"))
		equal(t, "repeat", appendTurn(t, s, turn(6, 1, 10, "a")), store.Appended{Repeat: true})
		if h.Reopen != nil {
			s = h.Reopen()
		}
		wantErr(t, "token 5", appendTurn(t, s, turn(5, 1, 11, "b")).Err, store.ErrStaleToken)
	}},
	{"another run starts anew, an earlier run never again", func(t *testing.T, h *Harness) {
		s := h.Store
		appendTurn(t, s, turn(1, 1, 10, "a"))
		equal(t, "run 2", len(appendTurn(t, s, turn(1, 2, 3, "b")).Positions), 1)
		equal(t, "run 2 again", appendTurn(t, s, turn(1, 2, 3, "b")).Repeat, true)
		equal(t, "run 1", appendTurn(t, s, turn(1, 1, 99, "c")).Repeat, true)
	}},
	{"workers and input topics do not mix", func(t *testing.T, h *Harness) {
		s := h.Store
		appendTurn(t, s, turn(5, 1, 10, "a"))
		b := turn(5, 1, 10, "b")
		b.Turn.Topic = "in2"
		equal(t, "another input", len(appendTurn(t, s, b).Positions), 1)
		b = turn(1, 1, 10, "c")
		b.Turn.Worker = "w2"
		equal(t, "another worker", len(appendTurn(t, s, b).Positions), 1)
		b = turn(5, 1, 10, "d")
		b.Turn.Worker, b.Turn.Topic = "wi", "n"
		equal(t, "names that look alike", len(appendTurn(t, s, b).Positions), 1)
		b = turn(5, 1, 10, "e")
		out, err := s.Append(t.Context(), "out2", []store.Batch{b})
		check(t, "append", err)
		equal(t, "another output topic", len(out[0].Positions), 1)
	}},
	{"within one call each batch is decided after the ones before it", func(t *testing.T, h *Harness) {
		s := h.Store
		out, err := s.Append(t.Context(), "out", []store.Batch{
			turn(1, 1, 10, "a"), turn(1, 1, 10, "a"), turn(3, 1, 11, "b"), turn(2, 1, 12, "c"), {Records: records("plain")}, turn(3, 1, 12, "d"),
		})
		check(t, "append", err)
		equal(t, "repeat", out[1], store.Appended{Repeat: true})
		wantErr(t, "stale", out[3].Err, store.ErrStaleToken)
		equal(t, "bodies", bodies(read(t, s, "out", event.Position{})), []string{"a", "b", "plain", "d"})
	}},
	{"a turn without outputs leaves its mark", func(t *testing.T, h *Harness) {
		s := h.Store
		equal(t, "repeat", appendTurn(t, s, turn(2, 1, 10)).Repeat, false)
		equal(t, "again", appendTurn(t, s, turn(2, 1, 10, "late")).Repeat, true)
		equal(t, "entries", len(read(t, s, "out", event.Position{})), 0)
	}},
	{"attempts at one turn race: one stores", func(t *testing.T, h *Harness) {
		s := h.Store
		for round := range uint64(20) {
			var wg sync.WaitGroup
			var mu sync.Mutex
			stored := 0
			for i := range 6 {
				wg.Go(func() {
					out, err := s.Append(t.Context(), "out", []store.Batch{turn(1, 1, round+1, fmt.Sprint(round, i))})
					if err != nil {
						t.Errorf("append: %v", err)
						return
					}
					mu.Lock()
					defer mu.Unlock()
					stored += len(out[0].Positions)
				})
			}
			wg.Wait()
			equal(t, "stored", stored, 1)
		}
		equal(t, "entries", len(read(t, s, "out", event.Position{})), 20)
	}},
	{"marks go with the topic", func(t *testing.T, h *Harness) {
		s := h.Store
		appendTurn(t, s, turn(9, 1, 10, "a"))
		check(t, "delete", s.DeleteTopic(t.Context(), "out"))
		equal(t, "stored", len(appendTurn(t, s, turn(1, 1, 5, "b")).Positions), 1)
	}},
	{"marks outlive a trim", func(t *testing.T, h *Harness) {
		s := h.Store
		appendTurn(t, s, turn(1, 1, 10, "a"))
		_, err := s.Trim(t.Context(), "out", store.TrimLimit{UpTo: event.MaxPosition})
		check(t, "trim", err)
		equal(t, "repeat", appendTurn(t, s, turn(1, 1, 10, "a")).Repeat, true)
	}},
}
