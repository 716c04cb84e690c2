package feed

import (
	"sort"
	"sync/atomic"

	"github.com/turnlane/turnlane/event"
)

// Limits of one topic's recent spans: about what is published while a feed reads one page.
const (
	ringEntries = 1024
	ringBytes   = 1 << 20
)

// Budget bounds the bytes that the recent spans of many topics pin together. It is safe for concurrent
// use. Topics share it because only those keep spans that have a feed catching up.
type Budget struct {
	limit int64
	used  atomic.Int64
}

// NewBudget returns a budget of that many bytes.
func NewBudget(bytes int64) *Budget { return &Budget{limit: bytes} }

// Used returns the bytes taken now.
func (b *Budget) Used() int64 { return b.used.Load() }

func (b *Budget) take(n int) bool {
	if b.used.Add(int64(n)) > b.limit {
		b.used.Add(int64(-n))
		return false
	}
	return true
}

func (b *Budget) give(n int) { b.used.Add(int64(-n)) }

// ring is the newest spans pushed, adjoining, the last one ending at the topic's head.
type ring struct {
	spans   []event.Span
	entries int
	bytes   int
	budget  *Budget
}

// add appends a span, which begins where the last one ended, and forgets the oldest beyond the limits.
func (r *ring) add(span event.Span) {
	size := spanBytes(span)
	for len(r.spans) > 0 && (r.entries+len(span.Entries) > ringEntries || r.bytes+size > ringBytes) {
		r.forget()
	}
	if size > 2*ringBytes || !r.budget.take(size) {
		r.reset()
		return
	}
	r.spans = append(r.spans, span)
	r.entries += len(span.Entries)
	r.bytes += size
}

// find returns the span that a reader at after can accept.
func (r *ring) find(after event.Position) (event.Span, bool) {
	i := sort.Search(len(r.spans), func(i int) bool { return after.Less(r.spans[i].To) })
	if i == len(r.spans) || after.Less(r.spans[i].From) {
		return event.Span{}, false
	}
	return r.spans[i], true
}

func (r *ring) forget() {
	span := r.spans[0]
	r.spans[0] = event.Span{}
	r.spans = r.spans[1:]
	size := spanBytes(span)
	r.entries -= len(span.Entries)
	r.bytes -= size
	r.budget.give(size)
}

func (r *ring) reset() {
	if r.spans == nil {
		return
	}
	r.budget.give(r.bytes)
	r.spans, r.entries, r.bytes = nil, 0, 0
}

// spanBytes is what a span pins: its records and its own tables.
func spanBytes(span event.Span) int {
	n := 80 + 40*len(span.Entries)
	for _, e := range span.Entries {
		n += len(e.Record)
	}
	return n
}
