package cursors

// Dirty is a set of cursors to be stored, in the order in which they became dirty. K is whatever names
// a cursor. The zero Dirty is empty.
type Dirty[K comparable] struct {
	members map[K]struct{}
	order   []K
	spare   []K
}

// Mark puts a cursor into the set. It reports whether it was not there.
func (d *Dirty[K]) Mark(k K) bool {
	if _, ok := d.members[k]; ok {
		return false
	}
	if d.members == nil {
		d.members = make(map[K]struct{})
	}
	d.members[k] = struct{}{}
	d.order = append(d.order, k)
	return true
}

// Take empties the set and returns what was in it. The slice is the caller's until it is given to Put,
// and what becomes dirty meanwhile is in the set again.
func (d *Dirty[K]) Take() []K {
	took := d.order
	d.order, d.spare = d.spare[:0], nil
	clear(d.members)
	return took
}

// Put ends what Take began: the cursors that could not be stored are dirty again, before all others,
// and the memory of took is used again.
func (d *Dirty[K]) Put(took []K, failed func(K) bool) {
	if failed != nil {
		var back []K
		for _, k := range took {
			if !failed(k) {
				continue
			}
			if _, ok := d.members[k]; !ok {
				if d.members == nil {
					d.members = make(map[K]struct{})
				}
				d.members[k] = struct{}{}
				back = append(back, k)
			}
		}
		if len(back) > 0 {
			d.order = append(back, d.order...)
		}
	}
	clear(took)
	d.spare = took[:0]
}

// Drop takes a cursor out of the set.
func (d *Dirty[K]) Drop(k K) {
	if _, ok := d.members[k]; !ok {
		return
	}
	delete(d.members, k)
	for i, other := range d.order {
		if other == k {
			d.order = append(d.order[:i], d.order[i+1:]...)
			return
		}
	}
}

// Len returns the size of the set.
func (d *Dirty[K]) Len() int { return len(d.order) }
