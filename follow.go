package turnlane

import (
	"context"

	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/internal/fanout"
)

// follower reads topics from their ends: a feed whose sink passes everything on. It is the workmanager's
// Follower.
type follower struct{ hub *fanout.Hub }

// Follow calls each with what is stored on a topic from now on, until it returns false or closing is
// called.
func (f follower) Follow(ctx context.Context, topic string, each func(event.Entry) bool) (closing func(), err error) {
	feed, err := f.hub.Open(ctx, topic, fanout.Options{Start: fanout.Tail(), Sink: &followingSink{each: each}})
	if err != nil {
		return nil, err
	}
	return feed.Close, nil
}

// followingSink takes everything and keeps nothing.
type followingSink struct {
	each func(event.Entry) bool
	done bool // only used under the topic's lock
}

func (s *followingSink) Offer(entries []event.Entry) int {
	for _, e := range entries {
		if s.done {
			break
		}
		s.done = !s.each(e)
	}
	return len(entries)
}

func (s *followingSink) Room() bool { return true }
