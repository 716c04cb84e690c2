package pebblestore

import (
	"context"
	"fmt"

	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/store"
)

// A trim frees space only when the deletion is flushed. Small ones are gathered: the flush comes after
// this many deleted bytes, or after flushDelay.
const flushTrimmedBytes = 8 << 20

// Trim removes the oldest entries until the limit holds. It looks only at entries that can be read.
func (s *Store) Trim(ctx context.Context, topic string, limit store.TrimLimit) (store.Trimmed, error) {
	op := &trimOp{name: topic, limit: limit}
	if err := s.submit(ctx, op); err != nil {
		return store.Trimmed{}, fmt.Errorf("trim %s: %w", topic, err)
	}
	return op.out, nil
}

type trimOp struct {
	ticket
	name  string
	limit store.TrimLimit
	out   store.Trimmed
}

func (*trimOp) grows() bool    { return false }
func (*trimOp) publish(*Store) {} // what readers lose, they lose at once
func (op *trimOp) stage(c *committer) {
	t, err := c.s.topic(op.name)
	if err == nil {
		op.out, err = c.trim(t, op.limit)
	}
	op.err = err
}

// trim removes leading entries of a topic and says which.
func (c *committer) trim(t *topic, limit store.TrimLimit) (store.Trimmed, error) {
	c.settle() // so that the database has every block and entry
	v := t.see()
	if v.id == 0 || v.id != t.c.id || v.bounds.First.IsZero() || limit == (store.TrimLimit{}) {
		return store.Trimmed{Removed: v.bounds.Removed}, nil
	}
	p, err := c.planTrim(v, t.c.open, limit)
	if err != nil {
		return store.Trimmed{}, err
	}
	if p.entries == 0 {
		return store.Trimmed{Removed: v.bounds.Removed}, nil
	}

	// Readers first: see topic.
	t.mu.Lock()
	b := &t.v.bounds
	b.Removed = p.cut
	b.Entries -= min(b.Entries, p.entries)
	b.Bytes -= min(b.Bytes, p.bytes)
	b.First = event.Position{}
	if p.cut.Less(b.Last) {
		b.First = p.next
	}
	was := t.tail.bytes
	t.tail.dropTo(p.cut)
	freed := was - t.tail.bytes
	t.mu.Unlock()
	c.s.tails.shrank(freed)

	m := &t.c
	c.cutEntries(m, &p)
	m.open = p.open
	m.removed = p.cut
	m.first = p.next
	m.entries -= min(m.entries, p.entries)
	m.bytes -= min(m.bytes, p.bytes)
	c.touch(t)
	c.shrank(t, p.bytes)
	return store.Trimmed{Entries: p.entries, Bytes: p.bytes, Removed: p.cut}, nil
}

// trimPlan is what a trim removes, and what becomes of the block that it cuts into.
type trimPlan struct {
	cut            event.Position // the last entry removed
	next           event.Position // the first one kept; zero if none
	entries, bytes uint64

	blocks    int // closed blocks removed whole, up to blockCut
	blockCut  event.Position
	shortened bool // the closed block that ends at shortEnd becomes short
	shortEnd  event.Position
	short     block
	open      block // of the topic, afterwards
}

// trimmer walks the log from its start for as long as a limit asks for it.
type trimmer struct {
	log     entryReader
	view    view
	limit   store.TrimLimit
	before  int64 // the limit's StoredBefore
	byTime  bool
	byBytes bool
	left    uint64 // bytes that are kept so far
	plan    trimPlan
}

func (c *committer) planTrim(v view, openBlock block, limit store.TrimLimit) (plan trimPlan, err error) {
	log, err := c.s.entries(context.Background(), v.id)
	if err != nil {
		return plan, err
	}
	defer func() {
		if e := log.close(); e != nil && err == nil {
			err = e
		}
	}()
	w := &trimmer{
		log: log, view: v, limit: limit,
		byTime: !limit.StoredBefore.IsZero(), byBytes: limit.MaxBytes > 0,
		left: v.bounds.Bytes,
		plan: trimPlan{open: openBlock},
	}
	if w.byTime {
		w.before = unixNano(limit.StoredBefore)
	}
	for from := v.bounds.First; ; {
		end, b, ok, err := log.block(from)
		if err != nil {
			return plan, err
		}
		if !ok {
			break
		}
		whole, err := w.block(end, b)
		if err != nil {
			return plan, err
		}
		if !whole {
			return w.planned()
		}
		from = end.Next()
	}
	if err := w.openBlock(); err != nil {
		return plan, err
	}
	return w.planned()
}

// planned returns the plan, whose cut is an entry: where a block ends there may be none any more, and a
// cut beyond the last entry removed would be a gap to readers that miss nothing.
func (w *trimmer) planned() (trimPlan, error) {
	if w.plan.entries == 0 {
		return w.plan, nil
	}
	cut, err := w.log.last(w.plan.cut)
	w.plan.cut = cut
	return w.plan, err
}

