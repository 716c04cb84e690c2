package workmanager

import (
	"slices"
	"time"

	"github.com/turnlane/turnlane/grouping"
	"github.com/turnlane/turnlane/internal/lifecycle"
	turnlanev1 "github.com/turnlane/turnlane/proto/turnlane/v1"
	"github.com/turnlane/turnlane/store"
)

// entry is what the leader keeps of a worker that exists. It is only used by the leader's loop.
type entry struct {
	id, name, typ string
	topics        []string
	spec          grouping.Spec
	resumes       bool // replays from its cursor, so that its slot loses nothing while it is down
	wanted        bool // desired RUNNING
	begin         store.Start
	edition       uint64
	paused        bool
	pauseReason   string
	revision      uint64

	host   *host  // where it is placed; nil for nowhere
	placed placed // what the placement there says, as far as is known; zero when it is to be written anew

	seen  observation
	fence uint64 // tokens up to it belong to activations of an earlier start
	old   bool   // it was there when this leader came, so what it was then is no news
	begun bool   // the present generation was seen RUNNING

	pause time.Duration // until the next look at its owner, growing
	look  time.Time
	place int // in the agenda's heap, -1 when it is not there
}

// placed is what a placement says.
type placed struct {
	begin   store.Start
	edition uint64
	paused  bool
}

func (e *entry) toPlace() placed { return placed{e.begin, e.edition, e.paused} }

// take brings the entry up to a record, and tells whether the worker is to start anew.
func (e *entry) take(w record) (restarted bool) {
	begin := w.begin()
	restarted = e.revision != 0 && begin != e.begin
	if restarted {
		e.fence, e.begun = e.seen.token, false
	}
	e.name, e.typ, e.topics = w.GetName(), w.GetType(), w.GetTopics()
	e.spec = grouping.Spec{Group: w.GetGroup(), Size: w.GetGroupSize(), Index: w.GetGroupIndex()}
	e.resumes = !w.off()
	e.wanted = w.wanted()
	e.begin = begin
	e.edition = w.GetEdition()
	e.paused, e.pauseReason = w.GetPaused(), w.GetPauseReason()
	e.revision = w.revision
	return restarted
}

// failed tells whether the worker needs a person.
func (e *entry) failed() bool { return e.wanted && e.seen.state == failed }

// settled tells whether nothing is expected to happen to the worker by itself, so that its owner need
// not be looked at often.
func (e *entry) settled() bool {
	switch {
	case !e.wanted:
		return e.seen.state == stopped
	case e.host == nil:
		// Nobody can run it, or it has FAILED. One that an unplaced owner still runs is looked at by the
		// sweep.
		return true
	}
	return e.seen.state == running && e.seen.owner == e.host.session
}

// covers tells whether the entry's group has its slot on a topic.
func (e *entry) covers() bool { return e.wanted && e.seen.state == running }

// data is what lifecycle events say of the worker.
func (e *entry) data() lifecycle.Data {
	d := lifecycle.Data{
		WorkerID:   e.id,
		WorkerName: e.name,
		WorkerType: e.typ,
		Topics:     e.topics,
		State:      stateName(e.seen.state),
		Reason:     e.seen.reason,
		Pod:        e.seen.pod,
		Token:      e.seen.token,
	}
	if !e.spec.IsZero() {
		index := e.spec.Index
		d.Group, d.GroupSize, d.GroupIndex = e.spec.Group, e.spec.Size, &index
	}
	return d
}

// stateName is the name of a state without its prefix.
func stateName(s turnlanev1.WorkerState) string {
	const prefix = len("WORKER_STATE_")
	return s.String()[prefix:]
}

// on tells whether the worker has a topic.
func (e *entry) on(topic string) bool { return slices.Contains(e.topics, topic) }
