package storetest

import (
	"context"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/store"
)

var logStories = []story{
	{"an unknown topic is empty, not an error", func(t *testing.T, h *Harness) {
		s := h.Store
		equal(t, "bounds", bounds(t, s, "nobody"), store.Bounds{})
		p, err := s.Read(t.Context(), "nobody", event.Position{Ms: 5}, store.ReadLimit{})
		check(t, "read", err)
		equal(t, "page", p, store.Page{Span: event.Span{From: event.Position{Ms: 5}, To: event.Position{Ms: 5}}})
		at, err := s.Before(t.Context(), "nobody", noon)
		check(t, "before", err)
		equal(t, "before", at, event.Position{})
		list, err := s.Topics(t.Context(), "", "", 10)
		check(t, "topics", err)
		equal(t, "topics", len(list), 0)
	}},
	{"batches are stored in order, each record with its position", func(t *testing.T, h *Harness) {
		s := h.Store
		out, err := s.Append(t.Context(), "a", []store.Batch{
			{Records: records("1", "2")}, {}, {Records: records("3")},
		})
		check(t, "append", err)
		equal(t, "answers", len(out), 3)
		ps := append(append([]event.Position{}, out[0].Positions...), out[2].Positions...)
		equal(t, "positions", len(ps), 3)
		increasing(t, ps)
		entries := read(t, s, "a", event.Position{})
		equal(t, "bodies", bodies(entries), []string{"1", "2", "3"})
		for i, e := range entries {
			equal(t, "position", e.Pos, ps[i])
		}
	}},
	{"bounds tell first, last and how much", func(t *testing.T, h *Harness) {
		s := h.Store
		ps := publish(t, s, "a", records("1", "2", "3")...)
		b := bounds(t, s, "a")
		if b.Incarnation == "" || b.First != ps[0] || b.Last != ps[2] || !b.Removed.IsZero() {
			t.Fatalf("bounds %+v", b)
		}
		equal(t, "entries", b.Entries, uint64(3))
		if b.Bytes < 3*14 {
			t.Fatalf("%d bytes for three records of 14", b.Bytes)
		}
	}},
	{"a page ends at the limit of entries or bytes, but holds at least one", func(t *testing.T, h *Harness) {
		s := h.Store
		big := strings.Repeat("x", 1000)
		var ps []event.Position
		for range 10 {
			ps = append(ps, publish(t, s, "a", records(big)...)...)
		}
		for _, c := range []struct {
			after event.Position
			limit store.ReadLimit
			want  int
		}{
			{event.Position{}, store.ReadLimit{}, 10},
			{event.Position{}, store.ReadLimit{Entries: 3}, 3},
			{ps[7], store.ReadLimit{Entries: 3}, 2},
			{event.Position{}, store.ReadLimit{Bytes: 1}, 1},
			{event.Position{}, store.ReadLimit{Bytes: 2100}, 2},
			{ps[9], store.ReadLimit{}, 0},
			{ps[9].Next(), store.ReadLimit{}, 0},
			{ps[3].Prev(), store.ReadLimit{Entries: 1}, 1},
		} {
			p, err := s.Read(t.Context(), "a", c.after, c.limit)
			check(t, "read", err)
			check(t, "page", checkPage(p, c.after, c.limit))
			if len(p.Entries) != c.want {
				t.Fatalf("after %s within %+v: %d entries, want %d", c.after, c.limit, len(p.Entries), c.want)
			}
			end := ps[9]
			if n := len(p.Entries); n > 0 {
				end = p.Entries[n-1].Pos
			} else if end.Less(c.after) {
				end = c.after
			}
			equal(t, "To", p.To, end)
			equal(t, "Last", p.Bounds.Last, ps[9])
		}
	}},
	{"a long log reads the same from memory and from disk", func(t *testing.T, h *Harness) {
		s := h.Store
		var want []string
		for i := range 60 {
			bs := numbered(fmt.Sprintf("%d-", i), 50)
			bs[7] = strings.Repeat(bs[7], 3000)
			publish(t, s, "a", records(bs...)...)
			want = append(want, bs...)
		}
		for _, limit := range []store.ReadLimit{{}, {Entries: 7}, {Bytes: 50_000}} {
			got, err := readAll(t.Context(), s, "a", event.Position{}, limit)
			check(t, "read", err)
			equal(t, "bodies", bodies(got), want)
		}
		if h.Reopen != nil {
			equal(t, "bodies after reopening", bodies(read(t, h.Reopen(), "a", event.Position{})), want)
		}
	}},
	{"concurrent appends: every batch whole and once, order as answered", func(t *testing.T, h *Harness) {
		s := h.Store
		const writers, each = 16, 20
		var wg sync.WaitGroup
		var mu sync.Mutex
		places := map[string]event.Position{}
		for w := range writers {
			wg.Go(func() {
				for i := range each {
					bs := numbered(fmt.Sprintf("%d.%d.", w, i), 1+i%3)
					out, err := s.Append(t.Context(), "a", []store.Batch{{Records: records(bs...)}})
					if err != nil {
						t.Errorf("append: %v", err)
						return
					}
					mu.Lock()
					for j, p := range out[0].Positions {
						places[bs[j]] = p
					}
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		entries := read(t, s, "a", event.Position{})
		equal(t, "entries", len(entries), len(places))
		for i, e := range entries {
			equal(t, "position of "+body(e.Record), e.Pos, places[body(e.Record)])
			name := body(e.Record)
			if j := name[strings.LastIndexByte(name, '.')+1:]; j != "0" {
				n := int(j[0] - '0')
				equal(t, "neighbour", body(entries[i-1].Record), fmt.Sprintf("%s%d", name[:len(name)-1], n-1))
			}
		}
	}},
	{"an append that was answered is read at once", func(t *testing.T, h *Harness) {
		for i := range 50 {
			topic := fmt.Sprint("t", i%3)
			p := publish(t, h.Store, topic, records(fmt.Sprint(i))...)[0]
			page, err := h.Store.Read(t.Context(), topic, p.Prev(), store.ReadLimit{})
			check(t, "read", err)
			equal(t, "bodies", bodies(page.Entries), []string{fmt.Sprint(i)})
		}
	}},
	{"positions grow when the clock steps back", func(t *testing.T, h *Harness) {
		need(t, "step its clock", h.StepClock != nil)
		var ps []event.Position
		for _, step := range []time.Duration{0, -time.Hour, time.Minute, -48 * time.Hour, 0} {
			h.StepClock(step)
			ps = append(ps, publish(t, h.Store, "a", records("x", "y")...)...)
		}
		if h.Reopen != nil {
			h.Reopen()
			ps = append(ps, publish(t, h.Store, "a", records("z")...)...)
		}
		increasing(t, ps)
		equal(t, "entries", len(read(t, h.Store, "a", event.Position{})), len(ps))
	}},
	{"near the ceiling, positions end with an error and nothing is stored", func(t *testing.T, h *Harness) {
		need(t, "lift positions", h.Lift != nil)
		publish(t, h.Store, "a", records("x")...)
		h.Lift("a", event.Position{Ms: math.MaxUint64, Seq: math.MaxUint64 - 4})
		s := h.Store
		out, err := s.Append(t.Context(), "a", []store.Batch{{Records: records(numbered("n", 10)...)}, {Records: records("y")}})
		check(t, "append", err)
		wantErr(t, "ten more", out[0].Err, store.ErrPositions)
		check(t, "one more", out[1].Err)
		equal(t, "bodies", bodies(read(t, s, "a", event.Position{})), []string{"x", "y"})
		for range 5 {
			out, err = s.Append(t.Context(), "a", []store.Batch{{Records: records("z")}})
			check(t, "append", err)
		}
		wantErr(t, "at the end", out[0].Err, store.ErrPositions)
	}},
	{"positions pass from one millisecond to the next when its numbers are used up", func(t *testing.T, h *Harness) {
		need(t, "lift positions", h.Lift != nil)
		publish(t, h.Store, "a", records("x")...)
		h.Lift("a", event.Position{Ms: 1 << 60, Seq: math.MaxUint64 - 1})
		ps := publish(t, h.Store, "a", records("1", "2", "3")...)
		increasing(t, ps)
		equal(t, "bodies", bodies(read(t, h.Store, "a", event.Position{})), []string{"x", "1", "2", "3"})
	}},
	{"before a time: nothing stored then or later is missed, whatever the clocks did", func(t *testing.T, h *Harness) {
		s := h.Store
		// Minutes of the stored times, in the order of the log; far more than a few blocks.
		minutes := []int{0, 1, 2, 9, 3, 4, 5, 5, 7, 6, 20, 8, 8, 30, 12}
		var ps []event.Position
		var at []time.Time
		for round := range 40 {
			var rs []event.Record
			for _, m := range minutes {
				when := noon.Add(time.Duration(m+round*5) * time.Minute)
				if round == 5 && m == 9 {
					when = noon.Add(195 * time.Minute) // a clock far ahead
				}
				at = append(at, when)
				rs = append(rs, Record(when, strings.Repeat("x", 300)))
			}
			ps = append(ps, publish(t, s, "a", rs...)...)
		}
		verify := func(from int) {
			t.Helper()
			for m := -1; m < 235; m += 3 {
				when := noon.Add(time.Duration(m) * time.Minute)
				want := ps[len(ps)-1]
				for i := from; i < len(ps); i++ {
					if !at[i].Before(when) {
						want = ps[i].Prev()
						break
					}
				}
				got, err := h.Store.Before(t.Context(), "a", when)
				check(t, "before", err)
				equal(t, fmt.Sprintf("before minute %d", m), got, want)
			}
		}
		verify(0)
		_, err := s.Trim(t.Context(), "a", store.TrimLimit{UpTo: ps[len(ps)/2]})
		check(t, "trim", err)
		verify(len(ps)/2 + 1)
		if h.Reopen != nil {
			h.Reopen()
			verify(len(ps)/2 + 1)
		}
		for _, far := range []struct {
			t    time.Time
			want event.Position
		}{
			{time.Time{}, ps[len(ps)/2+1].Prev()},
			{time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC), ps[len(ps)-1]},
		} {
			got, err := h.Store.Before(t.Context(), "a", far.t)
			check(t, "before", err)
			equal(t, "before a far time", got, far.want)
		}
	}},
	{"many topics are listed by name, page by page", func(t *testing.T, h *Harness) {
		s := h.Store
		for i := range 300 {
			publish(t, s, fmt.Sprintf("m.%03d", i), records("x")...)
		}
		publish(t, s, "zz", records("x")...)
		publish(t, s, "a", records("x")...)
		var names []string
		for after := ""; ; {
			list, err := s.Topics(t.Context(), "m.", after, 70)
			check(t, "topics", err)
			if len(list) == 0 {
				break
			}
			for _, row := range list {
				names = append(names, row.Topic)
				if row.Entries != 1 || row.Incarnation == "" || row.Last.IsZero() {
					t.Fatalf("row %+v", row)
				}
			}
			after = list[len(list)-1].Topic
		}
		var want []string
		for i := range 300 {
			want = append(want, fmt.Sprintf("m.%03d", i))
		}
		equal(t, "names", names, want)
		list, err := s.Topics(t.Context(), "", "", 1)
		check(t, "topics", err)
		equal(t, "first", list[0].Topic, "a")
		list, err = s.Topics(t.Context(), "m.", "zz", 5)
		check(t, "topics", err)
		equal(t, "after the prefix", len(list), 0)
	}},
	{"a context that has ended writes nothing", func(t *testing.T, h *Harness) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := h.Store.Append(ctx, "a", []store.Batch{{Records: records("x")}})
		wantErr(t, "append", err, context.Canceled)
		equal(t, "bounds", bounds(t, h.Store, "a"), store.Bounds{})
	}},
	{"a record without its header is refused", func(t *testing.T, h *Harness) {
		_, err := h.Store.Append(t.Context(), "a", []store.Batch{{Records: []event.Record{[]byte("short")}}})
		if err == nil {
			t.Fatal("it was stored")
		}
		equal(t, "bounds", bounds(t, h.Store, "a"), store.Bounds{})
	}},
}
