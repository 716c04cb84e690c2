package runtime

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/turnlane/turnlane/actor"
	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/internal/admission"
	"github.com/turnlane/turnlane/store"
)

// outbox is where the outputs of turns wait for the store: a queue per output topic, in which the turns
// of all workers follow each other. A queue that has something has a goroutine, which appends what is
// there, all at once. An append is tried until the store takes it: a repeat is told by its mark.
type outbox struct {
	r     *Runtime
	bytes atomic.Int64 // waiting

	mu     sync.Mutex
	queues map[string]*outQueue
}

type outQueue struct {
	topic string
	batch []outgoing
}

// outgoing is the outputs of one turn to one topic.
type outgoing struct {
	settles *settles
	batch   store.Batch
	bytes   int
	dead    bool // it is the dead letter of the turn's event
}

// settles counts down the output topics of one turn, or the one of a dead letter.
type settles struct {
	t     *turn
	left  int // guarded by the activation's lock
	bytes int
}

// Bounds of one append.
const (
	maxAppendBatches = 512
	maxAppendBytes   = 1 << 20
)

func newOutbox(r *Runtime) *outbox { return &outbox{r: r, queues: map[string]*outQueue{}} }

// add takes the outputs of a turn. It does not block.
func (o *outbox) add(t *turn, outputs []actor.Output, now time.Time) {
	topics, out := o.batches(t, outputs, now)
	o.enqueue(t, topics, out)
}

// batches encodes outputs of a turn, a batch for each topic.
func (o *outbox) batches(t *turn, outputs []actor.Output, now time.Time) (topics []string, out []outgoing) {
	if len(outputs) == 0 {
		return nil, nil
	}
	a := t.a
	out = make([]outgoing, 0, 1)
	topics = make([]string, 0, 1)
	for i := range outputs {
		k := 0
		for k < len(topics) && topics[k] != outputs[i].Topic {
			k++
		}
		if k == len(topics) {
			topics = append(topics, outputs[i].Topic)
			out = append(out, outgoing{batch: store.Batch{
				Records: make([]event.Record, 0, len(outputs)-i),
				Turn: &store.TurnMark{Worker: a.worker.ID, Token: a.owner.Token, Run: t.lane().markRun(),
					Topic: t.lane().topic, Position: t.item.Entry.Pos},
			}})
		}
		record := admission.Encode(outputs[i].Event, now)
		out[k].batch.Records = append(out[k].batch.Records, record)
		out[k].bytes += len(record)
	}
	return topics, out
}

// enqueue takes what is to be stored before a turn's event is settled: a batch for each topic.
func (o *outbox) enqueue(t *turn, topics []string, out []outgoing) {
	a := t.a
	s := &settles{t: t, left: len(out)}
	for k := range out {
		out[k].settles = s
		s.bytes += out[k].bytes
	}
	a.mu.Lock()
	if a.frozen {
		a.mu.Unlock()
		return
	}
	a.outTurns++
	a.outBytes += s.bytes
	a.mu.Unlock()
	o.bytes.Add(int64(s.bytes))

	o.mu.Lock()
	for k := range out {
		q := o.queues[topics[k]]
		if q == nil {
			q = &outQueue{topic: topics[k]}
			o.queues[q.topic] = q
			o.r.work.Go(func() { o.send(q) })
		}
		q.batch = append(q.batch, out[k])
	}
	o.mu.Unlock()
}

// send empties a queue, and ends with it.
func (o *outbox) send(q *outQueue) {
	var spare []outgoing
	for {
		o.mu.Lock()
		if len(q.batch) == 0 {
			delete(o.queues, q.topic)
			o.mu.Unlock()
			return
		}
		waiting := q.batch
		q.batch = spare
		o.mu.Unlock()
		for rest := waiting; len(rest) > 0; {
			n, bytes := 0, 0
			for n < len(rest) && n < maxAppendBatches && (n == 0 || bytes+rest[n].bytes <= maxAppendBytes) {
				bytes += rest[n].bytes
				n++
			}
			o.append(q.topic, rest[:n])
			rest = rest[n:]
		}
		clear(waiting)
		spare = waiting[:0]
	}
}

// append stores batches, however often it takes.
func (o *outbox) append(topic string, out []outgoing) {
	batches := make([]store.Batch, 0, len(out))
	live := make([]outgoing, 0, len(out))
	for n := 0; ; n++ {
		batches, live = batches[:0], live[:0]
		for _, g := range out {
			if g.settles.t.a.isFrozen() {
				o.bytes.Add(-int64(g.bytes))
				continue
			}
			live = append(live, g)
			batches = append(batches, g.batch)
		}
		out = append(out[:0], live...)
		if len(out) == 0 {
			return
		}
		var fates []store.Appended
		err := store.ErrSessionExpired // the clock says so, and the activations are about to be dropped
		if _, ok := o.r.cfg.Session.Current(); ok {
			fates, err = o.r.cfg.Store.Append(o.r.ctx, topic, batches)
		}
		if err == nil {
			for i := range out {
				o.bytes.Add(-int64(out[i].bytes))
				out[i].settles.stored(fates[i], out[i].dead)
			}
			return
		}
		if n == 0 || n%32 == 0 {
			o.r.log.Warn("outputs cannot be stored; trying again", "topic", topic, "batches", len(batches), "attempts", n+1, "error", err)
		}
		if errors.Is(err, store.ErrClosed) || o.r.ctx.Err() != nil || !sleep(o.r.ctx, backoff(n, 10*time.Millisecond, 2*time.Second)) {
			for _, g := range out {
				o.bytes.Add(-int64(g.bytes))
			}
			return // the process ends; the cursors stay behind these turns
		}
	}
}

// roomLocked reports whether a worker that took no turn because of what is not stored may go on.
func (a *activation) roomLocked() bool {
	c := &a.r.cfg
	rings := a.blocked && a.outTurns <= c.OutboxTurns/2 && a.outBytes <= c.OutboxBytes/2 && !a.state.full(c.OutboxTurns/2, c.OutboxBytes/2)
	if rings {
		a.blocked = false
	}
	return rings
}

func (a *activation) isFrozen() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.frozen
}

// stored takes note that the outputs of a turn to one topic are stored, or refused.
func (s *settles) stored(fate store.Appended, dead bool) {
	t, a := s.t, s.t.a
	if fate.Err != nil {
		a.refused(fate.Err)
		return
	}
	if dead {
		var pos event.Position
		if len(fate.Positions) == 1 {
			pos = fate.Positions[0]
		}
		a.exhausted(t, "dead_letter", t.deadTopic, pos)
	}
	a.mu.Lock()
	s.left--
	if s.left > 0 || a.frozen {
		a.mu.Unlock()
		return
	}
	a.outTurns--
	a.outBytes -= s.bytes
	tell := a.settledLocked(t)
	rings := a.roomLocked()
	a.tellDrainedLocked()
	a.mu.Unlock()
	if rings {
		a.cell.Ring()
	}
	if tell {
		a.r.flush.add(a, time.Now())
	}
}

// waitStored waits until nothing of the activation is in the outbox.
func (a *activation) waitStored(ctx context.Context) error {
	a.mu.Lock()
	if a.outTurns == 0 || a.frozen {
		a.mu.Unlock()
		return nil
	}
	if a.drained == nil {
		a.drained = make(chan struct{})
	}
	drained := a.drained
	a.mu.Unlock()
	select {
	case <-drained:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
