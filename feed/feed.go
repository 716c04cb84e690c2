// Package feed is the state machine of a reader of one topic: live, or catching up.
//
// A Topic is where one process's readers of a topic meet. A live feed is served by Topic.Push with what
// was just read of the log, once for all; a feed that is catching up pages the log from a position of
// its own. Because positions are totally ordered, a feed changes from one to the other without a gap
// and without a repeat:
//
//	              TryLive: at or past the head, slots covered, sink at most half full
//	            ┌──────────────────────────────────────────────────────────────────────┐
//	 Add        │                                                                      ▼
//	─────▶ catching up: Page, Recent                                          live: Push │
//	            ▲                                                                      │
//	            └──────────────────────────────────────────────────────────────────────┘
//	              sink full, hole before a span, span's slot set lacks the feed's slots,
//	              log trimmed, re-created or gone back (Topic.Meet)
//
// Everything that moves is an event.Span: it covers (From, To] and holds every owned entry in it. A feed
// accepts a span that begins at or before its position, takes the entries above its position that it
// owns, as many as its sink has room for, and then stands at the span's end, or at the last entry
// examined. What a log no longer holds is a Gap, told before anything that follows it.
//
// The package is pure: no goroutine, no clock, no input or output. A Topic and its feeds need one lock
// around every call; that lock is called the topic's lock, and sinks are called with it held.
package feed

import (
	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/grouping"
)

// Sink is where a feed's owned entries go: a worker's lane, a subscriber's buffer, a counter. Both
// methods are called under the topic's lock: they must not block, must not call the feed or the topic,
// and may take a lock of their own (topic's lock first, sink's second, never the other way round).
type Sink interface {
	// Offer takes a prefix of entries, in order, and returns its length. Less than all means that the
	// sink is full: the feed leaves live and offers again from the first entry not taken. The slice is
	// only lent; whether the records' bytes need a copy is told at event.Entry. A sink whose Room is
	// true takes at least one entry.
	Offer(entries []event.Entry) (taken int)
	// Room reports whether the sink is at most half full, so that its feed may go live or page on.
	Room() bool
}

// State is where a feed gets its entries from.
type State uint8

// The states of a feed.
const (
	CatchingUp State = iota // from the log, or from the topic's recent spans
	Live                    // from Push
	Closed                  // from nowhere: it was removed
)

func (s State) String() string {
	switch s {
	case CatchingUp:
		return "catching_up"
	case Live:
		return "live"
	}
	return "closed"
}

// Config is what a feed is made of.
type Config struct {
	// After is where the feed begins: it examines what lies after this position.
	After event.Position
	// Incarnation is the log that After belongs to; "" if that is not known, or no log exists yet.
	Incarnation string
	// InLog says that After and Incarnation were just read from the log's bounds. Otherwise the feed
	// takes part in a page before it goes live, to learn whether the log has that position.
	InLog bool
	// Slots are the slots whose events the feed owns. The zero Set owns all.
	Slots grouping.Set
	Sink  Sink
	// OnGap is told of every gap, in order with what is offered to the sink, under the topic's lock.
	// It may be nil.
	OnGap func(Gap)
	// Host is whatever the feed's keeper wants to find again; the feed never looks at it.
	Host any
}

// Feed is one reader. Its fields are guarded by the topic's lock.
type Feed struct {
	host  any
	slots grouping.Set
	sink  Sink
	onGap func(Gap)

	state State
	// pos is the newest position examined, and incarnation the log that it belongs to. While the feed
	// is in the topic's index (indexed), both are stale: it stands where the topic stands.
	pos         event.Position
	incarnation string
	indexed     bool
	// unsure: the log may have no such position. A page tells.
	unsure bool

	examined uint64 // without what the topic examined since joined, while indexed
	joined   uint64 // the topic's count when the feed was indexed
	owned    uint64
	gaps     uint64

	at    int   // the feed's place in the topic's list that it is in
	batch int32 // one more than its place in a push's scratch, 0 outside
}

// Host returns what Config.Host was.
func (f *Feed) Host() any { return f.host }

// State returns whether the feed is live.
func (f *Feed) State() State { return f.state }

// Slots returns the slots that the feed owns.
func (f *Feed) Slots() grouping.Set { return f.slots }

// Counters are a feed's own accounts since it was added.
type Counters struct {
	Examined uint64 // entries of the log that it passed
	Owned    uint64 // of these, taken by the sink
	Filtered uint64 // of these, belonging to other slots
	Gaps     uint64 // reported
}

func (f *Feed) owns(e event.Entry) bool {
	return f.slots.All() || off(checkOwned) || f.slots.Owns(e.Record.Hash())
}

// offer hands entries to the sink and counts what it took.
func (f *Feed) offer(entries []event.Entry) int {
	taken := f.sink.Offer(entries)
	if taken < 0 || taken > len(entries) {
		panic("feed: a sink took more entries than it was offered, or fewer than none")
	}
	f.owned += uint64(taken)
	return taken
}
