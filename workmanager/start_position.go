package workmanager

import (
	"context"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"

	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/internal/command"
	"github.com/turnlane/turnlane/internal/rpcerr"
	storev1 "github.com/turnlane/turnlane/proto/turnlane/store/v1"
	turnlanev1 "github.com/turnlane/turnlane/proto/turnlane/v1"
	"github.com/turnlane/turnlane/store"
)

// parallelReads bounds the reads of one call that are under way at once.
const parallelReads = 16

// resolve fixes where a start lies in a topic now: everything after the position is to be read. A nil
// start is the tail, and so is a time that has not come. A position above the topic's end is kept as it
// was asked for: the feed that begins there tells of a regressed gap and goes on from the end, as it
// does for subscribers.
func (m *Manager) resolve(ctx context.Context, topic string, at *turnlanev1.Start) (*storev1.TopicStart, error) {
	b, err := m.store.Bounds(ctx, topic)
	if err != nil {
		return nil, unreadable(topic, err)
	}
	pos := b.Last
	switch at := at.GetAt().(type) {
	case *turnlanev1.Start_Earliest:
		pos = b.Removed // what was removed is no gap for one who asks for what there is
	case *turnlanev1.Start_Time:
		if t := at.Time.AsTime(); !t.After(time.Now()) {
			if pos, err = m.store.Before(ctx, topic, t); err != nil {
				return nil, unreadable(topic, err)
			}
		}
	case *turnlanev1.Start_Position:
		asked, err := event.ParsePosition(at.Position)
		if err != nil {
			return nil, rpcerr.Invalid("to.position", err.Error(), "write it as two numbers, ms-seq")
		}
		pos = asked.Prev()
	}
	left := pos // what lies up to here the worker does not get
	if b.Last.Less(left) {
		left = b.Last
	}
	return &storev1.TopicStart{Topic: topic, Incarnation: b.Incarnation, Ms: pos.Ms, Seq: pos.Seq,
		AnewMs: left.Ms, AnewSeq: left.Seq, LowestMs: left.Ms, LowestSeq: left.Seq}, nil
}

// goOn replaces a start by a cursor.
func goOn(starts map[string]*storev1.TopicStart, c store.Cursor) {
	s := &storev1.TopicStart{Topic: c.Topic, Incarnation: c.Incarnation, Ms: c.Position.Ms, Seq: c.Position.Seq}
	if was := starts[c.Topic]; was != nil {
		s.AnewMs, s.AnewSeq, s.LowestMs, s.LowestSeq = was.AnewMs, was.AnewSeq, was.LowestMs, was.LowestSeq
	}
	starts[c.Topic] = s
}

// beginAnew puts fresh starts in the place of those that the worker had.
func beginAnew(starts map[string]*storev1.TopicStart, w record, fresh []*storev1.TopicStart) {
	for _, s := range fresh {
		for _, was := range w.GetStarts() {
			if was.GetTopic() == s.GetTopic() && lowest(was).Less(lowest(s)) {
				s.LowestMs, s.LowestSeq = was.GetLowestMs(), was.GetLowestSeq()
			}
		}
		starts[s.GetTopic()] = s
	}
}

func anew(s *storev1.TopicStart) event.Position {
	return event.Position{Ms: s.GetAnewMs(), Seq: s.GetAnewSeq()}
}

func lowest(s *storev1.TopicStart) event.Position {
	return event.Position{Ms: s.GetLowestMs(), Seq: s.GetLowestSeq()}
}

// resolveAll is resolve for many topics, in their order.
func (m *Manager) resolveAll(ctx context.Context, topics []string, at *turnlanev1.Start) ([]*storev1.TopicStart, error) {
	starts := make([]*storev1.TopicStart, len(topics))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(parallelReads)
	for i, topic := range topics {
		g.Go(func() (err error) {
			starts[i], err = m.resolve(ctx, topic, at)
			return err
		})
	}
	return starts, g.Wait()
}

func unreadable(topic string, err error) error {
	return rpcerr.New(codes.Unavailable, rpcerr.TailUnreadable,
		fmt.Sprintf("topic %s: its bounds cannot be read, so where the worker starts cannot be fixed: %v; nothing was changed: try again", topic, err),
		map[string]string{"topic": topic})
}

// begin fixes where each topic begins for a start of the worker.
//
// A worker that resumes goes on from its stored cursors, else from the starts that it has, and only a
// topic that never had any begins anew: at replay.first, or the tail. A worker with replay off begins
// at the tail; while it is stopped its starts are spent unless it was sought since, and those hold.
//
// Its commands and redrives go on from where they are in every mode.
func (m *Manager) begin(ctx context.Context, w record) ([]*storev1.TopicStart, error) {
	known := map[string]*storev1.TopicStart{}
	for _, s := range w.GetStarts() {
		if !w.off() || !w.wanted() && !s.GetSpent() || isLane(w, s.GetTopic()) {
			known[s.GetTopic()] = s
		}
	}
	if w.GetGeneration() > 0 {
		data, err := m.store.Load(ctx, w.GetId())
		if err != nil {
			return nil, rpcerr.From(fmt.Errorf("read the cursors of worker %s: %w", w.GetId(), err))
		}
		overlayLanes(known, w, data)
		if !w.off() {
			overlay(known, w, data)
		}
	}
	if err := m.beginLanes(ctx, w, known); err != nil {
		return nil, err
	}
	var missing []string
	for _, topic := range w.GetTopics() {
		if known[topic] == nil {
			missing = append(missing, topic)
		}
	}
	fresh, err := m.resolveAll(ctx, missing, w.GetReplay().GetFirst())
	if err != nil {
		return nil, err
	}
	beginAnew(known, w, fresh)
	return inOrder(w, known), nil
}

// lanes are the topics of its own that a worker reads.
func lanes(w record) []string { return command.Lanes(w.GetType(), w.GetId()) }

func isLane(w record, topic string) bool {
	_, _, id, ok := command.ParseTopic(topic)
	return ok && id == w.GetId() && slices.Contains(lanes(w), topic)
}

// beginLanes gives a start to the worker's own topics that have none, which is so in records of older
// programs only: whatever is there is for this worker.
func (m *Manager) beginLanes(ctx context.Context, w record, known map[string]*storev1.TopicStart) error {
	for _, topic := range lanes(w) {
		if known[topic] != nil {
			continue
		}
		s, err := m.resolve(ctx, topic, &turnlanev1.Start{At: &turnlanev1.Start_Earliest{Earliest: true}})
		if err != nil {
			return err
		}
		known[topic] = s
	}
	return nil
}

// overlayLanes puts stored cursors of the worker's own topics over their starts. They are of the same
// worker whatever run they were stored in, since a seek does not move them.
func overlayLanes(starts map[string]*storev1.TopicStart, w record, data store.WorkerData) {
	for _, c := range data.Cursors {
		if isLane(w, c.Topic) {
			goOn(starts, c)
		}
	}
}

// overlay puts stored cursors of the worker's present run over its starts.
func overlay(starts map[string]*storev1.TopicStart, w record, data store.WorkerData) {
	if data.Start.Run != w.GetRun() {
		return
	}
	for _, c := range data.Cursors {
		goOn(starts, c)
	}
}

// inOrder lists the starts of the worker's topics in the order of its topics, those of its own last.
func inOrder(w record, starts map[string]*storev1.TopicStart) []*storev1.TopicStart {
	var list []*storev1.TopicStart
	for _, topic := range slices.Concat(w.GetTopics(), lanes(w)) {
		if s := starts[topic]; s != nil {
			list = append(list, s)
		}
	}
	return list
}
