package pebblestore

import (
	"math"

	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/store"
)

// A topic's log is cut into blocks of at most this many entries and bytes, or one larger entry. A block has a small record of its own, so that a trim counts what it removes, and a search by time
// finds its place, without reading the log.
const (
	blockEntries = 512
	blockBytes   = 64 << 10
)

// noTime is below every stored time.
const noTime = math.MinInt64

// meta is what is stored of a topic, in the same batch as every change of it.
type meta struct {
	exists      bool
	id          uint64 // of this incarnation
	incarnation string
	last        event.Position // also of a deleted topic, so that the next incarnation starts above
	first       event.Position // zero if no entry is held
	removed     event.Position
	entries     uint64
	bytes       uint64
	newest      int64 // the largest stored time of any entry so far, also of removed ones
	open        block // the entries after the last closed block
}

// block is the sum of a run of entries.
type block struct {
	first   event.Position // its first entry, or a place before it after a removal
	entries uint64
	bytes   uint64
	newest  int64 // the largest stored time in it; an upper bound after a trim or a removal took something of it
	prefix  int64 // the largest stored time up to and including it; written when it is closed
}

func (m *meta) bounds() store.Bounds {
	return store.Bounds{
		Incarnation: m.incarnation,
		First:       m.first,
		Last:        m.last,
		Removed:     m.removed,
		Entries:     m.entries,
		Bytes:       m.bytes,
	}
}

func (m *meta) encode() []byte {
	w := newWriter(160)
	w.flag(m.exists)
	w.uint(m.id)
	w.text(m.incarnation)
	w.position(m.last)
	w.position(m.first)
	w.position(m.removed)
	w.uint(m.entries)
	w.uint(m.bytes)
	w.int(m.newest)
	m.open.put(w)
	return w.seal()
}

func decodeMeta(value []byte) (meta, error) {
	r := open(value)
	m := meta{
		exists:      r.flag(),
		id:          r.uint(),
		incarnation: r.text(),
		last:        r.position(),
		first:       r.position(),
		removed:     r.position(),
		entries:     r.uint(),
		bytes:       r.uint(),
		newest:      r.int(),
		open:        getBlock(r),
	}
	return m, r.done()
}

func (b *block) put(w *writer) {
	w.position(b.first)
	w.uint(b.entries)
	w.uint(b.bytes)
	w.int(b.newest)
	w.int(b.prefix)
}

func getBlock(r *reader) block {
	return block{first: r.position(), entries: r.uint(), bytes: r.uint(), newest: r.int(), prefix: r.int()}
}

func (b *block) encode() []byte {
	w := newWriter(48)
	b.put(w)
	return w.seal()
}

func decodeBlock(value []byte) (block, error) {
	r := open(value)
	b := getBlock(r)
	return b, r.done()
}

// add counts an entry into the open block.
func (b *block) add(p event.Position, bytes int, storedAt int64) {
	if b.entries == 0 {
		b.first, b.newest = p, storedAt
	}
	b.entries++
	b.bytes += uint64(bytes)
	b.newest = max(b.newest, storedAt)
}
