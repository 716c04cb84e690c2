package gateway

import (
	"sync"

	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/feed"
)

// What one message to a subscriber carries at most; one event always fits.
const (
	sendEvents = 256
	sendBytes  = 256 << 10
)

// buffer holds what waits for one subscriber: entries, and the gaps between them. It is bounded in both
// events and bytes; one event is let in whatever its size if the buffer is empty, or if Room promised so.
// It is a feed.Sink.
//
// Entries are not copied out of the buffers that they were read into: a subscriber gets all entries of
// a stretch, so what it pins is what it waits for.
type buffer struct {
	maxEvents, maxBytes int

	wake chan struct{} // capacity 1: there may be something to take

	mu       sync.Mutex
	entries  []event.Entry
	bytes    int
	promised bool   // Room was true, and nothing was let in since
	offered  uint64 // entries let in so far
	gaps     []gapAt
}

// gapAt is a gap that comes after so many entries.
type gapAt struct {
	after uint64
	gap   feed.Gap
}

var _ feed.Sink = (*buffer)(nil)

func newBuffer(maxEvents, maxBytes int) *buffer {
	return &buffer{maxEvents: maxEvents, maxBytes: maxBytes, wake: make(chan struct{}, 1)}
}

// Offer is part of feed.Sink.
func (b *buffer) Offer(entries []event.Entry) int {
	b.mu.Lock()
	taken := 0
	for _, e := range entries {
		size := len(e.Record)
		full := len(b.entries)+taken >= b.maxEvents || b.bytes+size > b.maxBytes
		if full && !b.promised && len(b.entries)+taken > 0 {
			break
		}
		b.promised = false
		b.bytes += size
		taken++
	}
	b.entries = append(b.entries, entries[:taken]...)
	b.offered += uint64(taken)
	b.mu.Unlock()
	if taken > 0 {
		b.ring()
	}
	return taken
}

// Room is part of feed.Sink.
func (b *buffer) Room() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.promised = b.roomLocked()
	return b.promised
}

func (b *buffer) roomLocked() bool {
	return len(b.entries) <= b.maxEvents/2 && b.bytes <= b.maxBytes/2
}

// onGap puts a gap behind what was offered before it.
func (b *buffer) onGap(g feed.Gap) {
	b.mu.Lock()
	b.gaps = append(b.gaps, gapAt{b.offered, g})
	b.mu.Unlock()
	b.ring()
}

func (b *buffer) ring() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// taken is what a subscriber takes at once: a gap, or entries.
type taken struct {
	entries []event.Entry
	gap     *feed.Gap
	drained bool // the buffer turned from more than half full to less
}

// take returns what comes next; neither entries nor a gap if there is nothing. The entries are appended
// to dst.
func (b *buffer) take(dst []event.Entry) taken {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := len(b.entries)
	if len(b.gaps) > 0 {
		ahead := int(b.gaps[0].after - (b.offered - uint64(len(b.entries))))
		if ahead == 0 {
			g := b.gaps[0].gap
			b.gaps = append(b.gaps[:0], b.gaps[1:]...)
			return taken{gap: &g}
		}
		n = min(n, ahead)
	}
	n = min(n, sendEvents)
	had, bytes := b.roomLocked(), 0
	for i, e := range b.entries[:n] {
		if bytes += len(e.Record); bytes > sendBytes && i > 0 {
			n = i
			bytes -= len(e.Record)
			break
		}
	}
	dst = append(dst, b.entries[:n]...)
	rest := copy(b.entries, b.entries[n:])
	clear(b.entries[rest:])
	b.entries = b.entries[:rest]
	b.bytes -= bytes
	return taken{entries: dst, drained: !had && b.roomLocked()}
}

// empty reports whether there is nothing to take.
func (b *buffer) empty() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.entries) == 0 && len(b.gaps) == 0
}

// waiting returns how many events are in the buffer.
func (b *buffer) waiting() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.entries)
}
