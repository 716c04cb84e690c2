package actortest

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/turnlane/turnlane/actor"
	"github.com/turnlane/turnlane/event"
)

// Publisher is an actor.Publisher that keeps what it is given. The zero value is ready; all methods
// are safe for concurrent use.
type Publisher struct {
	// Before is called ahead of every Publish, without a lock; an error is returned in its place, and
	// nothing is kept. Use it to refuse, to delay or to count. Set it before the first Publish.
	Before func(ctx context.Context, topic string, events []*event.Event) error

	mu        sync.Mutex
	published []actor.Output
	last      event.Position
}

// Publish implements actor.Publisher. It refuses what a server would refuse.
func (p *Publisher) Publish(ctx context.Context, topic string, events ...*event.Event) ([]event.Position, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	for i, e := range events {
		if err := check(topic, e); err != nil {
			return nil, fmt.Errorf("events[%d]: %w", i, err)
		}
	}
	if p.Before != nil {
		if err := p.Before(ctx, topic, events); err != nil {
			return nil, err
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	positions := make([]event.Position, len(events))
	for i, e := range events {
		p.last = p.last.Next()
		positions[i] = p.last
		p.published = append(p.published, actor.Output{Topic: topic, Event: e.Clone()})
	}
	return positions, nil
}

// Published returns all that was published, in order.
func (p *Publisher) Published() []actor.Output {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.published)
}

// On returns the events published on one topic, in order.
func (p *Publisher) On(topic string) []*event.Event {
	var events []*event.Event
	for _, o := range p.Published() {
		if o.Topic == topic {
			events = append(events, o.Event)
		}
	}
	return events
}
