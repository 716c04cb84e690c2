package gateway

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/turnlane/turnlane/actor"
	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/internal/admission"
	"github.com/turnlane/turnlane/internal/tracing"
)

// Publish appends a batch to one topic, all or nothing, and returns the positions. It is the way in
// for Turnlane itself, so it writes to system topics too; see ForHandlers. It blocks until the store
// has the batch. The events are not kept.
//
// Errors are *event.Error for what breaks a rule, and those of the store; store.ErrOutcomeUnknown means
// that the batch may or may not be stored.
func (g *Gateway) Publish(ctx context.Context, topic string, events ...*event.Event) ([]event.Position, error) {
	if err := admission.Topic(topic, admission.System); err != nil {
		return nil, err
	}
	if len(events) == 0 {
		return nil, nil
	}
	start := g.cfg.Clock()
	records, err := g.encode(events, start, admission.Event)
	if err != nil {
		return nil, err
	}
	return g.store(ctx, topic, records, start)
}

// ForHandlers returns the gateway as the publisher of workers' handlers: as Publish, but topics of the
// system are refused, as they are to users, except for commands to workers that exist.
func (g *Gateway) ForHandlers() actor.Publisher { return handlers{g} }

type handlers struct{ g *Gateway }

func (h handlers) Publish(ctx context.Context, topic string, events ...*event.Event) ([]event.Position, error) {
	if err := h.g.admitTopic(ctx, topic); err != nil {
		return nil, err
	}
	if err := checkCommands(topic, events); err != nil {
		return nil, err
	}
	return h.g.Publish(ctx, topic, events...)
}

// publish is Publish for a user, with events that come from a decoder.
func (g *Gateway) publish(ctx context.Context, topic string, events []*event.Event) ([]event.Position, error) {
	ctx, span := g.startSpan(ctx, topic, events)
	start := g.cfg.Clock()
	records, err := g.admit(ctx, topic, events, start)
	if err != nil {
		g.instruments.refuse(err)
		span.End(err)
		return nil, err
	}
	positions, err := g.store(ctx, topic, records, start)
	span.End(err)
	return positions, err
}

// startSpan starts the span of a publish call; nil is none.
func (g *Gateway) startSpan(ctx context.Context, topic string, events []*event.Event) (context.Context, *tracing.Span) {
	if g.tracer == nil {
		return ctx, nil
	}
	return g.tracer.StartPublish(ctx, topic, events)
}

// admit makes records of a user's batch, if it breaks no rule.
func (g *Gateway) admit(ctx context.Context, topic string, events []*event.Event, now time.Time) ([]event.Record, error) {
	if g.stopping() {
		return nil, errShuttingDown()
	}
	if err := g.admitTopic(ctx, topic); err != nil {
		return nil, err
	}
	if len(events) == 0 {
		return nil, &event.Error{Field: "events", Rule: "is empty", Fix: "send at least one event"}
	}
	if err := checkCommands(topic, events); err != nil {
		return nil, err
	}
	return g.encode(events, now, admission.Decoded)
}

func (g *Gateway) store(ctx context.Context, topic string, records []event.Record, start time.Time) ([]event.Position, error) {
	positions, err := g.appender.append(ctx, topic, records)
	if err != nil {
		g.instruments.refuse(err)
		return nil, err
	}
	g.instruments.published(g.cfg.Clock().Sub(start))
	return positions, nil
}

func (g *Gateway) encode(events []*event.Event, now time.Time, check func(*event.Event, int) error) ([]event.Record, error) {
	if n := len(events); n > g.cfg.MaxBatchEvents {
		return nil, &admission.SizeError{Err: &event.Error{Field: "events",
			Rule: "are " + strconv.Itoa(n) + " in one batch; at most " + strconv.Itoa(g.cfg.MaxBatchEvents) + " are allowed",
			Fix:  "split the batch"}}
	}
	records := make([]event.Record, len(events))
	bytes := 0
	for i, e := range events {
		if err := check(e, g.cfg.MaxEventBytes); err != nil {
			if len(events) > 1 {
				err = atIndex(i, err)
			}
			return nil, err
		}
		records[i] = admission.Encode(e, now)
		if bytes += len(records[i]); bytes > g.cfg.MaxBatchBytes {
			return nil, &admission.SizeError{Err: &event.Error{Field: "events",
				Rule: "take more than the " + strconv.Itoa(g.cfg.MaxBatchBytes) + " bytes as they are stored that one batch may have",
				Fix:  "split the batch"}}
		}
	}
	return records, nil
}

// atIndex says which event of a batch an error is about.
func atIndex(i int, err error) error {
	var e *event.Error
	if !errors.As(err, &e) {
		return err
	}
	prefix := "events[" + strconv.Itoa(i) + "]"
	if e.Field != "event" {
		prefix += "." + e.Field
	}
	at := &event.Error{Field: prefix, Rule: e.Rule, Fix: e.Fix}
	if _, ok := errors.AsType[*admission.SizeError](err); ok {
		return &admission.SizeError{Err: at}
	}
	return at
}
