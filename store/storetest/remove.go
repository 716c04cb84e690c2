package storetest

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/store"
)

var removeStories = []story{
	{"single entries go, wherever they are, and nobody is told of a gap", func(t *testing.T, h *Harness) {
		s := h.Store
		ps := publish(t, s, "a", records(numbered("n", 10)...)...)
		before := bounds(t, s, "a")
		n, err := s.Remove(t.Context(), "a", ps[7], ps[0], ps[3], ps[3], ps[9], event.Position{}, ps[9].Next(), event.MaxPosition)
		check(t, "remove", err)
		equal(t, "removed", n, 4)
		want := []string{"n1", "n2", "n4", "n5", "n6", "n8"}
		each := before.Bytes / 10
		verify := func() {
			t.Helper()
			b := bounds(t, h.Store, "a")
			equal(t, "bounds", b, store.Bounds{Incarnation: before.Incarnation, First: ps[1], Last: ps[9], Entries: 6, Bytes: 6 * each})
			equal(t, "bodies", bodies(read(t, h.Store, "a", event.Position{})), want)
			p, err := h.Store.Read(t.Context(), "a", ps[8], store.ReadLimit{})
			check(t, "read", err)
			equal(t, "the end of the log is where it was", p.To, ps[9])
			equal(t, "entries there", len(p.Entries), 0)
		}
		verify()
		n, err = s.Remove(t.Context(), "a", ps[0], ps[7])
		check(t, "remove again", err)
		equal(t, "removed again", n, 0)
		if h.Crash != nil {
			s = h.Crash()
			verify()
		}
		next := publish(t, s, "a", records("x")...)
		increasing(t, append(ps, next...))
		equal(t, "bodies", bodies(read(t, s, "a", ps[6])), []string{"n8", "x"})
	}},
	{"the last ones go: the log is empty, and goes on", func(t *testing.T, h *Harness) {
		s := h.Store
		ps := publish(t, s, "a", records(numbered("n", 1500)...)...)
		inc := bounds(t, s, "a").Incarnation
		n, err := s.Remove(t.Context(), "a", ps...)
		check(t, "remove", err)
		equal(t, "removed", n, 1500)
		last := ps[len(ps)-1]
		equal(t, "bounds", bounds(t, s, "a"), store.Bounds{Incarnation: inc, Last: last})
		got, err := s.Trim(t.Context(), "a", store.TrimLimit{UpTo: event.MaxPosition})
		check(t, "trim", err)
		equal(t, "trimmed", got, store.Trimmed{})
		at, err := s.Before(t.Context(), "a", noon)
		check(t, "before", err)
		equal(t, "before", at, last)
		if h.Reopen != nil {
			s = h.Reopen()
		}
		next := publish(t, s, "a", records("x")...)
		increasing(t, append(ps, next...))
		equal(t, "first", bounds(t, s, "a").First, next[0])
		equal(t, "bodies", bodies(read(t, s, "a", event.Position{})), []string{"x"})
	}},
	{"unknown topics and positions: nothing happens", func(t *testing.T, h *Harness) {
		s := h.Store
		n, err := s.Remove(t.Context(), "nobody", event.Position{Ms: 1})
		check(t, "remove", err)
		equal(t, "removed", n, 0)
		equal(t, "bounds", bounds(t, s, "nobody"), store.Bounds{})
		publish(t, s, "a", records("x")...)
		n, err = s.Remove(t.Context(), "a")
		check(t, "remove nothing", err)
		equal(t, "removed", n, 0)
	}},
	{"a turn's mark outlives its records", func(t *testing.T, h *Harness) {
		s := h.Store
		out, err := s.Append(t.Context(), "a", []store.Batch{turn(1, 1, 5, "x")})
		check(t, "append", err)
		_, err = s.Remove(t.Context(), "a", out[0].Positions...)
		check(t, "remove", err)
		out, err = s.Append(t.Context(), "a", []store.Batch{turn(1, 1, 5, "x")})
		check(t, "append again", err)
		equal(t, "repeat", out[0].Repeat, true)
		equal(t, "entries", len(read(t, s, "a", event.Position{})), 0)
	}},
	{"trims count what removals left, and cut at entries", func(t *testing.T, h *Harness) {
		s := h.Store
		var ps []event.Position
		for i := range 30 {
			ps = append(ps, publish(t, s, "a", Record(noon.Add(time.Duration(i)*time.Minute), fmt.Sprint(i, ".0")))...)
			ps = append(ps, publish(t, s, "a", slices.Repeat([]event.Record{Record(noon.Add(time.Duration(i)*time.Minute), fmt.Sprint(i))}, 100)...)...)
		}
		// Every third goes, and every one around the ends of blocks.
		left := []event.Position{}
		gone := []event.Position{}
		for i, p := range ps {
			if i%3 == 0 || i%512 >= 505 || i%512 < 5 {
				gone = append(gone, p)
			} else {
				left = append(left, p)
			}
		}
		n, err := s.Remove(t.Context(), "a", gone...)
		check(t, "remove", err)
		equal(t, "removed", n, len(gone))
		b := bounds(t, s, "a")
		cuts := []int{0, 1, 100, 700, 1200, len(left) - 2}
		for i := range len(left) - 1 { // and between blocks, whose last entries are gone
			if slices.Index(ps, left[i])/512 != slices.Index(ps, left[i+1])/512 {
				cuts = append(cuts, i)
			}
		}
		slices.Sort(cuts)
		for i, cut := range cuts {
			got, err := s.Trim(t.Context(), "a", store.TrimLimit{UpTo: left[cut+1].Prev()})
			check(t, "trim", err)
			b.Entries, b.Bytes = b.Entries-got.Entries, b.Bytes-got.Bytes
			b.First, b.Removed = left[cut+1], left[cut]
			equal(t, fmt.Sprint("bounds after cut ", i), bounds(t, s, "a"), b)
			equal(t, "entries", int(b.Entries), len(left)-cut-1)
			at, err := s.Before(t.Context(), "a", noon)
			check(t, "before", err)
			equal(t, "before", at, left[cut+1].Prev())
		}
		_, err = s.Trim(t.Context(), "a", store.TrimLimit{UpTo: event.MaxPosition})
		check(t, "trim", err)
		equal(t, "bounds", bounds(t, s, "a"), store.Bounds{Incarnation: b.Incarnation, Last: ps[len(ps)-1], Removed: left[len(left)-1]})
	}},
	{"what was removed is not given out again, whatever is read, appended and removed meanwhile", func(t *testing.T, h *Harness) {
		s, ctx := h.Store, t.Context()
		const total = 60
		done := make(chan struct{})
		go func() {
			defer close(done)
			for i := range total {
				out, err := s.Append(ctx, "a", []store.Batch{{Records: records(numbered(fmt.Sprint(i, "."), 20)...)}})
				if err == nil {
					ps := out[0].Positions
					_, err = s.Remove(ctx, "a", ps[2], ps[11], ps[19])
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		}()
		var after event.Position
		for over := false; ; {
			p, err := s.Read(ctx, "a", after, store.ReadLimit{Entries: 7})
			check(t, "read", err)
			check(t, "page", checkPage(p, after, store.ReadLimit{Entries: 7}))
			if after = p.To; over && len(p.Entries) == 0 {
				break
			}
			select {
			case <-done:
				over = true
			default:
			}
		}
		var want []string
		for i := range total {
			for j := range 20 {
				if j != 2 && j != 11 && j != 19 {
					want = append(want, fmt.Sprintf("%d.%d", i, j))
				}
			}
		}
		equal(t, "bodies", bodies(read(t, s, "a", event.Position{})), want)
	}},
}

func (g *steps) remove() step {
	topic, share := g.pick("t", 4), g.rng.Float64()
	if g.rng.IntN(6) == 0 {
		share = 1
	}
	pick := g.rng.Uint64()
	return step{"remove from " + topic, func(ctx context.Context, s store.Store, m *model) (*model, error) {
		t, exists := m.topics[topic]
		var goes []event.Position
		var kept []event.Entry
		for i, e := range t.entries {
			// A stretch of the log, or entries here and there.
			if hash := (pick + uint64(i)) * 0x9e3779b97f4a7c15 >> 40; float64(hash)/(1<<24) < share && (pick%2 == 0 || uint64(i)/8%4 == pick>>8%4) {
				goes = append(goes, e.Pos)
			} else {
				kept = append(kept, e)
			}
		}
		n, err := s.Remove(ctx, topic, append(goes, t.last.Next(), event.Position{})...)
		if err != nil {
			return m, err
		}
		if n != len(goes) {
			return m, fmt.Errorf("%d removed of %d", n, len(goes))
		}
		m = m.clone()
		if exists {
			t.entries = kept
			m.topics[topic] = t
		}
		return m, nil
	}}
}

func (l *loser) Remove(ctx context.Context, topic string, positions ...event.Position) (int, error) {
	n, err := l.Store.Remove(ctx, topic, positions...)
	return n, l.lost(err)
}
