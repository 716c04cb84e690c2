// Package runtime is the host of workers: it runs an activation of each worker that is placed on this
// process.
//
// A Runtime watches its placements, which the leader of the workmanagers writes under the process's
// session. For each one it makes an activation: it takes the worker's lease, decides where each topic
// begins, makes the handler, and opens a feed per topic whose sink is a lane. From then on:
//
//	feed ─▶ lane ─▶ turn ─▶ outbox ─▶ store
//	                  └──────▶ floor ─▶ cursors, flushed together
//
// Turns run one at a time per worker, on package internal/engine. The outputs of a turn go through the
// outbox, many turns at once, while the next turn runs; the floor under what is unfinished moves only
// when they are stored. Every durable write carries the lease's token, and one that is refused ends the
// activation.
//
// Locks: an activation's lock is taken after a topic's lock (package internal/fanout) and before none.
package runtime

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/trace"

	"github.com/turnlane/turnlane/actor"
	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/inbox"
	"github.com/turnlane/turnlane/internal/admission"
	"github.com/turnlane/turnlane/internal/engine"
	"github.com/turnlane/turnlane/internal/fanout"
	"github.com/turnlane/turnlane/internal/lifecycle"
	"github.com/turnlane/turnlane/internal/session"
	"github.com/turnlane/turnlane/internal/tracing"
	"github.com/turnlane/turnlane/store"
)

// Config of a Runtime. Zero fields mean the defaults.
type Config struct {
	Store   store.Store     // required
	Hub     *fanout.Hub     // required, and running as long as the Runtime is
	Session *session.Keeper // required, and running until the Runtime has returned

	// Types are the handlers hosted, by worker type. The session's Info must name them.
	Types map[string]actor.Factory
	// Publisher publishes lifecycle events, so it must be trusted to write system topics; nil: none are.
	Publisher actor.Publisher
	// Pod is the process's name, Version the program's; dead letters have it.
	Pod, Version string
	// MaxTurns bounds the turns of a worker type that are under way at the same time in this process.
	// Types that it does not name, or with 0, have as many as they have workers.
	MaxTurns map[string]int

	// Lane bounds each lane, LaneBudget the bytes in all lanes together.
	Lane       inbox.Limits
	LaneBudget int64
	// OutboxTurns and OutboxBytes bound the outputs of one worker that wait for the store. A worker over
	// either takes no turn until half of them are stored. Default 256 turns and 1 MiB.
	OutboxTurns, OutboxBytes int
	// OutboxBudget bounds the outputs of all workers that wait for the store, softly: above it a worker
	// has one turn's outputs waiting at most. Default 64 MiB.
	OutboxBudget int64
	// MaxEventBytes bounds an output as it is stored. Default admission.DefaultMaxEvent.
	MaxEventBytes int

	// CursorFlushInterval is how long a cursor that moved stays unstored at most. Default 200 ms.
	CursorFlushInterval time.Duration
	// DrainTimeout is how long an orderly stop waits for the present turn, and then for its outputs.
	// Default 10 s.
	DrainTimeout time.Duration
	// Starts is how many activations start at the same time. Default 64.
	Starts int

	Logger *slog.Logger // default: none
	Meter  metric.Meter // default: nothing is measured
	// TracerProvider makes a span of each turn. Default: none.
	TracerProvider trace.TracerProvider
}

