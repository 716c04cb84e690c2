package pebblestore

import (
	"math/bits"
	"unsafe"
)

// arena hands out memory outside of Go's heap, in pieces of a power of two from 1 to 64 KiB, or larger
// ones. Pieces of one size share slabs; a slab without pieces in use goes back to the operating system,
// but for one of each size. It is not safe for concurrent use.
type arena struct {
	classes [classes]class
	spare   [][]byte // slabs without a class
	used    int      // bytes of pieces handed out
}

const (
	smallPiece = 10 // as a power of two
	largePiece = 16
	classes    = largePiece - smallPiece + 1
	slabBytes  = 1 << 20
	maxSpare   = 4
)

// class is the slabs of one size. Those with a free piece come first in free.
type class struct {
	free  []*slab
	slabs map[uintptr]*slab // by the address of their memory
}

// slab is cut into pieces of one size. It lies at a multiple of its size, so that a piece tells it.
type slab struct {
	memory []byte // of slabBytes, aligned
	mapped []byte // what it was cut from
	free   []int  // offsets
	inUse  int
	listed bool // in class.free
}

func classOf(size int) int {
	return max(smallPiece, bits.Len(uint(size-1))) - smallPiece
}

// get returns a piece of at least size bytes. What is in it is undefined.
func (a *arena) get(size int) ([]byte, error) {
	n := classOf(size)
	if n >= classes {
		const page = 4 << 10
		p, err := newChunk((size + page - 1) &^ (page - 1))
		a.used += len(p)
		return p, err
	}
	c := &a.classes[n]
	piece := 1 << (n + smallPiece)
	if len(c.free) == 0 {
		s, err := a.newSlab(piece)
		if err != nil {
			return nil, err
		}
		if c.slabs == nil {
			c.slabs = map[uintptr]*slab{}
		}
		c.slabs[address(s.memory)] = s
		c.list(s)
	}
	s := c.free[len(c.free)-1]
	at := s.free[len(s.free)-1]
	s.free = s.free[:len(s.free)-1]
	s.inUse++
	if len(s.free) == 0 {
		c.free = c.free[:len(c.free)-1]
		s.listed = false
	}
	a.used += piece
	return s.memory[at : at+piece : at+piece], nil
}

// put takes a piece back.
func (a *arena) put(p []byte) {
	if p == nil {
		return
	}
	a.used -= len(p)
	n := classOf(len(p))
	if n >= classes {
		freeChunk(p)
		return
	}
	c := &a.classes[n]
	at := address(p)
	s := c.slabs[at&^(slabBytes-1)]
	s.free = append(s.free, int(at&(slabBytes-1)))
	s.inUse--
	if s.inUse == 0 && len(c.slabs) > 1 {
		c.remove(s)
		a.giveBack(s)
		return
	}
	if !s.listed {
		c.list(s)
	}
}

func (c *class) list(s *slab) {
	s.listed = true
	c.free = append(c.free, s)
}

func (c *class) remove(s *slab) {
	delete(c.slabs, address(s.memory))
	if !s.listed {
		return
	}
	for i, other := range c.free {
		if other == s {
			c.free = append(c.free[:i], c.free[i+1:]...)
			break
		}
	}
	s.listed = false
}

// newSlab maps twice the size, of which the aligned part is used: untouched memory costs nothing.
func (a *arena) newSlab(piece int) (*slab, error) {
	var mapped []byte
	if n := len(a.spare); n > 0 {
		mapped = a.spare[n-1]
		a.spare = a.spare[:n-1]
	} else {
		var err error
		if mapped, err = newChunk(2 * slabBytes); err != nil {
			return nil, err
		}
	}
	skip := -address(mapped) & (slabBytes - 1)
	s := &slab{mapped: mapped, memory: mapped[skip : skip+slabBytes]}
	for at := slabBytes - piece; at >= 0; at -= piece {
		s.free = append(s.free, at)
	}
	return s, nil
}

func (a *arena) giveBack(s *slab) {
	if len(a.spare) < maxSpare {
		a.spare = append(a.spare, s.mapped)
	} else {
		freeChunk(s.mapped)
	}
}

func (a *arena) release() {
	for i := range a.classes {
		for _, s := range a.classes[i].slabs {
			freeChunk(s.mapped)
		}
		a.classes[i] = class{}
	}
	for _, m := range a.spare {
		freeChunk(m)
	}
	a.spare = nil
}

func address(p []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(p))) }
