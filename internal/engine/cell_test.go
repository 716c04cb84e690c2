package engine

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// job is a turn that runs a function.
type job struct {
	Context
	n int
	f func(ctx context.Context) error
}

func (j *job) Handle() error { return j.f(&j.Context) }

// body gives out jobs in order and keeps what became of them.
type body struct {
	name string
	mu   sync.Mutex
	jobs []*job
	n    int
	ends []Result
	in   atomic.Int32
	over func(Result)
}

func (b *body) Name() string { return b.name }

func (b *body) Next() Turn {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.jobs) == 0 {
		return nil
	}
	j := b.jobs[0]
	b.jobs = b.jobs[1:]
	return j
}

func (b *body) Ended(_ Turn, r Result) {
	b.mu.Lock()
	b.ends = append(b.ends, r)
	b.mu.Unlock()
	if b.over != nil {
		b.over(r)
	}
}

func (b *body) add(f func(context.Context) error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.jobs = append(b.jobs, &job{n: b.n, f: f})
	b.n++
}

func (b *body) kinds() []Kind {
	b.mu.Lock()
	defer b.mu.Unlock()
	var k []Kind
	for _, r := range b.ends {
		k = append(k, r.Kind)
	}
	return k
}

func newCell(e *Engine, timeout, grace time.Duration) (*Cell, *body) {
	b := &body{name: "w.1"}
	c := &Cell{}
	c.Init(e, b, timeout, grace)
	return c, b
}

// bubble runs f with an engine in fake time.
func bubble(t *testing.T, f func(t *testing.T, e *Engine)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		e := New(Config{})
		f(t, e)
		e.Close()
		synctest.Wait()
	})
}

func TestEveryEndOfAHandlerIsOneTurn(t *testing.T) {
	var nilMap map[string]int
	boom := errors.New("boom")
	for _, c := range []struct {
		name string
		f    func(context.Context) error
		kind Kind
		is   error
	}{
		{"returns", func(context.Context) error { return nil }, Returned, nil},
		{"fails", func(context.Context) error { return boom }, Returned, boom},
		{"panics with an error", func(context.Context) error { panic(boom) }, Panicked, boom},
		{"panics with a string", func(context.Context) error { panic("text") }, Panicked, nil},
		{"panics with nil", func(context.Context) error { panic(nil) }, Panicked, nil},
		{"writes to a nil map", func(context.Context) error { nilMap["a"] = 1; return nil }, Panicked, nil},
		{"exits", func(context.Context) error { runtime.Goexit(); return nil }, Exited, ErrExited},
		{"panics in a deferred call of an exit", func(context.Context) error {
			defer func() { panic("late") }()
			runtime.Goexit()
			return nil
		}, Panicked, nil},
		{"returns at its deadline", func(ctx context.Context) error { <-ctx.Done(); return nil }, TimedOut, ErrTimedOut},
		{"fails within its grace", func(context.Context) error { time.Sleep(11 * time.Second); return boom }, TimedOut, ErrTimedOut},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, e *Engine) {
				cell, b := newCell(e, 10*time.Second, 2*time.Second)
				b.add(c.f)
				b.add(func(context.Context) error { return nil })
				cell.Ring()
				time.Sleep(15 * time.Second)
				if got := b.kinds(); len(got) != 2 || got[0] != c.kind || got[1] != Returned {
					t.Fatalf("ended %v, want %v and a good turn after it", got, c.kind)
				}
				if c.is != nil && !errors.Is(b.ends[0].Err, c.is) {
					t.Errorf("error %v, want %v", b.ends[0].Err, c.is)
				}
				if s := e.Stats(); s.Running != 0 || s.Leaked != 0 {
					t.Errorf("left behind: %+v", s)
				}
				cell.Close()
			})
		})
	}
}

