package gateway

import (
	"context"
	"math/bits"
	"time"

	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/feed"
	turnlanev1 "github.com/turnlane/turnlane/proto/turnlane/v1"
	"github.com/turnlane/turnlane/store"
)

const (
	// A log of more entries is searched for where the bound may lie, rather than walked from the start.
	walkEntries = 100_000
	// searchSteps bounds that search; a range of a week shrinks to less than a millisecond.
	searchSteps = 40
)

// bound moves the start of a subscription so that no more than the limits of a replay lies between it
// and the end of the log as it was. What that cuts off becomes a gap with its exact ends.
func (g *Gateway) bound(ctx context.Context, p *plan, topic string, log store.Bounds) error {
	from, err := g.search(ctx, topic, p.after, log)
	if err != nil {
		return err
	}
	var first event.Position // the oldest entry cut off
	if from != p.after {
		page, err := g.cfg.Store.Read(ctx, topic, p.after, store.ReadLimit{Entries: 1})
		if err != nil {
			return err
		}
		if len(page.Entries) > 0 {
			first = page.Entries[0].Pos
		}
	}
	newest := window{maxEvents: g.cfg.ReplayEvents, maxBytes: g.cfg.ReplayBytes}
	err = g.walk(ctx, topic, from, log.Last, func(e event.Entry) bool {
		newest.add(e)
		return true
	})
	if err != nil || newest.cut == 0 {
		return err
	}
	if first.IsZero() {
		first = newest.firstCut
	}
	if p.after.Less(log.Removed) { // the feed begins behind this gap, so it will not tell it
		p.gaps = append(p.gaps, &turnlanev1.Gap{First: p.after.Next().String(), Last: log.Removed.String(), Kind: feed.Trimmed.String()})
	}
	p.after = newest.lastCut
	p.notBefore = time.Time{}
	p.gaps = append(p.gaps, &turnlanev1.Gap{First: first.String(), Last: p.after.String(), Kind: gapReplayBound})
	return nil
}

// search returns a position at or after the given one, behind which there is still more than a replay
// may have, or the given one if that is not worth it.
func (g *Gateway) search(ctx context.Context, topic string, after event.Position, log store.Bounds) (event.Position, error) {
	if log.Entries <= walkEntries || !after.Less(log.Last) {
		return after, nil
	}
	low, high := after, log.Last
	for range searchSteps {
		middle := between(low, high)
		if middle == low {
			break
		}
		behind := 0
		err := g.walk(ctx, topic, middle, log.Last, func(event.Entry) bool {
			behind++
			return behind <= g.cfg.ReplayEvents
		})
		if err != nil {
			return after, err
		}
		if behind > g.cfg.ReplayEvents {
			low = middle
		} else {
			high = middle
		}
	}
	return low, nil
}

// walk calls do with the entries after one position up to another, until it returns false.
func (g *Gateway) walk(ctx context.Context, topic string, after, last event.Position, do func(event.Entry) bool) error {
	for after.Less(last) {
		page, err := g.cfg.Store.Read(ctx, topic, after, store.ReadLimit{})
		if err != nil {
			return err
		}
		for _, e := range page.Entries {
			if last.Less(e.Pos) || !do(e) {
				return nil
			}
		}
		if !after.Less(page.To) {
			return nil
		}
		after = page.To
	}
	return nil
}

// between returns the middle of two positions, rounded down.
func between(low, high event.Position) event.Position {
	seq, borrow := bits.Sub64(high.Seq, low.Seq, 0)
	ms, _ := bits.Sub64(high.Ms, low.Ms, borrow)
	seq = seq>>1 | ms<<63
	ms >>= 1
	seq, carry := bits.Add64(low.Seq, seq, 0)
	ms, _ = bits.Add64(low.Ms, ms, carry)
	return event.Position{Ms: ms, Seq: seq}
}

// window keeps the newest entries within limits, one at least, and says what it cut off.
type window struct {
	maxEvents int
	maxBytes  int64

	places            []place // those from head on are kept
	head              int
	bytes             int64
	cut               int
	firstCut, lastCut event.Position
}

type place struct {
	pos   event.Position
	bytes int64
}

func (w *window) add(e event.Entry) {
	w.places = append(w.places, place{e.Pos, int64(len(e.Record))})
	w.bytes += int64(len(e.Record))
	for kept := len(w.places) - w.head; kept > 1 && (kept > w.maxEvents || w.bytes > w.maxBytes); kept-- {
		oldest := w.places[w.head]
		if w.cut == 0 {
			w.firstCut = oldest.pos
		}
		w.lastCut = oldest.pos
		w.bytes -= oldest.bytes
		w.cut++
		w.head++
	}
	if w.head > w.maxEvents && w.head > len(w.places)/2 {
		w.places = append(w.places[:0], w.places[w.head:]...)
		w.head = 0
	}
}
