package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	cepb "github.com/cloudevents/sdk-go/binding/format/protobuf/v2/pb"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/internal/rpcerr"
	turnlanev1 "github.com/turnlane/turnlane/proto/turnlane/v1"
)

// maxInFlight bounds the batches that are under way on one stream. Sixteen of 256 KiB keep a server
// busy over any sensible round trip.
const maxInFlight = 16

// Batch is events that are stored together or not at all.
type Batch struct {
	Events []*event.Event
	// Lines says where each event came from. It is for the caller's own use and may be nil.
	Lines []int
}

// Publish appends events to a topic, all or nothing and in order, and returns their positions.
func (c *Client) Publish(ctx context.Context, topic string, events ...*event.Event) ([]event.Position, error) {
	converted, err := toProto(events)
	if err != nil {
		return nil, err
	}
	resp, err := c.Gateway.PublishEvents(ctx, &turnlanev1.PublishEventsRequest{Topic: topic, Events: converted})
	if err != nil {
		return nil, c.Explain(err)
	}
	return parsePositions(resp.GetPositions(), len(events))
}

// PublishStream sends the batches that come until the channel is closed, several at once on one
// stream, and calls settled for each that was sent, in their order: with positions, or with the error
// that refused it or left its fate unknown.
//
// After the first error it takes no more batches, settles those under way, and returns that error. It
// blocks until all is settled. Settled is called by one goroutine at a time.
func (c *Client) PublishStream(ctx context.Context, topic string, batches <-chan Batch, settled func(Batch, []event.Position, error)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.Gateway.PublishStream(ctx)
	if err != nil {
		return c.Explain(err)
	}
	sent := make(chan Batch, maxInFlight)
	failed := make(chan struct{}) // closed by the receiver at its first error

	var wg sync.WaitGroup
	var received error
	wg.Go(func() { received = c.receive(stream, sent, failed, settled) })
	sending := send(ctx, stream, topic, batches, sent, failed)
	if sending != nil && !errors.Is(sending, io.EOF) {
		cancel() // our own fault, such as an event that has no protobuf form: the server waits for more
		wg.Wait()
		return c.Explain(sending)
	}
	wg.Wait()
	return received
}

// send is the sending half. It closes sent, in which the receiver finds what is under way.
func send(ctx context.Context, stream turnlanev1.GatewayService_PublishStreamClient, topic string,
	batches <-chan Batch, sent chan<- Batch, failed <-chan struct{}) error {
	defer close(sent)
	defer func() { _ = stream.CloseSend() }() // its error is the receiver's to find
	for {
		var b Batch
		var more bool
		select {
		case b, more = <-batches:
			if !more {
				return nil
			}
		case <-failed:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
		converted, err := toProto(b.Events)
		if err != nil {
			return err
		}
		select {
		case sent <- b: // first, so that the receiver knows what an answer is for
		case <-failed:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
		if err := stream.Send(&turnlanev1.PublishStreamRequest{Topic: topic, Events: converted}); err != nil {
			return err // io.EOF: the receiver has the reason
		}
	}
}

// receive is the receiving half. Answers come in the order of the batches.
func (c *Client) receive(stream turnlanev1.GatewayService_PublishStreamClient, sent <-chan Batch,
	failed chan<- struct{}, settled func(Batch, []event.Position, error)) error {
	var first error
	fail := func(err error) {
		if first == nil {
			first = err
			close(failed)
		}
	}
	for {
		resp, err := stream.Recv()
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = nil
			} else {
				fail(c.Explain(err))
			}
			for b := range sent { // no answer will come for these
				if err == nil {
					fail(&Error{Code: codes.Unavailable, Message: fmt.Sprintf("the server at %s closed the stream before it answered", c.addr)})
				}
				settled(b, nil, &Error{Code: codes.Unknown, Reason: rpcerr.OutcomeUnknown, cause: first,
					Message: "it is unknown whether they were stored: " + first.Error()})
			}
			return first
		}
		b := <-sent
		if e := resp.GetError(); e != nil {
			refused := c.Explain(refusal(e))
			fail(refused)
			settled(b, nil, refused)
			continue
		}
		positions, err := parsePositions(resp.GetPositions(), len(b.Events))
		if err != nil {
			fail(err)
		}
		settled(b, positions, err)
	}
}

// refusal is the error of one batch as the status that a unary call would have given.
func refusal(e *turnlanev1.Error) error {
	s := status.New(codes.Code(uint32(e.GetCode())), e.GetMessage())
	if e.GetReason() != "" {
		if d, err := s.WithDetails(&errdetails.ErrorInfo{Domain: rpcerr.Domain, Reason: e.GetReason(), Metadata: e.GetMetadata()}); err == nil {
			s = d
		}
	}
	return s.Err()
}

func toProto(events []*event.Event) ([]*cepb.CloudEvent, error) {
	converted := make([]*cepb.CloudEvent, len(events))
	for i, e := range events {
		p, err := event.ToProto(e)
		if err != nil {
			return nil, err
		}
		converted[i] = p
	}
	return converted, nil
}

func parsePositions(texts []string, want int) ([]event.Position, error) {
	if len(texts) != want {
		return nil, fmt.Errorf("the server answered with %d positions for %d events", len(texts), want)
	}
	positions := make([]event.Position, len(texts))
	for i, text := range texts {
		p, err := event.ParsePosition(text)
		if err != nil {
			return nil, fmt.Errorf("the server's answer: %w", err)
		}
		positions[i] = p
	}
	return positions, nil
}
