package pebblestore_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/store"
	"github.com/turnlane/turnlane/store/pebblestore"
)

func benchStore(b *testing.B, opts pebblestore.Options) *pebblestore.Store {
	s, err := pebblestore.Open(opts)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { s.Close() })
	return s
}

func modes(b *testing.B, run func(b *testing.B, s *pebblestore.Store)) {
	for _, m := range []struct {
		name string
		opts pebblestore.Options
	}{
		{"always", pebblestore.Options{Dir: "d", Fsync: pebblestore.Always}},
		{"interval", pebblestore.Options{Dir: "d", Fsync: pebblestore.Interval}},
		{"memory", pebblestore.Options{}},
	} {
		b.Run(m.name, func(b *testing.B) {
			if m.opts.Dir != "" {
				m.opts.Dir = b.TempDir()
			}
			run(b, benchStore(b, m.opts))
		})
	}
}

// fullBatch makes records of 256 bytes that compress about as well as events in JSON do.
func fullBatch(n int) store.Batch {
	batch := store.Batch{}
	for range n {
		body := make([]byte, 0, 256)
		for len(body) < 256-13-24 {
			body = fmt.Appendf(body, `{"price":%d,"sym":"ABC%d"}`, rand.Uint64(), rand.IntN(1000))
		}
		batch.Records = append(batch.Records, record(time.Now(), string(body[:256-13-24])+strings.Repeat(" ", 24)))
	}
	return batch
}

func perSecond(b *testing.B, events int64) {
	b.ReportMetric(float64(events)/b.Elapsed().Seconds(), "events/s")
}

// BenchmarkAppend100 is four publishers of batches of 100 events of 256 bytes.
func BenchmarkAppend100(b *testing.B) {
	modes(b, func(b *testing.B, s *pebblestore.Store) {
		var n atomic.Int64
		b.ReportAllocs()
		b.SetParallelism(2)
		b.RunParallel(func(pb *testing.PB) {
			topic, batch := fmt.Sprint("t", n.Add(1)), []store.Batch{fullBatch(100)}
			for pb.Next() {
				if _, err := s.Append(context.Background(), topic, batch); err != nil {
					b.Error(err)
					return
				}
			}
		})
		perSecond(b, int64(b.N)*100)
	})
}

// BenchmarkAppendOne64 is 64 publishers of single events.
func BenchmarkAppendOne64(b *testing.B) {
	modes(b, func(b *testing.B, s *pebblestore.Store) {
		batch := []store.Batch{fullBatch(1)}
		b.ReportAllocs()
		b.SetParallelism(32)
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				if _, err := s.Append(context.Background(), "t", batch); err != nil {
					b.Error(err)
					return
				}
			}
		})
		perSecond(b, int64(b.N))
	})
}

// BenchmarkScan reads a log from its start, a thousand entries a page.
func BenchmarkScan(b *testing.B) {
	modes(b, func(b *testing.B, s *pebblestore.Store) {
		batch := []store.Batch{fullBatch(1000)}
		for range 100 {
			if _, err := s.Append(context.Background(), "t", batch); err != nil {
				b.Fatal(err)
			}
		}
		var after event.Position
		var events int64
		b.ReportAllocs()
		for b.Loop() {
			p, err := s.Read(context.Background(), "t", after, store.ReadLimit{})
			if err != nil {
				b.Fatal(err)
			}
			events += int64(len(p.Entries))
			if after = p.To; !after.Less(p.Bounds.Last) {
				after = event.Position{}
			}
		}
		perSecond(b, events)
	})
}

// BenchmarkTail is one event on its way: append, news, read by another goroutine.
func BenchmarkTail(b *testing.B) {
	modes(b, func(b *testing.B, s *pebblestore.Store) {
		ctx := context.Background()
		news, err := s.OpenNews(ctx)
		if err != nil {
			b.Fatal(err)
		}
		news.Watch(ctx, "t")
		got := make(chan struct{})
		go func() {
			var after event.Position
			for {
				if _, err := news.Wait(ctx); err != nil {
					return
				}
				p, err := s.Read(ctx, "t", after, store.ReadLimit{})
				if err != nil {
					return
				}
				after = p.To
				for range p.Entries {
					got <- struct{}{}
				}
			}
		}()
		batch := []store.Batch{fullBatch(1)}
		b.ReportAllocs()
		for b.Loop() {
			if _, err := s.Append(ctx, "t", batch); err != nil {
				b.Fatal(err)
			}
			<-got
		}
		news.Close()
	})
}

// BenchmarkCommit is a flush of a thousand dirty cursors.
func BenchmarkCommit(b *testing.B) {
	modes(b, func(b *testing.B, s *pebblestore.Store) {
		ctx := context.Background()
		x, err := s.OpenSession(ctx, store.SessionInfo{}, time.Hour)
		if err != nil {
			b.Fatal(err)
		}
		var commits []store.Commit
		for i := range 1000 {
			o, err := s.Acquire(ctx, fmt.Sprint("w", i), x.ID)
			if err != nil {
				b.Fatal(err)
			}
			commits = append(commits, store.Commit{Owner: o, Cursors: []store.Cursor{{Topic: "t", Incarnation: "i"}}})
		}
		b.ReportAllocs()
		for b.Loop() {
			if _, err := s.Commit(ctx, commits); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(b.N)*1000/b.Elapsed().Seconds(), "commits/s")
	})
}

// BenchmarkPebble100 is the yardstick of BenchmarkAppend100/interval: the same batches put straight into a
// Pebble database by one goroutine.
func BenchmarkPebble100(b *testing.B) {
	db, err := pebble.Open(b.TempDir(), &pebble.Options{MemTableSize: 16 << 20, Logger: quiet{}})
	if err != nil {
		b.Fatal(err)
	}
	defer db.Close()
	rs := fullBatch(100).Records
	var n uint64
	for b.Loop() {
		batch := db.NewBatch()
		for i := range 100 {
			n++
			batch.Set(binary.BigEndian.AppendUint64([]byte("aaaabbbbccccddddd"), n), rs[i], nil)
		}
		if err := batch.Commit(pebble.NoSync); err != nil {
			b.Fatal(err)
		}
		batch.Close()
	}
	perSecond(b, int64(b.N)*100)
}
