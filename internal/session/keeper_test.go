package session

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/turnlane/turnlane/store"
)

// leases is a store of sessions alone, which can be made to fail or to hang.
type leases struct {
	store.Leases
	mu      sync.Mutex
	opened  int
	live    map[string]time.Time
	info    store.SessionInfo
	fail    error
	hang    bool
	renewed int
}

func (l *leases) OpenSession(_ context.Context, info store.SessionInfo, ttl time.Duration) (store.Session, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fail != nil {
		return store.Session{}, l.fail
	}
	l.opened++
	id := fmt.Sprintf("s%d", l.opened)
	l.live[id], l.info = time.Now().Add(ttl), info
	return store.Session{ID: id, SessionInfo: info}, nil
}

func (l *leases) RenewSession(ctx context.Context, id string, info store.SessionInfo, ttl time.Duration) error {
	l.mu.Lock()
	hang := l.hang
	l.mu.Unlock()
	if hang {
		<-ctx.Done()
		return ctx.Err()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fail != nil {
		return l.fail
	}
	if until, ok := l.live[id]; !ok || !time.Now().Before(until) {
		return store.ErrSessionExpired
	}
	l.live[id], l.info = time.Now().Add(ttl), info
	l.renewed++
	return nil
}

func (l *leases) CloseSession(_ context.Context, id string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.live, id)
	return nil
}

func (l *leases) set(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f()
}

func start(t *testing.T) (*Keeper, *leases, func()) {
	t.Helper()
	l := &leases{live: map[string]time.Time{}}
	k, err := New(Config{Leases: l, Info: store.SessionInfo{Pod: "p"}, TTL: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- k.Run(ctx) }()
	synctest.Wait()
	return k, l, func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func TestASessionIsKeptAndClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, l, stop := start(t)
		time.Sleep(time.Hour)
		if id, ok := k.Current(); !ok || id != "s1" {
			t.Errorf("after an hour the session is %q %v", id, ok)
		}
		if l.renewed < 1400 {
			t.Errorf("renewed %d times in an hour, want every 2.5 s", l.renewed)
		}
		stop()
		if _, ok := k.Current(); ok || len(l.live) != 0 {
			t.Error("the session outlives its keeper")
		}
	})
}

func TestAnUnreachableStoreEndsTrustBeforeTheTTL(t *testing.T) {
	for _, how := range []string{"fails", "hangs"} {
		t.Run(how, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k, l, stop := start(t)
				defer stop()
				time.Sleep(2600 * time.Millisecond) // renewed at 2.5 s
				changed := k.Changes()
				l.set(func() {
					if l.hang = how == "hangs"; !l.hang {
						l.fail = store.ErrUnavailable
					}
				})
				time.Sleep(7800 * time.Millisecond) // 10.4 s: trusted until 10.5 s
				if !k.Holds("s1") {
					t.Fatal("the session was given up too early")
				}
				time.Sleep(200 * time.Millisecond)
				synctest.Wait()
				if l.set(func() { l.hang, l.fail = false, nil }); k.Holds("s1") {
					t.Fatal("the session is trusted for longer than 0.8 TTL")
				}
				select {
				case <-changed:
				default:
					t.Error("nobody was told")
				}
				time.Sleep(5 * time.Second)
				if !k.Holds("s2") {
					t.Error("no other session was opened")
				}
			})
		})
	}
}

func TestAnExpiredSessionIsReplacedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, l, stop := start(t)
		defer stop()
		l.set(func() { clear(l.live) })
		time.Sleep(2600 * time.Millisecond)
		if !k.Holds("s2") {
			t.Error("the expired session was not replaced at its renewal")
		}
	})
}

func TestAChangeOfInfoIsToldAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, l, stop := start(t)
		defer stop()
		k.Update(func(i *store.SessionInfo) { i.Draining = true })
		synctest.Wait()
		l.set(func() {
			if !l.info.Draining {
				t.Error("the store does not know")
			}
		})
	})
}

func TestAPausedProcessKnows(t *testing.T) {
	k := &Keeper{id: "s1", until: time.Now().Add(-time.Millisecond)}
	if _, ok := k.Current(); ok {
		t.Error("a session past its trust is current")
	}
}
