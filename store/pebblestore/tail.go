package pebblestore

import (
	"sort"
	"sync"

	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/store"
)

// The newest entries are kept in memory, so that readers at the live tail do not touch the database.
const (
	tailEntries    = 256
	tailBytes      = 256 << 10
	maxTails       = 8 << 20 // bytes of all topics
	tailEntryExtra = 64      // what an entry costs besides its record
)

// tail is the newest entries of one topic: all of those above floor. Guarded by the topic's mutex.
type tail struct {
	floor   event.Position
	entries []event.Entry
	start   int // entries before it are dropped, and zero
	bytes   int
}

func (tl *tail) live() []event.Entry { return tl.entries[tl.start:] }

// add takes an entry, and drops the oldest above the bounds.
func (tl *tail) add(e event.Entry) {
	if len(tl.entries) == cap(tl.entries) && tl.start > 0 {
		n := copy(tl.entries, tl.entries[tl.start:])
		clear(tl.entries[n:])
		tl.entries, tl.start = tl.entries[:n], 0
	}
	tl.entries = append(tl.entries, e)
	tl.bytes += len(e.Record) + tailEntryExtra
	for len(tl.entries)-tl.start > tailEntries || tl.bytes > tailBytes {
		tl.drop()
	}
}

func (tl *tail) drop() {
	e := &tl.entries[tl.start]
	tl.floor = e.Pos
	tl.bytes -= len(e.Record) + tailEntryExtra
	*e = event.Entry{}
	tl.start++
}

// dropTo drops the entries at or below p.
func (tl *tail) dropTo(p event.Position) {
	for tl.start < len(tl.entries) && !p.Less(tl.entries[tl.start].Pos) {
		tl.drop()
	}
	if tl.floor.Less(p) {
		tl.floor = p
	}
}

// reset drops everything; floor is the position of the newest entry there is.
func (tl *tail) reset(floor event.Position) { *tl = tail{floor: floor} }

// readTail serves a read from memory; ok is false if it must go to the database.
func (t *topic) readTail(after event.Position, limit store.ReadLimit) (page store.Page, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	page.Bounds = t.v.bounds
	page.From, page.To = after, page.Bounds.Last
	if !after.Less(page.Bounds.Last) {
		page.To = after
		return page, true
	}
	if page.Bounds.First.IsZero() {
		return page, true // nothing is held
	}
	if after.Less(t.tail.floor) {
		return page, false
	}
	live := t.tail.live()
	if n := len(live); n > 0 && after.Less(live[0].Pos) {
		// The usual case: all of it is new to the reader.
	} else {
		i := sort.Search(n, func(i int) bool { return after.Less(live[i].Pos) })
		live = live[i:]
	}
	n, bytes := 0, 0
	for n < len(live) && n < limit.Entries {
		if bytes += len(live[n].Record); n > 0 && bytes > limit.Bytes {
			break
		}
		n++
	}
	page.Entries = append(make([]event.Entry, 0, n), live[:n]...)
	page.Examined = n
	if n < len(live) {
		page.To = live[n-1].Pos
	}
	return page, true
}

// tailBudget bounds the memory of all tails: the topic that was appended to longest ago gives way.
type tailBudget struct {
	mu     sync.Mutex
	bytes  int
	newest *topic
	oldest *topic
}

// grew notes that the tail of a topic changed by delta bytes with an append, and makes room.
func (b *tailBudget) grew(t *topic, delta int) {
	b.mu.Lock()
	b.bytes += delta
	b.unlink(t)
	b.link(t)
	var victim *topic
	if b.bytes > maxTails && b.oldest != t {
		victim = b.oldest
		b.unlink(victim)
	}
	b.mu.Unlock()
	if victim != nil {
		b.forget(victim)
	}
}

// shrank notes that a tail lost bytes.
func (b *tailBudget) shrank(bytes int) {
	if bytes != 0 {
		b.mu.Lock()
		b.bytes -= bytes
		b.mu.Unlock()
	}
}

// forget drops the tail of a topic.
func (b *tailBudget) forget(t *topic) {
	t.mu.Lock()
	freed := t.tail.bytes
	t.tail.reset(t.v.bounds.Last)
	t.mu.Unlock()
	b.mu.Lock()
	b.bytes -= freed
	b.unlink(t)
	b.mu.Unlock()
}

func (b *tailBudget) link(t *topic) {
	t.listed, t.older, t.newer = true, b.newest, nil
	if b.newest != nil {
		b.newest.newer = t
	} else {
		b.oldest = t
	}
	b.newest = t
}

func (b *tailBudget) unlink(t *topic) {
	if !t.listed {
		return
	}
	if t.older != nil {
		t.older.newer = t.newer
	} else {
		b.oldest = t.newer
	}
	if t.newer != nil {
		t.newer.older = t.older
	} else {
		b.newest = t.older
	}
	t.listed, t.older, t.newer = false, nil, nil
}
