package feed

import (
	"slices"
	"sort"

	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/grouping"
)

// Lists of feeds are walked backward wherever a feed may be taken out of them on the way: the one put in
// its place was walked already.

// Topic is one topic's head and the feeds that read it in this process. It is not safe for concurrent
// use: one lock, the topic's lock, is held around every call.
type Topic struct {
	head        event.Position // up to where live feeds were served
	incarnation string         // of the log that head belongs to
	examined    uint64         // entries pushed

	slotSet uint64         // number of the slot set of the newest span
	sets    []numberedSets // the newest, at most maxSets

	all      []*Feed      // live at the head, without a filter
	groups   []*slotIndex // live at the head, by group size and slot
	ahead    []*Feed      // live, but past the head until the next push reaches them
	catching []*Feed
	live     int

	recent ring
	left   []*Feed       // left live since the last TakeLeft
	bad    []event.Entry // met since the last TakeBad
}

const maxSets = 8

// numberedSets is what the slot set with that number lets through: the union of sets.
type numberedSets struct {
	number uint64
	sets   []grouping.Set
}

// Ask remembers where a read began, so that its answer can be judged when it comes.
type Ask struct {
	After       event.Position
	Incarnation string
}

// NewTopic returns a topic whose live feeds are served from head on. Topics share a budget for recent
// spans; nil gives the topic one of its own.
func NewTopic(head event.Position, incarnation string, budget *Budget) *Topic {
	if budget == nil {
		budget = NewBudget(2 * ringBytes)
	}
	return &Topic{head: head, incarnation: incarnation, recent: ring{budget: budget}}
}

// Head returns the position up to which live feeds were served.
func (t *Topic) Head() event.Position { return t.head }

// Incarnation returns the incarnation of the log that the head belongs to.
func (t *Topic) Incarnation() string { return t.incarnation }

// Feeds returns how many feeds the topic has, and how many of them are live.
func (t *Topic) Feeds() (all, live int) { return t.live + len(t.catching), t.live }

// CatchingUp calls do with every feed that is catching up.
func (t *Topic) CatchingUp(do func(*Feed)) {
	for _, f := range t.catching {
		do(f)
	}
}

// Add makes a feed of the topic. It is catching up; TryLive makes it live.
func (t *Topic) Add(c Config) *Feed {
	f := &Feed{}
	t.AddTo(f, c)
	return f
}

// AddTo is Add for a feed that is part of something larger; f must not be in use.
func (t *Topic) AddTo(f *Feed, c Config) {
	*f = Feed{host: c.Host, slots: c.Slots, sink: c.Sink, onGap: c.OnGap,
		pos: c.After, incarnation: c.Incarnation, unsure: !c.InLog, at: len(t.catching)}
	t.catching = append(t.catching, f)
}

// Remove ends a feed: its sink is not called again. It may be called more than once.
func (t *Topic) Remove(f *Feed) {
	switch f.state {
	case Closed:
		return
	case CatchingUp:
		t.uncatch(f)
	case Live:
		t.unlive(f, t.head)
	}
	f.state = Closed
}

// Position returns the newest position that the feed examined, and the incarnation of its log.
func (t *Topic) Position(f *Feed) (event.Position, string) {
	if f.indexed {
		return t.head, t.incarnation
	}
	return f.pos, f.incarnation
}

// Counters returns the feed's accounts.
func (t *Topic) Counters(f *Feed) Counters {
	c := Counters{Examined: f.examined, Owned: f.owned, Gaps: f.gaps}
	if f.indexed {
		c.Examined += t.examined - f.joined
	}
	c.Filtered = c.Examined - c.Owned
	return c
}

// Ask says where the next read for all live feeds begins.
func (t *Topic) Ask() Ask { return Ask{t.head, t.incarnation} }

// AskFor says where the next page for one feed begins.
func (t *Topic) AskFor(f *Feed) Ask {
	pos, incarnation := t.Position(f)
	return Ask{pos, incarnation}
}

// SetSlots says that spans with this number hold the entries of the given slots. Only the newest few
// numbers are kept: spans with a forgotten number move no feed, which then reads for itself. Number 0
// is reserved for spans that hold everything.
func (t *Topic) SetSlots(number uint64, sets ...grouping.Set) {
	if len(t.sets) == maxSets {
		t.sets = t.sets[:copy(t.sets, t.sets[1:])]
	}
	t.sets = append(t.sets, numberedSets{number, sets})
}

