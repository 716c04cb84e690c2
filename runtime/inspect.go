package runtime

import (
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
	facts := make([]*turnlanev1.WorkerTopic, len(a.worker.Topics))
	for i := range facts {
		l := &a.lanes[i]
		c, events, bytes := l.cursor()
		f := &turnlanev1.WorkerTopic{Topic: c.Topic, Cursor: c.Position.String(), LaneEvents: uint32(events), LaneBytes: uint64(bytes)}
		a.mu.Lock()
		feed, gaps := l.feed, l.gaps
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

var feedStates = map[fanout.State]turnlanev1.FeedState{
	fanout.Live:       turnlanev1.FeedState_FEED_STATE_LIVE,
	fanout.CatchingUp: turnlanev1.FeedState_FEED_STATE_CATCHING_UP,
	fanout.Stalled:    turnlanev1.FeedState_FEED_STATE_STALLED,
}
