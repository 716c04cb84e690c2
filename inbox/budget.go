package inbox

import "sync/atomic"

// DefaultBudget is what all lanes of a process may hold together, in bytes.
const DefaultBudget = 256 << 20

// Budget is how many bytes the lanes of a process may hold together. It is safe for concurrent use.
// It bounds softly: lanes that look at the same time may pass it by one event each, and an empty lane
// takes one event in any case.
type Budget struct {
	max  int64
	used atomic.Int64
}

// NewBudget returns a budget of maxBytes, DefaultBudget if that is not positive.
func NewBudget(maxBytes int64) *Budget {
	if maxBytes <= 0 {
		maxBytes = DefaultBudget
	}
	return &Budget{max: maxBytes}
}

// Used returns the bytes held now.
func (b *Budget) Used() int64 { return b.used.Load() }

// Max returns the bytes that may be held.
func (b *Budget) Max() int64 { return b.max }

func (b *Budget) full(more int) bool { return b != nil && b.used.Load()+int64(more) > b.max }

func (b *Budget) add(n int) {
	if b != nil && n != 0 {
		b.used.Add(int64(n))
	}
}
