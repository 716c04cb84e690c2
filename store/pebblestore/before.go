package pebblestore

import (
	"context"
	"fmt"
	"math/bits"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/turnlane/turnlane/event"
)

// Before returns the position just before the first entry stored at t or later, by the times in the
// records, which may go back.
//
// Every closed block has the largest time in it and the largest time so far. The latter never falls, so
// bisection finds the first block where it reaches t; no earlier entry is young. With falling clocks
// and after trims that block may hold no young entry itself; then the following blocks are looked at
// one by one, by their own largest time.
func (s *Store) Before(ctx context.Context, topic string, t time.Time) (event.Position, error) {
	if err := s.begin(); err != nil {
		return event.Position{}, fmt.Errorf("search %s by time: %w", topic, err)
	}
	defer s.life.RUnlock()
	for {
		tp, err := s.topic(topic)
		if err != nil {
			return event.Position{}, fmt.Errorf("search %s by time: %w", topic, err)
		}
		v := tp.see()
		if v.id == 0 || v.bounds.First.IsZero() {
			return v.bounds.Last, nil
		}
		p, err := s.searchTime(ctx, v, unixNano(t))
		if err != nil {
			return event.Position{}, fmt.Errorf("search %s by time: %w", topic, err)
		}
		if tp.see().id == v.id {
			return p, nil
		}
	}
}

func (s *Store) searchTime(ctx context.Context, v view, t int64) (p event.Position, err error) {
	iter, err := s.db.NewIterWithContext(ctx, nil)
	if err != nil {
		return p, s.readError(err)
	}
	defer func() {
		if e := iter.Close(); e != nil && err == nil {
			err = s.readError(e)
		}
	}()
	f := timeSearch{s: s, iter: iter, topic: v.id, t: t, last: v.bounds.Last}
	return f.run(ctx, v.bounds.First)
}

// timeSearch is one search. All of it sees one state of the database.
type timeSearch struct {
	s     *Store
	iter  *pebble.Iterator
	topic uint64
	t     int64
	last  event.Position // that readers may see
}

func (f *timeSearch) run(ctx context.Context, first event.Position) (event.Position, error) {
	from, err := f.bisect(first)
	if err != nil {
		return event.Position{}, err
	}
	for n := 0; ; n++ {
		if n%checkEvery == 0 && ctx.Err() != nil {
			return event.Position{}, context.Cause(ctx)
		}
		end, b, ok, err := f.block(from)
		if err != nil {
			return event.Position{}, err
		}
		if !ok {
			end = f.last // the entries after the last closed block
		}
		if !ok || b.newest >= f.t {
			p, found, err := f.entry(from, end)
			if err != nil || found {
				return p.Prev(), err
			}
		}
		if !ok || !end.Less(f.last) {
			return f.last, nil
		}
		from = end.Next()
	}
}

// bisect returns a position before which every entry is older than t.
func (f *timeSearch) bisect(lo event.Position) (event.Position, error) {
	hi := f.last
	for lo.Less(hi) {
		mid := middle(lo, hi)
		end, b, ok, err := f.block(mid)
		switch {
		case err != nil:
			return lo, err
		case ok && b.prefix < f.t:
			lo = end.Next() // everything up to end is older
		default:
			hi = mid // the answer's block is the one of mid, or an earlier one
		}
	}
	return lo, nil
}

// block returns the closed block that ends at p or after, and where it ends.
func (f *timeSearch) block(p event.Position) (end event.Position, b block, ok bool, err error) {
	_, upper := topicSpan(spaceBlock, f.topic)
	f.iter.SetBounds(entryKey(spaceBlock, f.topic, p), upper)
	if !f.iter.First() {
		return end, b, false, f.failed()
	}
	end, b, err = f.s.readBlock(f.iter)
	return end, b, err == nil, err
}

func (s *Store) readBlock(iter *pebble.Iterator) (end event.Position, b block, err error) {
	end, ok := keyPosition(iter.Key())
	if !ok {
		return end, b, corrupt(errGarbled, "a block's key %x", iter.Key())
	}
	value, err := iter.ValueAndErr()
	if err != nil {
		return end, b, s.readError(err)
	}
	if b, err = decodeBlock(value); err != nil {
		return end, b, corrupt(err, "the block of entries up to %s", end)
	}
	return end, b, nil
}

// entry returns the first entry in [from, end] that was stored at t or later and that readers may see.
func (f *timeSearch) entry(from, end event.Position) (event.Position, bool, error) {
	if f.last.Less(end) {
		end = f.last
	}
	f.iter.SetBounds(entryKey(spaceEntry, f.topic, from), endKey(spaceEntry, f.topic, end))
	for ok := f.iter.First(); ok; ok = f.iter.Next() {
		value, err := f.iter.ValueAndErr()
		if err != nil {
			return event.Position{}, false, f.s.readError(err)
		}
		if storedAt(value) < f.t {
			continue
		}
		p, fits := keyPosition(f.iter.Key())
		if !fits {
			return p, false, corrupt(errGarbled, "an entry's key %x", f.iter.Key())
		}
		return p, true, nil
	}
	return event.Position{}, false, f.failed()
}

func (f *timeSearch) failed() error {
	if err := f.iter.Error(); err != nil {
		return f.s.readError(err)
	}
	return nil
}

// middle returns a position in [lo, hi), half-way.
func middle(lo, hi event.Position) event.Position {
	seq, borrow := bits.Sub64(hi.Seq, lo.Seq, 0)
	ms, _ := bits.Sub64(hi.Ms, lo.Ms, borrow)
	seq = seq>>1 | ms<<63
	ms >>= 1
	seq, carry := bits.Add64(lo.Seq, seq, 0)
	ms, _ = bits.Add64(lo.Ms, ms, carry)
	return event.Position{Ms: ms, Seq: seq}
}
