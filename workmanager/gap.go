package workmanager

import (
	"context"
	"time"

	"github.com/turnlane/turnlane/grouping"
)

// gapAfter is how long a slot of a member that is wanted must be without it before its events are
// counted: less is a move, a restart or a start. Then they are counted from where the member went. Slots
// that nobody is to run are counted at once.
const gapAfter = time.Second

// gap is a group on a topic that lacks members, and the counting of the events that they miss.
//
// The count begins where the log ended when the leader saw the gap, which is before it places the member
// whose start made it; and it goes on where it was when other slots are missing than before. Nothing is
// counted while nobody leads.
type gap struct {
	vacant  missing // nobody is to run them
	down    missing // their member fell and will not replay
	waiting missing // their member will replay
}

// missing are slots of a gap that are counted together.
type missing struct {
	policy  string
	grace   time.Duration
	slots   grouping.Set
	since   time.Time    // when there were none before
	after   *Place       // up to where they are counted while they are not being; nil: not known yet
	closing func() Place // ends the counting; nil while they are not counted
}

func newGap() *gap {
	return &gap{
		vacant:  missing{policy: "uncovered"},
		down:    missing{policy: "uncovered", grace: gapAfter},
		waiting: missing{policy: "waiting", grace: gapAfter},
	}
}

func (g *gap) parts() []*missing { return []*missing{&g.vacant, &g.down, &g.waiting} }

// mind keeps the gap of a group on a topic up to date.
func (l *leader) mind(ctx context.Context, key gapKey, c *topicCover, now time.Time) {
	if l.cfg.Slots == nil {
		return
	}
	g := l.gaps[key]
	if c.wanted == 0 || len(c.running) == int(c.size) {
		if g != nil {
			g.close()
			delete(l.gaps, key)
		}
		return
	}
	if g == nil {
		g = newGap()
		l.gaps[key] = g
	}
	waiting := grouping.NewSet(c.size, c.waiting...)
	down, vacant := grouping.NewSet(c.size), grouping.NewSet(c.size)
	for _, slot := range c.down {
		if !waiting.Has(slot) {
			down.Add(slot)
		}
	}
	for _, slot := range grouping.NewCoverage(c.size, c.running...).Missing().Slots() {
		if !waiting.Has(slot) && !down.Has(slot) {
			vacant.Add(slot)
		}
	}
	g.vacant.set(vacant, now)
	g.down.set(down, now)
	g.waiting.set(waiting, now)
	l.openGap(ctx, key, g, now)
}

// set changes which slots are missing. Those that come to others of a part are counted from where those
// are, which is the end of the log or a little before.
func (m *missing) set(slots grouping.Set, now time.Time) {
	if m.slots.Equal(slots) {
		return
	}
	m.close()
	if m.slots.Len() == 0 || slots.Len() == 0 {
		m.since, m.after = now, nil
	}
	m.slots = slots
}

// close ends the counting and keeps its place.
func (m *missing) close() {
	if m.closing != nil {
		at := m.closing()
		m.after, m.closing = &at, nil
	}
}

func (g *gap) close() {
	for _, m := range g.parts() {
		m.close()
	}
}

// openGap begins to count what is due. What fails is tried again by the next cycle, from the same place
// if that is known.
func (l *leader) openGap(ctx context.Context, key gapKey, g *gap, now time.Time) {
	for _, m := range g.parts() {
		if m.closing != nil || m.slots.Len() == 0 {
			continue
		}
		err := l.openMissing(ctx, key, m, now)
		if err != nil && ctx.Err() == nil && now.After(l.gapWarned.Add(gapAfter)) {
			l.gapWarned = now
			l.log.Warn("events of slots without a running member cannot be counted; trying again",
				"group", key.group, "topic", key.topic, "error", err)
		}
	}
}

func (l *leader) openMissing(ctx context.Context, key gapKey, m *missing, now time.Time) error {
	if m.after == nil {
		b, err := l.store.Bounds(ctx, key.topic)
		if err != nil {
			return err
		}
		m.after = &Place{b.Last, b.Incarnation}
	}
	if now.Sub(m.since) < m.grace {
		return nil
	}
	closing, err := l.cfg.Slots.CountSlots(key.topic, *m.after, m.slots, l.gauges.count(key.topic, key.group, m.policy))
	if err != nil {
		return err
	}
	m.closing = closing
	return nil
}

func (l *leader) closeGaps() {
	for _, g := range l.gaps {
		g.close()
	}
}