// Meet compares the topic's head with the log's bounds, as they came with what was read from ask on.
// When the log was trimmed past the head, re-created, or went back, every live feed leaves, to find its
// own gap when it pages. It reports whether the span that came with the bounds can be pushed.
func (t *Topic) Meet(ask Ask, log Bounds) bool {
	// A feed past the head may have met a longer log, before it went back, or after this read: it looks.
	for _, f := range slices.Backward(t.ahead) {
		if log.Last.Less(f.pos) {
			t.leave(f, f.pos)
			f.unsure = true
		}
	}
	// While the read was under way the head may have moved with a feed that went live past it. What the
	// read says of an end of the log is then older than the head, and proves nothing.
	if ask != t.Ask() && !off(checkAsk) {
		return log.Incarnation == t.incarnation
	}
	if _, gap := FindGap(t.head, t.incarnation, log); !gap {
		if t.incarnation != log.Incarnation && !off(checkIncarnation) {
			t.incarnation = log.Incarnation // the log's first entry, for a topic that had none
			for _, f := range t.ahead {
				f.incarnation = log.Incarnation
			}
		}
		return true
	}
	for _, f := range t.leaveAll() {
		f.unsure = true
	}
	t.restart(log.Last, log.Incarnation)
	return false
}

// PushRead is Push for a span that this process read of the log, from ask on, with the log's bounds at
// that moment.
func (t *Topic) PushRead(ask Ask, span event.Span, log Bounds) {
	if t.Meet(ask, log) {
		t.Push(held(span, log))
	}
}

// Push serves a span to every live feed and moves the head to its end. The span's entries are kept for
// a while if a feed is catching up; they must not be written to.
func (t *Topic) Push(span event.Span) {
	if !t.head.Less(span.To) && !off(checkNothingNew) {
		if span.To == t.head && span.SlotSet != t.slotSet {
			// An empty span announces a new slot set, also on a quiet topic.
			t.slotSet = span.SlotSet
			t.leaveUncovered()
		}
		return
	}
	if t.head.Less(span.From) && !off(checkHole) {
		// Nobody is live without having seen what lies before the span.
		t.leaveAll()
		t.restart(span.To, t.incarnation)
		t.slotSet = span.SlotSet
		return
	}
	if span.SlotSet != t.slotSet {
		t.slotSet = span.SlotSet
		t.leaveUncovered()
	}
	for {
		part, broken, rest, more := cut(span)
		t.pushPart(part)
		if !more {
			return
		}
		t.pushBroken(broken, part.To, span.SlotSet)
		span = rest
	}
}

// pushPart serves a span whose entries can all be read.
func (t *Topic) pushPart(span event.Span) {
	if !t.head.Less(span.To) && !off(checkNothingNew) {
		return
	}
	t.pushAhead(span)
	entries, examined := span.Entries, span.Examined
	if span.From.Less(t.head) && !off(checkAbove) {
		entries = entries[firstAbove(entries, t.head):]
		examined = len(entries)
	}
	t.pushAll(entries)
	for _, x := range slices.Backward(t.groups) {
		t.pushGroup(x, entries)
	}
	t.examined += uint64(examined)
	if len(t.catching) > 0 {
		t.recent.add(event.Span{From: t.head, To: span.To, Entries: entries, Examined: examined, SlotSet: span.SlotSet})
	}
	t.moveHead(span.To)
}

// pushBroken takes every live feed over an entry that can't be read, and tells it so. The slots of such
// an entry are not known, so it concerns them all.
func (t *Topic) pushBroken(e event.Entry, from event.Position, slotSet uint64) {
	if !t.head.Less(e.Pos) {
		return // a repeat
	}
	t.bad = append(t.bad, e)
	for _, f := range slices.Backward(t.ahead) {
		if !t.acceptBroken(f, e, from, slotSet) {
			t.leave(f, f.pos)
		}
	}
	for _, f := range t.all {
		t.tellBroken(f, e, t.incarnation)
	}
	s := scratches.Get().(*scratch)
	for _, x := range t.groups {
		for _, o := range x.owners {
			for ; o != nil; o = o.next {
				s.put(o.feed, 0) // once, however many slots it has
			}
		}
	}
	for _, f := range s.touched {
		t.tellBroken(f, e, t.incarnation)
	}
	s.free()
	// Recent spans hold readable entries and adjoin. A feed that is behind reads of this one in the log.
	t.recent.reset()
	t.moveHead(e.Pos)
}

