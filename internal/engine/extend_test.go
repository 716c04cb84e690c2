package engine

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// A turn that is extended in time goes on, up to the most that it may take, and the next turn's deadline is
// its own again.
func TestATurnIsExtended(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := New(Config{})
		defer e.Close()
		b := &body{name: "b"}
		var c Cell
		c.Init(e, b, time.Second, time.Second)
		defer c.Close()
		var errs []error
		var last *job
		extending := func(pause time.Duration, times int) func(context.Context) error {
			return func(ctx context.Context) error {
				for range times {
					turn, _ := c.Turning()
					last = turn.(*job)
					errs = append(errs, c.Extend(turn, time.Second, 5*time.Second))
					select {
					case <-time.After(pause):
					case <-ctx.Done():
						return ctx.Err()
					}
				}
				return nil
			}
		}
		for _, x := range []struct {
			name string
			f    func(context.Context) error
			took time.Duration
			want error
			errs int // of Extend
		}{
			{"in time", extending(800*time.Millisecond, 4), 3200 * time.Millisecond, nil, 0},
			{"too long in all", extending(800*time.Millisecond, 100), 5 * time.Second, ErrTimedOut, 1},
			{"too late", extending(1200*time.Millisecond, 2), time.Second, ErrTimedOut, 0},
			{"not at all, after one that was", func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }, time.Second, ErrTimedOut, 0},
		} {
			errs = nil
			b.mu.Lock()
			b.ends = nil
			b.mu.Unlock()
			begin := time.Now()
			b.add(x.f)
			c.Ring()
			synctest.Wait()
			for len(b.kinds()) == 0 {
				time.Sleep(time.Millisecond)
				synctest.Wait()
			}
			failed := 0
			for _, err := range errs {
				if errors.Is(err, ErrExtended) {
					failed++
				} else if err != nil {
					t.Errorf("%s: Extend says %v", x.name, err)
				}
			}
			if took := time.Since(begin).Truncate(time.Millisecond * 100); took != x.took || !errors.Is(b.ends[0].Err, x.want) || failed != x.errs {
				t.Errorf("%s: took %s, %v, %d extensions were cut; want %s, %v, %d", x.name, took, b.ends[0].Err, failed, x.took, x.want, x.errs)
			}
		}
		if err := c.Extend(last, time.Second, time.Minute); !errors.Is(err, ErrCancelled) {
			t.Errorf("a turn that is over was extended: %v", err)
		}
		c.SetLimits(10*time.Millisecond, time.Second)
		b.mu.Lock()
		b.ends = nil
		b.mu.Unlock()
		b.add(func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
		c.Ring()
		time.Sleep(20 * time.Millisecond)
		synctest.Wait()
		if len(b.ends) != 1 || b.ends[0].Kind != TimedOut {
			t.Errorf("after the limits became shorter: %v", b.ends)
		}
	})
}
