package pebblestore

import (
	"context"
	"fmt"
	"slices"

	"github.com/turnlane/turnlane/event"
)

// maxRemove entries are removed in one step, so that a long list holds nobody up.
const maxRemove = 1000

// Remove removes single entries of a topic, wherever they are.
func (s *Store) Remove(ctx context.Context, topic string, positions ...event.Position) (removed int, err error) {
	sorted := slices.Clone(positions)
	slices.SortFunc(sorted, event.Position.Compare)
	for part := range slices.Chunk(slices.Compact(sorted), maxRemove) {
		op := &removeOp{name: topic, positions: part}
		if err := s.submit(ctx, op); err != nil {
			return removed, fmt.Errorf("remove from %s: %w", topic, err)
		}
		removed += op.removed
	}
	return removed, nil
}

type removeOp struct {
	ticket
	name      string
	positions []event.Position // sorted, each once
	removed   int
}

func (*removeOp) grows() bool    { return false }
func (*removeOp) publish(*Store) {} // what readers lose, they lose at once

func (op *removeOp) stage(c *committer) {
	t, err := c.s.topic(op.name)
	if err == nil {
		op.removed, err = c.remove(t, op.positions)
	}
	op.err = err
}

// remove removes the entries at positions, of those that readers can see.
func (c *committer) remove(t *topic, positions []event.Position) (int, error) {
	c.settle() // so that the database has every block and entry
	v := t.see()
	if v.id == 0 || v.id != t.c.id || v.bounds.First.IsZero() {
		return 0, nil
	}
	p, err := c.planRemove(v, t.c.open, positions)
	if err != nil || len(p.removed) == 0 {
		return 0, err
	}
	m := &t.c
	first := m.first
	if p.removed[0] == first {
		first = p.first
	}
	n := uint64(len(p.removed))

	t.mu.Lock()
	b := &t.v.bounds
	b.Entries -= min(b.Entries, n)
	b.Bytes -= min(b.Bytes, p.bytes)
	if b.First = first; b.Last.Less(first) {
		b.First = event.Position{} // what is left cannot be seen yet
	}
	freed := t.tail.remove(p.removed)
	t.mu.Unlock()
	c.s.tails.shrank(freed)

	if c.s.memory != nil {
		c.s.memory.remove(m.id, &p)
	} else {
		for _, pos := range p.removed {
			c.delete(entryKey(spaceEntry, m.id, pos))
		}
		for _, x := range p.blocks {
			if key := entryKey(spaceBlock, m.id, x.end); x.block.entries == 0 {
				c.delete(key)
			} else {
				c.set(key, x.block.encode())
			}
		}
		c.trimmed += p.bytes
	}
	m.open = p.open
	m.first = first
	m.entries -= min(m.entries, n)
	m.bytes -= min(m.bytes, p.bytes)
	c.touch(t)
	c.shrank(t, p.bytes)
	return len(p.removed), nil
}

// removePlan is what a removal removes, and what becomes of the blocks. A block keeps its place and its
// times: where it ends there may be no entry any more, and its entries may be older than it says. It is
// gone with its last entry.
type removePlan struct {
	removed []event.Position // those that exist
	bytes   uint64
	first   event.Position // of the entries that stay, if the first one goes; zero if none stays
	blocks  []endedBlock
	open    block // of the topic, afterwards
}

type endedBlock struct {
	end   event.Position
	block block
}

func (c *committer) planRemove(v view, openBlock block, positions []event.Position) (p removePlan, err error) {
	log, err := c.s.entries(context.Background(), v.id)
	if err != nil {
		return p, err
	}
	defer func() {
		if e := log.close(); e != nil && err == nil {
			err = e
		}
	}()
	p.open = openBlock
	var at *block // where the last one was: the end of p.blocks, or p.open
	var end event.Position
	for _, pos := range positions {
		if pos.Less(v.bounds.First) || v.bounds.Last.Less(pos) {
			continue
		}
		size := uint64(0)
		if err := log.scan(pos, pos, func(_ event.Position, record []byte) (bool, error) {
			size = uint64(len(record) + entryOverhead)
			return false, nil
		}); err != nil {
			return p, err
		}
		if size == 0 {
			continue
		}
		if at == nil || at != &p.open && end.Less(pos) {
			e, b, closed, err := log.block(pos)
			if err != nil {
				return p, err
			}
			if at, end = &p.open, e; closed {
				p.blocks = append(p.blocks, endedBlock{e, b})
				at = &p.blocks[len(p.blocks)-1].block
			}
		}
		if at.entries -= min(at.entries, 1); at.entries == 0 {
			*at = block{}
		}
		at.bytes -= min(at.bytes, size)
		p.bytes += size
		p.removed = append(p.removed, pos)
	}
	if len(p.removed) > 0 && p.removed[0] == v.bounds.First {
		err = log.scan(v.bounds.First, event.MaxPosition, func(pos event.Position, _ []byte) (bool, error) {
			if _, goes := slices.BinarySearchFunc(p.removed, pos, event.Position.Compare); goes {
				return true, nil
			}
			p.first = pos
			return false, nil
		})
	}
	return p, err
}

// remove drops single entries from memory and returns the bytes that this frees.
func (tl *tail) remove(positions []event.Position) (freed int) {
	live := tl.live()
	kept := live[:0]
	for _, e := range live {
		if _, goes := slices.BinarySearchFunc(positions, e.Pos, event.Position.Compare); goes {
			freed += len(e.Record) + tailEntryExtra
			continue
		}
		kept = append(kept, e)
	}
	clear(live[len(kept):])
	tl.entries = tl.entries[:tl.start+len(kept)]
	tl.bytes -= freed
	return freed
}

// remove moves what stays together in the segments that lose something. A segment's end is an entry, so
// it may move; one without entries goes.
func (l *memoryLog) remove(id uint64, p *removePlan) {
	t := l.topic(id)
	t.mu.Lock()
	defer t.mu.Unlock()
	blocks := p.blocks
	kept := t.segments[:0]
	removed := p.removed
	for _, sg := range t.segments {
		if len(removed) == 0 || sg.end.Less(removed[0]) {
			kept = append(kept, sg)
			continue
		}
		if sg.closed {
			sg.block, blocks = blocks[0].block, blocks[1:]
		}
		if removed = sg.remove(removed); sg.size == 0 {
			l.arena.put(sg.data)
			continue
		}
		l.fit(&sg)
		kept = append(kept, sg)
	}
	clear(t.segments[len(kept):])
	if t.segments = kept; len(kept) == 0 {
		t.segments = nil
	}
}

// remove takes the entries of a segment away that come first among the removed ones, and returns those
// that are not its own. An open segment that is empty afterwards has size 0, like a closed one.
func (sg *segment) remove(removed []event.Position) (rest []event.Position) {
	size := 0
	for at := sg.start; at < sg.size; {
		next := at + entryHeader + sg.length(at)
		pos := getPosition(sg.data[at:])
		if len(removed) > 0 && removed[0] == pos {
			removed = removed[1:]
		} else {
			sg.end = pos
			size += copy(sg.data[size:], sg.data[at:next])
		}
		at = next
	}
	sg.start, sg.size = 0, size
	return removed
}

// fit moves a segment to a smaller piece if it fits into one.
func (l *memoryLog) fit(sg *segment) {
	if classOf(sg.size) >= classOf(len(sg.data)) {
		return
	}
	data, err := l.arena.get(sg.size)
	if err != nil {
		return // it stays where it is
	}
	copy(data, sg.data[:sg.size])
	l.arena.put(sg.data)
	sg.data = data
}
