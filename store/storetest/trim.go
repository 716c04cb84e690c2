package storetest

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/store"
)

var trimStories = []story{
	{"up to a position: what is removed is remembered, what is left is whole", func(t *testing.T, h *Harness) {
		s := h.Store
		ps := publish(t, s, "a", records(numbered("n", 10)...)...)
		before := bounds(t, s, "a")
		got, err := s.Trim(t.Context(), "a", store.TrimLimit{UpTo: ps[3]})
		check(t, "trim", err)
		if got.Entries != 4 || got.Removed != ps[3] || got.Bytes == 0 {
			t.Fatalf("trimmed %+v", got)
		}
		verify := func() {
			t.Helper()
			b := bounds(t, h.Store, "a")
			equal(t, "bounds", b, store.Bounds{
				Incarnation: before.Incarnation, First: ps[4], Last: ps[9], Removed: ps[3],
				Entries: 6, Bytes: before.Bytes - got.Bytes,
			})
			p, err := h.Store.Read(t.Context(), "a", event.Position{}, store.ReadLimit{})
			check(t, "read", err)
			equal(t, "bodies", bodies(p.Entries), numbered("n", 10)[4:])
			equal(t, "the page's bounds", p.Bounds, b)
		}
		verify()
		again, err := s.Trim(t.Context(), "a", store.TrimLimit{UpTo: ps[2]})
		check(t, "trim", err)
		equal(t, "nothing more", again, store.Trimmed{Removed: ps[3]})
		if h.Reopen != nil {
			h.Reopen()
			verify()
		}
	}},
	{"everything: the bounds stay known", func(t *testing.T, h *Harness) {
		s := h.Store
		ps := publish(t, s, "a", records(numbered("n", 2000)...)...)
		inc := bounds(t, s, "a").Incarnation
		_, err := s.Trim(t.Context(), "a", store.TrimLimit{UpTo: event.MaxPosition})
		check(t, "trim", err)
		last := ps[len(ps)-1]
		equal(t, "bounds", bounds(t, s, "a"), store.Bounds{Incarnation: inc, Last: last, Removed: last})
		p, err := s.Read(t.Context(), "a", ps[5], store.ReadLimit{})
		check(t, "read", err)
		equal(t, "To", p.To, last)
		equal(t, "entries", len(p.Entries), 0)
		at, err := s.Before(t.Context(), "a", noon)
		check(t, "before", err)
		equal(t, "before", at, last)
		next := publish(t, s, "a", records("x")...)
		increasing(t, append(ps, next...))
		equal(t, "first", bounds(t, s, "a").First, next[0])
		equal(t, "bodies", bodies(read(t, s, "a", event.Position{})), []string{"x"})
	}},
	{"to a size: the newest entries that fit stay", func(t *testing.T, h *Harness) {
		s := h.Store
		for range 40 {
			publish(t, s, "a", records(strings.Repeat("x", 5000), strings.Repeat("y", 5000))...)
		}
		b := bounds(t, s, "a")
		each := b.Bytes / b.Entries
		for _, keep := range []uint64{70, 69, 31, 1} {
			got, err := s.Trim(t.Context(), "a", store.TrimLimit{MaxBytes: keep*each + each/2})
			check(t, "trim", err)
			now := bounds(t, s, "a")
			equal(t, "entries", now.Entries, keep)
			equal(t, "entries read", len(read(t, s, "a", event.Position{})), int(keep))
			if now.Bytes > keep*each+each/2 || got.Removed != now.Removed {
				t.Fatalf("%d bytes are left of %d allowed, trimmed %+v", now.Bytes, keep*each+each/2, got)
			}
		}
		_, err := s.Trim(t.Context(), "a", store.TrimLimit{MaxBytes: math.MaxUint64})
		check(t, "trim", err)
		equal(t, "entries", bounds(t, s, "a").Entries, uint64(1))
	}},
	{"by age: it stops at the first entry that is young", func(t *testing.T, h *Harness) {
		s := h.Store
		var rs []event.Record
		for _, minute := range []int{0, 5, 3, 10, 4, 60, 6, 7} {
			rs = append(rs, Record(noon.Add(time.Duration(minute)*time.Minute), fmt.Sprint(minute)))
		}
		publish(t, s, "a", rs...)
		for _, c := range []struct {
			minute int
			want   []string
		}{
			{0, []string{"0", "5", "3", "10", "4", "60", "6", "7"}},
			{5, []string{"5", "3", "10", "4", "60", "6", "7"}},
			{6, []string{"10", "4", "60", "6", "7"}},
			{60, []string{"60", "6", "7"}},
			{61, nil},
		} {
			_, err := s.Trim(t.Context(), "a", store.TrimLimit{StoredBefore: noon.Add(time.Duration(c.minute) * time.Minute)})
			check(t, "trim", err)
			equal(t, fmt.Sprintf("left at minute %d", c.minute), bodies(read(t, s, "a", event.Position{})), c.want)
		}
	}},
	{"in the middle of blocks: counts add up at every cut", func(t *testing.T, h *Harness) {
		s := h.Store
		var ps []event.Position
		for range 30 {
			ps = append(ps, publish(t, s, "a", records(numbered("n", 101)...)...)...)
		}
		removed := uint64(0)
		for _, cut := range []int{0, 1, 510, 511, 512, 513, 1023, 1024, 1500, 2047, 3000, 3028} {
			got, err := s.Trim(t.Context(), "a", store.TrimLimit{UpTo: ps[cut]})
			check(t, "trim", err)
			removed += got.Entries
			b := bounds(t, s, "a")
			if removed != uint64(cut+1) || b.Entries != uint64(len(ps)-cut-1) || b.First != ps[cut+1] || b.Removed != ps[cut] {
				t.Fatalf("cut after %d: removed %d, bounds %+v", cut, removed, b)
			}
			p, err := s.Read(t.Context(), "a", event.Position{}, store.ReadLimit{Entries: 1})
			check(t, "read", err)
			equal(t, "first", p.Entries[0].Pos, ps[cut+1])
			at, err := s.Before(t.Context(), "a", noon)
			check(t, "before", err)
			equal(t, "before", at, ps[cut+1].Prev())
		}
	}},
	{"no limit and unknown topics: nothing happens", func(t *testing.T, h *Harness) {
		s := h.Store
		got, err := s.Trim(t.Context(), "nobody", store.TrimLimit{UpTo: event.MaxPosition})
		check(t, "trim", err)
		equal(t, "trimmed", got, store.Trimmed{})
		publish(t, s, "a", records("x")...)
		got, err = s.Trim(t.Context(), "a", store.TrimLimit{})
		check(t, "trim", err)
		equal(t, "trimmed", got, store.Trimmed{})
		equal(t, "unknown topic", bounds(t, s, "nobody"), store.Bounds{})
	}},
	{"a reader is told of every entry that it misses", func(t *testing.T, h *Harness) {
		s := h.Store
		ctx := t.Context()
		done := make(chan struct{})
		const total = 3000
		go func() {
			defer close(done)
			for i := range total / 20 {
				out, err := s.Append(ctx, "a", []store.Batch{{Records: records(numbered(fmt.Sprintf("%d.", i), 20)...)}})
				if err != nil {
					t.Errorf("append: %v", err)
					return
				}
				if i%5 == 4 {
					if _, err := s.Trim(ctx, "a", store.TrimLimit{UpTo: out[0].Positions[11]}); err != nil {
						t.Errorf("trim: %v", err)
						return
					}
				}
			}
		}()
		// Each page must begin where the former ended, or after a removal that its bounds tell. Within
		// one batch the numbers show whether one is missing.
		var after event.Position
		last := ""
		for {
			over := false
			select {
			case <-done:
				over = true
			default:
			}
			p, err := s.Read(ctx, "a", after, store.ReadLimit{Entries: 7})
			check(t, "read", err)
			check(t, "page", checkPage(p, after, store.ReadLimit{Entries: 7}))
			gap := after.Less(p.Bounds.Removed)
			for i, e := range p.Entries {
				var batch, n int
				fmt.Sscanf(body(e.Record), "%d.%d", &batch, &n)
				want := fmt.Sprintf("%d.%d", batch, n-1)
				if n == 0 {
					want = fmt.Sprintf("%d.19", batch-1)
				}
				if last != "" && last != want && !(gap && i == 0) {
					t.Fatalf("%s follows %s without a gap being told (bounds %+v)", body(e.Record), last, p.Bounds)
				}
				last = body(e.Record)
			}
			after = p.To
			if over && len(p.Entries) == 0 {
				break
			}
		}
		equal(t, "the last entry read", last, fmt.Sprintf("%d.19", total/20-1))
	}},
	{"a deleted topic is gone; a later one is another, above it", func(t *testing.T, h *Harness) {
		s := h.Store
		old := publish(t, s, "a", records(numbered("n", 700)...)...)
		inc := bounds(t, s, "a").Incarnation
		check(t, "delete", s.DeleteTopic(t.Context(), "a"))
		equal(t, "bounds", bounds(t, s, "a"), store.Bounds{})
		equal(t, "entries", len(read(t, s, "a", event.Position{})), 0)
		list, err := s.Topics(t.Context(), "", "", 10)
		check(t, "topics", err)
		equal(t, "topics", len(list), 0)
		check(t, "delete again", s.DeleteTopic(t.Context(), "a"))
		check(t, "delete an unknown one", s.DeleteTopic(t.Context(), "nobody"))
		if h.StepClock != nil {
			h.StepClock(-time.Hour)
		}
		if h.Reopen != nil {
			s = h.Reopen()
			equal(t, "bounds after reopening", bounds(t, s, "a"), store.Bounds{})
		}
		next := publish(t, s, "a", records("new")...)
		increasing(t, append(old, next...))
		b := bounds(t, s, "a")
		if b.Incarnation == inc || b.Incarnation == "" || b.Entries != 1 || b.First != next[0] || !b.Removed.IsZero() {
			t.Fatalf("bounds %+v", b)
		}
		equal(t, "bodies", bodies(read(t, s, "a", event.Position{})), []string{"new"})
	}},
}
