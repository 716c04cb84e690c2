// Package deadletter is the keeper of dead letters: it lists and shows them, brings them back to their
// workers, and removes them.
//
// A Service serves the public service in every process that has it. A redrive is a record in the
// registry, and one of the processes, the leader among them, carries all of them out. So a redrive goes
// on when its caller is gone, and after the end of the process that was at it. For each dead letter:
//
//	in the topic ── append its event, under a mark ──▶ in both ── remove ──▶ brought back
//
// An end between the two steps leaves it in both; the same redrive appends again, is told by the mark
// that the event is there already, and removes. So none is lost and none comes twice.
package deadletter

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
	"google.golang.org/grpc/codes"

	"github.com/turnlane/turnlane/internal/rpcerr"
	turnlanev1 "github.com/turnlane/turnlane/proto/turnlane/v1"
	"github.com/turnlane/turnlane/store"
)

// Session is the membership of this process.
type Session interface {
	// Current returns the id of the live session, or false while there is none.
	Current() (id string, ok bool)
}

// Config is what a Service is made from.
type Config struct {
	Store   store.Store  // required
	Session Session      // required
	Logger  *slog.Logger // nil: slog.Default
	Meter   metric.Meter // nil: nothing is measured

	// Poll is how often the leader renews its lease, and how soon another takes over. Default 250 ms.
	Poll time.Duration
	// CountEvery is how often the leader counts dead letters for the metrics. Default 10 s.
	CountEvery time.Duration
}

func (c *Config) complete() error {
	var problems []error
	if c.Store == nil {
		problems = append(problems, errors.New("deadletter: Config.Store is nil"))
	}
	if c.Session == nil {
		problems = append(problems, errors.New("deadletter: Config.Session is nil"))
	}
	for _, d := range []struct {
		name     string
		value    *time.Duration
		standard time.Duration
	}{
		{"Poll", &c.Poll, 250 * time.Millisecond},
		{"CountEvery", &c.CountEvery, 10 * time.Second},
	} {
		switch {
		case *d.value < 0:
			problems = append(problems, fmt.Errorf("deadletter: Config.%s is negative", d.name))
		case *d.value == 0:
			*d.value = d.standard
		}
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.Meter == nil {
		c.Meter = noop.Meter{}
	}
	return errors.Join(problems...)
}

// Service implements turnlane.v1.DeadLetterService. Its methods are safe for concurrent use, before and
// while Run runs; redrives go on only while some Service on the store runs.
type Service struct {
	turnlanev1.UnimplementedDeadLetterServiceServer

	cfg   Config
	store store.Store
	log   *slog.Logger
	meter *meter

	maxChunk int // dead letters that a redrive has in hand at once

	// topics keeps a purge and the beginning of a redrive of one topic apart, in this process.
	topics locks

	stopping chan struct{}
	stop     sync.Once
}

// New makes a Service. It starts nothing.
func New(cfg Config) (*Service, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	s := &Service{cfg: cfg, store: cfg.Store, log: cfg.Logger, maxChunk: 256, stopping: make(chan struct{})}
	var err error
	s.meter, err = newMeter(cfg.Meter)
	return s, err
}

// Shutdown ends the streams of callers that follow a redrive. The redrives go on.
func (s *Service) Shutdown() { s.stop.Do(func() { close(s.stopping) }) }

func errShutdown() error {
	return rpcerr.New(codes.Unavailable, rpcerr.ShuttingDown, "the server stops; the redrive goes on when it is back: ask for it again to follow it", nil)
}

// locks are mutexes by name.
type locks struct {
	mu   sync.Mutex
	held map[string]*heldLock
}

type heldLock struct {
	c    chan struct{} // of size 1: holds the one who has the lock
	uses int
}

func (l *locks) lock(ctx context.Context, name string) (unlock func(), err error) {
	l.mu.Lock()
	if l.held == nil {
		l.held = map[string]*heldLock{}
	}
	h := l.held[name]
	if h == nil {
		h = &heldLock{c: make(chan struct{}, 1)}
		l.held[name] = h
	}
	h.uses++
	l.mu.Unlock()
	release := func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if h.uses--; h.uses == 0 {
			delete(l.held, name)
		}
	}
	select {
	case h.c <- struct{}{}:
		return func() { <-h.c; release() }, nil
	case <-ctx.Done():
		release()
		return nil, context.Cause(ctx)
	}
}

// sleep waits for d; false means that ctx ended.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(max(d, 0))
	defer t.Stop()
	select {
	case <-t.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}
