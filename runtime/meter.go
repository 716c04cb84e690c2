package runtime

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/turnlane/turnlane/actor"
	"github.com/turnlane/turnlane/internal/engine"
	"github.com/turnlane/turnlane/internal/metrics"
)

// meters are a runtime's counts. Counters are atomics that are read when somebody asks; only the two
// histograms are written to as turns end.
type meters struct {
	types    []*typeMeter
	skipped  atomic.Int64
	duration metric.Float64Histogram
	delay    metric.Float64Histogram
}

// typeMeter is the counts of one worker type.
type typeMeter struct {
	m         *meters
	typ       string
	outcomes  [actor.OutcomeGoexit + 1]atomic.Int64
	stuck     atomic.Int64
	exhausted atomic.Int64
	attrs     []metric.RecordOption
}

// Names of instruments and attributes that only a runtime has.
const (
	turnsExhausted = "turnlane.turns.exhausted" // counter of events given up
	turnsActive    = "turnlane.turns.active"    // gauge of handlers that run
	turnsWaiting   = "turnlane.turns.waiting"   // gauge of workers that wait since their type has all its turns
	turnsLeaked    = "turnlane.turns.leaked"    // gauge of handlers that were given up and still run
	outboxBytes    = "turnlane.outbox.bytes"    // gauge of outputs that wait for the store
	typeAttr       = "type"                     // of a worker
)

func newMeters() *meters { return &meters{} }

func (m *meters) typeNamed(name string) *typeMeter {
	t := &typeMeter{m: m, typ: name,
		attrs: []metric.RecordOption{metric.WithAttributeSet(attribute.NewSet(attribute.String(typeAttr, name)))}}
	m.types = append(m.types, t)
	return t
}

// turn counts one turn.
func (t *typeMeter) turn(outcome actor.Outcome, turn *turn, r engine.Result) {
	t.outcomes[outcome].Add(1)
	ctx := context.Background()
	t.m.duration.Record(ctx, r.Took.Seconds(), t.attrs...)
	if turn.Turn.Attempt() == 1 {
		t.m.delay.Record(ctx, max(0, turn.Started().Sub(turn.Turn.StoredAt()).Seconds()), t.attrs...)
	}
}

// register makes the instruments. The caller calls the result when the runtime ends.
func (m *meters) register(r *Runtime) (func(), error) {
	var problems []error
	meter := r.cfg.Meter
	note := func(err error) {
		if err != nil {
			problems = append(problems, err)
		}
	}
	var err error
	m.duration, err = meter.Float64Histogram(metrics.TurnDuration, metric.WithUnit("s"), metric.WithDescription("How long turns took."))
	note(err)
	m.delay, err = meter.Float64Histogram(metrics.EndToEnd, metric.WithUnit("s"), metric.WithDescription("From an event being stored to the start of its first turn."))
	note(err)
	counter := func(name, what string) metric.Int64ObservableCounter {
		c, err := meter.Int64ObservableCounter(name, metric.WithDescription(what))
		note(err)
		return c
	}
	gauge := func(name, what string, opts ...metric.Int64ObservableGaugeOption) metric.Int64ObservableGauge {
		g, err := meter.Int64ObservableGauge(name, append(opts, metric.WithDescription(what))...)
		note(err)
		return g
	}
	turns := counter(metrics.Turns, "Turns, by outcome and worker type.")
	stuck := counter(metrics.TurnsStuck, "Handlers that ignored their deadline and were given up.")
	exhausted := counter(turnsExhausted, "Events that were given up.")
	skipped := counter("turnlane.worker.gaps.skipped", "Stretches skipped by workers that begin at the tail after a crash.")
	flushes := counter(metrics.CursorFlush, "Rounds in which cursors were stored.")
	workers := gauge(metrics.Workers, "Activations hosted.")
	active := gauge(turnsActive, "Handlers that run.")
	leaked := gauge(turnsLeaked, "Handlers that were given up and still run.")
	waiting := gauge(turnsWaiting, "Workers that wait because their type has as many turns as it may, by worker type.")
	lanes := gauge(metrics.LaneDepth, "Events that wait in lanes.")
	bytes := gauge(metrics.LaneBytes, "Bytes that wait in lanes.", metric.WithUnit("By"))
	outbox := gauge(outboxBytes, "Bytes of outputs that wait for the store.", metric.WithUnit("By"))
	age, err := meter.Float64ObservableGauge(metrics.CursorAge, metric.WithUnit("s"), metric.WithDescription("How long the oldest progress has waited to be stored."))
	note(err)
	if err := errors.Join(problems...); err != nil {
		return nil, err
	}
	registration, err := meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		for _, t := range m.types {
			typ := attribute.String(typeAttr, t.typ)
			only := metric.WithAttributeSet(attribute.NewSet(typ))
			for outcome := range t.outcomes {
				if n := t.outcomes[outcome].Load(); n > 0 {
					o.ObserveInt64(turns, n, metric.WithAttributeSet(attribute.NewSet(typ, attribute.String(metrics.Outcome, actor.Outcome(outcome).String()))))
				}
			}
			o.ObserveInt64(stuck, t.stuck.Load(), only)
			o.ObserveInt64(exhausted, t.exhausted.Load(), only)
		}
		for name, h := range r.types {
			if h.limit != nil {
				_, n := h.limit.counts()
				o.ObserveInt64(waiting, int64(n), metric.WithAttributes(attribute.String(typeAttr, name)))
			}
		}
		s := r.Stats()
		o.ObserveInt64(skipped, m.skipped.Load())
		o.ObserveInt64(flushes, r.flush.flushes.Load())
		o.ObserveInt64(workers, int64(s.Workers))
		o.ObserveInt64(active, s.Turns)
		o.ObserveInt64(leaked, s.Leaked)
		o.ObserveInt64(lanes, int64(r.waiting()))
		o.ObserveInt64(bytes, s.LaneBytes)
		o.ObserveInt64(outbox, s.OutboxBytes)
		seconds := 0.0
		if since := r.flush.pending.Load(); since != 0 {
			seconds = max(0, time.Since(time.Unix(0, since)).Seconds())
		}
		o.ObserveFloat64(age, seconds)
		return nil
	}, turns, stuck, exhausted, skipped, flushes, workers, active, waiting, leaked, lanes, bytes, outbox, age)
	if err != nil {
		return nil, err
	}
	return func() { _ = registration.Unregister() }, nil
}

// waiting returns how many events wait in all lanes.
func (r *Runtime) waiting() (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.places {
		if a := p.current; a != nil {
			a.mu.Lock()
			for i := range a.lanes {
				n += a.box.Len(i)
			}
			a.mu.Unlock()
		}
	}
	return n
}
