package gateway

import (
	"context"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/internal/admission"
	"github.com/turnlane/turnlane/internal/fanout"
	"github.com/turnlane/turnlane/internal/rpcerr"
	turnlanev1 "github.com/turnlane/turnlane/proto/turnlane/v1"
)

// lookEvery is how often a subscription with an end looks whether its feed has passed it, which it can
// do without an entry or a gap.
const lookEvery = 100 * time.Millisecond

// Subscribe is part of turnlane.v1.GatewayService.
//
// A subscription is one feed with a bounded buffer as its sink. Two goroutines serve it: one takes from
// the buffer and sends, and may be blocked by the client for as long as it likes; the handler watches
// it, and ends the stream when the client stalls or the gateway shuts down. What waits for a slow
// client is the buffer; the rest stays in the log.
func (g *Gateway) Subscribe(req *turnlanev1.SubscribeRequest, stream turnlanev1.GatewayService_SubscribeServer) error {
	if g.stopping() {
		return errShuttingDown()
	}
	topic := req.GetTopic()
	if err := admission.Readable(topic); err != nil {
		return rpcerr.From(err)
	}
	ctx := stream.Context()
	p, err := g.plan(ctx, req)
	if err != nil {
		return err
	}
	s := &subscription{
		topic: topic, plan: p, covered: p.after, send: stream.Send,
		buffer: newBuffer(g.cfg.BufferEvents, g.cfg.BufferBytes),
		clock:  g.cfg.Clock, count: &g.instruments.sent,
		lastAt: func(ctx context.Context, t time.Time) (event.Position, error) { return g.lastAt(ctx, topic, t) },
		bad: func(entry event.Entry, err error) {
			g.cfg.Logger.Error("an entry cannot be read; subscribers are told of a gap", "topic", topic, "position", entry.Pos, "error", err)
			g.Undecodable(topic, entry, err)
		},
	}
	s.feed, err = g.cfg.Hub.Open(ctx, topic, fanout.Options{
		Start: fanout.After(p.after, p.incarnation), Sink: s.buffer, OnGap: s.buffer.onGap,
	})
	if err != nil {
		return unreadable(topic, err)
	}
	defer s.feed.Close()
	g.instruments.subscribers.Add(1)
	defer g.instruments.subscribers.Add(-1)

	ended := make(chan error, 1)
	if err := g.stream(func() { ended <- s.run(ctx) }); err != nil {
		return err
	}
	stall := time.NewTimer(g.cfg.StallAfter)
	defer stall.Stop()
	for {
		select {
		case err := <-ended:
			return err
		case <-g.stop:
			return errShuttingDown()
		case <-ctx.Done():
			return rpcerr.From(ctx.Err())
		case <-stall.C:
			blocked := s.blocked()
			if blocked >= g.cfg.StallAfter {
				g.instruments.stalled.Add(1)
				return s.stalled(blocked)
			}
			stall.Reset(g.cfg.StallAfter - blocked)
		}
	}
}

// subscription is the sending side of one Subscribe.
type subscription struct {
	topic string
	plan
	feed   *fanout.Feed
	buffer *buffer
	send   func(*turnlanev1.SubscribeResponse) error
	clock  func() time.Time
	lastAt func(context.Context, time.Time) (event.Position, error)
	bad    func(event.Entry, error)
	count  *atomic.Int64

	// Only used by run:
	covered event.Position // up to where the client was told everything
	entries []event.Entry  // reused

	// Written by run, read by the handler:
	sending atomic.Pointer[time.Time]      // when the send under way began, nil if none is
	sent    atomic.Pointer[event.Position] // up to where sends have returned
}

