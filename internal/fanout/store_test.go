package fanout

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/feed"
	"github.com/turnlane/turnlane/grouping"
	"github.com/turnlane/turnlane/store"
	"github.com/turnlane/turnlane/store/pebblestore"
)

var _ Upstream = store.Log(nil)

func openStore(t testing.TB) *pebblestore.Store {
	t.Helper()
	s, err := pebblestore.Open(pebblestore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// runHub runs a hub until the test ends.
func runHub(t testing.TB, cfg Config) *Hub {
	t.Helper()
	h := New(cfg)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { h.Run(ctx); close(ended) }()
	t.Cleanup(func() { cancel(); <-ended })
	return h
}

func publish(t testing.TB, s store.Log, topic string, keys ...string) {
	t.Helper()
	batch := store.Batch{}
	for _, k := range keys {
		batch.Records = append(batch.Records, record(k))
	}
	if _, err := s.Append(context.Background(), topic, []store.Batch{batch}); err != nil {
		t.Fatal(err)
	}
}

// On the embedded store: a quick publisher, a member per slot with lanes from tiny to large, a
// dedicated reader, one that begins later at the beginning, and one that restarts at its position.
func TestReadersOfTheEmbeddedStore(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	const events = 5000
	s := openStore(t)
	h := runHub(t, Config{Upstream: s})
	all := keys("k", 0, events)
	want := func(slots grouping.Set) (ks []string) {
		for _, k := range all {
			if slots.Owns(grouping.Hash(k)) {
				ks = append(ks, k)
			}
		}
		return ks
	}
	var work sync.WaitGroup
	reader := func(name string, size int, start Start, slots grouping.Set, restarts bool) {
		l := &lane{size: size}
		opts := Options{Start: start, Sink: l, Slots: slots, OnGap: l.gap}
		f, err := h.Open(t.Context(), "t", opts)
		if err != nil {
			t.Error(err)
			return
		}
		want := want(slots)
		work.Go(func() {
			defer func() { f.Close() }()
			r := rand.New(rand.NewPCG(seed, uint64(size)))
			for n := 0; n < len(want); {
				took := l.take(f, 1+r.IntN(size))
				if n += took; took == 0 {
					runtime.Gosched()
				}
				if restarts && r.IntN(50) == 0 {
					f.Close()
					f.Observe(func(pos event.Position, incarnation string) { opts.Start = After(pos, incarnation) })
					if f, err = h.Open(t.Context(), "t", opts); err != nil {
						t.Error(err)
						return
					}
				}
			}
			if got := l.seen(t); !slices.Equal(got, want) || len(l.gapsSeen()) > 0 {
				t.Errorf("%s: %d entries, want %d; gaps %v", name, len(got), len(want), l.gapsSeen())
			}
		})
	}
	for slot := range uint32(4) {
		reader(fmt.Sprint("member ", slot), 1+int(slot)*50, Tail(), grouping.NewSet(4, slot), false)
	}
	reader("dedicated", 64, Tail(), grouping.Set{}, false)
	reader("restarting", 100, Tail(), grouping.Set{}, true)
	work.Go(func() {
		r := rand.New(rand.NewPCG(seed, 0))
		for n := 0; n < events; {
			m := min(events, n+1+r.IntN(60))
			publish(t, s, "t", all[n:m]...)
			n = m
			if n > events/2 && n < events/2+60 {
				reader("late", 500, Earliest(), grouping.Set{}, false)
			}
		}
	})
	work.Wait()
}

// Retention under a feed that does not drain: what it missed is told exactly.
func TestTrimmingTheEmbeddedStoreUnderASlowFeed(t *testing.T) {
	s := openStore(t)
	h := runHub(t, Config{Upstream: s})
	l := &lane{size: 4}
	gapped := make(chan feed.Gap, 1)
	f, err := h.Open(t.Context(), "t", Options{Sink: l, OnGap: func(g feed.Gap) { gapped <- g }})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	all := keys("k", 0, 100)
	publish(t, s, "t", all[:5]...)
	for f.Status().State != Stalled {
		runtime.Gosched()
	}
	// The process has read the fifth entry, which the lane refused, and nobody makes it read on.
	publish(t, s, "t", all[5:60]...)
	b, err := s.Bounds(t.Context(), "t")
	if err != nil {
		t.Fatal(err)
	}
	publish(t, s, "t", all[60:]...)
	if _, err := s.Trim(t.Context(), "t", store.TrimLimit{UpTo: b.Last}); err != nil {
		t.Fatal(err)
	}
	for len(l.seen(t)) < 45 {
		if l.take(f, 4) == 0 {
			runtime.Gosched()
		}
	}
	if got, want := l.seen(t), slices.Concat(all[:5], all[60:]); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	l.mu.Lock()
	fifth := l.got[4]
	l.mu.Unlock()
	if g := <-gapped; g.Kind != feed.Trimmed || g.First != fifth.Next() || g.Last != b.Last {
		t.Errorf("gap %+v; want it after %s, up to %s", g, fifth, b.Last)
	}
	if s := f.Status(); s.Gaps != 1 || s.Examined != 45 {
		t.Errorf("status %+v", s)
	}
}

func TestMemoryOfAnIdleFeed(t *testing.T) {
	const n = 20_000
	log := newFakeLog()
	h := runHub(t, Config{Upstream: log})
	heap := func() uint64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("topic-%d", i)
	}
	feeds := make([]*Feed, n)
	sink := &lane{size: 1}
	before, routines := heap(), runtime.NumGoroutine()
	for i, name := range names {
		f, err := h.Open(t.Context(), name, Options{Sink: sink})
		if err != nil {
			t.Fatal(err)
		}
		feeds[i] = f
	}
	each := float64(heap()-before) / n
	t.Logf("%.0f bytes for a topic, its watch in the fake store, and a feed", each)
	if each > 2048 {
		t.Errorf("%.0f bytes for an idle feed and its topic", each)
	}
	if more := runtime.NumGoroutine() - routines; more > 0 {
		t.Errorf("%d goroutines more for idle feeds", more)
	}
	for _, f := range feeds {
		f.Close()
	}
}

// tally is a sink that takes everything.
type tally struct{ n atomic.Int64 }

func (s *tally) Offer(entries []event.Entry) int { s.n.Add(int64(len(entries))); return len(entries) }
func (s *tally) Room() bool                      { return true }

// BenchmarkStoreToSinks is the whole way from an append of 100 events in the embedded store to sinks.
func BenchmarkStoreToSinks(b *testing.B) {
	for _, c := range []struct {
		name  string
		sinks int
		group bool
	}{{"sinks=1", 1, false}, {"sinks=100", 100, false}, {"members=4", 4, true}, {"members=1024", 1024, true}} {
		b.Run(c.name, func(b *testing.B) {
			s := openStore(b)
			h := runHub(b, Config{Upstream: s})
			var sink tally
			for i := range c.sinks {
				opts := Options{Sink: &sink}
				if c.group {
					opts.Slots = grouping.NewSet(uint32(c.sinks), uint32(i))
				}
				f, err := h.Open(b.Context(), "t", opts)
				if err != nil {
					b.Fatal(err)
				}
				defer f.Close()
			}
			batch := keys("some-key-", 0, 100)
			copies := int64(len(batch))
			if !c.group {
				copies *= int64(c.sinks)
			}
			var sent int64
			b.ReportAllocs()
			for b.Loop() {
				publish(b, s, "t", batch...)
				sent += copies
			}
			for sink.n.Load() < sent {
				runtime.Gosched()
			}
			b.ReportMetric(float64(b.N*len(batch))/b.Elapsed().Seconds(), "events/s")
		})
	}
}