// moveHead moves the head after everybody live was served up to there.
func (t *Topic) moveHead(pos event.Position) {
	t.head = pos
	for _, f := range slices.Backward(t.ahead) {
		if !t.head.Less(f.pos) {
			swapRemove(&t.ahead, f.at)
			t.insert(f)
		}
	}
}

// Page gives a feed that is catching up what was read for it from ask on, with the log's bounds at that
// moment. Gaps are told first. Other feeds that are catching up through the same stretch, with room,
// take their part of the page too, so that many who begin together read the log once. It reports
// whether the feed moved, and whether the topic took over the log's bounds, since it had no live feed
// to learn them for; as they may be old, its keeper reads after the head once more.
func (t *Topic) Page(f *Feed, ask Ask, span event.Span, log Bounds) (moved, adopted bool) {
	if f.state != CatchingUp {
		return false, false
	}
	// Another page may have moved the feed while this one was read; its bounds are then too old to
	// tell of gaps, but its entries are good if the log is still the same.
	fresh := t.AskFor(f) == ask || off(checkAsk)
	if fresh {
		moved = t.findGaps(f, log)
		if f.incarnation == "" {
			f.incarnation = log.Incarnation
		}
		f.unsure = false
	}
	if f.incarnation != log.Incarnation && !off(checkIncarnation) {
		return moved, false
	}
	span = held(span, log)
	whole := true
	for _, e := range span.Entries {
		if e.Record.Check() != nil {
			t.bad = append(t.bad, e)
			whole = false
		}
	}
	before := f.pos
	t.acceptPage(f, span, whole)
	moved = moved || f.pos != before
	for _, other := range t.catching {
		if other != f && other.incarnation == log.Incarnation &&
			!other.pos.Less(span.From) && other.pos.Less(span.To) && other.sink.Room() {
			other.unsure = false // it stands inside the log
			t.acceptPage(other, span, whole)
		}
	}
	if fresh && t.live == 0 && (t.incarnation != log.Incarnation || log.Last.Less(t.head)) {
		// Only a read for live feeds moves the head elsewhere, and there is none to read for.
		t.restart(log.Last, log.Incarnation)
		adopted = true
	}
	return moved, adopted
}

// Recent moves a feed that is catching up over the topic's recent spans, as far as they go and its sink
// takes them, and reports whether it moved.
func (t *Topic) Recent(f *Feed) (moved bool) {
	for f.state == CatchingUp && f.incarnation == t.incarnation {
		span, ok := t.recent.find(f.pos)
		if !ok {
			break
		}
		before := f.pos
		whole := t.accept(f, span)
		moved = moved || f.pos != before
		if !whole {
			break
		}
	}
	return moved
}

// TryLive makes a feed live if it has caught up, knows that its position is in the log, the topic's slot set has its slots, and its sink is at
// most half full; else it changes nothing. It reports whether the feed is live.
func (t *Topic) TryLive(f *Feed) bool {
	switch {
	case f.state != CatchingUp:
		return f.state == Live
	case f.unsure && !off(checkSure),
		f.incarnation != t.incarnation && !off(checkSameLog),
		f.pos.Less(t.head) && !off(checkHead),
		!t.covers(t.slotSet, f.slots) && !off(checkLiveCovered),
		!f.sink.Room() && !off(checkRoom):
		return false
	}
	if t.live == 0 && t.head.Less(f.pos) {
		t.restart(f.pos, t.incarnation) // no live feed depends on where the head is
	}
	t.uncatch(f)
	f.state = Live
	t.live++
	if t.head.Less(f.pos) {
		f.at = len(t.ahead)
		t.ahead = append(t.ahead, f)
	} else {
		t.insert(f)
	}
	return true
}

// TakeLeft calls do for every feed that left live since the last call and is still catching up.
func (t *Topic) TakeLeft(do func(*Feed)) {
	for i, f := range t.left {
		t.left[i] = nil
		if f.state == CatchingUp {
			do(f)
		}
	}
	t.left = t.left[:0]
}

// TakeBad calls do for every entry met since the last call whose record can't be read. To a feed it is a
// gap; an entry that is read again is told again.
func (t *Topic) TakeBad(do func(event.Entry)) {
	for _, e := range t.bad {
		do(e)
	}
	t.bad = nil
}

