package gateway

import (
	"context"
	"errors"
	"io"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/binding/format/protobuf/v2/pb"
	"google.golang.org/grpc/status"

	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/internal/rpcerr"
	"github.com/turnlane/turnlane/internal/tracing"
	turnlanev1 "github.com/turnlane/turnlane/proto/turnlane/v1"
)

const (
	// streamBatches bounds the batches of one PublishStream that are under way.
	streamBatches = 64
	// streamFinish is how long answers under way may take when the gateway shuts down.
	streamFinish = 2 * time.Second
)

// PublishEvents is part of turnlane.v1.GatewayService.
func (g *Gateway) PublishEvents(ctx context.Context, req *turnlanev1.PublishEventsRequest) (*turnlanev1.PublishEventsResponse, error) {
	events, err := fromProto(req.GetEvents())
	if err != nil {
		g.instruments.refuse(err)
		return nil, rpcerr.From(err)
	}
	positions, err := g.publish(ctx, req.GetTopic(), events)
	if err != nil {
		return nil, rpcerr.From(err)
	}
	return &turnlanev1.PublishEventsResponse{Positions: positionTexts(positions)}, nil
}

// PublishStream is part of turnlane.v1.GatewayService.
//
// Three goroutines share the work, so that none can hold another: one receives and hands over, one
// answers in the order of the batches, and the handler waits for the end.
func (g *Gateway) PublishStream(stream turnlanev1.GatewayService_PublishStreamServer) error {
	ctx := stream.Context()
	answers := make(chan answer, streamBatches)
	received := make(chan error, 1)
	answered := make(chan error, 1)

	if err := g.stream(func() { received <- g.receive(ctx, stream.Recv, answers) }); err != nil {
		return err
	}
	if err := g.stream(func() { answered <- g.answer(ctx, stream.Send, answers) }); err != nil {
		return err
	}
	stop := g.stop
	var late <-chan time.Time
	var end error
	for {
		select {
		case err := <-answered:
			if err != nil {
				return err
			}
			if received != nil && late == nil {
				end = <-received
			}
			return end
		case end = <-received:
			received = nil
		case <-stop:
			// The receiver may be blocked in Recv until the handler returns, so the answers' channel
			// stays open: what is under way is answered as far as the limit allows.
			stop = nil
			timer := time.NewTimer(streamFinish)
			defer timer.Stop()
			late = timer.C
			end = errShuttingDown()
			select {
			case answers <- answer{last: true}:
			default: // so many are under way that the limit decides
			}
		case <-late:
			return end
		}
	}
}

// answer is one answer to come.
type answer struct {
	batch *batch
	start time.Time
	span  *tracing.Span
	err   error
	last  bool // there is none: the stream ends
}

// receive hands batches over until the stream ends. A batch that is refused has an answer too.
func (g *Gateway) receive(ctx context.Context, recv func() (*turnlanev1.PublishStreamRequest, error), answers chan<- answer) error {
	defer func() {
		select {
		case answers <- answer{last: true}:
		case <-ctx.Done():
		}
	}()
	for {
		req, err := recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		a := answer{start: g.cfg.Clock()}
		a.batch, a.span, a.err = g.submit(ctx, req.GetTopic(), req.GetEvents(), a.start)
		select {
		case answers <- a:
		case <-ctx.Done():
			a.span.End(ctx.Err())
			return ctx.Err()
		}
	}
}

func (g *Gateway) submit(ctx context.Context, topic string, events []*cloudevents.CloudEvent, start time.Time) (*batch, *tracing.Span, error) {
	decoded, err := fromProto(events)
	if err != nil {
		return nil, nil, err
	}
	_, span := g.startSpan(ctx, topic, decoded)
	records, err := g.admit(ctx, topic, decoded, start)
	if err != nil {
		return nil, span, err
	}
	b, err := g.appender.submit(ctx, topic, records)
	return b, span, err
}

// answer sends the answers in order, as they come.
func (g *Gateway) answer(ctx context.Context, send func(*turnlanev1.PublishStreamResponse) error, answers <-chan answer) error {
	for {
		var a answer
		select {
		case a = <-answers:
		case <-ctx.Done():
			return ctx.Err()
		}
		if a.last {
			return nil
		}
		resp := &turnlanev1.PublishStreamResponse{}
		var positions []event.Position
		if a.err == nil {
			positions, a.err = g.appender.wait(ctx, a.batch)
		}
		a.span.End(a.err)
		if a.err != nil {
			g.instruments.refuse(a.err)
			resp.Error = streamError(a.err)
		} else {
			g.instruments.published(g.cfg.Clock().Sub(a.start))
			resp.Positions = positionTexts(positions)
		}
		if err := send(resp); err != nil {
			return err
		}
	}
}

// streamError is an error as an answer on a stream.
func streamError(err error) *turnlanev1.Error {
	err = rpcerr.From(err)
	s := status.Convert(err)
	e := &turnlanev1.Error{Code: int32(s.Code()), Message: s.Message()}
	if info := rpcerr.Info(err); info != nil {
		e.Reason, e.Metadata = info.GetReason(), info.GetMetadata()
	}
	return e
}

func fromProto(events []*cloudevents.CloudEvent) ([]*event.Event, error) {
	decoded := make([]*event.Event, len(events))
	for i, p := range events {
		e, err := event.FromProto(p)
		if err != nil {
			if len(events) > 1 {
				err = atIndex(i, err)
			}
			return nil, err
		}
		decoded[i] = e
	}
	return decoded, nil
}

func positionTexts(positions []event.Position) []string {
	texts := make([]string, len(positions))
	for i, p := range positions {
		texts[i] = p.String()
	}
	return texts
}
