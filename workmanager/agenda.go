package workmanager

import (
	"container/heap"
	"time"
)

// agenda holds the entries whose owners are to be looked at, the most urgent first.
type agenda []*entry

const (
	firstLook = 10 * time.Millisecond
	lastLook  = 500 * time.Millisecond
)

// soon puts an entry on the agenda for a look in a moment, because something was done to it.
func (a *agenda) soon(e *entry, now time.Time) {
	e.pause = firstLook
	a.put(e, now.Add(e.pause))
}

// later puts an entry on the agenda that was looked at and is not settled. The pauses double, so that
// a worker that takes long to start costs little.
func (a *agenda) later(e *entry, now time.Time) {
	e.pause = min(max(2*e.pause, firstLook), lastLook)
	a.put(e, now.Add(e.pause))
}

func (a *agenda) put(e *entry, at time.Time) {
	e.look = at
	if e.place >= 0 {
		heap.Fix(a, e.place)
		return
	}
	heap.Push(a, e)
}

// due removes and returns the entries whose time has come, limit at the most.
func (a *agenda) due(now time.Time, limit int) []*entry {
	var list []*entry
	for len(*a) > 0 && len(list) < limit && !(*a)[0].look.After(now) {
		list = append(list, heap.Pop(a).(*entry))
	}
	return list
}

// remove takes an entry off the agenda, if it is there.
func (a *agenda) remove(e *entry) {
	if e.place >= 0 {
		heap.Remove(a, e.place)
	}
}

// wait returns the time until the next look, limit at the most.
func (a agenda) wait(now time.Time, limit time.Duration) time.Duration {
	if len(a) == 0 {
		return limit
	}
	return max(min(a[0].look.Sub(now), limit), 0)
}

func (a agenda) Len() int           { return len(a) }
func (a agenda) Less(i, j int) bool { return a[i].look.Before(a[j].look) }
func (a agenda) Swap(i, j int) {
	a[i], a[j] = a[j], a[i]
	a[i].place, a[j].place = i, j
}
func (a *agenda) Push(x any) {
	e := x.(*entry)
	e.place = len(*a)
	*a = append(*a, e)
}
func (a *agenda) Pop() any {
	last := len(*a) - 1
	e := (*a)[last]
	(*a)[last] = nil
	*a = (*a)[:last]
	e.place = -1
	return e
}