func TestAStuckHandlerIsGivenUpAndCountedUntilItEnds(t *testing.T) {
	bubble(t, func(t *testing.T, e *Engine) {
		cell, b := newCell(e, 3*time.Second, 2*time.Second)
		release := make(chan struct{})
		b.add(func(context.Context) error { <-release; return nil })
		b.add(func(context.Context) error { t.Error("a closed cell took a turn"); return nil })
		cell.Ring()
		time.Sleep(4900 * time.Millisecond)
		if len(b.kinds()) != 0 {
			t.Fatal("given up within its grace")
		}
		time.Sleep(200 * time.Millisecond)
		synctest.Wait()
		if got := b.kinds(); len(got) != 1 || got[0] != Stuck {
			t.Fatalf("ended %v, want stuck", got)
		}
		if s := e.Stats(); s.Leaked != 1 || s.Actors != 0 {
			t.Errorf("%+v, want one leaked goroutine and no actor", s)
		}
		if err := cell.Wait(t.Context()); err != nil {
			t.Error(err)
		}
		cell.Ring()
		close(release)
		synctest.Wait()
		if s := e.Stats(); s.Leaked != 0 || len(b.kinds()) != 1 {
			t.Errorf("%+v, ended %v: the late return counts", s, b.kinds())
		}
	})
}

func TestADeadlineIsOfItsTurnAlone(t *testing.T) {
	bubble(t, func(t *testing.T, e *Engine) {
		cell, b := newCell(e, 10*time.Second, 2*time.Second)
		for range 5 {
			b.add(func(ctx context.Context) error { time.Sleep(9 * time.Second); return ctx.Err() })
		}
		b.add(func(ctx context.Context) error { <-ctx.Done(); time.Sleep(time.Second); return ctx.Err() })
		b.add(func(ctx context.Context) error { time.Sleep(9 * time.Second); return ctx.Err() })
		cell.Ring()
		time.Sleep(time.Minute + 10*time.Second)
		want := []Kind{Returned, Returned, Returned, Returned, Returned, TimedOut, Returned}
		got := b.kinds()
		if len(got) != len(want) {
			t.Fatalf("ended %v", got)
		}
		for i := range want {
			if got[i] != want[i] || want[i] == Returned && b.ends[i].Err != nil {
				t.Errorf("turn %d ended %v (%v), want %v", i, got[i], b.ends[i].Err, want[i])
			}
		}
		cell.Close()
	})
}