// run sends until the client goes away or the subscription's end is passed.
func (s *subscription) run(ctx context.Context) error {
	err := s.transmit(&turnlanev1.SubscribeResponse{Response: &turnlanev1.SubscribeResponse_Started{
		Started: &turnlanev1.Started{Incarnation: s.incarnation, After: s.after.String()}}})
	if err != nil {
		return err
	}
	for _, gap := range s.gaps {
		if err := s.sendGap(gap); err != nil {
			return err
		}
	}
	var look, deadline <-chan time.Time
	if s.ends {
		ticker := time.NewTicker(lookEvery)
		defer ticker.Stop()
		look = ticker.C
		if !s.untilTime.IsZero() {
			timer := time.NewTimer(s.untilTime.Sub(s.clock()))
			defer timer.Stop()
			deadline = timer.C
		}
	}
	for {
		for {
			idle, err := s.step()
			if err != nil {
				return err
			}
			if s.passed(idle) {
				return nil
			}
			if idle {
				break
			}
		}
		select {
		case <-s.buffer.wake:
		case <-look:
		case <-deadline:
			if err := s.fixUntil(ctx); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// fixUntil turns an end given as a time that has come into a position.
func (s *subscription) fixUntil(ctx context.Context) error {
	pos, err := s.lastAt(ctx, s.untilTime)
	if err != nil {
		return rpcerr.From(err)
	}
	s.until, s.untilTime = pos, time.Time{}
	return nil
}

// passed reports whether the subscription's end has been reached. If nothing is left in the buffer,
// the feed's own position counts.
func (s *subscription) passed(idle bool) bool {
	if !s.ends || !s.untilTime.IsZero() {
		return false
	}
	if !s.covered.Less(s.until) {
		return true
	}
	if !idle {
		return false
	}
	passed := false
	s.feed.Observe(func(pos event.Position, _ string) {
		// Nothing can be offered meanwhile, so an empty buffer means that all up to pos was sent.
		passed = !pos.Less(s.until) && s.buffer.empty()
	})
	return passed
}

// step takes once from the buffer and sends it. It is idle if there was nothing.
func (s *subscription) step() (idle bool, err error) {
	t := s.buffer.take(s.entries[:0])
	if t.drained {
		s.feed.Drained()
	}
	if t.gap != nil {
		s.covered = t.gap.After
		if s.ends && s.untilTime.IsZero() && !t.gap.Last.Less(s.until) {
			s.until = s.covered // the end itself will not come
		}
		return false, s.sendGap(&turnlanev1.Gap{
			First: t.gap.First.String(), Last: t.gap.Last.String(), Kind: t.gap.Kind.String()})
	}
	if len(t.entries) == 0 {
		return true, nil
	}
	s.entries = t.entries
	defer clear(t.entries)
	return false, s.sendEntries(t.entries)
}

// sendEntries sends a batch, cut where the subscription ends or where an entry cannot be read.
func (s *subscription) sendEntries(entries []event.Entry) error {
	batch := &turnlanev1.EventBatch{From: s.covered.String(), Events: make([]*turnlanev1.StoredEvent, 0, len(entries))}
	for _, entry := range entries {
		if s.beyond(entry) {
			if err := s.sendBatch(batch); err != nil {
				return err
			}
			s.covered, s.until, s.untilTime = event.MaxPosition, event.MaxPosition, time.Time{}
			return nil
		}
		if !s.notBefore.IsZero() && entry.Record.StoredAt().Before(s.notBefore) {
			s.covered = entry.Pos
			continue
		}
		s.notBefore = time.Time{}
		stored, err := storedEvent(entry)
		if err != nil {
			s.bad(entry, err)
			if err := s.sendBatch(batch); err != nil {
				return err
			}
			s.covered = entry.Pos
			text := entry.Pos.String()
			if err := s.sendGap(&turnlanev1.Gap{First: text, Last: text, Kind: gapUndecodable}); err != nil {
				return err
			}
			batch = &turnlanev1.EventBatch{From: text}
			continue
		}
		s.covered = entry.Pos
		batch.Events = append(batch.Events, stored)
	}
	return s.sendBatch(batch)
}

// beyond reports whether an entry lies after the subscription's end.
func (s *subscription) beyond(entry event.Entry) bool {
	switch {
	case !s.ends:
		return false
	case !s.untilTime.IsZero():
		return entry.Record.StoredAt().After(s.untilTime)
	}
	return s.until.Less(entry.Pos)
}

func storedEvent(entry event.Entry) (*turnlanev1.StoredEvent, error) {
	e, err := event.DecodeRecord(entry.Record)
	if err != nil {
		return nil, err
	}
	p, err := event.ToProto(e)
	if err != nil {
		return nil, err
	}
	return &turnlanev1.StoredEvent{Position: entry.Pos.String(), Event: p}, nil
}

func (s *subscription) sendBatch(batch *turnlanev1.EventBatch) error {
	if len(batch.Events) == 0 {
		return nil
	}
	batch.To = s.covered.String()
	err := s.transmit(&turnlanev1.SubscribeResponse{Response: &turnlanev1.SubscribeResponse_Batch{Batch: batch}})
	if err == nil {
		s.count.Add(int64(len(batch.Events)))
	}
	return err
}

func (s *subscription) sendGap(gap *turnlanev1.Gap) error {
	return s.transmit(&turnlanev1.SubscribeResponse{Response: &turnlanev1.SubscribeResponse_Gap{Gap: gap}})
}

func (s *subscription) transmit(resp *turnlanev1.SubscribeResponse) error {
	now := time.Now()
	s.sending.Store(&now)
	err := s.send(resp)
	s.sending.Store(nil)
	if err == nil {
		covered := s.covered
		s.sent.Store(&covered)
	}
	return err
}

// blocked returns how long the send under way has been.
func (s *subscription) blocked() time.Duration {
	if began := s.sending.Load(); began != nil {
		return time.Since(*began)
	}
	return 0
}

// stalled is the end of a subscription whose client takes nothing.
func (s *subscription) stalled(blocked time.Duration) error {
	back := s.plan.after
	if sent := s.sent.Load(); sent != nil {
		back = *sent
	}
	from := back.Next().String()
	waiting := s.buffer.waiting()
	return rpcerr.New(codes.ResourceExhausted, rpcerr.SubscriberStalled,
		fmt.Sprintf("the subscriber of topic %s took nothing for %s while at least %d events waited; come back with from.position %s, and read faster",
			s.topic, blocked.Round(time.Millisecond), waiting, from),
		map[string]string{"topic": s.topic, "position": from, "waiting": strconv.Itoa(waiting)})
}
