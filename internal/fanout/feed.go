package fanout

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/feed"
	"github.com/turnlane/turnlane/grouping"
	"github.com/turnlane/turnlane/store"
)

// Start says where a feed begins.
type Start struct {
	kind        startKind
	after       event.Position
	incarnation string
}

type startKind uint8

const (
	atTail startKind = iota
	atEarliest
	atPosition
)

// Tail begins after the log's last position at the call of Open.
func Tail() Start { return Start{} }

// Earliest begins with the oldest entry that the log holds at the call of Open.
func Earliest() Start { return Start{kind: atEarliest} }

// After begins after a position in an incarnation; another one is a gap. An empty incarnation takes the
// one that the topic has at the call of Open.
func After(pos event.Position, incarnation string) Start {
	return Start{atPosition, pos, incarnation}
}

// Options are for one feed. Sink is required.
type Options struct {
	Start Start
	// Slots are the slots whose events the feed owns; the zero Set owns all.
	Slots grouping.Set
	Sink  feed.Sink
	// OnGap is told of every gap, in order with what the sink is offered, under the topic's lock.
	OnGap func(feed.Gap)
}

// State is a feed's state as users see it.
type State string

// The states of a feed.
const (
	Live       State = "live"        // pushed to
	CatchingUp State = "catching_up" // reading the log
	Stalled    State = "stalled"     // behind, and waiting for its sink to drain
	Closed     State = "closed"
)

// Status is a feed's state and accounts at one moment.
type Status struct {
	State State
	// StalledSince is when a stalled feed began to wait; zero in other states.
	StalledSince time.Time
	// Position is the newest position examined, in Incarnation.
	Position    event.Position
	Incarnation string
	// Head is the newest position that the hub has seen of the topic. While every feed of a topic is
	// stalled nobody looks: ask the store where the log ends.
	Head                            event.Position
	Examined, Owned, Filtered, Gaps uint64
}

// Feed is an open feed. Its methods are safe for concurrent use.
type Feed struct {
	topic *topic
	core  feed.Feed // guarded by topic.mu
	sink  feed.Sink

	phase    atomic.Uint32 // see below
	since    int64         // Unix nanoseconds of the last change to waiting; guarded by topic.mu
	failures int           // of its pages, in a row; guarded by topic.mu
}

// The phases of an open feed. All changes are made under the topic's lock, but for those to ready that
// Drained and the end of a pause make, without any, by compare-and-swap.
//
//	ready ──▶ paging ──▶ live ──left live──▶ waiting ──Drained──▶ ready
//	             ├──page accepted──▶ ready, at the back of the queue
//	             ├──sink full──────▶ waiting
//	             └──read failed────▶ pausing ──▶ ready
const (
	ready   uint32 = iota // in the queue of pages
	paging                // a goroutine has it
	live                  // nothing to do
	waiting               // for its sink to drain
	pausing               // for some time to pass
	closed
)

// Open opens a feed. Its start is fixed before Open returns: whatever is appended from then on is
// offered to the sink, perhaps already before Open returns. Open blocks until the topic's news are
// watched and its start is read; when they can't be, it fails with an error that wraps
// store.ErrUnavailable, and it never begins anywhere else than asked. A topic need not exist.
//
// The hub must be running. The context is for the call only.
func (h *Hub) Open(ctx context.Context, name string, opts Options) (*Feed, error) {
	if opts.Sink == nil {
		return nil, errors.New("fanout: options without a sink")
	}
	doing := "open a feed of topic " + name
	t, err := h.acquire(name)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", doing, err)
	}
	// The watch comes first: what is appended before the start is read lies before it or is told of.
	if err := h.watch(ctx, t); err != nil {
		h.release(t)
		return nil, unavailable(doing, err)
	}
	t.mu.Lock()
	known := t.core != nil
	t.mu.Unlock()
	var log store.Bounds
	if !known || opts.Start.kind != atPosition || opts.Start.incarnation == "" {
		if log, err = h.cfg.Upstream.Bounds(ctx, name); err != nil {
			h.release(t)
			return nil, unavailable(doing, err)
		}
	}

	f := &Feed{topic: t, sink: opts.Sink}
	c := feed.Config{Incarnation: log.Incarnation, Slots: opts.Slots, Sink: opts.Sink, Host: f, OnGap: opts.OnGap}
	switch opts.Start.kind {
	case atTail:
		c.After, c.InLog = log.Last, true
	case atEarliest:
		c.After, c.InLog = log.Removed, true
	case atPosition:
		c.After = opts.Start.after
		if opts.Start.incarnation != "" {
			c.Incarnation = opts.Start.incarnation
		}
	}
	if hook := h.cfg.Hooks.Gap; hook != nil {
		c.OnGap = func(g feed.Gap) {
			hook(name, g)
			if opts.OnGap != nil {
				opts.OnGap(g)
			}
		}
	}
	t.mu.Lock()
	if t.core == nil {
		t.core = feed.NewTopic(log.Last, log.Incarnation, h.recent)
	}
	if t.last.Less(log.Last) {
		t.last = log.Last
	}
	t.core.AddTo(&f.core, c)
	f.phase.Store(paging)
	if f.advance() {
		f.queue()
	}
	t.mu.Unlock()
	return f, nil
}

// Topic returns the name of the feed's topic.
func (f *Feed) Topic() string { return f.topic.name }

