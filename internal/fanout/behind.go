package fanout

import (
	"context"
	"slices"
	"time"

	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/feed"
	"github.com/turnlane/turnlane/store"
)

// lagReads bounds the reads of one call of Lag.
const lagReads = 16

// FeedCounts are the open feeds by state.
type FeedCounts struct{ Live, CatchingUp, Stalled int }

// Feeds counts the open feeds. It looks at every topic for a moment.
func (h *Hub) Feeds() FeedCounts {
	var n FeedCounts
	h.each(func(t *topic) {
		_, live := t.core.Feeds()
		n.Live += live
		t.core.CatchingUp(func(f *feed.Feed) {
			if f.Host().(*Feed).phase.Load() == waiting {
				n.Stalled++
			} else {
				n.CatchingUp++
			}
		})
	})
	return n
}

// Lag is the age of the oldest entry that a feed still waits for, over all feeds; 0 when none waits. It
// reads one entry for each topic with feeds behind: of more than sixteen topics, for those whose feeds
// stand at the oldest positions. A topic that cannot be read counts from when it rang.
func (h *Hub) Lag(ctx context.Context) time.Duration {
	type behind struct {
		topic string
		pos   event.Position
	}
	var all []behind
	var worst time.Duration
	now := time.Now()
	h.each(func(t *topic) {
		for _, d := range []*due{&t.readDue, &t.pageDue} {
			if since := d.ns.Load(); since != 0 {
				worst = max(worst, now.Sub(time.Unix(0, since)))
			}
		}
		b, found := behind{topic: t.name}, false
		t.core.CatchingUp(func(f *feed.Feed) {
			if pos, _ := t.core.Position(f); !found || pos.Less(b.pos) {
				b.pos, found = pos, true
			}
		})
		if found {
			all = append(all, b)
		}
	})
	slices.SortFunc(all, func(a, b behind) int {
		switch {
		case a.pos.Less(b.pos):
			return -1
		case b.pos.Less(a.pos):
			return 1
		}
		return 0
	})
	for _, b := range all[:min(len(all), lagReads)] {
		page, err := h.cfg.Upstream.Read(ctx, b.topic, b.pos, store.ReadLimit{Entries: 1, Bytes: 1})
		if err != nil || len(page.Entries) == 0 {
			continue
		}
		if r := page.Entries[0].Record; r.Check() == nil {
			worst = max(worst, now.Sub(r.StoredAt()))
		}
	}
	return worst
}

// each calls do with every topic that has a core, under the topic's lock.
func (h *Hub) each(do func(*topic)) {
	h.mu.Lock()
	topics := make([]*topic, 0, len(h.topics))
	for _, t := range h.topics {
		topics = append(topics, t)
	}
	h.mu.Unlock()
	for _, t := range topics {
		t.mu.Lock()
		if t.core != nil {
			do(t)
		}
		t.mu.Unlock()
	}
}
