package runtime

import (
	"time"

	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/feed"
	"github.com/turnlane/turnlane/internal/lifecycle"
)

const (
	maxReports  = 10_000      // lifecycle events kept while they cannot be published
	reportLimit = time.Second // to publish what is left at the end
)

// data is what every lifecycle event of an activation says.
func (a *activation) data(l *lane) lifecycle.Data {
	w := a.worker
	d := lifecycle.Data{WorkerID: w.ID, WorkerName: w.Name, WorkerType: w.Type, Topics: w.Topics, Topic: l.topic,
		Group: w.Group, GroupSize: w.GroupSize, Pod: w.Pod, Token: a.owner.Token}
	if w.Group != "" {
		index := w.GroupIndex
		d.GroupIndex = &index
	}
	return d
}

// exhausted reports an event that is given up, what becomes of it, and where its dead letter is: the
// position is zero if it was there already.
func (a *activation) exhausted(t *turn, fate, deadTopic string, deadPos event.Position) {
	l := &a.lanes[t.item.Lane]
	d := a.data(l)
	d.Position, d.Attempts, d.Crashes = t.item.Entry.Pos.String(), int(t.last.Attempts), int(t.last.Crashes)
	d.Reason, d.Error, d.Kind, d.DeadLetterTopic = t.last.GivenUp, t.last.Error, fate, deadTopic
	if !deadPos.IsZero() {
		d.DeadLetterPosition = deadPos.String()
	}
	source := ""
	if e := t.Turn.Event(); e != nil {
		d.EventID, source = e.ID, e.Source
	}
	a.typ.meter.exhausted.Add(1)
	a.r.log.Error("event given up", "worker", a.worker.ID, "type", a.worker.Type, "group", a.worker.Group,
		"group_index", a.worker.GroupIndex, "topic", d.Topic, "position", d.Position, "event_id", clean(d.EventID),
		"source", clean(source), "attempts", d.Attempts, "crashes", d.Crashes, "reason", d.Reason, "error", d.Error,
		"fate", fate, "dead_letter_topic", deadTopic, "dead_letter_position", d.DeadLetterPosition)
	a.r.reports.Add(lifecycle.TypeExhausted, d)
}

// reportStuck reports a handler that was given up.
func (a *activation) reportStuck(t *turn) {
	d := a.data(&a.lanes[t.item.Lane])
	d.Position, d.Attempts, d.Error = t.item.Entry.Pos.String(), t.Turn.Attempt(), "the handler ignored its deadline and was given up"
	if e := t.Turn.Event(); e != nil {
		d.EventID = e.ID
	}
	a.r.reports.Add(lifecycle.TypeStuck, d)
}

// reportGap reports a stretch of a topic that the worker will never get.
func (r *Runtime) reportGap(a *activation, l *lane, kind string, first, last event.Position) {
	d := a.data(l)
	d.Kind, d.First, d.Last = kind, first.String(), last.String()
	r.log.Warn("gap: the worker will not get a stretch of a topic", "worker", a.worker.ID, "topic", d.Topic,
		"kind", kind, "first", d.First, "last", d.Last)
	r.reports.Add(lifecycle.TypeGap, d)
}

// onGap is told of each gap by the lane's feed, under the topic's lock.
func (l *lane) onGap(g feed.Gap) {
	a := l.a
	a.mu.Lock()
	l.gaps++
	if g.Kind == feed.Incarnation || g.Kind == feed.Regressed {
		// What waits, and what is in hand, is of a log that is no more: its positions say nothing.
		a.box.Cut(l.index)
		l.floor.Reset(g.After)
		l.log, l.stored, l.replayTo, l.markTo = g.Next, unstored, event.Position{}, event.Position{}
		l.cutLocked()
	}
	tell := l.markDirtyLocked()
	a.mu.Unlock()
	if tell {
		a.r.flush.add(a, time.Now())
	}
	a.r.reportGap(a, l, g.Kind.String(), g.First, g.Last)
}
