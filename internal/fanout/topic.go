package fanout

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/feed"
	"github.com/turnlane/turnlane/store"
)

// topic is one topic that has feeds, or had some lately.
type topic struct {
	hub  *Hub
	name string

	refs    int      // feeds open or being opened; guarded by hub.mu
	watched *session // whose news tell of the topic; guarded by hub.mu

	readDue due // something to read for live feeds
	pageDue due // a page could not be read

	mu       sync.Mutex // the topic's lock
	core     *feed.Topic
	reading  reading
	again    bool // rang while a read was under way
	dirty    bool // rang while no feed was live: read once one is
	last     event.Position
	failures int
	told     map[event.Position]struct{} // bad entries that were told of
	bad      []event.Entry               // to tell, once the lock is released
}

// reading says where a topic is on its way to being read for its live feeds:
//
//	idle ──ring──▶ queued ──▶ underWay ──▶ idle, or queued again if it rang or there is more
//	                 ▲            │ failed
//	                 └──delayed◀──┘
type reading uint8

const (
	idle reading = iota
	queued
	underWay
	delayed
)

// maxTold bounds the memory of bad entries, per topic.
const maxTold = 1000

// ring says that there may be something to read.
func (t *topic) ring() {
	t.mu.Lock()
	t.ringLocked()
	t.mu.Unlock()
}

func (t *topic) ringLocked() {
	switch {
	case t.core == nil, !t.hasLive():
		// Without a core its first feed is being opened. That may have read its start before this ring.
		t.dirty = true
	case t.reading == idle:
		t.reading = queued
		t.readDue.set(time.Now())
		t.hub.reads.push(t)
	case t.reading == underWay:
		t.again = true
	}
}

func (t *topic) hasLive() bool {
	_, live := t.core.Feeds()
	return live > 0
}

// read reads what follows the head, once, and pushes it.
func (t *topic) read(ctx context.Context) {
	t.mu.Lock()
	t.again = false
	if !t.hasLive() {
		t.rest(true)
		t.mu.Unlock()
		return
	}
	t.reading = underWay
	ask := t.core.Ask()
	t.mu.Unlock()

	page, err := t.hub.cfg.Upstream.Read(ctx, t.name, ask.After,
		store.ReadLimit{Entries: t.hub.cfg.ReadEntries, Bytes: t.hub.cfg.ReadBytes})

	t.mu.Lock()
	if err != nil {
		t.failures++
		t.reading = delayed
		wait := backoff(t.failures)
		t.mu.Unlock()
		t.hub.faults.report(ctx, "read for live feeds", t.name, err)
		t.hub.delays.after(wait, func() {
			t.mu.Lock()
			t.reading = queued
			t.mu.Unlock()
			t.hub.reads.push(t)
		})
		return
	}
	t.failures = 0
	t.core.PushRead(ask, page.Span, bounds(page.Bounds))
	t.last = page.Bounds.Last
	switch more := t.again || page.To.Less(page.Bounds.Last); {
	case more && t.hasLive():
		t.reading = queued
		t.readDue.set(time.Now())
		t.hub.reads.push(t)
	default:
		t.rest(more)
	}
	t.settle()
	t.unlock()
}

// rest ends a round of reading.
func (t *topic) rest(dirty bool) {
	t.reading = idle
	t.dirty = t.dirty || dirty
	t.readDue.clear()
}

// settle passes on what a push or a page brought about: feeds that left live, and bad entries.
func (t *topic) settle() {
	t.core.TakeLeft(func(f *feed.Feed) {
		if t.hub.cfg.Hooks.CatchUp != nil {
			t.hub.cfg.Hooks.CatchUp(t.name)
		}
		f.Host().(*Feed).park()
	})
	t.core.TakeBad(func(e event.Entry) {
		if _, ok := t.told[e.Pos]; ok {
			return
		}
		if t.told == nil || len(t.told) == maxTold {
			t.told = map[event.Position]struct{}{}
		}
		t.told[e.Pos] = struct{}{}
		t.bad = append(t.bad, e)
	})
}

// unlock releases the topic's lock, and then tells of bad entries.
func (t *topic) unlock() {
	bad := t.bad
	t.bad = nil
	t.mu.Unlock()
	for _, e := range bad {
		err := e.Record.Check()
		if skipped, due := t.hub.broken.due(); due {
			t.hub.log.Error("an entry cannot be read; all readers of its topic are told of a gap",
				"topic", t.name, "position", e.Pos, "error", err, "more_entries", skipped)
		}
		if t.hub.cfg.Hooks.Bad != nil {
			t.hub.cfg.Hooks.Bad(t.name, e, err)
		}
	}
}

func bounds(b store.Bounds) feed.Bounds {
	return feed.Bounds{Incarnation: b.Incarnation, Last: b.Last, Removed: b.Removed}
}

// due is since when something waits to be done; zero when nothing does.
type due struct{ ns atomic.Int64 }

func (d *due) set(now time.Time)    { d.ns.Store(now.UnixNano()) }
func (d *due) clear()               { d.ns.Store(0) }
func (d *due) isSet() bool          { return d.ns.Load() != 0 }
func (d *due) before(ns int64) bool { at := d.ns.Load(); return at != 0 && at <= ns }
