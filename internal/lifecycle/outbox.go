package lifecycle

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/turnlane/turnlane/actor"
	"github.com/turnlane/turnlane/event"
)

// Bounds of what waits, and of what is published at once. Data may name a thousand topics, so events
// are bounded in bytes too.
const (
	maxWaitingBytes = 64 << 20
	batchEvents     = 500
	batchBytes      = 1 << 20 // far below what one batch of a topic may have
)

// Outbox is the lifecycle events that wait to be published, in order, so that those who tell of
// something do not wait for the store. It is safe for concurrent use.
//
// An event that cannot be stored now is tried again until it is, and may be there twice if its outcome
// was unknown. One that can never be stored, and those for which there is no room, are dropped; the log
// says how many.
type Outbox struct {
	publisher actor.Publisher
	log       *slog.Logger
	maxEvents int
	ready     chan struct{} // of size 1: there may be something in queue

	mu      sync.Mutex
	queue   []*event.Event
	bytes   int
	dropped int // for want of room, since it was last told
}

// NewOutbox makes an outbox in which at most so many events wait, of 64 MiB together. Without a
// publisher it drops everything silently.
func NewOutbox(p actor.Publisher, log *slog.Logger, maxEvents int) *Outbox {
	return &Outbox{publisher: p, log: log, maxEvents: maxEvents, ready: make(chan struct{}, 1)}
}

// Add takes an event, as of now. It does not block.
func (o *Outbox) Add(kind string, d Data) {
	if o.publisher == nil {
		return
	}
	e := New(kind, time.Now(), d)
	o.mu.Lock()
	if len(o.queue) < o.maxEvents && o.bytes+size(e) <= maxWaitingBytes {
		o.queue = append(o.queue, e)
		o.bytes += size(e)
	} else {
		o.dropped++
	}
	o.mu.Unlock()
	select {
	case o.ready <- struct{}{}:
	default:
	}
}

// Run publishes until ctx ends, and then what is left, for as long as grace says. It returns nil.
func (o *Outbox) Run(ctx context.Context, grace time.Duration) error {
	for {
		select {
		case <-o.ready:
			o.flush(ctx)
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
			defer cancel()
			o.flush(last)
			return nil
		}
	}
}

// flush publishes the queue. It returns early when ctx ends.
func (o *Outbox) flush(ctx context.Context) {
	for {
		batch := o.batch()
		if len(batch) == 0 || !o.publish(ctx, batch) {
			return
		}
		o.remove(len(batch))
	}
}

// batch returns what is published next. It stays in the queue.
func (o *Outbox) batch() []*event.Event {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.dropped > 0 {
		o.log.Error("lifecycle events were dropped: too many waited to be published", "dropped", o.dropped)
		o.dropped = 0
	}
	n, bytes := 0, 0
	for n < min(len(o.queue), batchEvents) {
		if bytes += size(o.queue[n]); bytes > batchBytes && n > 0 {
			break
		}
		n++
	}
	return o.queue[:n:n]
}

// remove takes what was published from the front of the queue.
func (o *Outbox) remove(n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, e := range o.queue[:n] {
		o.bytes -= size(e)
	}
	clear(o.queue[:n])
	if o.queue = o.queue[n:]; len(o.queue) == 0 {
		o.queue = nil
	}
}

// publish returns once the batch is settled: stored, or, as far as it can never be stored, dropped. It
// returns false if ctx ends before.
func (o *Outbox) publish(ctx context.Context, batch []*event.Event) bool {
	for pause := 50 * time.Millisecond; ; pause = min(2*pause, 5*time.Second) {
		_, err := o.publisher.Publish(ctx, Topic, batch...)
		switch {
		case err == nil:
			return true
		case errors.Is(err, event.ErrInvalid) && len(batch) > 1:
			// One of them is refused, or all are too much at once: the smaller the part, the fewer go
			// with it.
			half := len(batch) / 2
			return o.publish(ctx, batch[:half]) && o.publish(ctx, batch[half:])
		case errors.Is(err, event.ErrInvalid):
			e := batch[0]
			o.log.Error("a lifecycle event was dropped: it can never be stored", "dropped", 1,
				"type", e.Type, "subject", e.Subject, "bytes", size(e), "error", err)
			return true
		case ctx.Err() != nil:
			return false
		}
		o.log.Warn("lifecycle events cannot be published; trying again", "events", len(batch), "error", err, "pause", pause)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return false
		}
	}
}

// size is about what an event takes.
func size(e *event.Event) int { return 256 + len(e.Subject) + len(e.Data) }
