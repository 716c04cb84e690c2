package workmanager

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/turnlane/turnlane/grouping"
	"github.com/turnlane/turnlane/internal/lifecycle"
)

// share is how a group covers a topic.
type share struct{ running, size int }

// gapKey names a group on a topic.
type gapKey struct{ group, topic string }

// topicCover is the coverage of a group on one topic while it is worked out.
type topicCover struct {
	size    uint32
	running []uint32 // slots with a running member
	waiting []uint32 // slots whose member is down and will replay what comes
	down    []uint32 // slots whose member is down and will not, but is wanted: it fell, or moves
	wanted  int
}

// cover tells of groups whose coverage changed, and counts what falls into the gaps.
func (l *leader) cover(ctx context.Context, now time.Time) {
	for group, by := range l.dirty {
		delete(l.dirty, group)
		if group != "" {
			l.coverGroup(ctx, group, by, now)
		}
	}
	for key, g := range l.gaps {
		l.openGap(ctx, key, g, now)
	}
}

func (l *leader) coverGroup(ctx context.Context, group, by string, now time.Time) {
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
		l.mind(ctx, gapKey{group, topic}, c, now)
	}
	if len(was) == 0 {
		delete(l.reported, group)
	}
	l.changed = true
	for _, c := range sum {
		d := lifecycle.Data{Group: group, GroupSize: uint32(c.size), Topics: c.topics, Running: &c.running, WorkerID: by, State: lifecycle.Complete}
		if c.running < c.size {
			d.State = lifecycle.Incomplete
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
		// A start that has not run yet was fixed when it was asked for.
		replays := e.resumes || e.wanted && !e.begun
		if e.covers() || !replays && !e.wanted {
			continue
		}
		for _, topic := range e.topics {
			c := topics[topic]
			switch {
			case c.size != e.spec.Size || slices.Contains(c.running, e.spec.Index):
			case replays:
				c.waiting = append(c.waiting, e.spec.Index)
			default:
				c.down = append(c.down, e.spec.Index)
			}
		}
	}
	return topics
}
