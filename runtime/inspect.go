package runtime

import (
	"github.com/turnlane/turnlane/internal/fanout"
	turnlanev1 "github.com/turnlane/turnlane/proto/turnlane/v1"
)

// Inspect returns the facts of each topic of a worker that runs here: all but the topic's head and the
// lag behind it, which the store knows. It returns false for a worker that does not run here.
func (r *Runtime) Inspect(worker string) ([]*turnlanev1.WorkerTopic, bool) {
	r.mu.Lock()
	p := r.places[worker]
	var a *activation
	if p != nil {
		a = p.current
	}
	r.mu.Unlock()
	if a == nil {
		return nil, false
	}
	facts := make([]*turnlanev1.WorkerTopic, len(a.lanes))
	for i := range a.lanes {
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

var feedStates = map[fanout.State]turnlanev1.FeedState{
	fanout.Live:       turnlanev1.FeedState_FEED_STATE_LIVE,
	fanout.CatchingUp: turnlanev1.FeedState_FEED_STATE_CATCHING_UP,
	fanout.Stalled:    turnlanev1.FeedState_FEED_STATE_STALLED,
}
