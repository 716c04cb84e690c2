package builtin

import (
	"context"

	"github.com/turnlane/turnlane/actor"
)

// echo publishes every event again as an output of its turn, under a new id, with all else untouched.
type echo struct{ out string }

func newEcho(w *actor.Worker) (actor.Handler, error) {
	out, err := outTopic(w, "")
	if err != nil {
		return nil, err
	}
	return echo{out}, nil
}

func (h echo) Handle(_ context.Context, turn *actor.Turn) error {
	e := turn.Event().Clone()
	e.ID = "" // an output's own
	return turn.Publish(h.out, e)
}

// marker publishes, as an output of the turn, which worker got the event.
type marker struct{ out string }

// Mark is the data of what a marker publishes.
type Mark struct {
	WorkerID   string `json:"worker_id"`
	WorkerName string `json:"worker_name"`
	Group      string `json:"group"`       // "" for a dedicated worker
	GroupIndex uint32 `json:"group_index"` // 0 for a dedicated worker
	Topic      string `json:"topic"`
	Position   string `json:"position"`
	EventID    string `json:"event_id"`
}

// MarkType is the type of what a marker publishes.
const MarkType = "marker"

func newMarker(w *actor.Worker) (actor.Handler, error) {
	out, err := outTopic(w, "")
	if err != nil {
		return nil, err
	}
	return marker{out}, nil
}

func (h marker) Handle(_ context.Context, turn *actor.Turn) error {
	w, e := turn.Worker(), turn.Event()
	return turn.Publish(h.out, jsonEvent(MarkType, e.Subject, Mark{
		WorkerID:   w.ID,
		WorkerName: w.Name,
		Group:      w.Group,
		GroupIndex: w.GroupIndex,
		Topic:      turn.Topic(),
		Position:   turn.Position().String(),
		EventID:    e.ID,
	}))
}
