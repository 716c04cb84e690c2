package workmanager

import (
	"time"

	"github.com/turnlane/turnlane/grouping"
	"github.com/turnlane/turnlane/internal/lifecycle"
	"slices"
	"strings"
)

// gapAfter is how long a slot must lack its member before its events are counted: less is a start.
const gapAfter = time.Second

// share is how a group covers a topic.
type share struct{ running, size int }

// gapKey names a group on a topic.
type gapKey struct{ group, topic string }

// gap is a group on a topic that lacks members, and the counting of the events that they miss.
type gap struct {
	since              time.Time
	uncovered, waiting grouping.Set
	open               bool
	closing            []func()
}

// topicCover is the coverage of a group on one topic while it is worked out.
type topicCover struct {
	size    uint32
	running []uint32 // slots with a running member
	waiting []uint32 // slots whose member is down and will replay what comes
	wanted  int
}

// cover tells of groups whose coverage changed, and counts what falls into the gaps.
func (l *leader) cover(now time.Time) {
	for group := range l.dirty {
		delete(l.dirty, group)
		if group != "" {
			l.coverGroup(group, now)
		}
	}
	for key, g := range l.gaps {
		if !g.open && now.Sub(g.since) >= gapAfter {
			l.openGap(key, g, now)
		}
	}
}

func (l *leader) coverGroup(group string, now time.Time) {
	topics := covers(l.members[group])
	was := l.reported[group]
	if was == nil {
		was = map[string]share{}
		l.reported[group] = was
	}
	names := make([]string, 0, len(topics))
	for topic := range topics {
		names = append(names, topic)
	}
	for topic := range was {
		if topics[topic] == nil {
			names = append(names, topic)
		}
	}
	slices.Sort(names)
	var sum summary
	for _, topic := range names {
		c, before := topics[topic], was[topic]
		if c == nil { // no member exists any more
			c = &topicCover{size: uint32(before.size)}
		}
		next := share{len(c.running), int(c.size)}
		if next.running != before.running || before.size != 0 && next.size != before.size {
			sum.add(topic, next.running, next.size)
		}
		if c.wanted == 0 {
			delete(was, topic)
		} else {
			was[topic] = next
		}
		l.mind(gapKey{group, topic}, c, now)
	}
	if len(was) == 0 {
		delete(l.reported, group)
	}
	l.changed = true
	for _, c := range sum {
		d := lifecycle.Data{Group: group, GroupSize: uint32(c.size), Topics: c.topics, Running: &c.running}
		if c.running < c.size {
			d.Reason = grouping.Warning(group, c.topics, c.running, c.size)
			//nolint:sloglint // the warning's words are promised, in the log too
			l.log.Warn(d.Reason, "group", group, "topics", strings.Join(c.topics, ","), "running", c.running, "size", c.size)
		} else {
			l.log.Info("group is complete", "group", group, "topics", strings.Join(c.topics, ","), "size", c.size)
		}
		l.notices.Add(lifecycle.TypeCoverage, d)
	}
}

// covers works out how members cover their topics. Started members decide on the size.
func covers(members map[string]*entry) map[string]*topicCover {
	topics := map[string]*topicCover{}
	for _, e := range members {
		for _, topic := range e.topics {
			c := topics[topic]
			if c == nil {
				c = &topicCover{}
				topics[topic] = c
			}
			if !e.wanted {
				if c.wanted == 0 {
					c.size = max(c.size, e.spec.Size)
				}
				continue
			}
			c.size = e.spec.Size
			c.wanted++
			if e.covers() {
				c.running = append(c.running, e.spec.Index)
			}
		}
	}
	for _, e := range members {
		if e.covers() || !e.resumes && !(e.wanted && !e.begun) {
			continue // a start that has not run yet was fixed when it was asked for
		}
		for _, topic := range e.topics {
			if c := topics[topic]; c.size == e.spec.Size && !slices.Contains(c.running, e.spec.Index) {
				c.waiting = append(c.waiting, e.spec.Index)
			}
		}
	}
	return topics
}

// mind keeps the gap of a group on a topic up to date.
func (l *leader) mind(key gapKey, c *topicCover, now time.Time) {
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
	waiting := grouping.NewSet(c.size, c.waiting...)
	uncovered := grouping.NewSet(c.size)
	for _, slot := range grouping.NewCoverage(c.size, c.running...).Missing().Slots() {
		if !waiting.Has(slot) {
			uncovered.Add(slot)
		}
	}
	switch {
	case g == nil:
		l.gaps[key] = &gap{since: now, uncovered: uncovered, waiting: waiting}
	case !g.uncovered.Equal(uncovered) || !g.waiting.Equal(waiting):
		g.uncovered, g.waiting = uncovered, waiting
		if g.open {
			g.close()
			l.openGap(key, g, now)
		}
	}
}

func (l *leader) openGap(key gapKey, g *gap, now time.Time) {
	for _, part := range []struct {
		policy string
		slots  grouping.Set
	}{{"uncovered", g.uncovered}, {"waiting", g.waiting}} {
		if part.slots.Len() == 0 {
			continue
		}
		closing, err := l.cfg.Slots.CountSlots(key.topic, part.slots, l.gauges.count(key.topic, key.group, part.policy))
		if err != nil {
			l.log.Warn("events of slots without a running member cannot be counted; trying again",
				"group", key.group, "topic", key.topic, "error", err)
			g.close()
			g.since = now
			return
		}
		g.closing = append(g.closing, closing)
	}
	g.open = true
}

func (g *gap) close() {
	for _, closing := range g.closing {
		closing()
	}
	g.closing, g.open = nil, false
}

func (l *leader) closeGaps() {
	for _, g := range l.gaps {
		g.close()
	}
}
