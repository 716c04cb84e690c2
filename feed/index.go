package feed

import (
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

// scratch sorts the entries of one push by owner, keeping their order. It is reused between pushes, so
// that a push allocates nothing.
type scratch struct {
	touched []*Feed
	batches [][]event.Entry // of touched, then spare ones
}

var scratches = sync.Pool{New: func() any { return new(scratch) }}

// put adds an entry to the batch of a feed.
func (s *scratch) put(f *Feed, e event.Entry) {
	if f.batch == 0 {
		s.touched = append(s.touched, f)
		if len(s.touched) > len(s.batches) {
			s.batches = append(s.batches, nil)
		}
		f.batch = int32(len(s.touched))
	}
	b := &s.batches[f.batch-1]
	*b = append(*b, e)
}

// free forgets all entries, so that no read buffer is pinned, and gives the scratch back.
func (s *scratch) free() {
	for i, f := range s.touched {
		f.batch = 0
		clear(s.batches[i])
		s.batches[i] = s.batches[i][:0]
	}
	clear(s.touched)
	s.touched = s.touched[:0]
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