func TestClosingDrainsCancelsAndAbandons(t *testing.T) {
	bubble(t, func(t *testing.T, e *Engine) {
		cell, b := newCell(e, time.Hour, time.Second)
		b.add(func(ctx context.Context) error { time.Sleep(time.Second); return nil })
		b.add(func(context.Context) error { return nil })
		cell.Ring()
		synctest.Wait()
		cell.Close()
		if err := cell.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if got := b.kinds(); len(got) != 2 || got[0] != Returned || got[1] != Cancelled {
			t.Errorf("ended %v: want the first turn finished and no other begun", got)
		}

		cell, b = newCell(e, time.Hour, time.Second)
		b.add(func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
		cell.Ring()
		synctest.Wait()
		cell.Close()
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := cell.Wait(short); err == nil {
			t.Error("the wait did not wait")
		}
		cell.Cancel()
		if cell.Wait(t.Context()); b.kinds()[0] != Cancelled {
			t.Errorf("ended %v, want cancelled", b.kinds())
		}

		cell, b = newCell(e, time.Hour, time.Second)
		release := make(chan struct{})
		b.add(func(context.Context) error { <-release; return nil })
		cell.Ring()
		synctest.Wait()
		cell.Abandon()
		if b.kinds()[0] != Cancelled || e.Stats().Leaked != 1 {
			t.Errorf("ended %v with %+v", b.kinds(), e.Stats())
		}
		close(release)
		synctest.Wait()
		if e.Stats().Leaked != 0 || len(b.kinds()) != 1 {
			t.Error("the late return was counted")
		}
	})
}

func TestDerivedContextsFollowTheTurn(t *testing.T) {
	bubble(t, func(t *testing.T, e *Engine) {
		cell, b := newCell(e, time.Second, time.Minute)
		b.add(func(ctx context.Context) error {
			child, cancel := context.WithCancel(ctx)
			defer cancel()
			<-child.Done()
			if !errors.Is(child.Err(), context.DeadlineExceeded) {
				t.Errorf("the child ended with %v", child.Err())
			}
			late, cancel := context.WithCancel(ctx)
			defer cancel()
			<-late.Done()
			return nil
		})
		var kept context.Context
		b.add(func(ctx context.Context) error { kept = ctx; return nil })
		cell.Ring()
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if kept.Err() == nil {
			t.Error("the context outlives its turn")
		}
		<-kept.Done()
		cell.Close()
	})
}

func TestBurstsLetOthersOn(t *testing.T) {
	e := New(Config{Burst: 4})
	defer e.Close()
	cell, b := newCell(e, time.Minute, time.Second)
	var order []int
	done := make(chan struct{})
	for i := range 1000 {
		b.add(func(context.Context) error {
			if b.in.Add(1) != 1 {
				t.Error("two turns at once")
			}
			order = append(order, i)
			b.in.Add(-1)
			if i == 999 {
				close(done)
			}
			return nil
		})
	}
	cell.Ring()
	<-done
	for i, n := range order {
		if i != n {
			t.Fatalf("turn %d came as number %d", n, i)
		}
	}
	cell.Close()
}

func TestRingsAreNeverLost(t *testing.T) {
	e := New(Config{})
	defer e.Close()
	cell, b := newCell(e, time.Minute, time.Second)
	const n = 20_000
	var left atomic.Int64
	left.Store(n)
	done := make(chan struct{})
	b.over = func(Result) {
		if left.Add(-1) == 0 {
			close(done)
		}
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range n / 4 {
				b.add(func(context.Context) error { return nil })
				cell.Ring()
			}
		})
	}
	wg.Wait()
	<-done
	cell.Close()
}

func TestCallsAreGuardedToo(t *testing.T) {
	bubble(t, func(t *testing.T, e *Engine) {
		call := func(f func(context.Context) error) Kind {
			return e.Call(t.Context(), time.Second, time.Second, f).Kind
		}
		release := make(chan struct{})
		for _, c := range []struct {
			want Kind
			f    func(context.Context) error
		}{
			{Returned, func(context.Context) error { return nil }},
			{Panicked, func(context.Context) error { panic(nil) }},
			{Exited, func(context.Context) error { runtime.Goexit(); return nil }},
			{TimedOut, func(ctx context.Context) error { <-ctx.Done(); return nil }},
			{Stuck, func(context.Context) error { <-release; return nil }},
		} {
			if got := call(c.f); got != c.want {
				t.Errorf("got %v, want %v", got, c.want)
			}
		}
		if e.Stats().Leaked != 1 {
			t.Error("the stuck call is not counted")
		}
		close(release)
		synctest.Wait()
		if e.Stats().Leaked != 0 {
			t.Error("the stuck call is still counted")
		}
	})
}

type noop struct {
	name string
	left int
	turn job
	done chan struct{}
}

func (n *noop) Name() string { return n.name }
func (n *noop) Next() Turn {
	if n.left == 0 {
		return nil
	}
	n.left--
	n.turn = job{f: func(context.Context) error { return nil }}
	return &n.turn
}
func (n *noop) Ended(Turn, Result) {
	if n.left == 0 {
		n.done <- struct{}{}
	}
}

func BenchmarkTurn(b *testing.B) {
	e := New(Config{})
	defer e.Close()
	n := &noop{name: "w.1", done: make(chan struct{}, 1)}
	var c Cell
	c.Init(e, n, time.Minute, time.Second)
	b.ReportAllocs()
	turns := 0
	for b.Loop() {
		n.left = 1024
		c.Ring()
		<-n.done
		turns += 1024
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(turns), "ns/turn")
	c.Close()
}
