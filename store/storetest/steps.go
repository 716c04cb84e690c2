package storetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/store"
)

// step is one random call. It runs on the store, holds the answer against the model, and returns the
// model as it is afterwards.
type step struct {
	name string
	run  func(ctx context.Context, s store.Store, m *model) (*model, error)
}

// steps draws random calls. Everything random is drawn when the step is made, so that a step may be run
// again.
type steps struct {
	rng   *rand.Rand
	count int
	now   time.Time
}

func newSteps(seed uint64) *steps {
	return &steps{rng: rand.New(rand.NewPCG(seed, 1)), now: noon}
}

func (g *steps) pick(prefix string, n int) string { return fmt.Sprint(prefix, g.rng.IntN(n)) }

func (g *steps) record() event.Record {
	g.count++
	g.now = g.now.Add(time.Duration(g.rng.IntN(90)-20) * time.Second)
	size := g.rng.IntN(60)
	if g.rng.IntN(20) == 0 {
		size = g.rng.IntN(20_000)
	}
	return Record(g.now, fmt.Sprint(g.count, strings.Repeat(".", size)))
}

func (g *steps) batch(withTurn bool) store.Batch {
	var b store.Batch
	for range 1 + g.rng.IntN(4) {
		b.Records = append(b.Records, g.record())
	}
	if withTurn {
		b.Turn = &store.TurnMark{
			Worker: g.pick("w", 2), Token: uint64(1 + g.rng.IntN(4) + g.count/40), Run: uint64(1 + g.count/200),
			Topic: g.pick("in", 2), Position: event.Position{Ms: uint64(g.count/4 + g.rng.IntN(3))},
		}
	}
	return b
}

// next draws a step that writes, or now and then one that only reads.
func (g *steps) next(writesOnly bool) step {
	n := g.rng.IntN(100)
	if writesOnly {
		n = g.rng.IntN(82)
	}
	switch {
	case n < 22:
		return g.append(false)
	case n < 36:
		return g.append(true)
	case n < 39:
		return g.remove()
	case n < 42:
		return g.trim()
	case n < 44:
		return g.deleteTopic()
	case n < 54:
		return g.txn()
	case n < 58:
		return g.openSession()
	case n < 60:
		return g.closeSession()
	case n < 66:
		return g.acquire()
	case n < 68:
		return g.release()
	case n < 80:
		return g.commit()
	case n < 81:
		return g.forget()
	case n < 82:
		return g.lead()
	case n < 94:
		return g.read()
	}
	return g.before()
}

func (g *steps) append(turns bool) step {
	topic := g.pick("t", 4)
	var batches []store.Batch
	for range 1 + g.rng.IntN(3) {
		batches = append(batches, g.batch(turns))
	}
	return step{"append to " + topic, func(ctx context.Context, s store.Store, m *model) (*model, error) {
		out, err := s.Append(ctx, topic, batches)
		if err != nil {
			return m, err
		}
		m = m.clone()
		for i, b := range batches {
			if wrong := m.append(topic, b, out[i]); wrong != "" {
				return m, fmt.Errorf("batch %d: %s", i, wrong)
			}
		}
		return m, nil
	}}
}

func (g *steps) trim() step {
	topic, kind, share := g.pick("t", 4), g.rng.IntN(3), g.rng.Float64()
	when := g.now.Add(-time.Duration(g.rng.IntN(1800)) * time.Second)
	return step{"trim " + topic, func(ctx context.Context, s store.Store, m *model) (*model, error) {
		t, exists := m.topics[topic]
		var limit store.TrimLimit
		want := t
		n := int(share * float64(len(t.entries)))
		switch {
		case kind == 0 && n < len(t.entries):
			limit.UpTo = t.entries[n].Pos
			want = t.trim(limit.UpTo)
		case kind == 1:
			limit.StoredBefore = when
			for len(want.entries) > 0 && want.entries[0].Record.StoredAt().Before(when) {
				want = want.trim(want.entries[0].Pos)
			}
		default:
			b, err := s.Bounds(ctx, topic)
			if err != nil {
				return m, err
			}
			limit.MaxBytes = max(1, uint64(share*float64(b.Bytes)))
		}
		got, err := s.Trim(ctx, topic, limit)
		if err != nil {
			return m, err
		}
		if limit.MaxBytes > 0 { // the store's own idea of bytes decides how much
			want = t.trim(got.Removed)
			b, err := s.Bounds(ctx, topic)
			if err != nil {
				return m, err
			}
			if b.Bytes > limit.MaxBytes {
				return m, fmt.Errorf("%d bytes after a trim to %d", b.Bytes, limit.MaxBytes)
			}
		}
		if got.Removed != want.removed || int(got.Entries) != len(t.entries)-len(want.entries) {
			return m, fmt.Errorf("%+v answered %+v, want removed %s and %d entries", limit, got, want.removed, len(t.entries)-len(want.entries))
		}
		m = m.clone()
		if exists {
			m.topics[topic] = want
		}
		return m, nil
	}}
}

