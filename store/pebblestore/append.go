package pebblestore

import (
	"context"
	"fmt"
	"math"

	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/store"
)

// Names that a key has to hold. What users may call things is checked far above.
const maxName = 1024

func nameable(name string) bool { return name != "" && len(name) <= maxName }

// Append stores batches at the end of a topic. The records belong to the store afterwards: it keeps
// them in memory for a while, so the caller must not write to them, and had better not cut them out of
// buffers that are much larger.
func (s *Store) Append(ctx context.Context, topic string, batches []store.Batch) ([]store.Appended, error) {
	records := 0
	for i, b := range batches {
		for j, r := range b.Records {
			if err := r.Check(); err != nil {
				return nil, fmt.Errorf("append to %s: batch %d, record %d: %w", topic, i, j, err)
			}
		}
		if m := b.Turn; m != nil && (!nameable(m.Worker) || !nameable(m.Topic)) {
			return nil, fmt.Errorf("append to %s: batch %d: the turn names worker %q and topic %q: want 1 to %d bytes each", topic, i, m.Worker, m.Topic, maxName)
		}
		records += len(b.Records)
	}
	if !nameable(topic) {
		return nil, fmt.Errorf("append: topic name of %d bytes: want 1 to %d", len(topic), maxName)
	}
	op := &appendOp{
		name:    topic,
		batches: batches,
		out:     make([]store.Appended, len(batches)),
		places:  make([]event.Position, records),
	}
	if len(batches) == 0 {
		return op.out, nil
	}
	if err := s.submit(ctx, op); err != nil {
		return nil, fmt.Errorf("append to %s: %w", topic, err)
	}
	return op.out, nil
}

// appendOp is one call of Append.
type appendOp struct {
	ticket
	name    string
	batches []store.Batch
	out     []store.Appended
	places  []event.Position // of all records; the rest of it is free

	// Set by stage, for publish.
	topic       *topic
	id          uint64
	incarnation string
	entries     uint64
	bytes       uint64
	first, last event.Position
}

func (*appendOp) grows() bool { return true }

func (op *appendOp) stage(c *committer) {
	size := 0
	for _, b := range op.batches {
		for _, r := range b.Records {
			size += len(r) + entryOverhead
		}
	}
	if err := c.makeRoom(size); err != nil {
		op.err = err
		return
	}
	t, err := c.s.topic(op.name)
	if err != nil {
		op.err = err
		return
	}
	now := uint64(max(0, c.s.opts.Clock().UnixMilli()))
	for i := range op.batches {
		op.out[i] = op.stageBatch(c, t, &op.batches[i], now)
	}
	if op.id != 0 {
		op.topic, op.incarnation = t, t.c.incarnation
		c.grew(t, op.bytes)
	}
}

func (op *appendOp) stageBatch(c *committer, t *topic, b *store.Batch, now uint64) store.Appended {
	if len(b.Records) == 0 && b.Turn == nil {
		return store.Appended{}
	}
	if uint64(len(b.Records)) > room(t.c.last, now) {
		return store.Appended{Err: fmt.Errorf("topic %s: %w: %d records after %s", t.name, store.ErrPositions, len(b.Records), t.c.last)}
	}
	if b.Turn != nil {
		repeat, err := c.admit(t, b.Turn)
		if err != nil || repeat {
			return store.Appended{Repeat: repeat, Err: err}
		}
	}
	if !t.c.exists {
		c.create(t)
	}
	c.touch(t)
	op.id = t.c.id
	if b.Turn != nil {
		c.mark(t, b.Turn)
	}
	places := op.places[:len(b.Records):len(b.Records)]
	op.places = op.places[len(b.Records):]
	for i, r := range b.Records {
		places[i] = following(t.c.last, now)
		if err := op.put(c, t, places[i], r); err != nil {
			// No memory, in the middle of a batch.
			c.s.health.die(err)
			return store.Appended{Err: err}
		}
	}
	return store.Appended{Positions: places}
}

func (op *appendOp) put(c *committer, t *topic, p event.Position, r event.Record) error {
	bytes, stored := len(r)+entryOverhead, storedAt(r)
	m := &t.c
	if m.open.entries > 0 && m.open.bytes+uint64(bytes) > blockBytes {
		c.closeBlock(m)
	}
	if err := c.putEntry(m.id, p, r); err != nil {
		return err
	}
	if m.first.IsZero() {
		m.first = p
	}
	m.last = p
	m.entries++
	m.bytes += uint64(bytes)
	m.newest = max(m.newest, stored)
	m.open.add(p, bytes, stored)
	if m.open.entries >= blockEntries {
		c.closeBlock(m)
	}
	if op.entries == 0 {
		op.first = p
	}
	op.last = p
	op.entries++
	op.bytes += uint64(bytes)
	return nil
}