func (c Config) withDefaults() (Config, error) {
	var problems []error
	missing := func(absent bool, field, fix string) {
		if absent {
			problems = append(problems, fmt.Errorf("runtime: Config.%s is missing: %s", field, fix))
		}
	}
	missing(c.Store == nil, "Store", "give it the store")
	missing(c.Hub == nil, "Hub", "give it the process's fan-out")
	missing(c.Session == nil, "Session", "give it the keeper of the process's session")
	for name, f := range c.Types {
		missing(f == nil, fmt.Sprintf("Types[%q]", name), "give the type a factory")
	}
	for name, n := range c.MaxTurns {
		if _, ok := c.Types[name]; !ok {
			problems = append(problems, fmt.Errorf("runtime: Config.MaxTurns names %q, which is no type hosted here: name one of Config.Types", name))
		}
		if n < 0 {
			problems = append(problems, fmt.Errorf("runtime: Config.MaxTurns[%q] is %d: give it 1 or more, or 0 for no bound", name, n))
		}
	}
	for _, d := range []struct {
		field string
		value *time.Duration
		or    time.Duration
	}{
		{"CursorFlushInterval", &c.CursorFlushInterval, 200 * time.Millisecond},
		{"DrainTimeout", &c.DrainTimeout, 10 * time.Second},
	} {
		if *d.value < 0 {
			problems = append(problems, fmt.Errorf("runtime: Config.%s is %s: give it a positive duration", d.field, *d.value))
		}
		if *d.value == 0 {
			*d.value = d.or
		}
	}
	for _, n := range []struct {
		value *int
		or    int
	}{{&c.OutboxTurns, 256}, {&c.OutboxBytes, 1 << 20}, {&c.MaxEventBytes, admission.DefaultMaxEvent}, {&c.Starts, 64}} {
		if *n.value <= 0 {
			*n.value = n.or
		}
	}
	if c.OutboxBudget <= 0 {
		c.OutboxBudget = 64 << 20
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Meter == nil {
		c.Meter = noop.Meter{}
	}
	return c, errors.Join(problems...)
}

// Runtime hosts activations. New makes one, Run runs it, once.
type Runtime struct {
	cfg     Config
	log     *slog.Logger
	tracer  *tracing.Tracer // nil: no spans
	engine  *engine.Engine
	budget  *inbox.Budget
	outbox  *outbox
	starts  *starter
	flush   *flusher
	sentry  *sentry
	reports *lifecycle.Outbox
	check   func(topic string, e *event.Event) error
	meters  *meters
	types   map[string]*hosted

	slots    chan struct{}  // one for each activation that may start or stop at the same time
	work     sync.WaitGroup // everything that Run waits for
	draining atomic.Bool
	hosted   atomic.Int64    // places with an activation
	ctx      context.Context // of the work in hand: it ends after the drain
	cancel   context.CancelFunc
	starting context.Context // of activations that start: it ends before the drain
	quiet    chan struct{}   // closed when there is no place left while draining
	isQuiet  bool            // quiet is closed; guarded by mu

	mu     sync.Mutex
	places map[string]*place // by worker
	queue  []*place          // to settle
	wake   chan struct{}     // of size 1: there is something in queue
}

// hosted is one worker type.
type hosted struct {
	name    string
	factory actor.Factory
	meter   *typeMeter
	limit   *limiter // nil: none
}

// New returns a Runtime that does nothing before Run.
func New(c Config) (*Runtime, error) {
	c, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	r := &Runtime{
		cfg:    c,
		engine: engine.New(engine.Config{Logger: c.Logger}),
		log:    c.Logger,
		tracer: tracing.New(c.TracerProvider),
		budget: inbox.NewBudget(c.LaneBudget),
		slots:  make(chan struct{}, c.Starts),
		places: map[string]*place{},
		wake:   make(chan struct{}, 1),
		quiet:  make(chan struct{}),
		types:  map[string]*hosted{},
	}
	r.check = r.checkOutput
	r.meters = newMeters()
	for name, f := range c.Types {
		h := &hosted{name: name, factory: f, meter: r.meters.typeNamed(name)}
		if n := c.MaxTurns[name]; n > 0 {
			h.limit = &limiter{max: n}
		}
		r.types[name] = h
	}
	r.outbox = newOutbox(r)
	r.starts = &starter{r: r}
	r.flush = newFlusher(r)
	r.sentry = newSentry(r)
	r.reports = lifecycle.NewOutbox(c.Publisher, c.Logger, maxReports)
	return r, nil
}

// Run hosts what is placed on the process's session until ctx ends. Then it drains: every activation
// finishes its turn, stores its outputs and its cursors and gives up its lease, within DrainTimeout for
// the turn and as much for the rest; what takes longer is dropped. When the session is lost, all activations are dropped without a
// write, and Run goes on with the next session. It returns after its last goroutine has, but for those
// of handlers that ignore their context. It returns nil, or why it could not begin.
func (r *Runtime) Run(ctx context.Context) error {
	if r.ctx != nil {
		return errors.New("runtime: a Runtime runs once")
	}
	work, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	r.ctx, r.cancel = work, cancel
	starting, endStarts := context.WithCancel(work)
	defer endStarts()
	r.starting = starting
	defer r.engine.Close()
	unregister, err := r.meters.register(r)
	if err != nil {
		return err
	}
	defer unregister()

	background, stop := context.WithCancel(work)
	defer stop()
	var loops sync.WaitGroup
	loops.Go(func() { r.flush.run(background) })
	loops.Go(func() { r.sentry.run(background) })
	loops.Go(func() { _ = r.reports.Run(background, reportLimit) })
	settling, settled := context.WithCancel(work)
	defer settled()
	loops.Go(func() { r.settleAll(settling) })

	r.follow(ctx)

	r.cfg.Session.Update(func(i *store.SessionInfo) { i.Draining = true })
	r.draining.Store(true)
	endStarts()
	r.drain()
	settled()
	stop()
	loops.Wait()
	cancel()
	r.freeze("it did not stop in time")
	r.work.Wait()
	return nil
}

// Stats are a runtime's counts now.
type Stats struct {
	Workers     int   // activations, also those that start or stop
	Turns       int64 // handlers that run
	Leaked      int64 // goroutines of handlers that were given up on and have not returned
	LaneBytes   int64
	OutboxBytes int64
}

// Stats returns the runtime's counts.
func (r *Runtime) Stats() Stats {
	e := r.engine.Stats()
	return Stats{Workers: r.Workers(), Turns: e.Running, Leaked: e.Leaked,
		LaneBytes: r.budget.Used(), OutboxBytes: r.outbox.bytes.Load()}
}

// Workers returns how many workers are hosted.
func (r *Runtime) Workers() int { return int(r.hosted.Load()) }

// checkOutput refuses an output that could never be stored.
func (r *Runtime) checkOutput(topic string, e *event.Event) error {
	if err := admission.Topic(topic, admission.User); err != nil {
		return err
	}
	return admission.Event(e, r.cfg.MaxEventBytes)
}