// block removes a closed block, or its leading entries; whole is false if something of it is kept.
func (w *trimmer) block(end event.Position, b block) (whole bool, err error) {
	p := &w.plan
	visible := !w.view.bounds.Last.Less(end)
	if visible && (!w.limit.UpTo.Less(end) || w.byTime && b.newest < w.before || w.byBytes && w.left > b.bytes && w.left-b.bytes >= w.limit.MaxBytes) {
		w.remove(end, b.entries, b.bytes)
	} else {
		kept, err := w.entries(b.first, end, &b)
		if err != nil {
			return false, err
		}
		if kept {
			if p.next != b.first {
				b.first = p.next
				p.shortened, p.shortEnd, p.short = true, end, b
			}
			return false, nil
		}
	}
	p.blocks++
	p.blockCut = end
	return true, nil
}

// openBlock removes leading entries of the open block.
func (w *trimmer) openBlock() error {
	p := &w.plan
	if p.open.entries == 0 {
		return nil
	}
	b := p.open
	kept, err := w.entries(b.first, event.MaxPosition, &b)
	switch {
	case err != nil:
		return err
	case kept:
		b.first = p.next
		p.open = b
	default:
		p.open = block{}
	}
	return nil
}

// entries removes entries in [first, end] for as long as a limit asks for it, and subtracts them from
// the block. If one is kept it is the plan's next.
func (w *trimmer) entries(first, end event.Position, b *block) (kept bool, err error) {
	err = w.log.scan(first, end, func(p event.Position, record []byte) (bool, error) {
		asked := !w.limit.UpTo.Less(p) || w.byTime && storedAt(record) < w.before || w.byBytes && w.left > w.limit.MaxBytes
		if !asked || w.view.bounds.Last.Less(p) {
			w.plan.next, kept = p, true
			return false, nil
		}
		size := uint64(len(record) + entryOverhead)
		w.remove(p, 1, size)
		b.entries -= min(b.entries, 1)
		b.bytes -= min(b.bytes, size)
		return true, nil
	})
	return kept, err
}

func (w *trimmer) remove(upTo event.Position, entries, bytes uint64) {
	w.plan.cut = upTo
	w.plan.entries += entries
	w.plan.bytes += bytes
	w.left -= min(w.left, bytes)
}

// cut is a range of keys that a large trim emptied.
type cut struct{ lower, upper []byte }

// cleared counts what was deleted. After a large deletion its range is compacted too: a table that it
// covers only in part would stay otherwise, until something is written next to it.
func (c *committer) cleared(bytes uint64, lower, upper []byte) {
	c.trimmed += bytes
	if bytes >= flushTrimmedBytes {
		c.cuts = append(c.cuts, cut{lower, upper})
	}
}

// flushTrimmed makes the database give space back, once it is worth it.
func (c *committer) flushTrimmed() {
	if c.trimmed < flushTrimmedBytes || c.s.health.fatal() != nil {
		return
	}
	cuts := c.cuts
	c.trimmed, c.cuts = 0, nil
	var flushed <-chan struct{}
	err := c.s.guard(func() (err error) {
		flushed, err = c.s.db.AsyncFlush()
		return err
	})
	if err != nil {
		c.s.health.die(fmt.Errorf("flush after a trim: %w", err))
	} else if len(cuts) > 0 {
		c.compactions.Go(func() { c.s.compact(flushed, cuts) })
	}
}

// compact rewrites what is left of emptied ranges. It ends early when the store is closed.
func (s *Store) compact(flushed <-chan struct{}, cuts []cut) {
	select {
	case <-flushed:
	case <-s.work.Done():
		return
	}
	for _, x := range cuts {
		if err := s.db.Compact(s.work, x.lower, x.upper, false); err != nil {
			if s.work.Err() == nil {
				s.logger.Warn("the space of a trim is not free yet", "error", err)
			}
			return
		}
	}
}

// DeleteTopic removes a topic with its entries and turn marks. Its name keeps its last position.
func (s *Store) DeleteTopic(ctx context.Context, topic string) error {
	if err := s.submit(ctx, &deleteOp{name: topic}); err != nil {
		return fmt.Errorf("delete topic %s: %w", topic, err)
	}
	return nil
}

type deleteOp struct {
	ticket
	name    string
	existed bool
}

func (*deleteOp) grows() bool { return false }

func (op *deleteOp) stage(c *committer) {
	t, err := c.s.topic(op.name)
	if err != nil || !t.c.exists {
		op.err = err
		return
	}
	c.settle()
	op.existed = true
	m := &t.c

	// Readers first: see topic.
	t.mu.Lock()
	t.v = view{gone: m.id}
	freed := t.tail.bytes
	t.tail.reset(event.Position{})
	t.mu.Unlock()
	c.s.tails.shrank(freed)

	c.dropEntries(m)
	c.deleteRange(topicSpan(spaceToken, m.id))
	c.deleteRange(topicSpan(spaceTurn, m.id))
	c.shrank(t, m.bytes)
	t.c = meta{last: m.last}
	c.touch(t)
}

func (op *deleteOp) publish(s *Store) {
	if op.existed {
		s.hub.ring(op.name)
	}
}
