// Package tracing is the OpenTelemetry spans of Turnlane: of publish calls and of turns.
//
// A nil *Tracer is tracing switched off; callers look for it, so that off costs nothing.
package tracing

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/metadata"

	"github.com/turnlane/turnlane/actor"
	"github.com/turnlane/turnlane/event"
)

// Names of attributes. Those of messaging are OpenTelemetry's conventions, which are still in
// development: this is the only place that knows them.
const (
	system        = "messaging.system"
	operationName = "messaging.operation.name"
	operationType = "messaging.operation.type"
	destination   = "messaging.destination.name"
	messageID     = "messaging.message.id"
	batchCount    = "messaging.batch.message_count"
	position      = "turnlane.position"
	workerID      = "turnlane.worker.id"
	workerType    = "turnlane.worker.type"
	attempt       = "turnlane.attempt"
	outcomeName   = "turnlane.outcome"
)

const scope = "github.com/turnlane/turnlane"

var propagator = propagation.TraceContext{}

// Tracer starts spans.
type Tracer struct{ tracer trace.Tracer }

// New returns the tracer of a provider, nil for none.
func New(p trace.TracerProvider) *Tracer {
	if p == nil {
		return nil
	}
	return &Tracer{p.Tracer(scope)}
}

// Span is a span under way.
type Span struct{ span trace.Span }

// StartTurn starts the span of a turn, in the trace of its event, and makes the turn's outputs belong to
// the span. The context is for the handler.
func (t *Tracer) StartTurn(ctx context.Context, turn *actor.Turn) (context.Context, *Span) {
	w := turn.Worker()
	attributes := []attribute.KeyValue{
		attribute.String(system, "turnlane"),
		attribute.String(operationName, "process"),
		attribute.String(operationType, "process"),
		attribute.String(destination, turn.Topic()),
		attribute.String(position, turn.Position().String()),
		attribute.String(workerID, w.ID),
		attribute.String(workerType, w.Type),
		attribute.Int(attempt, turn.Attempt()),
	}
	if e := turn.Event(); e != nil { // else the turn is about to fail
		ctx = propagator.Extract(ctx, carrier{e})
		attributes = append(attributes, attribute.String(messageID, e.ID))
	}
	ctx, span := t.tracer.Start(ctx, "process "+turn.Topic(),
		trace.WithSpanKind(trace.SpanKindConsumer), trace.WithAttributes(attributes...))
	if span.SpanContext().IsValid() {
		texts := propagation.MapCarrier{}
		propagator.Inject(ctx, texts)
		turn.SetTrace(texts.Get("traceparent"), texts.Get("tracestate"))
	}
	return ctx, &Span{span}
}

// StartPublish starts the span of a publish call. Its parent is the caller's span, as the context has
// it, or the metadata of the gRPC call; and if neither has one, that of the event, if it is only one.
func (t *Tracer) StartPublish(ctx context.Context, topic string, events []*event.Event) (context.Context, *Span) {
	has := func() bool { return trace.SpanContextFromContext(ctx).IsValid() }
	if !has() {
		if md, ok := metadata.FromIncomingContext(ctx); ok {
			ctx = propagator.Extract(ctx, incoming(md))
		}
	}
	attributes := []attribute.KeyValue{
		attribute.String(system, "turnlane"),
		attribute.String(operationName, "publish"),
		attribute.String(operationType, "send"),
		attribute.String(destination, topic),
		attribute.Int(batchCount, len(events)),
	}
	if len(events) == 1 {
		attributes = append(attributes, attribute.String(messageID, events[0].ID))
		if !has() {
			ctx = propagator.Extract(ctx, carrier{events[0]})
		}
	}
	ctx, span := t.tracer.Start(ctx, "publish "+topic,
		trace.WithSpanKind(trace.SpanKindProducer), trace.WithAttributes(attributes...))
	return ctx, &Span{span}
}

// End ends a span. A nil span is none.
func (s *Span) End(err error) {
	if s == nil {
		return
	}
	if err != nil {
		s.span.RecordError(err)
		s.span.SetStatus(codes.Error, err.Error())
	}
	s.span.End()
}

// EndTurn ends the span of a turn with its outcome. A nil span is none.
func (s *Span) EndTurn(outcome string, err error) {
	if s == nil {
		return
	}
	s.span.SetAttributes(attribute.String(outcomeName, outcome))
	s.End(err)
}

// carrier is an event as what a trace is read from.
type carrier struct{ e *event.Event }

func (c carrier) Get(key string) string {
	v, _ := c.e.Extension(key)
	text, _ := v.Text()
	return text
}

func (carrier) Set(string, string) {}
func (carrier) Keys() []string     { return propagator.Fields() }

// incoming is the metadata of a call as what a trace is read from.
type incoming metadata.MD

func (m incoming) Get(key string) string {
	if v := metadata.MD(m).Get(key); len(v) > 0 {
		return v[0]
	}
	return ""
}

func (incoming) Set(string, string) {}
func (incoming) Keys() []string     { return propagator.Fields() }

// FromHeader returns a context that has the trace of a request's headers, if there is one.
func FromHeader(ctx context.Context, header map[string][]string) context.Context {
	return propagator.Extract(ctx, propagation.HeaderCarrier(header))
}