func (op *appendOp) publish(s *Store) {
	t := op.topic
	if t == nil {
		return
	}
	t.mu.Lock()
	if op.id <= t.v.gone {
		t.mu.Unlock()
		return // deleted meanwhile
	}
	was := t.tail.bytes
	if t.v.id != op.id {
		t.tail.reset(event.Position{})
		t.v.id, t.v.bounds = op.id, store.Bounds{Incarnation: op.incarnation}
	}
	t.v.appended(op.entries, op.bytes, op.first, op.last)
	// Entries that would be dropped from the tail at once need not go through it.
	skip := 0
	if op.entries > tailEntries {
		skip = int(op.entries) - tailEntries
	}
	for i := range op.out {
		places := op.out[i].Positions
		if skip >= len(places) {
			skip -= len(places)
			if n := len(places); n > 0 {
				t.tail.dropTo(places[n-1])
			}
			continue
		}
		if skip > 0 {
			t.tail.dropTo(places[skip-1])
		}
		for j := skip; j < len(places); j++ {
			t.tail.add(event.Entry{Pos: places[j], Record: op.batches[i].Records[j]})
		}
		skip = 0
	}
	delta := t.tail.bytes - was
	t.mu.Unlock()
	s.tails.grew(t, delta)
	if op.entries > 0 {
		s.hub.ring(t.name)
	}
}

// following is the next position of a topic at a time, in ms: strictly above last, whatever the clock.
func following(last event.Position, now uint64) event.Position {
	switch {
	case now > last.Ms:
		return event.Position{Ms: now}
	case last.Seq < math.MaxUint64:
		return event.Position{Ms: last.Ms, Seq: last.Seq + 1}
	}
	return event.Position{Ms: last.Ms + 1}
}

// room returns how many positions a topic has left, at least roughly: 2^64-1 stands for plenty. The
// very last position is never given out, so that every entry has one after it.
func room(last event.Position, now uint64) uint64 {
	if max(last.Ms, now) < math.MaxUint64 {
		return math.MaxUint64
	}
	if last.Ms < math.MaxUint64 {
		return math.MaxUint64 - 1
	}
	return math.MaxUint64 - 1 - last.Seq
}

// markKey names what a topic remembers of a worker's turns. An empty input is the worker's token.
type markKey struct {
	topic         uint64
	worker, input string
}

// mark is the highest token, or the last (run, position), or nothing yet.
type mark struct {
	known bool
	token uint64
	run   uint64
	pos   event.Position
}

// admit decides on a turn's batch: a lower token is stale, a turn not after the last one a repeat. It
// keeps a higher token also when it comes with a repeat.
func (c *committer) admit(t *topic, turn *store.TurnMark) (repeat bool, err error) {
	if !t.c.exists {
		return false, nil
	}
	token, err := c.lookMark(markKey{topic: t.c.id, worker: turn.Worker})
	if err != nil {
		return false, err
	}
	if token.known && turn.Token < token.token {
		return false, fmt.Errorf("worker %s in topic %s: %w: %d, seen %d", turn.Worker, t.name, store.ErrStaleToken, turn.Token, token.token)
	}
	last, err := c.lookMark(markKey{topic: t.c.id, worker: turn.Worker, input: turn.Topic})
	if err != nil {
		return false, err
	}
	if !last.known || turn.Run > last.run || turn.Run == last.run && last.pos.Less(turn.Position) {
		return false, nil
	}
	if turn.Token > token.token {
		c.touch(t)
		c.setToken(t, turn)
	}
	return true, nil
}

// mark stores an admitted turn.
func (c *committer) mark(t *topic, turn *store.TurnMark) {
	token, known := c.marks.get(markKey{topic: t.c.id, worker: turn.Worker})
	if !known || !token.known || turn.Token > token.token {
		c.setToken(t, turn)
	}
	w := newWriter(32)
	w.uint(turn.Run)
	w.position(turn.Position)
	c.set(turnKey(t.c.id, turn.Worker, turn.Topic), w.seal())
	c.marks.put(markKey{t.c.id, turn.Worker, turn.Topic}, mark{known: true, run: turn.Run, pos: turn.Position})
}

func (c *committer) setToken(t *topic, turn *store.TurnMark) {
	w := newWriter(10)
	w.uint(turn.Token)
	c.set(tokenKey(t.c.id, turn.Worker), w.seal())
	c.marks.put(markKey{topic: t.c.id, worker: turn.Worker}, mark{known: true, token: turn.Token})
}

func (c *committer) lookMark(k markKey) (mark, error) {
	if m, ok := c.marks.get(k); ok {
		return m, nil
	}
	key := tokenKey(k.topic, k.worker)
	if k.input != "" {
		key = turnKey(k.topic, k.worker, k.input)
	}
	value, err := c.s.get(key)
	if err != nil {
		return mark{}, err
	}
	var m mark
	if value != nil {
		r := open(value)
		if m.known = true; k.input == "" {
			m.token = r.uint()
		} else {
			m.run, m.pos = r.uint(), r.position()
		}
		if err := r.done(); err != nil {
			return mark{}, corrupt(err, "what a topic keeps of worker %q", k.worker)
		}
	}
	c.marks.put(k, m)
	return m, nil
}
