// Package inbox is where a worker's events wait: one bounded lane per topic, served fairly.
//
// An Inbox hands out one event at a time. What is done with it is told by Done, which lets the lane go
// on, or by Hold, which puts the event back at the head of its lane until Resume; a held lane never
// holds up the others. Lanes that have events take turns, one event each; priority lanes go first.
//
// A lane is bounded by events and bytes, and all lanes of a process share a Budget of bytes. A lane
// that is full refuses; one that is empty takes one event whatever its size and the budget.
//
// The package is pure: no goroutine, no clock, no lock. Whoever shares an Inbox locks around every
// call; a Budget may be shared without.
package inbox

import "github.com/turnlane/turnlane/event"

// Limits bound one lane. Zero fields mean the defaults.
type Limits struct {
	Events int // default 1,024
	Bytes  int // of the records, default 1 MiB
}

// Defaults of Limits.
const (
	DefaultEvents = 1024
	DefaultBytes  = 1 << 20
)

// Item is an event in hand.
type Item struct {
	Lane  int
	Entry event.Entry
	// Former says that the event is of a log that the lane's topic no longer has; see Cut.
	Former bool
}

// Inbox is the lanes of one worker. Lanes are named by their index.
type Inbox struct {
	lanes      []lane
	limits     Limits
	budget     *Budget
	head, tail int32 // of the list of queued lanes, linked by lane.next; none when empty
}

const none = -1

// New returns an inbox of n empty lanes. A nil budget does not bound.
func New(n int, limits Limits, budget *Budget) Inbox {
	if limits.Events <= 0 {
		limits.Events = DefaultEvents
	}
	if limits.Bytes <= 0 {
		limits.Bytes = DefaultBytes
	}
	return Inbox{lanes: make([]lane, n), limits: limits, budget: budget, head: none, tail: none}
}

// SetPriority makes a lane go before all others. Call it before the first Offer.
func (b *Inbox) SetPriority(i int) { b.lanes[i].priority = true }

// Offer takes a prefix of entries into a lane, in order, and returns its length: less than all means
// that the lane is full. The entries' bytes may be slices of a read buffer: those that still wait at
// the lane's next Offer are copied out of it then, once. Rings tells that the lane had nothing to
// serve before, and has now.
func (b *Inbox) Offer(i int, entries []event.Entry) (taken int, rings bool) {
	l := &b.lanes[i]
	if len(entries) == 0 {
		return 0, false
	}
	l.settle()
	added := 0
	for taken < len(entries) {
		n := len(entries[taken].Record)
		if full := l.len() >= b.limits.Events || l.bytes+n > b.limits.Bytes || b.budget.full(added+n); full && !l.promised && l.len() > 0 {
			l.refused = true
			break
		}
		l.promised = false
		l.in = append(l.in, entries[taken])
		l.bytes += n
		added += n
		taken++
	}
	b.budget.add(added)
	l.fresh = taken
	if l.state == idle && taken > 0 {
		return taken, b.enqueue(int32(i))
	}
	return taken, false
}

// Room reports whether a lane is at most half full; then the next Offer takes at least one event, even
// if that is large or other lanes have used up the budget by then. If not, the Next that makes room
// reports so.
func (b *Inbox) Room(i int) bool {
	l := &b.lanes[i]
	l.promised = b.room(l)
	l.refused = l.refused || !l.promised
	return l.promised
}

func (b *Inbox) room(l *lane) bool {
	return l.len() == 0 ||
		l.len() <= b.limits.Events/2 && l.bytes <= b.limits.Bytes/2 && !b.budget.full(0)
}

