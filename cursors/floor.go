// Package cursors is the account of what a worker is done with, lane by lane.
//
// A Floor finds a lane's cursor: the position up to and including which everything that the worker owns
// is finished. A Dirty set gathers what changed, so that many cursors are stored together.
//
// The package is pure: no goroutine, no clock, no lock. Whoever shares its values locks around them.
package cursors

import "github.com/turnlane/turnlane/event"

// Floor follows the events of one lane that were taken in hand and are not finished: the one that the
// handler has, those that wait for a retry, and those whose outputs are not yet stored. They may finish
// in any order. The zero Floor has taken nothing.
type Floor struct {
	open  []open // in order of their positions
	first int    // of open, the first that counts
	epoch uint32
	at    event.Position // the highest in this epoch that At returned, or below which all is finished
}

type open struct {
	pos  event.Position
	done bool
}

// Ticket names an event in hand to its Floor.
type Ticket struct {
	pos   event.Position
	epoch uint32
	ok    bool
}

// Begin takes an event in hand. Positions grow from one call to the next, except that an event that is
// begun and not done may be begun again: it is the same one.
func (f *Floor) Begin(pos event.Position) Ticket {
	if n := len(f.open); n == f.first || f.open[n-1].pos.Less(pos) {
		if n == cap(f.open) && f.first > n/2 { // room at the front instead of a larger slice
			f.open = f.open[:copy(f.open, f.open[f.first:])]
			f.first = 0
		}
		f.open = append(f.open, open{pos: pos})
	}
	return Ticket{pos, f.epoch, true}
}

// Done finishes an event. Tickets from before a Reset, and the zero Ticket, are ignored. It reports
// whether the floor can have moved.
func (f *Floor) Done(t Ticket) (moved bool) {
	if !t.ok || t.epoch != f.epoch {
		return false
	}
	i := f.find(t.pos)
	if i < 0 || f.open[i].done {
		return false
	}
	f.open[i].done = true
	if i != f.first {
		return false
	}
	for f.first < len(f.open) && f.open[f.first].done {
		f.at = f.open[f.first].pos
		f.first++
	}
	if f.first == len(f.open) {
		f.open, f.first = f.open[:0], 0
	}
	return true
}

// Open returns how many events are in hand and not known to be finished with all before them.
func (f *Floor) Open() int { return len(f.open) - f.first }

// At returns the cursor, given the oldest event that waits in the lane, if there is one, and a position up
// to which the lane's feed has examined its topic: now, or some time ago. It is the newest event at least
// up to which all are finished, and it never goes back but by Reset.
func (f *Floor) At(waiting event.Position, waits bool, examined event.Position) event.Position {
	at := examined
	switch {
	case f.Open() > 0:
		at = f.open[f.first].pos.Prev()
	case waits:
		at = waiting.Prev()
	}
	if f.at.Less(at) {
		f.at = at
	}
	return f.at
}

// Reset begins anew at a position, as when the topic has another log now: what is in hand no longer
// counts.
func (f *Floor) Reset(at event.Position) {
	f.open, f.first = f.open[:0], 0
	f.epoch++
	f.at = at
}

// Compact gives back memory that nothing in hand needs.
func (f *Floor) Compact() {
	if f.Open() == 0 {
		f.open, f.first = nil, 0
	}
}

func (f *Floor) find(pos event.Position) int {
	if f.first < len(f.open) && f.open[f.first].pos == pos { // nearly always
		return f.first
	}
	lo, hi := f.first, len(f.open)
	for lo < hi {
		mid := int(uint(lo+hi) >> 1)
		if f.open[mid].pos.Less(pos) {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo < len(f.open) && f.open[lo].pos == pos {
		return lo
	}
	return -1
}
