package turnlane

import (
	"context"
	"time"

	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/grouping"
	"github.com/turnlane/turnlane/internal/fanout"
	"github.com/turnlane/turnlane/workmanager"
)

// countLimit is how long opening a counter may take.
const countLimit = 5 * time.Second

// counter counts the events of slots: a feed whose sink keeps nothing. It is the workmanager's
// SlotCounter.
type counter struct{ hub *fanout.Hub }

// CountSlots calls count with the number of events of the slots after a place as they come, until
// closing is called, which returns up to where they were counted.
func (c counter) CountSlots(topic string, after workmanager.Place, slots grouping.Set, count func(n int)) (closing func() workmanager.Place, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), countLimit)
	defer cancel()
	f, err := c.hub.Open(ctx, topic, fanout.Options{Start: fanout.After(after.Position, after.Incarnation), Slots: slots, Sink: countingSink(count)})
	if err != nil {
		return nil, err
	}
	return func() (at workmanager.Place) {
		f.Close()
		f.Observe(func(pos event.Position, incarnation string) {
			at = workmanager.Place{Position: pos, Incarnation: incarnation}
		})
		return at
	}, nil
}

// countingSink takes everything and keeps nothing.
type countingSink func(n int)

func (s countingSink) Offer(entries []event.Entry) int {
	s(len(entries))
	return len(entries)
}

func (s countingSink) Room() bool { return true }