func (g *steps) deleteTopic() step {
	topic := g.pick("t", 4)
	return step{"delete topic " + topic, func(ctx context.Context, s store.Store, m *model) (*model, error) {
		if err := s.DeleteTopic(ctx, topic); err != nil {
			return m, err
		}
		m = m.clone()
		if t, ok := m.topics[topic]; ok && m.floors[topic].Less(t.last) {
			m.floors[topic] = t.last
		}
		delete(m.topics, topic)
		return m, nil
	}}
}

func (g *steps) txn() step {
	type draw struct {
		key, value  string
		cond, write int
	}
	var draws []draw
	used := map[string]bool{}
	for range 1 + g.rng.IntN(3) {
		g.count++
		d := draw{g.pick("k", 5), fmt.Sprint("v", g.count), g.rng.IntN(8), g.rng.IntN(6)}
		if !used[d.key] {
			used[d.key] = true
			draws = append(draws, d)
		}
	}
	return step{"transaction", func(ctx context.Context, s store.Store, m *model) (*model, error) {
		var changes []store.Change
		conflict := false
		for _, d := range draws {
			now := m.records[d.key].revision
			c := store.Change{Key: d.key, Value: []byte(d.value), If: now}
			switch d.cond {
			case 0:
				c.If = store.Any
			case 1:
				c.If = store.Absent
			case 2:
				c.If = now + 1
			}
			c.Delete, c.Check = d.write == 0, d.write == 1
			conflict = conflict || c.If != store.Any && c.If != now
			changes = append(changes, c)
		}
		revs, err := s.Txn(ctx, changes...)
		if conflict {
			if !errors.Is(err, store.ErrConflict) {
				return m, fmt.Errorf("answered %w, want a conflict", errOr(err))
			}
			return m, nil
		}
		if err != nil {
			return m, err
		}
		m = m.clone()
		for i, c := range changes {
			switch {
			case c.Check:
			case c.Delete:
				delete(m.records, c.Key)
			default:
				if revs[i] <= m.revision {
					return m, fmt.Errorf("revision %d is not above %d", revs[i], m.revision)
				}
				m.revision = revs[i]
				m.records[c.Key] = modelRecord{string(c.Value), revs[i]}
			}
		}
		return m, nil
	}}
}

var errNone = errors.New("no error")

func errOr(err error) error {
	if err == nil {
		return errNone
	}
	return err
}

func (g *steps) read() step {
	topic, share, back := g.pick("t", 4), g.rng.Float64(), g.rng.IntN(2)
	limit := store.ReadLimit{Entries: g.rng.IntN(12), Bytes: g.rng.IntN(3000)}
	return step{"read " + topic, func(ctx context.Context, s store.Store, m *model) (*model, error) {
		t := m.topics[topic]
		var after event.Position
		if n := int(share * 1.2 * float64(len(t.entries))); n > 0 && n <= len(t.entries) {
			after = t.entries[n-1].Pos
			if back == 1 {
				after = after.Prev()
			}
		}
		p, err := s.Read(ctx, topic, after, limit)
		if err != nil {
			return m, err
		}
		if err := checkPage(p, after, limit); err != nil {
			return m, err
		}
		want := t.trim(after).entries
		if len(p.Entries) > len(want) || len(p.Entries) == 0 && len(want) > 0 {
			return m, fmt.Errorf("%d entries after %s, want some of %d", len(p.Entries), after, len(want))
		}
		if len(p.Entries) == len(want) && !t.last.IsZero() && p.To != t.last {
			return m, fmt.Errorf("the last page ends at %s, want %s", p.To, t.last)
		}
		return m, sameEntries(p.Entries, want[:len(p.Entries)])
	}}
}

func (g *steps) before() step {
	topic := g.pick("t", 4)
	when := g.now.Add(-time.Duration(g.rng.IntN(3600)) * time.Second)
	return step{"search by time in " + topic, func(ctx context.Context, s store.Store, m *model) (*model, error) {
		t, ok := m.topics[topic]
		got, err := s.Before(ctx, topic, when)
		if err != nil || ok && t.last.IsZero() {
			return m, err
		}
		want := t.last
		for _, e := range t.entries {
			if !e.Record.StoredAt().Before(when) {
				want = e.Pos.Prev()
				break
			}
		}
		if got != want {
			return m, fmt.Errorf("before %s: %s, want %s", when, got, want)
		}
		return m, nil
	}}
}