// Next takes the next event, if a lane has one to serve. Drained tells that its lane had refused
// events, or said that it had no room, and has room now.
func (b *Inbox) Next() (item Item, drained, ok bool) {
	var i int32
	var l *lane
	for {
		if i = b.head; i == none {
			return Item{}, false, false
		}
		l = &b.lanes[i]
		if b.head = l.next; b.head == none {
			b.tail = none
		}
		if !l.paused {
			break
		}
		l.state = idle
	}
	l.state = taken
	item = Item{Lane: int(i), Entry: l.pop()}
	if l.former > 0 {
		l.former--
		item.Former = true
	}
	l.bytes -= len(item.Entry.Record)
	b.budget.add(-len(item.Entry.Record))
	if l.refused && b.room(l) {
		l.refused = false
		drained = true
	}
	return item, drained, true
}

// Done ends what Next began: the lane can be served again.
func (b *Inbox) Done(i int) {
	l := &b.lanes[i]
	l.state = idle
	if l.len() > 0 {
		b.enqueue(int32(i))
	}
}

// Hold ends what Next began by putting the event back. The lane is not served until Resume.
func (b *Inbox) Hold(item Item) {
	l := &b.lanes[item.Lane]
	l.unpop(item.Entry)
	l.bytes += len(item.Entry.Record)
	b.budget.add(len(item.Entry.Record))
	if item.Former {
		l.former++
	}
	l.state = held
}

// Resume lets a held lane be served again; one that is not held stays as it is. Rings is as in Offer.
func (b *Inbox) Resume(i int) (rings bool) {
	l := &b.lanes[i]
	if l.state != held {
		return false
	}
	l.state = idle
	return b.enqueue(int32(i))
}

// Pause keeps a lane from being served until Unpause; what it has waits, and what is offered is taken.
func (b *Inbox) Pause(i int) { b.lanes[i].paused = true }

// Unpause ends Pause. Rings is as in Offer.
func (b *Inbox) Unpause(i int) (rings bool) {
	l := &b.lanes[i]
	l.paused = false
	return l.state == idle && l.len() > 0 && b.enqueue(int32(i))
}

// Ready reports whether a lane is queued: unless it was paused since, Next returns an event.
func (b *Inbox) Ready() bool { return b.head != none }

// Len and Bytes say how much waits in a lane. An event in hand is not in it.
func (b *Inbox) Len(i int) int { return b.lanes[i].len() }

// Bytes is the size of the records that wait in a lane.
func (b *Inbox) Bytes(i int) int { return b.lanes[i].bytes }

// Held reports whether the lane waits for Resume.
func (b *Inbox) Held(i int) bool { return b.lanes[i].state == held }

// Oldest returns the position of the event that has waited longest in a lane, of those that belong to
// the topic's present log.
func (b *Inbox) Oldest(i int) (event.Position, bool) {
	l := &b.lanes[i]
	if l.former >= l.len() {
		return event.Position{}, false
	}
	return l.at(l.former).Pos, true
}

// Cut says that what waits in a lane is of a former log of its topic: its positions must not be
// compared with those that come.
func (b *Inbox) Cut(i int) {
	l := &b.lanes[i]
	l.former = l.len()
}

// Compact gives back the memory of empty lanes.
func (b *Inbox) Compact() {
	for i := range b.lanes {
		if l := &b.lanes[i]; l.len() == 0 && l.state != taken {
			l.in, l.out, l.first = nil, nil, 0
		}
	}
}

// Clear empties all lanes and gives their bytes back to the budget. The inbox serves nothing after it
// until something is offered.
func (b *Inbox) Clear() {
	for i := range b.lanes {
		l := &b.lanes[i]
		b.budget.add(-l.bytes)
		*l = lane{priority: l.priority, paused: l.paused}
	}
	b.head, b.tail = none, none
}

// enqueue has a lane that is not queued served in its turn. It reports whether the lane is not paused.
func (b *Inbox) enqueue(i int32) bool {
	l := &b.lanes[i]
	if l.paused {
		return false
	}
	l.state = queued
	switch {
	case b.head == none:
		l.next = none
		b.head, b.tail = i, i
	case l.priority:
		l.next = b.head
		b.head = i
	default:
		l.next = none
		b.lanes[b.tail].next = i
		b.tail = i
	}
	return true
}
