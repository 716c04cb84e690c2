package inbox

import (
	"bytes"
	"encoding/binary"
	"testing"

	"pgregory.net/rapid"

	"github.com/turnlane/turnlane/event"
)

func entry(seq uint64, size int) event.Entry {
	r := make(event.Record, max(size, 8))
	binary.BigEndian.PutUint64(r, seq)
	return event.Entry{Pos: event.Position{Ms: 1, Seq: seq}, Record: r}
}

func TestLanesTakeTurns(t *testing.T) {
	b := New(3, Limits{}, nil)
	for seq := range uint64(3) {
		b.Offer(0, []event.Entry{entry(seq, 8)})
	}
	b.Offer(2, []event.Entry{entry(9, 8), entry(10, 8)})
	var got []int
	for {
		item, _, ok := b.Next()
		if !ok {
			break
		}
		got = append(got, item.Lane)
		b.Done(item.Lane)
	}
	if want := []int{0, 2, 0, 2, 0}; !equal(got, want) {
		t.Errorf("served lanes %v, want %v", got, want)
	}
}

func TestAPriorityLaneGoesFirst(t *testing.T) {
	b := New(2, Limits{}, nil)
	b.SetPriority(1)
	b.Offer(0, []event.Entry{entry(1, 8), entry(2, 8)})
	b.Offer(1, []event.Entry{entry(1, 8), entry(2, 8)})
	var got []int
	for item, _, ok := b.Next(); ok; item, _, ok = b.Next() {
		got = append(got, item.Lane)
		b.Done(item.Lane)
	}
	if want := []int{1, 1, 0, 0}; !equal(got, want) {
		t.Errorf("served lanes %v, want %v", got, want)
	}
}

func TestAHeldLaneWaitsAloneAndKeepsItsOrder(t *testing.T) {
	b := New(2, Limits{}, nil)
	b.Offer(0, []event.Entry{entry(1, 8), entry(2, 8)})
	b.Offer(1, []event.Entry{entry(5, 8)})
	first, _, _ := b.Next()
	b.Hold(first)
	other, _, _ := b.Next()
	if other.Lane != 1 {
		t.Fatalf("while lane 0 is held, lane %d is served", other.Lane)
	}
	b.Done(1)
	if _, _, ok := b.Next(); ok {
		t.Fatal("a held lane was served")
	}
	if _, rings := b.Offer(0, []event.Entry{entry(3, 8)}); rings {
		t.Error("a held lane rings")
	}
	if !b.Resume(0) || b.Resume(0) {
		t.Error("want the first Resume alone to ring")
	}
	for want := uint64(1); want <= 3; want++ {
		item, _, ok := b.Next()
		if !ok || item.Entry.Pos.Seq != want {
			t.Fatalf("got %v, want event %d", item.Entry.Pos, want)
		}
		b.Done(0)
	}
}

func TestAnEmptyLaneTakesOneEventOfAnySize(t *testing.T) {
	budget := NewBudget(10)
	b := New(2, Limits{Events: 4, Bytes: 100}, budget)
	if n, _ := b.Offer(0, []event.Entry{entry(1, 1000), entry(2, 8)}); n != 1 {
		t.Fatalf("took %d, want 1", n)
	}
	if n, _ := b.Offer(1, []event.Entry{entry(1, 1000)}); n != 1 {
		t.Fatal("an empty lane refused because of the budget")
	}
	if b.Room(0) {
		t.Error("a lane over its bytes has room")
	}
	_, drained, _ := b.Next()
	if !drained || !b.Room(0) {
		t.Error("the lane is empty and has no room")
	}
	b.Done(0)
	b.Clear()
	if budget.Used() != 0 {
		t.Errorf("%d bytes are left in the budget", budget.Used())
	}
}

