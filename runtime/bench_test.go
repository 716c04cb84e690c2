package runtime

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/turnlane/turnlane/actor"
	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/internal/admission"
	"github.com/turnlane/turnlane/internal/metrics"
	"github.com/turnlane/turnlane/store"
)

// load appends n events of 256 bytes to a topic, in batches of 500.
func (g *rig) fill(topic string, n int) {
	data := make([]byte, 200)
	for i := range data {
		data[i] = 'x'
	}
	for from := 0; from < n; from += 500 {
		records := make([]event.Record, min(500, n-from))
		for i := range records {
			e := numbered(from + i)
			e.Data, e.DataKind = data, event.BinaryData
			records[i] = admission.Encode(e, time.Now())
		}
		if _, err := g.store.Append(context.Background(), topic, []store.Batch{{Records: records}}); err != nil {
			g.t.Fatal(err)
		}
	}
}

// BenchmarkDrain is the whole path from a topic's log through fan-out, lanes and turns to cursors.
func BenchmarkDrain(b *testing.B) {
	for _, members := range []int{1, 4} {
		for _, outputs := range []bool{false, true} {
			b.Run(fmt.Sprintf("members=%d/outputs=%v", members, outputs), func(b *testing.B) {
				const n = 100_000
				g := newRig(b)
				m, err := metrics.New()
				if err != nil {
					b.Fatal(err)
				}
				defer m.Shutdown(context.Background())
				g.cfg = func(c *Config) { c.CursorFlushInterval, c.Meter = 200*time.Millisecond, m.Meter() }
				var left atomic.Int64
				done := make(chan struct{}, 1)
				g.handle("none", func(_ context.Context, turn *actor.Turn) error {
					if outputs {
						if err := turn.Publish("out", &event.Event{Type: "t", Subject: turn.Event().Subject}); err != nil {
							return err
						}
					}
					if left.Add(-1) == 0 {
						done <- struct{}{}
					}
					return nil
				})
				g.fill("in", n)
				p := g.run("pod-1")
				round := uint64(0)
				b.ReportAllocs()
				for b.Loop() {
					left.Store(n)
					round++
					for i := range members {
						w := worker{id: fmt.Sprintf("w%d-%d", round, i), typ: "none", topics: []string{"in"}}
						if members > 1 {
							w.group, w.size, w.index = "g", uint32(members), uint32(i)
						}
						p.place(w)
					}
					<-done
					b.StopTimer()
					for i := range members {
						p.unplace(fmt.Sprintf("w%d-%d", round, i))
					}
					g.eventually("all stopped", func() bool { return p.r.Workers() == 0 })
					b.StartTimer()
				}
				b.ReportMetric(float64(n)*float64(b.N)/b.Elapsed().Seconds(), "events/s")
			})
		}
	}
}

// TestIdleWorkersAreSmall starts many workers on a few topics and weighs them. The number is
// TURNLANE_IDLE_WORKERS, 2,000 if that is not set.
func TestIdleWorkersAreSmall(t *testing.T) {
	n := 2000
	if s := os.Getenv("TURNLANE_IDLE_WORKERS"); s != "" {
		n, _ = strconv.Atoi(s)
	}
	g := newRig(t)
	g.handle("idle", func(context.Context, *actor.Turn) error { return nil })
	place := func(session string) {
		var changes []store.Change
		for i := range n {
			w := worker{id: fmt.Sprintf("w%06d", i), typ: "idle", topics: []string{fmt.Sprintf("t%d", i%10)}}
			changes = append(changes, g.changes(w, session)...)
			if len(changes) >= 500 || i == n-1 {
				g.txn(changes...)
				changes = nil
			}
		}
	}
	place("unplaced") // so that the store has the same before and after
	p := g.run("pod-1")
	before := heap()
	begun := time.Now()
	place(p.session)
	g.t.Logf("placed in %s", time.Since(begun))
	for p.r.Workers() < n {
		time.Sleep(10 * time.Millisecond)
	}
	took := time.Since(begun)
	each := float64(heap()-before) / float64(n)
	t.Logf("%d workers started in %s, %.0f bytes each, in the heap and with the store's memory", n, took, each)
	if goroutines := runtime.NumGoroutine(); goroutines > 200 {
		t.Errorf("%d goroutines for idle workers", goroutines)
	}
	if each > 8<<10 {
		t.Errorf("%.0f bytes each", each)
	}
}

func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
