package scaling

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	cepb "github.com/cloudevents/sdk-go/binding/format/protobuf/v2/pb"

	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/internal/client"
)

// mark is what the workers leave for each event: the data of markers, and of a probe's reports.
type mark struct {
	WorkerID   string `json:"worker_id"`
	Group      string `json:"group"`
	GroupIndex uint32 `json:"group_index"`
	Topic      string `json:"topic"`
	Position   string `json:"position"`
	EventID    string `json:"event_id"`
	Outcome    string `json:"outcome"` // reports only
}

// collector gathers the marks on a topic, in the topic's order.
type collector struct {
	stop context.CancelFunc
	came chan struct{} // of size 1: something is new

	mu    sync.Mutex
	marks []mark
	ended bool
	err   error
	done  chan struct{}
}

// collect begins to gather what comes on a topic from now on. The caller closes the collector.
func (b *bench) collect(ctx context.Context, topic string) (*collector, error) {
	ctx, stop := context.WithCancel(ctx)
	c := &collector{stop: stop, came: make(chan struct{}, 1), done: make(chan struct{})}
	started := make(chan struct{})
	go func() {
		defer close(c.done)
		err := b.Read(ctx, client.Read{
			Topic:   topic,
			From:    client.Tail(),
			Started: func(event.Position) { close(started) },
			Event:   c.take,
		})
		c.mu.Lock()
		c.ended, c.err = true, err
		c.mu.Unlock()
		c.ring()
	}()
	select {
	case <-started:
		return c, nil
	case <-c.done:
		c.stop()
		return nil, fmt.Errorf("read topic %s: %w", topic, c.err)
	}
}

func (c *collector) take(_ event.Position, p *cepb.CloudEvent) error {
	e, err := event.FromProto(p)
	if err != nil {
		return err
	}
	var m mark
	if err := json.Unmarshal(e.Data, &m); err != nil {
		return fmt.Errorf("event %s is no mark: %w", e.ID, err)
	}
	c.mu.Lock()
	c.marks = append(c.marks, m)
	c.mu.Unlock()
	c.ring()
	return nil
}

func (c *collector) ring() {
	select {
	case c.came <- struct{}{}:
	default:
	}
}

// close ends the gathering and waits for its end.
func (c *collector) close() {
	c.stop()
	<-c.done
}

func (c *collector) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.marks)
}

// all waits until as many marks have come as are expected, and then until no more have come for the
// quiet time, so that none too many goes unseen. It also ends when nothing has come for longer than
// the patience lasts: then there are fewer.
func (c *collector) all(ctx context.Context, expected int, o Options) ([]mark, error) {
	if err := c.await(ctx, expected, o.Patience); err != nil {
		return nil, err
	}
	for before := -1; before != c.count(); {
		before = c.count()
		if err := c.await(ctx, before+1, o.Quiet); err != nil {
			return nil, err
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.marks, nil
}

// await waits for a number of marks, or until none has come for that long.
func (c *collector) await(ctx context.Context, n int, patience time.Duration) error {
	late := time.NewTimer(patience)
	defer late.Stop()
	for {
		c.mu.Lock()
		enough, ended, err := len(c.marks) >= n, c.ended, c.err
		c.mu.Unlock()
		switch {
		case enough:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case ended:
			return fmt.Errorf("the reading of the markers ended: %w", err)
		}
		select {
		case <-c.came:
			late.Reset(patience)
		case <-late.C:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
