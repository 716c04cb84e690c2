package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"time"

	cepb "github.com/cloudevents/sdk-go/binding/format/protobuf/v2/pb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/internal/rpcerr"
	turnlanev1 "github.com/turnlane/turnlane/proto/turnlane/v1"
)

// ErrStop ends Read without an error when Event returns it.
var ErrStop = errors.New("stop reading")

// Read is one reading of a topic.
type Read struct {
	Topic string
	// From is where to start; nil means the tail. Until is where to stop, inclusive; nil means never.
	From, Until *turnlanev1.Start

	// Started is called once, when the start is fixed: what is published from now on is never missed
	// by a reading from the tail. May be nil.
	Started func(after event.Position)
	// Event is called for every event in order. Its error ends the reading. Required.
	Event func(event.Position, *cepb.CloudEvent) error
	// Idle is called after each batch, when what was told is all that there is yet. May be nil.
	Idle func() error
	// Gap is called for a stretch that will not come. May be nil.
	Gap func(*turnlanev1.Gap)
	// Lost is called when the server is lost after a start, before the reading goes on where it was,
	// after a pause of 100 ms that doubles up to 2 s. If it is nil, a loss ends the reading.
	Lost func(err error)
}

// Read reads a topic until its end is reached, a callback ends it, the context ends, or the server
// refuses. Callbacks are called by one goroutine and hold up the reading.
func (c *Client) Read(ctx context.Context, r Read) error {
	const firstPause, maxPause = 100 * time.Millisecond, 2 * time.Second
	s := session{Read: r, from: r.From}
	pause := firstPause
	for {
		moved, err := s.run(ctx, c)
		switch {
		case err == nil, errors.Is(err, ErrStop):
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case !s.started || r.Lost == nil || !lost(err):
			return c.Explain(err)
		}
		if moved {
			pause = firstPause
		}
		if !s.told {
			r.Lost(c.Explain(err))
			s.told = true
		}
		select {
		case <-time.After(pause/2 + rand.N(pause)):
		case <-ctx.Done():
			return ctx.Err()
		}
		pause = min(2*pause, maxPause)
	}
}

// session is the state of a reading over the connections that it takes.
type session struct {
	Read
	from    *turnlanev1.Start // where the next connection starts
	started bool
	told    bool // the present loss
}

// run reads over one connection. It returns nil at the end of a bounded reading, and whether it got
// anywhere.
func (s *session) run(ctx context.Context, c *Client) (moved bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.Gateway.Subscribe(ctx, &turnlanev1.SubscribeRequest{Topic: s.Topic, From: s.from, Until: s.Until})
	if err != nil {
		return false, err
	}
	for {
		resp, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			if s.Until != nil {
				return moved, nil
			}
			return moved, errClosed
		}
		if err != nil {
			return moved, err
		}
		moved, s.told = true, false
		if err := s.take(resp); err != nil {
			return moved, err
		}
	}
}

func (s *session) take(resp *turnlanev1.SubscribeResponse) error {
	switch r := resp.GetResponse().(type) {
	case *turnlanev1.SubscribeResponse_Started:
		after, err := s.passed(r.Started.GetAfter())
		if err != nil {
			return err
		}
		if !s.started && s.Read.Started != nil {
			s.Read.Started(after)
		}
		s.started = true
	case *turnlanev1.SubscribeResponse_Batch:
		for _, e := range r.Batch.GetEvents() {
			p, err := s.passed(e.GetPosition())
			if err != nil {
				return err
			}
			if err := s.Event(p, e.GetEvent()); err != nil {
				return err
			}
		}
		if _, err := s.passed(r.Batch.GetTo()); err != nil {
			return err
		}
		if s.Idle != nil {
			return s.Idle()
		}
	case *turnlanev1.SubscribeResponse_Gap:
		if r.Gap.GetLast() != "" {
			if _, err := s.passed(r.Gap.GetLast()); err != nil {
				return err
			}
		}
		if s.Gap != nil {
			s.Gap(r.Gap)
		}
	}
	return nil
}

// passed notes that everything up to a position was told.
func (s *session) passed(text string) (event.Position, error) {
	p, err := event.ParsePosition(text)
	if err != nil {
		return p, fmt.Errorf("the server's answer: %w", err)
	}
	s.from = From(p.Next())
	return p, nil
}

// errClosed is a stream without an end that ended: the server is going.
var errClosed = status.Error(codes.Unavailable, "the server closed the stream")

// lost tells a server that went away, or gave us up for slow, from one that refused.
func lost(err error) bool {
	switch rpcerr.Reason(err) {
	case rpcerr.SubscriberStalled, rpcerr.ShuttingDown:
		return true
	}
	return status.Code(err) == codes.Unavailable
}
