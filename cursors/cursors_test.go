package cursors

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/turnlane/turnlane/event"
)

func at(seq uint64) event.Position { return event.Position{Ms: 7, Seq: seq} }

func TestTheFloorStaysBelowWhatIsUnfinished(t *testing.T) {
	var f Floor
	examined := at(9)
	if got := f.At(at(0), false, examined); got != examined {
		t.Fatalf("nothing in hand: %v, want the newest examined", got)
	}
	f.Reset(at(0))
	first := f.Begin(at(3))
	second := f.Begin(at(5))
	if f.Done(second) {
		t.Error("the second of two moved the floor")
	}
	if got := f.At(at(8), true, examined); got != at(2) {
		t.Errorf("got %v, want just before the first", got)
	}
	if !f.Done(first) {
		t.Error("the first did not move the floor")
	}
	if got := f.At(at(8), true, examined); got != at(7) {
		t.Errorf("got %v, want just before what waits", got)
	}
	if got := f.At(at(0), false, at(1)); got != at(7) {
		t.Errorf("got %v: the floor went back", got)
	}
}

func TestAResetForgetsWhatIsInHand(t *testing.T) {
	var f Floor
	old := f.Begin(at(50))
	f.Reset(at(1))
	fresh := f.Begin(at(2))
	if f.Done(old) || f.Open() != 1 {
		t.Error("a ticket of the former log was taken")
	}
	if got := f.At(at(0), false, at(2)); got != at(1) {
		t.Errorf("got %v, want before the event in hand", got)
	}
	if !f.Done(fresh) || f.Done(Ticket{}) {
		t.Error("the right ticket was not taken, or none was")
	}
}

// The model walks over every owned position and looks.
func TestFloorModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var f Floor
		const (
			waiting = iota
			inHand
			done
		)
		type owned struct {
			pos   event.Position
			state int
			t     Ticket
		}
		var log []*owned
		var examined, last event.Position
		next := uint64(1)
		check := func(t *rapid.T) {
			want := examined
			var oldest event.Position
			waits := false
			for _, o := range slices.Backward(log) {
				if o.state != done {
					want = o.pos.Prev()
				}
				if o.state == waiting {
					oldest, waits = o.pos, true
				}
			}
			got := f.At(oldest, waits, examined)
			if want.Less(last) {
				want = last
			}
			if got != want {
				t.Fatalf("floor %v, want %v", got, want)
			}
			last = got
		}
		t.Repeat(map[string]func(*rapid.T){
			"push": func(t *rapid.T) {
				next += uint64(rapid.IntRange(1, 3).Draw(t, "step"))
				log = append(log, &owned{pos: at(next)})
				examined = at(next)
			},
			"skip": func(t *rapid.T) {
				next += uint64(rapid.IntRange(1, 3).Draw(t, "step"))
				examined = at(next)
			},
			"begin": func(t *rapid.T) {
				for _, o := range log {
					if o.state == waiting {
						o.state, o.t = inHand, f.Begin(o.pos)
						return
					}
				}
			},
			"again": func(t *rapid.T) { // a retry of the newest in hand
				for _, o := range slices.Backward(log) {
					if o.state == inHand {
						if f.Begin(o.pos) != o.t {
							t.Fatal("the same event got another ticket")
						}
						return
					}
					if o.state == done {
						return
					}
				}
			},
			"done": func(t *rapid.T) {
				var hand []*owned
				for _, o := range log {
					if o.state == inHand {
						hand = append(hand, o)
					}
				}
				if len(hand) == 0 {
					return
				}
				o := rapid.SampledFrom(hand).Draw(t, "which")
				o.state = done
				if moved := f.Done(o.t); moved != (o == hand[0]) {
					t.Fatalf("moved = %v", moved)
				}
			},
			"compact": func(*rapid.T) { f.Compact() },
			"":        check,
		})
	})
}

func TestDirtyModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var d Dirty[int]
		var model []int
		t.Repeat(map[string]func(*rapid.T){
			"mark": func(t *rapid.T) {
				k := rapid.IntRange(0, 9).Draw(t, "cursor")
				fresh := !slices.Contains(model, k)
				if d.Mark(k) != fresh {
					t.Fatalf("Mark(%d) = %v", k, !fresh)
				}
				if fresh {
					model = append(model, k)
				}
			},
			"drop": func(t *rapid.T) {
				k := rapid.IntRange(0, 9).Draw(t, "cursor")
				d.Drop(k)
				model = slices.DeleteFunc(model, func(o int) bool { return o == k })
			},
			"flush": func(t *rapid.T) {
				took := d.Take()
				if !slices.Equal(took, model) {
					t.Fatalf("took %v, want %v", took, model)
				}
				model = nil
				failed := rapid.SliceOfNDistinct(rapid.IntRange(0, 9), 0, 10, rapid.ID[int]).Draw(t, "failed")
				if k := rapid.IntRange(0, 9).Draw(t, "meanwhile"); d.Mark(k) {
					model = append(model, k)
				}
				var back []int
				for _, k := range took {
					if slices.Contains(failed, k) && !slices.Contains(model, k) {
						back = append(back, k)
					}
				}
				model = append(back, model...)
				d.Put(took, func(k int) bool { return slices.Contains(failed, k) })
			},
			"": func(t *rapid.T) {
				if d.Len() != len(model) {
					t.Fatalf("%d dirty, want %d", d.Len(), len(model))
				}
			},
		})
	})
}

func TestNoAllocationsOnceWarm(t *testing.T) {
	var f Floor
	seq := uint64(0)
	round := func() {
		var tickets [16]Ticket
		for i := range tickets {
			seq++
			tickets[i] = f.Begin(at(seq))
		}
		for i := range tickets {
			f.Done(tickets[len(tickets)-1-i])
		}
	}
	round()
	if n := testing.AllocsPerRun(100, round); n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}

func BenchmarkBeginDone(b *testing.B) {
	var f Floor
	seq := uint64(0)
	for b.Loop() {
		seq++
		f.Done(f.Begin(at(seq)))
	}
}
