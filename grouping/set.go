package grouping

import (
	"fmt"
	"math/bits"
	"slices"
	"strconv"
	"strings"
)

// Set is a set of slots of one group size. The zero Set stands for no filter: it has every slot of
// every size. A Set can be copied; copies never share what Add changes.
type Set struct {
	size uint32
	bits []uint64 // never written to after it is set, so copies may share it
}

// NewSet returns the set with those slots of groups of that size. It panics when size is not 1 to
// MaxSize or a slot is not below it.
func NewSet(size uint32, slots ...uint32) Set {
	if size == 0 || size > MaxSize {
		panic(fmt.Sprintf("grouping: set of size %d", size))
	}
	s := Set{size: size, bits: make([]uint64, (size+63)/64)}
	for _, slot := range slots {
		s.bits[s.word(slot)] |= 1 << (slot % 64)
	}
	return s
}

// All reports whether s is the zero Set, which has everything.
func (s Set) All() bool { return s.size == 0 }

// Size returns the group size that the slots belong to, 0 for the zero Set.
func (s Set) Size() uint32 { return s.size }

// Has reports whether the slot is in the set.
func (s Set) Has(slot uint32) bool {
	return s.size == 0 || slot < s.size && s.bits[slot/64]&(1<<(slot%64)) != 0
}

// Owns reports whether an event with that slot hash is in the set.
func (s Set) Owns(hash uint32) bool { return s.size == 0 || s.Has(hash%s.size) }

// Add puts a slot, which must be below the size, into the set. The zero Set has every slot already.
func (s *Set) Add(slot uint32) {
	if s.size == 0 {
		return
	}
	s.bits = slices.Clone(s.bits)
	s.bits[s.word(slot)] |= 1 << (slot % 64)
}

// Len returns the number of slots in the set, 0 for the zero Set, which has no size to count by.
func (s Set) Len() int {
	n := 0
	for _, w := range s.bits {
		n += bits.OnesCount64(w)
	}
	return n
}

// Slots returns the slots in rising order, nil for the zero Set.
func (s Set) Slots() []uint32 {
	var slots []uint32
	for i, w := range s.bits {
		for ; w != 0; w &= w - 1 {
			slots = append(slots, uint32(i*64+bits.TrailingZeros64(w)))
		}
	}
	return slots
}

// Contains reports whether every event in other is in s. Sets of different sizes are not compared slot
// by slot: only a set that lacks nothing contains one of another size.
func (s Set) Contains(other Set) bool {
	switch {
	case s.size == 0 || s.Len() == int(s.size):
		return true
	case s.size != other.size:
		return false
	}
	for i, w := range other.bits {
		if w&^s.bits[i] != 0 {
			return false
		}
	}
	return true
}

// Equal reports whether both sets have the same size and slots.
func (s Set) Equal(other Set) bool { return s.size == other.size && slices.Equal(s.bits, other.bits) }

// String returns "all", or the slots and the size, such as "0,3 of 4".
func (s Set) String() string {
	if s.size == 0 {
		return "all"
	}
	var b strings.Builder
	for i, slot := range s.Slots() {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.FormatUint(uint64(slot), 10))
	}
	if b.Len() == 0 {
		b.WriteString("none")
	}
	return b.String() + " of " + strconv.FormatUint(uint64(s.size), 10)
}

func (s Set) word(slot uint32) uint32 {
	if slot >= s.size {
		panic(fmt.Sprintf("grouping: slot %d in a set of size %d", slot, s.size))
	}
	return slot / 64
}
