package workmanager

import (
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"

	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/internal/rpcerr"
	storev1 "github.com/turnlane/turnlane/proto/turnlane/store/v1"
	turnlanev1 "github.com/turnlane/turnlane/proto/turnlane/v1"
	"github.com/turnlane/turnlane/store"
)

// parallelReads bounds the reads of one call that are under way at once.
const parallelReads = 16

// resolve fixes where a start lies in a topic now: everything after the position is to be read. A nil
// start is the tail. A position above the topic's end stands for the end, since whatever comes later
// lies above it.
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
		if pos, err = m.store.Before(ctx, topic, at.Time.AsTime()); err != nil {
			return nil, unreadable(topic, err)
		}
	case *turnlanev1.Start_Position:
		asked, err := event.ParsePosition(at.Position)
		if err != nil {
			return nil, rpcerr.Invalid("to.position", err.Error(), "write it as two numbers, ms-seq")
		}
		if asked = asked.Prev(); asked.Less(pos) {
			pos = asked
		}
	}
	return topicStart(topic, b.Incarnation, pos), nil
}

func topicStart(topic, incarnation string, pos event.Position) *storev1.TopicStart {
	return &storev1.TopicStart{Topic: topic, Incarnation: incarnation, Ms: pos.Ms, Seq: pos.Seq}
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
// at the tail; while it is stopped it has starts only if it was sought since, and those hold.
func (m *Manager) begin(ctx context.Context, w record) ([]*storev1.TopicStart, error) {
	known := map[string]*storev1.TopicStart{}
	if !w.off() || !w.wanted() {
		for _, s := range w.GetStarts() {
			known[s.GetTopic()] = s
		}
	}
	if !w.off() && w.GetGeneration() > 0 {
		data, err := m.store.Load(ctx, w.GetId())
		if err != nil {
			return nil, rpcerr.From(fmt.Errorf("read the cursors of worker %s: %w", w.GetId(), err))
		}
		overlay(known, w, data)
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
	for _, s := range fresh {
		known[s.GetTopic()] = s
	}
	return inOrder(w, known), nil
}

// overlay puts stored cursors of the worker's present run over its starts.
func overlay(starts map[string]*storev1.TopicStart, w record, data store.WorkerData) {
	if data.Start.Run != w.GetRun() {
		return
	}
	for _, c := range data.Cursors {
		starts[c.Topic] = topicStart(c.Topic, c.Incarnation, c.Position)
	}
}

// inOrder lists the starts of the worker's topics in the order of its topics.
func inOrder(w record, starts map[string]*storev1.TopicStart) []*storev1.TopicStart {
	var list []*storev1.TopicStart
	for _, topic := range w.GetTopics() {
		if s := starts[topic]; s != nil {
			list = append(list, s)
		}
	}
	return list
}
