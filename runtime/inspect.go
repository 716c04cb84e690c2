package runtime

import (
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/turnlane/turnlane/internal/fanout"
	turnlanev1 "github.com/turnlane/turnlane/proto/turnlane/v1"
)

// Inspect returns the facts of each topic of a worker that runs here: all but the topic's head and the
// lag behind it, which the store knows. It returns false for a worker that does not run here.
func (r *Runtime) Inspect(worker string) ([]*turnlanev1.WorkerTopic, bool) {
	a := r.activationOf(worker)
	if a == nil {
		return nil, false
	}
	var present *turn
	if t, ok := a.cell.Turning(); ok {
		present = t.(*turn)
	}
	facts := make([]*turnlanev1.WorkerTopic, len(a.worker.Topics))
	for i := range facts {
		l := &a.lanes[i]
		c, events, bytes := l.cursor()
		f := &turnlanev1.WorkerTopic{Topic: c.Topic, Cursor: c.Position.String(), LaneEvents: uint32(events), LaneBytes: uint64(bytes)}
		a.mu.Lock()
		feed, gaps := l.feed, l.gaps
		f.InTurn, f.Attempt, f.RetryAt = l.inHandLocked(present)
		a.mu.Unlock()
		f.Gaps = uint64(gaps)
		if feed != nil {
			s := feed.Status()
			f.Feed = feedStates[s.State]
			f.Examined, f.Owned, f.Filtered = s.Examined, s.Owned, s.Filtered
		}
		facts[i] = f
	}
	return facts, true
}

func (r *Runtime) activationOf(worker string) *activation {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p := r.places[worker]; p != nil {
		return p.current
	}
	return nil
}

// inHandLocked tells of the event that the handler has, or that waits for its next attempt: which one
// that is, and when.
func (l *lane) inHandLocked(present *turn) (pos string, attempt uint32, at *timestamppb.Timestamp) {
	if present != nil && present.item.Lane == l.index {
		return present.item.Entry.Pos.String(), uint32(present.Turn.Attempt()), nil
	}
	if l.retryAt.IsZero() {
		return "", 0, nil
	}
	p, ok := l.a.box.Oldest(l.index)
	if k := l.knownLocked(p); ok && k != nil {
		return p.String(), k.Attempts + k.Crashes + 1, timestamppb.New(l.retryAt)
	}
	return "", 0, nil
}

var feedStates = map[fanout.State]turnlanev1.FeedState{
	fanout.Live:       turnlanev1.FeedState_FEED_STATE_LIVE,
	fanout.CatchingUp: turnlanev1.FeedState_FEED_STATE_CATCHING_UP,
	fanout.Stalled:    turnlanev1.FeedState_FEED_STATE_STALLED,
}
