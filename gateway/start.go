package gateway

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/feed"
	"github.com/turnlane/turnlane/internal/admission"
	"github.com/turnlane/turnlane/internal/rpcerr"
	turnlanev1 "github.com/turnlane/turnlane/proto/turnlane/v1"
	"github.com/turnlane/turnlane/store"
)

// Kinds of gaps that subscribers are told, besides those of package feed.
const (
	gapReplayBound = "replay_bound" // what the bound of replay_since cut off
	gapUndecodable = "undecodable"  // one entry that this program cannot read
)

// plan is where a subscription begins and ends.
type plan struct {
	after       event.Position
	incarnation string
	gaps        []*turnlanev1.Gap // told first
	notBefore   time.Time         // leading events stored before it are left out

	ends      bool
	until     event.Position // inclusive; valid if ends and untilTime is zero
	untilTime time.Time      // in the future: becomes a position when it has passed
}

// plan reads where a subscription is to begin and end. Everything is fixed when it returns.
func (g *Gateway) plan(ctx context.Context, req *turnlanev1.SubscribeRequest) (plan, error) {
	start, field := req.GetFrom(), "from"
	if req.GetReplaySince() != nil {
		if start != nil {
			return plan{}, rpcerr.Invalid("replay_since", "is given together with from", "give one of them: replay_since is from with a bound")
		}
		start, field = req.GetReplaySince(), "replay_since"
	}
	for _, s := range []struct {
		field string
		start *turnlanev1.Start
	}{{field, start}, {"until", req.GetUntil()}} {
		if err := checkStart(s.field, s.start); err != nil {
			return plan{}, err
		}
	}
	if at, ok := start.GetAt().(*turnlanev1.Start_Time); ok { // an end may lie ahead: it will come
		if rule, fix := admission.StartTime(at.Time.AsTime(), g.cfg.Clock()); rule != "" {
			return plan{}, rpcerr.Invalid(field+".time", rule, fix)
		}
	}
	topic := req.GetTopic()
	log, err := g.cfg.Store.Bounds(ctx, topic)
	if err != nil {
		return plan{}, unreadable(topic, err)
	}
	p := plan{incarnation: log.Incarnation}
	if err := g.planStart(ctx, &p, topic, start, log); err != nil {
		return plan{}, unreadable(topic, err)
	}
	if until := req.GetUntil(); until != nil {
		p.ends = true
		if err := g.planUntil(ctx, &p, topic, until, log); err != nil {
			return plan{}, unreadable(topic, err)
		}
	}
	if field == "replay_since" {
		if err := g.bound(ctx, &p, topic, log); err != nil {
			return plan{}, unreadable(topic, err)
		}
	}
	return p, nil
}

func checkStart(field string, s *turnlanev1.Start) error {
	switch at := s.GetAt().(type) {
	case *turnlanev1.Start_Tail:
		if !at.Tail {
			return rpcerr.Invalid(field+".tail", "is false", "set it to true, or choose another place")
		}
	case *turnlanev1.Start_Earliest:
		if !at.Earliest {
			return rpcerr.Invalid(field+".earliest", "is false", "set it to true, or choose another place")
		}
	case *turnlanev1.Start_Time:
		if !at.Time.IsValid() {
			return rpcerr.Invalid(field+".time", "is not a valid timestamp", "give one from year 1 to 9999")
		}
	case *turnlanev1.Start_Position:
		if _, err := event.ParsePosition(at.Position); err != nil {
			return rpcerr.Invalid(field+".position", strings.TrimPrefix(err.Error(), "malformed position "), "give one as publish returned it, such as 1700000000000-0")
		}
	}
	return nil
}

func (g *Gateway) planStart(ctx context.Context, p *plan, topic string, start *turnlanev1.Start, log store.Bounds) error {
	switch at := start.GetAt().(type) {
	case *turnlanev1.Start_Earliest:
		p.after = log.Removed
	case *turnlanev1.Start_Position:
		pos, err := event.ParsePosition(at.Position)
		if err != nil {
			return err
		}
		p.after = pos.Prev()
	case *turnlanev1.Start_Time:
		t := at.Time.AsTime()
		if t.After(g.cfg.Clock()) { // a little, so it counts as now
			p.after = log.Last
			return nil
		}
		after, err := g.cfg.Store.Before(ctx, topic, t)
		if err != nil {
			return err
		}
		p.after, p.notBefore = after, t
		return g.timeGap(ctx, p, topic, t)
	default:
		p.after = log.Last
	}
	return nil
}

// timeGap tells of entries that were removed and may have been stored at the time or later. When they
// were stored is gone with them; by the clock of the store's positions, some were not before it.
func (g *Gateway) timeGap(ctx context.Context, p *plan, topic string, t time.Time) error {
	log, err := g.cfg.Store.Bounds(ctx, topic)
	if err != nil {
		return err
	}
	if log.Incarnation != p.incarnation {
		return nil // the feed will tell
	}
	if log.Removed.IsZero() || log.Removed.Less(p.after) {
		return nil // something that is held is older than the time, so all that was removed is
	}
	first := event.Position{Seq: 1}
	if ms := t.UnixMilli(); ms > 0 {
		first = event.Position{Ms: uint64(ms)}
	}
	if log.Removed.Less(first) {
		return nil
	}
	p.after = log.Removed
	p.gaps = append(p.gaps, &turnlanev1.Gap{First: first.String(), Last: log.Removed.String(), Kind: feed.Trimmed.String()})
	return nil
}

func (g *Gateway) planUntil(ctx context.Context, p *plan, topic string, until *turnlanev1.Start, log store.Bounds) error {
	switch at := until.GetAt().(type) {
	case *turnlanev1.Start_Earliest:
		p.until = log.First // zero if there is none
	case *turnlanev1.Start_Position:
		pos, err := event.ParsePosition(at.Position)
		if err != nil {
			return err
		}
		p.until = pos
	case *turnlanev1.Start_Time:
		t := at.Time.AsTime()
		if t.After(g.cfg.Clock()) {
			p.untilTime = t
			return nil
		}
		pos, err := g.lastAt(ctx, topic, t)
		if err != nil {
			return err
		}
		p.until = pos
	default:
		p.until = log.Last
	}
	return nil
}

// lastAt returns the last position up to which everything was stored at the time or before.
func (g *Gateway) lastAt(ctx context.Context, topic string, t time.Time) (event.Position, error) {
	return g.cfg.Store.Before(ctx, topic, t.Add(1))
}

// unreadable says that a subscription cannot begin since the log cannot be read. It never begins
// somewhere else instead.
func unreadable(topic string, err error) error {
	if errors.Is(err, store.ErrUnavailable) || errors.Is(err, store.ErrClosed) {
		return rpcerr.New(codes.Unavailable, rpcerr.TailUnreadable,
			fmt.Sprintf("topic %s: where to begin cannot be read: %v; try again", topic, err), map[string]string{"topic": topic})
	}
	return rpcerr.From(err)
}