// Drained tells that the sink has become at most half full. Its owner calls it, without holding the
// sink's lock, whenever Room turns true; one call too many costs an atomic load. A sink that may drain
// before Open has returned calls it once more then.
func (f *Feed) Drained() {
	if f.phase.Load() == waiting && f.phase.CompareAndSwap(waiting, ready) {
		f.topic.hub.pages.push(f)
	}
}

// Close ends the feed. After it returns no call into the sink or OnGap is under way, and none follows.
// It may be called more than once, but not from a sink.
func (f *Feed) Close() {
	t := f.topic
	t.mu.Lock()
	was := f.phase.Swap(closed)
	t.core.Remove(&f.core)
	t.mu.Unlock()
	if was != closed {
		t.hub.release(t)
	}
}

// Position returns the newest position that the feed has examined. Use Observe to relate it to what
// the sink holds.
func (f *Feed) Position() event.Position {
	f.topic.mu.Lock()
	defer f.topic.mu.Unlock()
	pos, _ := f.topic.core.Position(&f.core)
	return pos
}

// Observe calls do with the feed's position and its log's incarnation, under the topic's lock: the sink
// was offered every owned entry up to the position, and took all of them, and none beyond. do may take
// the sink's lock; it must not block, nor call the feed. It also works on a closed feed, which stays
// where it was.
func (f *Feed) Observe(do func(pos event.Position, incarnation string)) {
	f.topic.mu.Lock()
	defer f.topic.mu.Unlock()
	do(f.topic.core.Position(&f.core))
}

// Status returns the feed's state and accounts.
func (f *Feed) Status() Status {
	t := f.topic
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.core.Counters(&f.core)
	s := Status{Head: t.core.Head(), Examined: c.Examined, Owned: c.Owned, Filtered: c.Filtered, Gaps: c.Gaps}
	s.Position, s.Incarnation = t.core.Position(&f.core)
	for _, seen := range []event.Position{t.last, s.Position} {
		if s.Head.Less(seen) {
			s.Head = seen
		}
	}
	switch f.phase.Load() {
	case live:
		s.State = Live
	case waiting:
		s.State, s.StalledSince = Stalled, time.Unix(0, f.since)
	case closed:
		s.State = Closed
	default:
		s.State = CatchingUp
	}
	return s
}

// step takes a feed from the queue one page further.
func (f *Feed) step(ctx context.Context) {
	t := f.topic
	t.mu.Lock()
	if !f.phase.CompareAndSwap(ready, paging) || !f.advance() {
		t.unlock()
		return
	}
	ask := t.core.AskFor(&f.core)
	t.mu.Unlock()

	limit := store.ReadLimit{Entries: t.hub.cfg.PageEntries, Bytes: t.hub.cfg.PageBytes}
	if !f.core.Slots().All() {
		// Its sink takes a part only, and others of its group may take the rest.
		limit = store.ReadLimit{Entries: t.hub.cfg.ReadEntries, Bytes: t.hub.cfg.ReadBytes}
	}
	page, err := t.hub.cfg.Upstream.Read(ctx, t.name, ask.After, limit)

	t.mu.Lock()
	if f.phase.Load() == closed {
		t.mu.Unlock()
		return
	}
	if err != nil {
		if !t.pageDue.isSet() {
			t.pageDue.set(time.Now())
		}
		f.pause()
		t.mu.Unlock()
		t.hub.faults.report(ctx, "read a page", t.name, err)
		return
	}
	t.pageDue.clear()
	moved, adopted := t.core.Page(&f.core, ask, page.Span, bounds(page.Bounds))
	moved = moved || t.core.AskFor(&f.core) != ask // by another feed's page
	t.dirty = t.dirty || adopted
	t.last = page.Bounds.Last
	if moved {
		f.failures = 0
	}
	if f.advance() {
		if moved {
			f.queue()
		} else {
			// The page ends where the feed stands, and yet it can't go live: the topic's head is beyond
			// the log's end, or in another log. A read for the live feeds will find out.
			t.ringLocked()
			f.pause()
		}
	}
	t.settle()
	t.unlock()
}

// advance does what can be done for a feed in phase paging without reading the log. It reports whether
// a page is needed; if not, the feed is live or waiting. The topic's lock is held.
func (f *Feed) advance() bool {
	t := f.topic
	for {
		switch {
		case t.core.TryLive(&f.core):
			f.phase.Store(live)
			f.failures = 0
			if t.dirty {
				t.dirty = false
				t.ringLocked()
			}
			return false
		case !f.sink.Room():
			f.park()
			return false
		case !t.core.Recent(&f.core):
			return true
		}
	}
}

// park makes the feed wait for its sink to drain. The topic's lock is held.
func (f *Feed) park() {
	f.since = time.Now().UnixNano()
	f.phase.Store(waiting)
	// The sink may have drained after it was full and before this feed was waiting, and its owner's
	// Drained then found nothing to do. It drained under its own lock, which Room takes too: either
	// Room sees that, or the owner's call comes after the store above and sees it.
	if f.sink.Room() {
		f.Drained()
	}
}

// queue puts a feed in phase paging at the back of the queue.
func (f *Feed) queue() {
	f.phase.Store(ready)
	f.topic.hub.pages.push(f)
}

// pause queues the feed after a while. The topic's lock is held.
func (f *Feed) pause() {
	f.failures++
	f.phase.Store(pausing)
	f.topic.hub.delays.after(backoff(f.failures), func() {
		if f.phase.CompareAndSwap(pausing, ready) {
			f.topic.hub.pages.push(f)
		}
	})
}