// acceptPage is accept for a span of which some entries can't be read, unless it is whole.
func (t *Topic) acceptPage(f *Feed, span event.Span, whole bool) {
	if whole {
		t.accept(f, span)
		return
	}
	for {
		part, broken, rest, more := cut(span)
		if !t.accept(f, part) || !more || !t.acceptBroken(f, broken, part.To, span.SlotSet) {
			return
		}
		span = rest
	}
}

// acceptBroken is accept for the stretch up to an entry that can't be read.
func (t *Topic) acceptBroken(f *Feed, e event.Entry, from event.Position, slotSet uint64) bool {
	before := f.pos
	if !t.accept(f, event.Span{From: from, To: e.Pos, SlotSet: slotSet}) {
		return false
	}
	if before.Less(e.Pos) {
		t.tellBroken(f, e, f.incarnation)
	}
	return true
}

func (t *Topic) tellBroken(f *Feed, e event.Entry, incarnation string) {
	f.gaps++
	if f.onGap != nil {
		f.onGap(Gap{Kind: Undecodable, First: e.Pos, Last: e.Pos, Incarnation: incarnation, After: e.Pos, Next: incarnation})
	}
}

// accept moves a feed with a position of its own over a span. It reports whether the feed now stands at
// the span's end or beyond.
func (t *Topic) accept(f *Feed, span event.Span) bool {
	switch {
	case !f.pos.Less(span.To) && !off(checkNothingNew):
		return true
	case f.pos.Less(span.From) && !off(checkHole):
		return false
	case !t.covers(span.SlotSet, f.slots) && !off(checkCovered):
		return false
	}
	entries, examined := span.Entries, span.Examined
	if span.From.Less(f.pos) && !off(checkAbove) {
		entries = entries[firstAbove(entries, f.pos):]
		examined = len(entries)
	}
	stop := len(entries) // index of the first entry that the sink refused
	if len(entries) == 0 {
		// A filter, or positions without entries: the feed moves all the same.
	} else if f.slots.All() {
		stop = f.offer(entries)
	} else {
		s := scratches.Get().(*scratch)
		for i, e := range entries {
			if f.owns(e) {
				s.put(f, i)
			}
		}
		if f.batch != 0 {
			s.sort(entries)
			batch := s.batch(0)
			if taken := f.offer(batch); taken < len(batch) {
				stop = firstAbove(entries, batch[taken].Pos) - 1
			}
		}
		s.free()
	}
	if stop == len(entries) || off(checkFull) {
		f.pos = span.To
		f.examined += uint64(examined)
		return true
	}
	if stop > 0 {
		f.pos = entries[stop-1].Pos
		f.examined += uint64(stop)
	}
	return false
}

// pushAhead serves the live feeds that are past the head. They follow when they leave.
func (t *Topic) pushAhead(span event.Span) {
	for _, f := range slices.Backward(t.ahead) {
		if !t.accept(f, span) {
			t.leave(f, f.pos)
		}
	}
}

// pushAll serves entries above the head to the live feeds without a filter.
func (t *Topic) pushAll(entries []event.Entry) {
	if len(entries) == 0 {
		return
	}
	for _, f := range slices.Backward(t.all) {
		if taken := f.offer(entries); taken < len(entries) && !off(checkFull) {
			t.leaveAt(f, entries, taken)
		}
	}
}

// pushGroup serves entries above the head to the owners of their slots.
func (t *Topic) pushGroup(x *slotIndex, entries []event.Entry) {
	if len(entries) == 0 {
		return
	}
	s := scratches.Get().(*scratch)
	for i := range entries {
		for o := x.owners[grouping.Slot(entries[i].Record.Hash(), x.size)]; o != nil; o = o.next {
			s.put(o.feed, i)
		}
	}
	s.sort(entries)
	for i, f := range s.touched {
		batch := s.batch(i)
		if taken := f.offer(batch); taken < len(batch) && !off(checkFull) {
			t.leaveAt(f, entries, firstAbove(entries, batch[taken].Pos)-1)
		}
	}
	s.free()
}

