package workmanager

import (
	"context"
	"fmt"
	"slices"
	"time"

	storev1 "github.com/turnlane/turnlane/proto/turnlane/store/v1"
	turnlanev1 "github.com/turnlane/turnlane/proto/turnlane/v1"
)

// SeekWorker moves a worker in topics of its and begins a new run. In its other topics, and in those of
// its commands and redrives, it goes on where its stored cursors are. A worker that has FAILED is started again by it.
func (m *Manager) SeekWorker(ctx context.Context, req *turnlanev1.SeekWorkerRequest) (*turnlanev1.SeekWorkerResponse, error) {
	w, err := m.find(ctx, req.GetWorker())
	if err != nil {
		return nil, err
	}
	var p problems
	checkStart(&p, "to", req.GetTo())
	seen := map[string]bool{}
	for i, topic := range req.GetTopics() {
		field := fmt.Sprintf("topics[%d]", i)
		switch {
		case !slices.Contains(w.GetTopics(), topic):
			p.add(field, quote(topic)+" is not a topic of the worker", "name topics that the worker has, or none for all of them")
		case seen[topic]:
			p.add(field, quote(topic)+" is there twice", "name each topic once")
		}
		seen[topic] = true
	}
	if err := p.err(); err != nil {
		return nil, err
	}
	topics := req.GetTopics()
	if len(topics) == 0 {
		topics = w.GetTopics()
	}
	w, err = m.change(ctx, w, func(ctx context.Context, w record) (record, error) {
		return m.seek(ctx, w, topics, req.GetTo())
	})
	if err != nil {
		return nil, err
	}
	now, err := m.observeOne(ctx, w)
	if err == nil && w.wanted() {
		now, err = m.awaitRunning(ctx, w)
	}
	if err != nil {
		return nil, err
	}
	return &turnlanev1.SeekWorkerResponse{Worker: show(w, now)}, nil
}

// seek is one attempt to begin a new run of a worker.
func (m *Manager) seek(ctx context.Context, w record, topics []string, to *turnlanev1.Start) (record, error) {
	if !sameTopics(w, topics) {
		return w, unknownWorker(w.GetId()) // deleted and created with other topics meanwhile
	}
	starts := map[string]*storev1.TopicStart{}
	for _, s := range w.GetStarts() {
		starts[s.GetTopic()] = s
	}
	if w.GetGeneration() > 0 {
		data, err := m.store.Load(ctx, w.GetId())
		if err != nil {
			return w, fmt.Errorf("read the cursors of worker %s: %w", w.GetId(), err)
		}
		overlayLanes(starts, w, data)
		if len(topics) < len(w.GetTopics()) && (w.wanted() || !w.off()) {
			overlay(starts, w, data)
		}
	}
	if err := m.beginLanes(ctx, w, starts); err != nil {
		return w, err
	}
	fresh, err := m.resolveAll(ctx, topics, to)
	if err != nil {
		return w, err
	}
	beginAnew(starts, w, fresh)
	next := w.next(time.Now())
	next.Run++
	next.Starts = inOrder(w, starts)
	moves, err := m.moves(ctx, next)
	if err != nil {
		return w, err
	}
	return m.write(ctx, next, moves)
}

func sameTopics(w record, topics []string) bool {
	return !slices.ContainsFunc(topics, func(topic string) bool { return !slices.Contains(w.GetTopics(), topic) })
}
