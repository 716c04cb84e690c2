package runtime

import (
	"errors"
	"time"

	"github.com/turnlane/turnlane/actor"
	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/grouping"
	"github.com/turnlane/turnlane/internal/admission"
	"github.com/turnlane/turnlane/internal/catalog"
	"github.com/turnlane/turnlane/internal/deadletter"
	turnlanev1 "github.com/turnlane/turnlane/proto/turnlane/v1"
	"github.com/turnlane/turnlane/store"
)

// What becomes of an event that is given up.
const (
	onDeadLetter = turnlanev1.OnExhausted_ON_EXHAUSTED_DEAD_LETTER
	onDrop       = turnlanev1.OnExhausted_ON_EXHAUSTED_DROP
	onPause      = turnlanev1.OnExhausted_ON_EXHAUSTED_PAUSE
)

// reasonOf is why an event is given up whose last attempt ended so.
func reasonOf(o actor.Outcome) string {
	switch o {
	case actor.OutcomePermanent:
		return deadletter.Permanent
	case actor.OutcomeTimeout:
		return deadletter.Timeout
	case actor.OutcomePanic:
		return deadletter.Panic
	case actor.OutcomeGoexit:
		return deadletter.Goexit
	}
	return deadletter.Failed
}

// verdict says why no start of an event is due any more, "" if one is.
func (p *policy) verdict(k *attempt) string {
	switch {
	case k == nil:
		return ""
	case k.GivenUp != "":
		return k.GivenUp
	case k.Crashes >= p.maxCrashes:
		return deadletter.Crashed
	case k.Attempts >= p.maxAttempts:
		return deadletter.Failed
	}
	return ""
}

// giveUp does with an event that is given up what the policy says; t.last is why. The event is in hand,
// and the store knows that it is given up, so that an end of the process meanwhile leads here again
// without another start of the handler.
func (a *activation) giveUp(t *turn, now time.Time) {
	do := a.policy().exhausted
	if do == onPause && t.lane().kind == commandLane {
		do = onDeadLetter // commands go on while a worker is paused
	}
	reply := t.lastAnswer(errors.New(t.last.Error), now) // of a command
	switch do {
	case onDrop:
		a.exhausted(t, "drop", "", event.Position{})
		a.finish(t, reply, nil, now)
	case onPause:
		a.pauseAt(t)
	default:
		topic, batch := a.deadLetter(t, now)
		if topic == "" { // it is one, and stays where it is
			a.exhausted(t, "none", "", event.Position{})
			a.finish(t, reply, nil, now)
			return
		}
		t.deadTopic = topic
		a.enter(t, nil)
		topics, out := a.r.outbox.batches(t, reply, now)
		a.r.outbox.enqueue(t, append(topics, topic), append(out, outgoing{batch: batch, bytes: len(batch.Records[0]), dead: true}))
		a.passed(t, true, now)
	}
}

// deadLetter makes the dead letter of an event. The topic is empty if there is to be none.
func (a *activation) deadLetter(t *turn, now time.Time) (topic string, batch store.Batch) {
	w, in, pos := a.worker, t.lane().topic, t.item.Entry.Pos // a redriven event's Turn tells another topic
	e, err := event.DecodeRecord(t.item.Entry.Record)
	if err != nil {
		if deadletter.Topic(in, w.Type, "") == "" {
			return "", store.Batch{}
		}
		dead := deadletter.WrapUndecodable(in, pos, t.item.Entry.Record, err, now)
		return deadletter.Pubsub, store.Batch{Records: []event.Record{admission.Encode(dead, now)},
			Turn: deadletter.UndecodableMark(in, pos)}
	}
	f := deadletter.Facts{Reason: t.last.GivenUp, Error: t.last.Error, Attempts: t.last.Attempts, Crashes: t.last.Crashes,
		WorkerID: w.ID, WorkerName: w.Name, WorkerType: w.Type, Version: a.r.cfg.Version, Run: w.Run,
		Topic: in, Position: pos, FirstFailed: t.last.FirstFailed, LastFailed: t.last.LastFailed,
		Permanent: t.last.GivenUp == deadletter.Permanent, Group: w.Group}
	if deadletter.IsRedriveTopic(in) {
		if original, was, err := deadletter.Redriven(e); err == nil {
			e = original
			f.Topic, f.Position, f.Redrives = was.Topic, was.Position, was.Redrives
			if !was.FirstFailed.IsZero() {
				f.FirstFailed = was.FirstFailed
			}
		}
	}
	f.Key = e.RoutingKey()
	if w.Group != "" {
		f.Slot = grouping.Slot(t.item.Entry.Record.Hash(), w.GroupSize)
	}
	topic = deadletter.Topic(f.Topic, w.Type, a.policy().deadTopic)
	if topic == "" {
		return "", store.Batch{}
	}
	return topic, store.Batch{Records: []event.Record{admission.Encode(deadletter.Wrap(e, f), now)},
		Turn: deadletter.Mark(w.ID, a.owner.Token, t.lane().markRun(), in, pos)}
}

// pauseAt puts an event that is given up back and pauses the worker's events: at once here, then in the
// catalog. When they are resumed the event has all of its attempts again.
func (a *activation) pauseAt(t *turn) {
	pos := t.item.Entry.Pos
	a.mu.Lock()
	if a.frozen {
		a.mu.Unlock()
		return
	}
	l := &a.lanes[t.item.Lane]
	a.pausing = true
	a.pauseLocked(true)
	a.box.Hold(t.item)
	a.box.Resume(t.item.Lane)
	a.mu.Unlock()
	a.exhausted(t, "pause", "", event.Position{})
	reason := "event " + pos.String() + " of topic " + l.topic + " was given up (" + t.last.GivenUp + "): " + t.last.Error
	a.r.work.Go(func() {
		for n := 0; ; n++ {
			paused, err := catalog.Pause(a.r.ctx, a.r.cfg.Store, a.worker.ID, a.start, a.owner.Session, reason)
			if err == nil {
				a.pauseStored(l, pos, paused)
				return
			}
			if n == 0 || n%32 == 0 {
				a.r.log.Warn("worker cannot be paused in the catalog; trying again", "worker", a.worker.ID, "attempts", n+1, "error", err)
			}
			if a.isFrozen() || errors.Is(err, store.ErrClosed) || !sleep(a.r.ctx, backoff(n, 10*time.Millisecond, 2*time.Second)) {
				return // what is stored of the event leads here again
			}
		}
	})
}

// pauseStored takes note that the catalog has the pause, or that the worker is wanted otherwise by now.
func (a *activation) pauseStored(l *lane, pos event.Position, paused bool) {
	a.mu.Lock()
	if paused {
		a.pausing = false
		l.forgetLocked(pos)
		l.markDirtyLocked()
	}
	a.mu.Unlock()
	if paused {
		a.r.flush.urgent(a)
	}
}

// setPaused holds the worker's events back, or lets them go on; commands go on anyway. The turn under
// way is not touched.
func (a *activation) setPaused(paused bool) {
	a.mu.Lock()
	rings := false
	if !a.frozen && !a.pausing {
		rings = a.pauseLocked(paused)
	}
	a.mu.Unlock()
	if rings {
		a.cell.Ring()
	}
}

func (a *activation) pauseLocked(paused bool) (rings bool) {
	for i := range a.lanes {
		switch {
		case a.lanes[i].kind == commandLane:
		case paused:
			a.box.Pause(i)
		default:
			rings = a.box.Unpause(i) || rings
		}
	}
	return rings
}