// leaveAt makes a feed in the index leave live before the entry at stop, in the middle of a push.
func (t *Topic) leaveAt(f *Feed, entries []event.Entry, stop int) {
	pos := t.head
	if stop > 0 {
		pos = entries[stop-1].Pos
	}
	t.leave(f, pos)
	f.examined += uint64(stop)
}

// leaveAll makes every live feed leave where it is, and returns them.
func (t *Topic) leaveAll() []*Feed {
	before := len(t.left)
	t.leaveIf(func(*Feed) bool { return true })
	return t.left[before:]
}

// leaveUncovered makes the live feeds leave whose slots the topic's slot set lacks.
func (t *Topic) leaveUncovered() {
	if !off(checkCovered) {
		t.leaveIf(func(f *Feed) bool { return !t.covers(t.slotSet, f.slots) })
	}
}

func (t *Topic) leaveIf(leaves func(*Feed) bool) {
	for _, f := range slices.Backward(t.ahead) {
		if leaves(f) {
			t.leave(f, f.pos)
		}
	}
	for _, f := range slices.Backward(t.all) {
		if leaves(f) {
			t.leave(f, t.head)
		}
	}
	for _, x := range slices.Backward(t.groups) {
		for _, o := range x.owners {
			for o != nil {
				f := o.feed
				o = o.next
				if f.state == Live && leaves(f) {
					t.leave(f, t.head)
				}
			}
		}
	}
}

// leave makes a live feed catch up from a position on.
func (t *Topic) leave(f *Feed, pos event.Position) {
	t.unlive(f, pos)
	f.state = CatchingUp
	f.at = len(t.catching)
	t.catching = append(t.catching, f)
	t.left = append(t.left, f)
}

// unlive takes a live feed out of the list that it is in.
func (t *Topic) unlive(f *Feed, pos event.Position) {
	if f.indexed {
		t.extract(f)
		f.pos, f.incarnation = pos, t.incarnation
	} else {
		swapRemove(&t.ahead, f.at)
	}
	t.live--
}

// uncatch takes a feed out of those that catch up. Without any, nobody needs the recent spans.
func (t *Topic) uncatch(f *Feed) {
	swapRemove(&t.catching, f.at)
	if len(t.catching) == 0 {
		t.recent.reset()
	}
}

// restart puts the head somewhere else. There is no live feed.
func (t *Topic) restart(head event.Position, incarnation string) {
	t.head, t.incarnation = head, incarnation
	t.recent.reset()
}

// findGaps tells the feed's gaps and moves it past them.
func (t *Topic) findGaps(f *Feed, log Bounds) (found bool) {
	for {
		gap, ok := FindGap(f.pos, f.incarnation, log)
		if !ok {
			return found
		}
		found = true
		f.pos, f.incarnation = gap.After, gap.Next
		f.gaps++
		if f.onGap != nil {
			f.onGap(gap)
		}
	}
}

// covers reports whether spans with that slot set hold every entry of the slots.
func (t *Topic) covers(number uint64, slots grouping.Set) bool {
	if number == 0 {
		return true
	}
	for _, n := range t.sets {
		if n.number != number {
			continue
		}
		for _, set := range n.sets {
			if set.Contains(slots) {
				return true
			}
		}
	}
	return false
}

// cut divides a span at its first entry that can't be read. There is more if it has one.
func cut(span event.Span) (part event.Span, broken event.Entry, rest event.Span, more bool) {
	for i, e := range span.Entries {
		if e.Record.Check() == nil {
			continue
		}
		part, rest = span, span
		part.Entries, part.Examined, part.To = span.Entries[:i:i], i, span.From
		if i > 0 {
			part.To = span.Entries[i-1].Pos
		}
		rest.Entries, rest.Examined, rest.From = span.Entries[i+1:], span.Examined-i-1, e.Pos
		return part, e, rest, true
	}
	return span, event.Entry{}, event.Span{}, false
}

// held is the part of a span read from the log that it really covers: entries at or below the last one
// removed were gone when it was read. A reader that asked from below finds its gap; but one that has
// moved on since, or shares another's page, must not pass over what it never saw.
func held(span event.Span, log Bounds) event.Span {
	if span.From.Less(log.Removed) && !off(checkHeld) {
		span.From = log.Removed
	}
	return span
}

// firstAbove returns the index of the first entry above a position.
func firstAbove(entries []event.Entry, pos event.Position) int {
	return sort.Search(len(entries), func(i int) bool { return pos.Less(entries[i].Pos) })
}
