package workmanager

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/turnlane/turnlane/actor"
	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/internal/lifecycle"
)

const (
	maxNotices     = 100_000 // kept while they cannot be published
	noticeBatch    = 500
	noticeDeadline = 2 * time.Second // to publish what is left at the end
)

// notices are the lifecycle events that wait to be published, in order. Publishing waits for the
// store, and the leader must not.
type notices struct {
	publisher actor.Publisher // nil: nothing is published
	log       *slog.Logger
	ready     chan struct{} // holds one when there may be something in the queue

	mu      sync.Mutex
	queue   []*event.Event
	dropped int // since it was last told
}

func newNotices(p actor.Publisher, log *slog.Logger) *notices {
	return &notices{publisher: p, log: log, ready: make(chan struct{}, 1)}
}

// add takes a notice. When too many wait already it is dropped, which is logged.
func (n *notices) add(kind string, d lifecycle.Data) {
	if n.publisher == nil {
		return
	}
	e := lifecycle.New(kind, time.Now(), d)
	n.mu.Lock()
	if len(n.queue) < maxNotices {
		n.queue = append(n.queue, e)
	} else {
		n.dropped++
	}
	n.mu.Unlock()
	select {
	case n.ready <- struct{}{}:
	default:
	}
}

// take removes a batch from the queue, and says how many were dropped since the last time.
func (n *notices) take() (batch []*event.Event, dropped int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	batch = n.queue[:min(len(n.queue), noticeBatch)]
	n.queue = n.queue[len(batch):]
	if len(n.queue) == 0 {
		n.queue = nil
	}
	dropped, n.dropped = n.dropped, 0
	return batch, dropped
}

// run publishes until ctx ends, and then what is left within a deadline. A batch that cannot be
// published is tried again and again; it may be there twice if its outcome was unknown.
func (n *notices) run(ctx context.Context) {
	for {
		select {
		case <-n.ready:
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), noticeDeadline)
			defer cancel()
			n.flush(last)
			return
		}
		n.flush(ctx)
	}
}

// flush publishes the queue. It returns early when ctx ends.
func (n *notices) flush(ctx context.Context) {
	for {
		batch, dropped := n.take()
		if dropped > 0 {
			n.log.Error("lifecycle events were dropped: too many waited to be published", "dropped", dropped)
		}
		if len(batch) == 0 {
			return
		}
		for pause := 50 * time.Millisecond; ; pause = min(2*pause, 5*time.Second) {
			_, err := n.publisher.Publish(ctx, lifecycle.Topic, batch...)
			if err == nil {
				break
			}
			if ctx.Err() != nil {
				n.restore(batch)
				return
			}
			n.log.Warn("lifecycle events cannot be published; trying again", "events", len(batch), "error", err, "pause", pause)
			if sleep(ctx, pause) != nil {
				n.restore(batch)
				return
			}
		}
	}
}

// restore puts a batch back to the front of the queue.
func (n *notices) restore(batch []*event.Event) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.queue = append(batch[:len(batch):len(batch)], n.queue...)
}
