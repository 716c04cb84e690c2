package runtime

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/turnlane/turnlane/actor"
	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/feed"
	"github.com/turnlane/turnlane/internal/lifecycle"
)

// reports are the lifecycle events that wait to be published, in order. Turns and feeds do not wait for
// them; what is too much is dropped, counted and logged.
type reports struct {
	publisher actor.Publisher
	log       *slog.Logger
	ready     chan struct{} // of size 1: there may be something in queue

	mu      sync.Mutex
	queue   []*event.Event
	dropped int
}

const (
	maxReports  = 10_000
	reportBatch = 256
)

func newReports(p actor.Publisher, log *slog.Logger) *reports {
	return &reports{publisher: p, log: log, ready: make(chan struct{}, 1)}
}

func (r *reports) add(kind string, d lifecycle.Data) {
	if r.publisher == nil {
		return
	}
	e := lifecycle.New(kind, time.Now(), d)
	r.mu.Lock()
	if len(r.queue) < maxReports {
		r.queue = append(r.queue, e)
	} else {
		r.dropped++
	}
	r.mu.Unlock()
	select {
	case r.ready <- struct{}{}:
	default:
	}
}

// run publishes until ctx ends, and then what is left, within a second.
func (r *reports) run(ctx context.Context) {
	for {
		select {
		case <-r.ready:
			r.flush(ctx)
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			defer cancel()
			r.flush(last)
			return
		}
	}
}

func (r *reports) flush(ctx context.Context) {
	for {
		r.mu.Lock()
		batch := r.queue[:min(len(r.queue), reportBatch)]
		dropped := r.dropped
		r.dropped = 0
		r.mu.Unlock()
		if dropped > 0 {
			r.log.Error("lifecycle events were dropped: too many waited to be published", "dropped", dropped)
		}
		if len(batch) == 0 {
			return
		}
		for n := 0; ; n++ {
			_, err := r.publisher.Publish(ctx, lifecycle.Topic, batch...)
			if err == nil {
				break
			}
			if errors.Is(err, event.ErrInvalid) {
				r.log.Error("lifecycle events are refused and dropped", "events", len(batch), "error", err)
				break
			}
			if n == 0 && ctx.Err() == nil {
				r.log.Warn("lifecycle events cannot be published; trying again", "error", err)
			}
			if !sleep(ctx, backoff(n, 50*time.Millisecond, 5*time.Second)) {
				return
			}
		}
		r.mu.Lock()
		if r.queue = r.queue[len(batch):]; len(r.queue) == 0 {
			r.queue = nil
		}
		r.mu.Unlock()
	}
}

// data is what every lifecycle event of an activation says.
func (a *activation) data(l *lane) lifecycle.Data {
	w := a.worker
	d := lifecycle.Data{WorkerID: w.ID, WorkerName: w.Name, WorkerType: w.Type, Topics: w.Topics, Topic: l.topic(),
		Group: w.Group, GroupSize: w.GroupSize, Pod: w.Pod, Token: a.owner.Token}
	if w.Group != "" {
		index := w.GroupIndex
		d.GroupIndex = &index
	}
	return d
}

// exhausted reports an event that is given up.
func (a *activation) exhausted(t *turn, outcome actor.Outcome, err error) {
	text := clean(err.Error())
	l := &a.lanes[t.item.Lane]
	d := a.data(l)
	d.Position, d.Attempts, d.Error = t.item.Entry.Pos.String(), t.Turn.Attempt(), text
	d.Reason = outcome.String()
	source := ""
	if bad, ok := errors.AsType[*undecodable](err); ok {
		d.Reason = "undecodable"
		d.Error = clean(bad.Error())
	} else if e := t.Turn.Event(); e != nil {
		d.EventID, source = e.ID, e.Source
	}
	a.typ.meter.exhausted.Add(1)
	a.r.log.Error("event given up", "worker", a.worker.ID, "type", a.worker.Type, "group", a.worker.Group,
		"group_index", a.worker.GroupIndex, "topic", d.Topic, "position", d.Position, "event_id", clean(d.EventID),
		"source", clean(source), "attempts", d.Attempts, "reason", d.Reason, "error", text)
	a.r.reports.add(lifecycle.TypeExhausted, d)
}

// reportStuck reports a handler that was given up.
func (a *activation) reportStuck(t *turn) {
	d := a.data(&a.lanes[t.item.Lane])
	d.Position, d.Attempts, d.Error = t.item.Entry.Pos.String(), t.Turn.Attempt(), "the handler ignored its deadline and was given up"
	if e := t.Turn.Event(); e != nil {
		d.EventID = e.ID
	}
	a.r.reports.add(lifecycle.TypeStuck, d)
}

// reportGap reports a stretch of a topic that the worker will never get.
func (r *Runtime) reportGap(a *activation, l *lane, kind string, first, last event.Position) {
	d := a.data(l)
	d.Kind, d.First, d.Last = kind, first.String(), last.String()
	r.log.Warn("gap: the worker will not get a stretch of a topic", "worker", a.worker.ID, "topic", d.Topic,
		"kind", kind, "first", d.First, "last", d.Last)
	r.reports.add(lifecycle.TypeGap, d)
}

// onGap is told of each gap by the lane's feed, under the topic's lock.
func (l *lane) onGap(g feed.Gap) {
	a := l.a
	a.mu.Lock()
	l.gaps++
	tell := false
	if g.Kind == feed.Incarnation || g.Kind == feed.Regressed {
		// What waits, and what is in hand, is of a log that is no more: its positions say nothing.
		a.box.Cut(l.index)
		l.floor.Reset(g.After)
		l.log, l.stored, l.replayTo = g.Next, unstored, event.Position{}
	}
	tell = l.markDirtyLocked()
	a.mu.Unlock()
	if tell {
		a.r.flush.add(a, time.Now())
	}
	a.r.reportGap(a, l, g.Kind.String(), g.First, g.Last)
}
