package workmanager

import (
	"context"
	"fmt"
	"math/big"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/internal/rpcerr"
	turnlanev1 "github.com/turnlane/turnlane/proto/turnlane/v1"
	"github.com/turnlane/turnlane/store"
)

// GetWorker returns a worker with the facts of each of its topics.
func (m *Manager) GetWorker(ctx context.Context, req *turnlanev1.GetWorkerRequest) (*turnlanev1.GetWorkerResponse, error) {
	w, err := m.find(ctx, req.GetWorker())
	if err != nil {
		return nil, err
	}
	worker, err := m.view(ctx, w)
	if err != nil {
		return nil, err
	}
	if worker.TopicStatus, err = m.topicStatus(ctx, w); err != nil {
		return nil, rpcerr.From(err)
	}
	if p, ok := m.cfg.Inspector.(ProgressTeller); ok {
		worker.Progress = p.Progress(w.GetId())
	}
	return &turnlanev1.GetWorkerResponse{Worker: worker}, nil
}

// topicStatus tells where a worker is in each of its topics: as its activation knows it if that runs
// in this process, else as it is stored. The topics of its own are there once something was sent to them.
func (m *Manager) topicStatus(ctx context.Context, w record) ([]*turnlanev1.WorkerTopic, error) {
	topics := slices.Clone(w.GetTopics())
	for _, topic := range lanes(w) {
		b, err := m.store.Bounds(ctx, topic)
		if err != nil {
			return nil, fmt.Errorf("read the bounds of topic %s: %w", topic, err)
		}
		if b.Incarnation != "" {
			topics = append(topics, topic)
		}
	}
	status := make([]*turnlanev1.WorkerTopic, len(topics))
	index := make(map[string]int, len(status))
	for i, topic := range topics {
		status[i] = &turnlanev1.WorkerTopic{Topic: topic}
		index[topic] = i
	}
	var facts []*turnlanev1.WorkerTopic
	live := false
	if m.cfg.Inspector != nil {
		facts, live = m.cfg.Inspector.Inspect(w.GetId())
	}
	for _, s := range w.GetStarts() {
		if i, ok := index[s.GetTopic()]; ok {
			status[i].Cursor = event.Position{Ms: s.GetMs(), Seq: s.GetSeq()}.String()
		}
	}
	if own := len(topics) > len(w.GetTopics()); !live || own {
		data, err := m.store.Load(ctx, w.GetId())
		if err != nil {
			return nil, fmt.Errorf("read the cursors of worker %s: %w", w.GetId(), err)
		}
		for _, c := range data.Cursors {
			if !live && data.Start.Run == w.GetRun() || isLane(w, c.Topic) {
				if i, ok := index[c.Topic]; ok {
					status[i].Cursor = c.Position.String()
				}
			}
		}
	}
	for _, f := range facts {
		if i, ok := index[f.GetTopic()]; ok {
			if f.GetCursor() == "" {
				f.Cursor = status[i].GetCursor()
			}
			status[i] = f
		}
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(parallelReads)
	for _, s := range status {
		g.Go(func() error { return m.lag(ctx, s, len(status)) })
	}
	return status, g.Wait()
}

// lag fills in the topic's head and how far the worker is behind it. Of a worker with few topics the
// entries are counted up to a page; beyond it they are estimated from where the cursor lies between
// the first and the last position.
func (m *Manager) lag(ctx context.Context, s *turnlanev1.WorkerTopic, topics int) error {
	const few, counted = 16, 1000
	b, err := m.store.Bounds(ctx, s.GetTopic())
	if err != nil {
		return fmt.Errorf("read the bounds of topic %s: %w", s.GetTopic(), err)
	}
	if b.Incarnation != "" {
		s.Head = b.Last.String()
	}
	if s.GetCursor() == "" || b.Entries == 0 {
		return nil // it never ran, or there is nothing to be behind
	}
	cursor, err := event.ParsePosition(s.GetCursor())
	if err != nil {
		return fmt.Errorf("cursor in topic %s: %w", s.GetTopic(), err)
	}
	if !cursor.Less(b.Last) {
		return nil
	}
	limit := store.ReadLimit{Entries: 1, Bytes: 1 << 16}
	if topics <= few {
		limit = store.ReadLimit{Entries: counted, Bytes: 1 << 20}
	}
	page, err := m.store.Read(ctx, s.GetTopic(), cursor, limit)
	if err != nil {
		return fmt.Errorf("read topic %s: %w", s.GetTopic(), err)
	}
	if len(page.Entries) == 0 {
		return nil
	}
	s.LagEntries = uint64(len(page.Entries))
	if page.To.Less(b.Last) {
		s.LagEntries = max(s.LagEntries, estimate(b, cursor))
	}
	if oldest := page.Entries[0].Record; oldest.Check() == nil {
		s.LagTime = durationpb.New(max(time.Since(oldest.StoredAt()), 0))
	}
	return nil
}

// estimate is the number of entries after the cursor if they were spread evenly over the positions.
func estimate(b store.Bounds, cursor event.Position) uint64 {
	if cursor.Less(b.First) || b.First == b.Last {
		return b.Entries
	}
	behind := new(big.Float).Quo(distance(cursor, b.Last), distance(b.First, b.Last))
	n, _ := behind.Mul(behind, new(big.Float).SetUint64(b.Entries)).Uint64()
	return min(n, b.Entries)
}

// distance counts the positions from a up to b as one number.
func distance(a, b event.Position) *big.Float {
	line := func(p event.Position) *big.Int {
		n := new(big.Int).SetUint64(p.Ms)
		return n.Lsh(n, 64).Add(n, new(big.Int).SetUint64(p.Seq))
	}
	return new(big.Float).SetInt(new(big.Int).Sub(line(b), line(a)))
}
