package workmanager_test

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	sdk "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/turnlane/turnlane/internal/catalog"
	"github.com/turnlane/turnlane/internal/metrics"
	storev1 "github.com/turnlane/turnlane/proto/turnlane/store/v1"
	v1 "github.com/turnlane/turnlane/proto/turnlane/v1"
	"github.com/turnlane/turnlane/store"
	"github.com/turnlane/turnlane/workmanager"
)

// fill stores n workers that are wanted, as a catalog of another time has them.
func (w *world) fill(n int) {
	w.t.Helper()
	var changes []store.Change
	for i := range n {
		id := fmt.Sprintf("w%06d", i)
		put, err := catalog.Put(catalog.WorkerKey(id), &storev1.WorkerRecord{
			Id: id, Type: "echo", Topics: []string{"in"}, Run: 1, Generation: 1, Desired: v1.DesiredState_DESIRED_STATE_RUNNING,
			Starts: []*storev1.TopicStart{{Topic: "in"}},
		}, store.Absent)
		if err != nil {
			w.t.Fatal(err)
		}
		if changes = append(changes, put); len(changes) == 500 || i == n-1 {
			if _, err := w.store.Txn(w.t.Context(), changes...); err != nil {
				w.t.Fatal(err)
			}
			changes = changes[:0]
		}
	}
}

func TestTenThousandWorkers(t *testing.T) {
	const n = manyWorkers
	w := newWorld(t)
	w.fill(n)
	reader := sdk.NewManualReader()
	provider := sdk.NewMeterProvider(sdk.WithReader(reader))
	m := w.manager(func(c *workmanager.Config) {
		c.Meter, c.StartWait = provider.Meter("test"), 50*time.Millisecond
	})
	workers := func(state string) int64 {
		var all metricdata.ResourceMetrics
		if err := reader.Collect(t.Context(), &all); err != nil {
			t.Fatal(err)
		}
		for _, scope := range all.ScopeMetrics {
			for _, metric := range scope.Metrics {
				if metric.Name != metrics.CatalogWorkers {
					continue
				}
				for _, p := range metric.Data.(metricdata.Gauge[int64]).DataPoints {
					if got, _ := p.Attributes.Value(attribute.Key(metrics.State)); got.AsString() == state {
						return p.Value
					}
				}
			}
		}
		return 0
	}
	eventually(t, "all wait for a runtime", func() bool { return workers("STARTING") == n })
	pod := func(name string) (*membership, func() int) {
		m := w.sessionOf(store.SessionInfo{Pod: name, Roles: []string{"runtime"}, Types: []string{"echo"}})
		prefix := catalog.SessionPlaces(m.id)
		return m, func() int {
			time.Sleep(20 * time.Millisecond) // to count takes long itself
			return len(w.keys(prefix))
		}
	}
	first, onFirst := pod("first")
	eventually(t, "all are placed", func() bool { return onFirst() == n })

	// Among so many a single one is still served at once, and goes where there is most room.
	_, onSecond := pod("second")
	w.runtime("other", "marker")
	req := dedicated("new")
	req.Type = "marker"
	m.create(t, req)
	m.start(t, "new")
	eventually(t, "it runs", func() bool { return m.state(t, "new") == running })
	more := 0
	eventually(t, "workers go to the empty one", func() bool {
		more++
		id := fmt.Sprint("late", more)
		m.create(t, dedicated(id))
		m.start(t, id)
		return onSecond() >= 10
	})
	w.expire(first)
	eventually(t, "all are placed on the other", func() bool { return onSecond() == n+more && onFirst() == 0 })
}

// A worker that was running and fails without a bell is found by the sweep.
func TestALateFailureIsFound(t *testing.T) {
	w := newWorld(t)
	m := w.manager()
	r := w.runtime("pod-1", "echo")
	m.create(t, dedicated("a"))
	m.start(t, "a")
	eventually(t, "it is told to run", func() bool { return w.events.states("a") == "STOPPED STARTING RUNNING" })
	r.failing("a", "its disk is gone")
	r.mu.Lock()
	o := r.owned["a"].owner
	delete(r.owned, "a")
	r.mu.Unlock()
	o.State, o.Reason = "FAILED", "its disk is gone"
	if _, err := w.store.Commit(t.Context(), []store.Commit{{Owner: o, Start: store.Start{Run: 1, Generation: 1}}}); err != nil {
		t.Fatal(err)
	}
	if err := w.store.Release(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is told and unplaced", func() bool {
		return w.events.states("a") == "STOPPED STARTING RUNNING FAILED" && len(w.keys(catalog.PlacePrefix)) == 0
	})
	if got := m.get(t, "a"); got.GetState() != failed || got.GetReason() != "its disk is gone" {
		t.Errorf("%v", got)
	}
}

// A process that loses its session leads no more, and again once it has another.
func TestALostSessionEndsTheTerm(t *testing.T) {
	w := newWorld(t)
	m := w.manager()
	w.runtime("pod-1", "echo")
	m.create(t, dedicated("a"))
	m.start(t, "a")
	w.expire(m.session)
	time.Sleep(50 * time.Millisecond) // longer than it takes to notice
	m.create(t, dedicated("b"))
	resp, err := m.StartWorker(t.Context(), &v1.StartWorkerRequest{Worker: "b"})
	if err != nil || resp.GetWorker().GetState() != starting || resp.GetWorker().GetReason() != "waiting to be placed" {
		t.Errorf("without a leader: %v, %v", resp, err)
	}
	next := w.session("workmanager")
	m.session.mu.Lock()
	m.session.id = next.id
	m.session.mu.Unlock()
	eventually(t, "it is placed", func() bool { return m.state(t, "b") == running })
}

// BenchmarkPlace measures how long it takes to place a catalog on a runtime that comes.
func BenchmarkPlace(b *testing.B) {
	const n = 100_000
	for b.Loop() {
		b.StopTimer()
		w := newWorld(b)
		w.fill(n)
		id := w.sessionOf(store.SessionInfo{Pod: "pod", Roles: []string{"runtime"}, Types: []string{"echo"}})
		session, _ := id.Current()
		bell, err := w.store.WatchKeys(b.Context(), catalog.SessionPlaces(session))
		if err != nil {
			b.Fatal(err)
		}
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		b.StartTimer()
		m := w.manager()
		for placed := 0; placed < n; {
			keys, err := bell.Wait(b.Context())
			if err != nil {
				b.Fatal(err)
			}
			placed += len(keys)
		}
		b.StopTimer()
		runtime.GC()
		runtime.ReadMemStats(&after)
		b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/n, "B/worker")
		m.stop()
		bell.Close()
		b.StartTimer()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/worker")
}

// BenchmarkStart measures StartWorker with a runtime that starts at once, by parallel callers.
func BenchmarkStart(b *testing.B) {
	w := newWorld(b)
	m := w.manager()
	w.runtime("pod", "echo")
	var next atomic.Int64
	var wg sync.WaitGroup
	begin := time.Now()
	for range 32 {
		wg.Go(func() {
			for {
				i := next.Add(1)
				if i > int64(b.N) {
					return
				}
				id := fmt.Sprint("w", i)
				_, err := m.CreateWorker(context.Background(), dedicated(id))
				if err == nil {
					_, err = m.StartWorker(context.Background(), &v1.StartWorkerRequest{Worker: id})
				}
				if err != nil {
					b.Error(err)
				}
			}
		})
	}
	wg.Wait()
	b.ReportMetric(float64(b.N)/time.Since(begin).Seconds(), "workers/s")
}
