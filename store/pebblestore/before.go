package pebblestore

import (
	"context"
	"fmt"
	"math/bits"
	"time"

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
	entries, err := s.entries(ctx, v.id)
	if err != nil {
		return p, err
	}
	defer func() {
		if e := entries.close(); e != nil && err == nil {
			err = e
		}
	}()
	f := timeSearch{entries: entries, t: t, last: v.bounds.Last}
	return f.run(ctx, v.bounds.First)
}

// timeSearch is one search.
type timeSearch struct {
	entries entryReader
	t       int64
	last    event.Position // that readers may see
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
		end, b, ok, err := f.entries.block(from)
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
		end, b, ok, err := f.entries.block(mid)
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

// entry returns the first entry in [from, end] that was stored at t or later and that readers may see.
func (f *timeSearch) entry(from, end event.Position) (at event.Position, found bool, err error) {
	if f.last.Less(end) {
		end = f.last
	}
	err = f.entries.scan(from, end, func(p event.Position, record []byte) (bool, error) {
		if storedAt(record) < f.t {
			return true, nil
		}
		at, found = p, true
		return false, nil
	})
	return at, found, err
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