// A lane that waits longer than one Offer must not keep the read buffer alive, nor see it change.
func TestWaitingEventsAreCopiedOutOfTheirBuffer(t *testing.T) {
	b := New(1, Limits{}, nil)
	buffer := []byte("aaaabbbb")
	page := []event.Entry{
		{Pos: event.Position{Seq: 1}, Record: buffer[:4]},
		{Pos: event.Position{Seq: 2}, Record: buffer[4:]},
	}
	b.Offer(0, page)
	b.Offer(0, []event.Entry{entry(3, 8)})
	copy(buffer, "xxxxxxxx")
	for _, want := range []string{"aaaa", "bbbb"} {
		item, _, _ := b.Next()
		if string(item.Entry.Record) != want {
			t.Errorf("got %q, want %q", item.Entry.Record, want)
		}
		b.Done(0)
	}
}

func TestCutKeepsFormerEventsOutOfTheOldest(t *testing.T) {
	b := New(1, Limits{}, nil)
	b.Offer(0, []event.Entry{entry(100, 8), entry(101, 8)})
	b.Cut(0)
	if _, ok := b.Oldest(0); ok {
		t.Error("events of a former log count")
	}
	b.Offer(0, []event.Entry{entry(1, 8)})
	if pos, ok := b.Oldest(0); !ok || pos.Seq != 1 {
		t.Errorf("oldest is %v, want that of the new log", pos)
	}
	item, _, _ := b.Next()
	if !item.Former {
		t.Error("an event of the former log is not marked")
	}
	b.Hold(item)
	if pos, _ := b.Oldest(0); pos.Seq != 1 {
		t.Errorf("oldest is %v after Hold", pos)
	}
}

