// Package grouping is the slot rule: which member of a slot group owns an event.
//
// A slot is a pure function of the bytes of an event's routing key and the size of the group, the same
// on every machine and after every restart. So members need no coordinator, no claim and no lock.
// The rule is pinned by testdata/slot_vectors.json and can never change.
//
// It is pure: no goroutine, no clock, no input or output.
package grouping

// Parameters of FNV-1a for 32 bits (Fowler, Noll, Vo; http://www.isthe.com/chongo/tech/comp/fnv/).
const (
	fnvOffset = 2166136261
	fnvPrime  = 16777619
)

// Hash returns the slot hash of a routing key: FNV-1a over its bytes as they are, finished by fmix32.
// Nothing is trimmed, folded or normalised. FNV-1a alone leaves the low bits of short keys correlated,
// and the slot is taken from the low bits; the finalizer spreads them.
func Hash(key string) uint32 {
	h := uint32(fnvOffset)
	for i := range len(key) {
		h = (h ^ uint32(key[i])) * fnvPrime
	}
	return fmix32(h)
}

// Slot returns the slot of a hash in a group of that size, which must be at least 1.
func Slot(hash, size uint32) uint32 { return hash % size }

// fmix32 is the finalizer of MurmurHash3 for 32 bits (Austin Appleby, public domain).
func fmix32(h uint32) uint32 {
	h ^= h >> 16
	h *= 0x85ebca6b
	h ^= h >> 13
	h *= 0xc2b2ae35
	h ^= h >> 16
	return h
}
