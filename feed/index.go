package feed

import (
	"slices"
	"sync"

	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/grouping"
)

// slotIndex finds the live feeds that own a slot, for one group size, so that an event costs its
// owners and not the members of its group.
type slotIndex struct {
	size   uint32
	feeds  int
	owners []*owner // by slot
}

// owner is one feed in the list of one slot.
type owner struct {
	feed *Feed
	next *owner
}

func (x *slotIndex) add(f *Feed) {
	for _, slot := range f.slots.Slots() {
		x.owners[slot] = &owner{f, x.owners[slot]}
	}
	x.feeds++
}

func (x *slotIndex) remove(f *Feed) {
	for _, slot := range f.slots.Slots() {
		for o := &x.owners[slot]; *o != nil; o = &(*o).next {
			if (*o).feed == f {
				*o = (*o).next
				break
			}
		}
	}
	x.feeds--
}

// scratch sorts the entries of one push by owner, keeping their order: put them all, then sort. It is
// reused between pushes, so that a push allocates nothing.
type scratch struct {
	touched []*Feed
	ends    []int32       // by touched feed: how many entries, then where they end in sorted
	pairs   []pair        // in the order put
	sorted  []event.Entry // by touched feed
}

type pair struct {
	feed  int32 // in touched
	entry int32 // in the span
}

var scratches = sync.Pool{New: func() any { return new(scratch) }}

// put says that a feed owns the entry at index i.
func (s *scratch) put(f *Feed, i int) {
	if f.batch == 0 {
		s.touched = append(s.touched, f)
		s.ends = append(s.ends, 0)
		f.batch = int32(len(s.touched))
	}
	n := f.batch - 1
	s.ends[n]++
	s.pairs = append(s.pairs, pair{n, int32(i)})
}

// sort makes batch work, for the entries whose indexes were put.
func (s *scratch) sort(entries []event.Entry) {
	begin := int32(0)
	for i, n := range s.ends {
		s.ends[i] = begin
		begin += n
	}
	s.sorted = slices.Grow(s.sorted[:0], len(s.pairs))[:len(s.pairs)]
	for _, p := range s.pairs {
		s.sorted[s.ends[p.feed]] = entries[p.entry]
		s.ends[p.feed]++
	}
}

// batch returns the entries of the feed touched as the i-th.
func (s *scratch) batch(i int) []event.Entry {
	begin := int32(0)
	if i > 0 {
		begin = s.ends[i-1]
	}
	return s.sorted[begin:s.ends[i]]
}

// free forgets all entries, so that no read buffer is pinned, and gives the scratch back.
func (s *scratch) free() {
	for _, f := range s.touched {
		f.batch = 0
	}
	clear(s.touched)
	clear(s.sorted)
	s.touched, s.ends, s.pairs, s.sorted = s.touched[:0], s.ends[:0], s.pairs[:0], s.sorted[:0]
	scratches.Put(s)
}

// indexFor returns the index of a group size, made at its first use.
func (t *Topic) indexFor(slots grouping.Set) *slotIndex {
	for _, x := range t.groups {
		if x.size == slots.Size() {
			return x
		}
	}
	x := &slotIndex{size: slots.Size(), owners: make([]*owner, slots.Size())}
	t.groups = append(t.groups, x)
	return x
}

// insert puts a feed that stands at the head into the index.
func (t *Topic) insert(f *Feed) {
	if f.slots.All() {
		f.at = len(t.all)
		t.all = append(t.all, f)
	} else {
		t.indexFor(f.slots).add(f)
	}
	f.indexed = true
	f.joined = t.examined
}

// extract takes a feed out of the index. Its position is the caller's to set.
func (t *Topic) extract(f *Feed) {
	if f.slots.All() {
		swapRemove(&t.all, f.at)
	} else {
		x := t.indexFor(f.slots)
		x.remove(f)
		if x.feeds == 0 {
			for i := range t.groups {
				if t.groups[i] == x {
					t.groups = append(t.groups[:i], t.groups[i+1:]...)
					break
				}
			}
		}
	}
	f.indexed = false
	f.examined += t.examined - f.joined
}

// swapRemove takes the feed at i out of a list, and puts the last one in its place.
func swapRemove(list *[]*Feed, i int) {
	l := *list
	last := len(l) - 1
	l[i] = l[last]
	l[i].at = i
	l[last] = nil
	*list = l[:last]
}
