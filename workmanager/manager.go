// Package workmanager is the keeper of workers: it holds their catalog, brings them to the state that
// was asked for, and places them on runtimes.
//
// A Manager serves the public service in every process that has the role. All of it is in the store:
// any number may serve at once, and what one of them leaves half done when its process dies is
// finished by the leader, the one among them that places workers.
package workmanager

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
	"golang.org/x/sync/errgroup"

	"github.com/turnlane/turnlane/actor"
	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/grouping"
	"github.com/turnlane/turnlane/internal/lifecycle"
	turnlanev1 "github.com/turnlane/turnlane/proto/turnlane/v1"
	"github.com/turnlane/turnlane/store"
)

// Session is the membership of this process.
type Session interface {
	// Current returns the id of the live session, or false while there is none.
	Current() (id string, ok bool)
}

// Inspector tells what the runtime in this process knows of its workers.
type Inspector interface {
	// Inspect returns the facts of each topic of a worker that runs here: all but the head and the
	// lag, which are filled in from the store. It returns false for a worker that does not run here.
	// The caller may change what it gets.
	Inspect(worker string) ([]*turnlanev1.WorkerTopic, bool)
}

// ProgressTeller is an optional interface of an Inspector.
type ProgressTeller interface {
	// Progress returns what the handler of a worker that runs here said last of how far its turn is, ""
	// if it said nothing.
	Progress(worker string) string
}

// SlotCounter counts the events of a topic that belong to a set of slots.
type SlotCounter interface {
	// CountSlots calls count with the number of such events after a place as they come, until closing
	// is called, which returns up to where they were counted. It does not block for long.
	CountSlots(topic string, after Place, slots grouping.Set, count func(n int)) (closing func() Place, err error)
}

// Place is a position in a topic's log. Of a topic that does not exist yet the incarnation is empty.
type Place struct {
	Position    event.Position
	Incarnation string
}

// Config is what a Manager is made from.
type Config struct {
	Store     store.Store     // required
	Session   Session         // required
	Inspector Inspector       // nil: GetWorker shows stored cursors only
	Publisher actor.Publisher // publishes lifecycle events and commands, so it must be trusted to; nil: none are
	Follower  Follower        // reads the replies to commands; nil: SendCommand cannot wait for one
	Slots     SlotCounter     // counts events of slots without a running member; nil: they are not counted
	Logger    *slog.Logger    // nil: slog.Default
	Meter     metric.Meter    // nil: nothing is measured

	// StartWait is how long StartWorker and SeekWorker wait for the worker to run. Default 1 s.
	StartWait time.Duration
	// DrainLimit is how long StopWorker and DeleteWorker wait for the running turn. Default 30 s.
	DrainLimit time.Duration
	// Poll is how often the leader looks at sessions and renews its lease, and how soon another takes
	// over from one that is gone. Default 250 ms.
	Poll time.Duration
	// Resync is how often the leader reads the whole catalog again to mend what was lost. Default 10 min.
	Resync time.Duration
}

func (c *Config) complete() error {
	var problems []error
	if c.Store == nil {
		problems = append(problems, errors.New("workmanager: Config.Store is nil"))
	}
	if c.Session == nil {
		problems = append(problems, errors.New("workmanager: Config.Session is nil"))
	}
	for _, d := range []struct {
		name     string
		value    *time.Duration
		standard time.Duration
	}{
		{"StartWait", &c.StartWait, time.Second},
		{"DrainLimit", &c.DrainLimit, 30 * time.Second},
		{"Poll", &c.Poll, 250 * time.Millisecond},
		{"Resync", &c.Resync, 10 * time.Minute},
	} {
		switch {
		case *d.value < 0:
			problems = append(problems, errors.New("workmanager: Config."+d.name+" is negative"))
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

const (
	maxNotices  = 100_000         // lifecycle events kept while they cannot be published
	noticeLimit = 2 * time.Second // to publish what is left at the end
)

// Manager implements the service. Its methods are safe for concurrent use, before and while Run runs;
// workers are placed only while some Manager on the store runs.
type Manager struct {
	turnlanev1.UnimplementedWorkManagerServiceServer

	cfg     Config
	store   store.Store
	log     *slog.Logger
	notices *lifecycle.Outbox
	gauges  *gauges

	sightings *sightings // what calls in this process saw, for the leader

	ending  chan struct{} // closed when nothing is to be waited for any more
	endOnce sync.Once

	ids    locks // creation and removal of a worker, by id
	groups locks // changes of a group's claims, by group
}

// New makes a Manager. It starts nothing.
func New(cfg Config) (*Manager, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	m := &Manager{
		cfg:       cfg,
		store:     cfg.Store,
		log:       cfg.Logger,
		notices:   lifecycle.NewOutbox(cfg.Publisher, cfg.Logger, maxNotices),
		sightings: &sightings{ready: make(chan struct{}, 1)},
		ending:    make(chan struct{}),
		ids:       newLocks(),
		groups:    newLocks(),
	}
	var err error
	if m.gauges, err = newGauges(cfg.Meter); err != nil {
		return nil, err
	}
	return m, nil
}

// Run takes part in leading: it places workers while this process is the leader, and publishes
// lifecycle events. It returns when ctx ends, after publishing what it has for up to two seconds.
func (m *Manager) Run(ctx context.Context) error {
	publishing, stop := context.WithCancel(context.WithoutCancel(ctx))
	var wg errgroup.Group
	wg.Go(func() error {
		return m.notices.Run(publishing, noticeLimit)
	})
	m.lead(ctx)
	stop()
	return errors.Join(wg.Wait(), m.gauges.close())
}

// locks are mutexes by name, a few names sharing one. They only spare the processes' own calls the
// conflicts with each other; between processes the store's conditions decide.
type locks []chan struct{}

func newLocks() locks {
	l := make(locks, 64)
	for i := range l {
		l[i] = make(chan struct{}, 1) // holds the one who has the lock
	}
	return l
}

func (l locks) lock(ctx context.Context, name string) (unlock func(), err error) {
	c := l[grouping.Hash(name)%uint32(len(l))]
	select {
	case c <- struct{}{}:
		return sync.OnceFunc(func() { <-c }), nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}