// The model is a slice per lane, and the rules as they are written.
func TestInboxModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 4).Draw(t, "lanes")
		limits := Limits{Events: rapid.IntRange(1, 6).Draw(t, "events"), Bytes: rapid.IntRange(8, 120).Draw(t, "bytes")}
		budget := NewBudget(int64(rapid.IntRange(8, 300).Draw(t, "budget")))
		b := New(n, limits, budget)
		model := make([][]event.Entry, n)
		heldLane := make([]bool, n)
		owed := make([]bool, n) // a drained call is due
		promised := make([]bool, n)
		served := make([]int, n)
		var hand *Item
		seq := uint64(0)
		size := func(i int) (total int) {
			for _, e := range model[i] {
				total += len(e.Record)
			}
			return total
		}
		all := func() (total int) {
			for i := range model {
				total += size(i)
			}
			return total
		}
		room := func(i int) bool {
			return len(model[i]) == 0 || len(model[i]) <= limits.Events/2 && size(i) <= limits.Bytes/2 && int64(all()) <= budget.Max()
		}
		t.Repeat(map[string]func(*rapid.T){
			"offer": func(t *rapid.T) {
				i := rapid.IntRange(0, n-1).Draw(t, "lane")
				var page []event.Entry
				for range rapid.IntRange(1, 5).Draw(t, "entries") {
					seq++
					page = append(page, entry(seq, rapid.IntRange(8, 60).Draw(t, "size")))
				}
				taken, rings := b.Offer(i, page)
				if promised[i] && taken == 0 {
					t.Fatal("a lane that had room took nothing")
				}
				want := 0
				wasIdle := len(model[i]) == 0 && !heldLane[i] && (hand == nil || hand.Lane != i)
				for _, e := range page {
					if l := len(model[i]); l > 0 && (l >= limits.Events || size(i)+len(e.Record) > limits.Bytes ||
						int64(all()+len(e.Record)) > budget.Max()) && !promised[i] {
						owed[i] = true
						break
					}
					want++
					promised[i] = false
					model[i] = append(model[i], entry(e.Pos.Seq, len(e.Record)))
				}
				if taken != want || rings != (wasIdle && want > 0) {
					t.Fatalf("took %d (rings %v), want %d of %d", taken, rings, want, len(page))
				}
			},
			"room": func(t *rapid.T) {
				i := rapid.IntRange(0, n-1).Draw(t, "lane")
				want := room(i)
				if got := b.Room(i); got != want {
					t.Fatalf("Room(%d) = %v, want %v", i, got, want)
				}
				owed[i] = owed[i] || !want
				promised[i] = want
			},
			"next": func(t *rapid.T) {
				if hand != nil {
					t.Skip()
				}
				item, drained, ok := b.Next()
				if !ok {
					for i := range model {
						if len(model[i]) > 0 && !heldLane[i] {
							t.Fatalf("lane %d has %d events and is not served", i, len(model[i]))
						}
					}
					return
				}
				i := item.Lane
				if heldLane[i] || len(model[i]) == 0 {
					t.Fatalf("lane %d was served", i)
				}
				want := model[i][0]
				model[i] = model[i][1:]
				if item.Entry.Pos != want.Pos || !bytes.Equal(item.Entry.Record, want.Record) {
					t.Fatalf("lane %d gave %v, want %v", i, item.Entry.Pos, want.Pos)
				}
				if drained != (owed[i] && room(i)) {
					t.Fatalf("drained = %v, owed %v, room %v", drained, owed[i], room(i))
				}
				owed[i] = owed[i] && !drained
				// Fair: no lane that could be served waits for more than one turn of each other lane.
				for j := range served {
					if j == i || len(model[j]) == 0 || heldLane[j] {
						served[j] = 0
					} else if served[j]++; served[j] >= n {
						t.Fatalf("lane %d waits for %d turns", j, served[j])
					}
				}
				hand = &item
			},
			"done": func(t *rapid.T) {
				if hand == nil {
					t.Skip()
				}
				b.Done(hand.Lane)
				hand = nil
			},
			"hold": func(t *rapid.T) {
				if hand == nil {
					t.Skip()
				}
				b.Hold(*hand)
				heldLane[hand.Lane] = true
				model[hand.Lane] = append([]event.Entry{hand.Entry}, model[hand.Lane]...)
				hand = nil
			},
			"resume": func(t *rapid.T) {
				i := rapid.IntRange(0, n-1).Draw(t, "lane")
				if got := b.Resume(i); got != heldLane[i] {
					t.Fatalf("Resume rings = %v, held %v", got, heldLane[i])
				}
				heldLane[i] = false
			},
			"compact": func(*rapid.T) { b.Compact() },
			"": func(t *rapid.T) {
				for i := range model {
					if b.Len(i) != len(model[i]) || b.Bytes(i) != size(i) {
						t.Fatalf("lane %d has %d events, %d bytes, want %d, %d", i, b.Len(i), b.Bytes(i), len(model[i]), size(i))
					}
					pos, ok := b.Oldest(i)
					if ok != (len(model[i]) > 0) || ok && pos != model[i][0].Pos {
						t.Fatalf("oldest of lane %d is %v %v", i, pos, ok)
					}
				}
				if budget.Used() != int64(all()) {
					t.Fatalf("budget has %d used, want %d", budget.Used(), all())
				}
			},
		})
	})
}

func TestNoAllocationsOnceWarm(t *testing.T) {
	b := New(1, Limits{}, NewBudget(0))
	page := make([]event.Entry, 64)
	for i := range page {
		page[i] = entry(uint64(i), 256)
	}
	round := func() {
		b.Offer(0, page)
		for item, _, ok := b.Next(); ok; item, _, ok = b.Next() {
			b.Done(item.Lane)
		}
	}
	round()
	round()
	if n := testing.AllocsPerRun(100, round); n != 0 {
		t.Errorf("%v allocations for 64 events, want 0", n)
	}
}

func BenchmarkOfferNext(b *testing.B) {
	box := New(1, Limits{}, NewBudget(0))
	page := make([]event.Entry, 64)
	for i := range page {
		page[i] = entry(uint64(i), 256)
	}
	b.ReportAllocs()
	events := 0
	for b.Loop() {
		box.Offer(0, page)
		for item, _, ok := box.Next(); ok; item, _, ok = box.Next() {
			box.Done(item.Lane)
			events++
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(events), "ns/event")
}

func equal(a, b []int) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}
