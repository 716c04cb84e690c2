package runtime

import (
	"context"
	"fmt"

	"github.com/turnlane/turnlane/event"
	storev1 "github.com/turnlane/turnlane/proto/turnlane/store/v1"
	turnlanev1 "github.com/turnlane/turnlane/proto/turnlane/v1"
	"github.com/turnlane/turnlane/store"
)

// decide says where each topic of an activation begins.
//
//	replay       what the store has                        begin
//	cursor,      a cursor of this run                      there
//	first        none                                      where the catalog says
//	off          of this generation, handed over           at its cursor
//	             of this generation, not handed over       at the tail now; what lies between is a gap
//	             of another generation, or nothing         where the catalog says
//	any, of the  a cursor, of whatever run                 there
//	worker's own none                                      where the catalog says, else at the topic's beginning
//	topics
//
// The catalog's starts were fixed when the worker was started or sought. Only a tail that is asked for
// now has to be read; if it cannot be, the start is tried again and never begins anywhere else.
func (r *Runtime) decide(ctx context.Context, rec *storev1.WorkerRecord, data store.WorkerData) ([]begin, error) {
	stored := make(map[string]store.Cursor, len(data.Cursors))
	for _, c := range data.Cursors {
		stored[c.Topic] = c
	}
	fixed := make(map[string]*storev1.TopicStart, len(rec.GetStarts()))
	for _, s := range rec.GetStarts() {
		fixed[s.GetTopic()] = s
	}
	before := data.Start != store.Start{} || len(data.Cursors) > 0
	this := store.Start{Run: rec.GetRun(), Generation: rec.GetGeneration()}
	off := rec.GetReplay().GetMode() == turnlanev1.ReplayMode_REPLAY_MODE_OFF

	topics := topicsOf(rec.GetType(), rec.GetId(), rec.GetTopics())
	begins := make([]begin, len(topics))
	for i, topic := range topics {
		b := &begins[i]
		cursor, has := stored[topic]
		own := kindOf(i, len(rec.GetTopics())) != topicLane
		tail, earliest := false, false
		switch {
		case own && has:
			b.after, b.incarnation = cursor.Position, cursor.Incarnation
		case own && fixed[topic] == nil:
			earliest = true
		case !off && has && data.Start.Run == this.Run:
			b.after, b.incarnation = cursor.Position, cursor.Incarnation
		case off && has && data.Start == this && data.Handover:
			b.after, b.incarnation = cursor.Position, cursor.Incarnation
		case off && has && data.Start == this:
			tail = true
		default:
			s, ok := fixed[topic]
			if !ok {
				return nil, fmt.Errorf("%w: the record of worker %s has no start for topic %s", store.ErrCorrupt, rec.GetId(), topic)
			}
			b.after, b.incarnation = event.Position{Ms: s.GetMs(), Seq: s.GetSeq()}, s.GetIncarnation()
		}
		if !before && !earliest {
			continue
		}
		log, err := r.cfg.Store.Bounds(ctx, topic)
		if err != nil {
			return nil, fmt.Errorf("read the end of topic %s: %w", topic, err)
		}
		if tail {
			b.after, b.incarnation = log.Last, log.Incarnation
			if cursor.Incarnation == log.Incarnation && cursor.Position.Less(log.Last) {
				b.skipped = &stretch{cursor.Position.Next(), log.Last}
			}
		}
		if earliest {
			b.after, b.incarnation = log.Removed, log.Incarnation
		}
		if before {
			b.end = log.Last
		}
	}
	return begins, nil
}
