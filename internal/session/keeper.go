// Package session keeps a process's membership in the store: its session.
//
// A session is a lease on the process's life. The Keeper renews it, and trusts it only until a margin
// before the store can have let it expire; from then on the process owns nothing that it owned, and the
// Keeper opens another session:
//
//	      opened                 renewed every TTL/4
//	none ────────▶ held ◀────────────┐
//	 ▲               │───────────────┘
//	 └───────────────┘ expired, or not renewed for 0.8 TTL
package session

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/turnlane/turnlane/store"
)

// DefaultTTL is how long a session lives without renewal.
const DefaultTTL = 10 * time.Second

// Config says whose session it is.
type Config struct {
	Leases store.Leases      // required
	Info   store.SessionInfo // what the process says of itself
	TTL    time.Duration     // default DefaultTTL; at least 10 ms
	Logger *slog.Logger      // default: none
}

// Keeper keeps one session at a time. Its methods are safe for concurrent use.
type Keeper struct {
	leases store.Leases
	ttl    time.Duration
	logger *slog.Logger
	poke   chan struct{} // of size 1: renew now, the info changed

	mu      sync.Mutex
	info    store.SessionInfo
	id      string
	until   time.Time // the session is trusted before it
	changed chan struct{}
}

// New returns a Keeper without a session. Run opens it.
func New(c Config) (*Keeper, error) {
	if c.Leases == nil {
		return nil, errors.New("session: Config.Leases is missing: give it the store")
	}
	if c.TTL == 0 {
		c.TTL = DefaultTTL
	}
	if c.TTL < 10*time.Millisecond {
		return nil, fmt.Errorf("session: Config.TTL is %s: give it 10ms or more", c.TTL)
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return &Keeper{
		leases:  c.Leases,
		info:    c.Info,
		ttl:     c.TTL,
		logger:  c.Logger,
		poke:    make(chan struct{}, 1),
		changed: make(chan struct{}),
	}, nil
}

// Current returns the session's id, and false when there is none that can be trusted now. It looks at
// the clock, so that a process that was paused knows at once.
func (k *Keeper) Current() (id string, ok bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.id == "" || !time.Now().Before(k.until) {
		return "", false
	}
	return k.id, true
}

// Holds reports whether the session with that id is the current one.
func (k *Keeper) Holds(id string) bool {
	current, ok := k.Current()
	return ok && current == id
}

// Changes returns a channel that is closed when a session is opened or lost. Take the channel first,
// then ask Current.
func (k *Keeper) Changes() <-chan struct{} {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.changed
}

// Info returns what the process says of itself.
func (k *Keeper) Info() store.SessionInfo {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.info
}

// Update changes what the process says of itself. The store learns of it with a renewal that begins at
// once; Update does not wait for it.
func (k *Keeper) Update(change func(*store.SessionInfo)) {
	k.mu.Lock()
	change(&k.info)
	k.mu.Unlock()
	select {
	case k.poke <- struct{}{}:
	default:
	}
}

// Run opens a session, keeps it, and opens another whenever one is lost, until ctx ends. Then it closes
// the session; whoever still needs it must be done before. It always returns nil.
func (k *Keeper) Run(ctx context.Context) error {
	defer k.close()
	for ctx.Err() == nil {
		if k.open(ctx) {
			k.keep(ctx)
		}
	}
	return nil
}

// open tries to open a session until it succeeds or ctx ends.
func (k *Keeper) open(ctx context.Context) bool {
	wait := newTimer()
	for n := 0; ; n++ {
		start := time.Now()
		call, cancel := context.WithTimeout(ctx, k.ttl)
		s, err := k.leases.OpenSession(call, k.Info(), k.ttl)
		cancel()
		if err == nil {
			k.set(s.ID, start.Add(k.trust()))
			k.logger.Info("session opened", "session", s.ID, "ttl", k.ttl)
			return true
		}
		if ctx.Err() != nil {
			return false
		}
		if n == 0 {
			k.logger.Warn("session cannot be opened; trying again", "error", err)
		}
		if !wait.sleep(ctx, nil, min(k.ttl/4, 100*time.Millisecond<<min(n, 5))) {
			return false
		}
	}
}

// keep renews the session until it is lost or ctx ends.
func (k *Keeper) keep(ctx context.Context) {
	id, _ := k.peek()
	wait := newTimer()
	pause := k.ttl / 4
	failing := false
	for {
		_, until := k.peek()
		if !wait.sleep(ctx, k.poke, min(pause, time.Until(until))) {
			return
		}
		if !time.Now().Before(until) {
			k.lose(id, "it could not be renewed in time")
			return
		}
		start := time.Now()
		call, cancel := context.WithDeadline(ctx, until)
		err := k.leases.RenewSession(call, id, k.Info(), k.ttl)
		cancel()
		switch {
		case err == nil:
			k.set(id, start.Add(k.trust()))
			pause, failing = k.ttl/4, false
		case errors.Is(err, store.ErrSessionExpired):
			k.lose(id, "the store says that it has expired")
			return
		case ctx.Err() != nil:
			return
		default:
			if !failing {
				k.logger.Warn("session cannot be renewed; trying again", "session", id, "error", err)
			}
			pause, failing = k.ttl/20, true
		}
	}
}

// trust is less than the TTL: renewals are counted from their start, so this margin is only for clocks
// that run at different speeds, and for what the process still does when it looks at the clock.
func (k *Keeper) trust() time.Duration { return k.ttl / 10 * 8 }

func (k *Keeper) peek() (string, time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.id, k.until
}

func (k *Keeper) set(id string, until time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.until = until; k.id != id {
		k.id = id
		close(k.changed)
		k.changed = make(chan struct{})
	}
}

func (k *Keeper) lose(id, why string) {
	k.logger.Error("session lost: all that it owned is given up", "session", id, "reason", why)
	k.set("", time.Time{})
}

func (k *Keeper) close() {
	id, _ := k.peek()
	k.set("", time.Time{})
	if id == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), k.ttl/2)
	defer cancel()
	if err := k.leases.CloseSession(ctx, id); err != nil {
		k.logger.Warn("session not closed; it will expire", "session", id, "error", err)
	}
}

// timer is one timer for many sleeps.
type timer struct{ t *time.Timer }

func newTimer() timer { return timer{time.NewTimer(time.Hour)} }

// sleep waits for d, for ctx, or to be woken; false means that ctx ended.
func (t timer) sleep(ctx context.Context, wake <-chan struct{}, d time.Duration) bool {
	t.t.Reset(max(d, 0))
	defer t.t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-wake:
	case <-t.t.C:
	}
	return ctx.Err() == nil
}
