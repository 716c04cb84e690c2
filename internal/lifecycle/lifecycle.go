// Package lifecycle is the events that tell what became of workers, as they stand on the lifecycle
// topic.
package lifecycle

import (
	"encoding/json"
	"time"

	"github.com/google/uuid"

	"github.com/turnlane/turnlane/event"
)

// Topic is where lifecycle events are published.
const Topic = "sys.workmanager.worker.lifecycle"

// Source is the source of every lifecycle event.
const Source = "/turnlane/workmanager"

// Types of lifecycle events.
const (
	TypeState       = "turnlane.worker.state"       // the observed state changed
	TypeGap         = "turnlane.worker.gap"         // a stretch of a topic will never come
	TypeCoverage    = "turnlane.group.coverage"     // a group's coverage changed
	TypeStuck       = "turnlane.worker.stuck"       // a handler ignored its deadline; it was given up
	TypeExhausted   = "turnlane.worker.exhausted"   // an event was given up
	TypePaused      = "turnlane.worker.paused"      // its events are held back
	TypeResumed     = "turnlane.worker.resumed"     // they go on
	TypeQuarantined = "turnlane.worker.quarantined" // a catalog record cannot be read
)

// States in events of coverage.
const (
	Complete   = "COMPLETE"   // every slot has a running member
	Incomplete = "INCOMPLETE" // some have none
)

// Data is the data of every lifecycle event; what does not apply is left out. Events of state and of
// coverage always have worker_id, topics, state and reason, empty if need be, so that scripts can rely
// on them. The worker of an event of coverage is the member whose change caused it, if it was one.
type Data struct {
	WorkerID   string   `json:"worker_id,omitempty"`
	WorkerName string   `json:"worker_name,omitempty"`
	WorkerType string   `json:"worker_type,omitempty"`
	Topics     []string `json:"topics,omitempty"`
	Topic      string   `json:"topic,omitempty"` // when there is one, or the one meant
	State      string   `json:"state,omitempty"`
	Reason     string   `json:"reason,omitempty"`
	Group      string   `json:"group,omitempty"`
	GroupSize  uint32   `json:"group_size,omitempty"`
	GroupIndex *uint32  `json:"group_index,omitempty"` // of group members
	Running    *int     `json:"running,omitempty"`     // coverage: members that run
	Pod        string   `json:"pod,omitempty"`
	Token      uint64   `json:"token,omitempty"`
	First      string   `json:"first,omitempty"` // gaps: positions
	Last       string   `json:"last,omitempty"`
	Kind       string   `json:"kind,omitempty"`
	Position   string   `json:"position,omitempty"` // the event meant
	EventID    string   `json:"event_id,omitempty"`
	Attempts   int      `json:"attempts,omitempty"`
	Error      string   `json:"error,omitempty"`
	// Of an event that was given up: how often it ended the process, and its dead letter.
	Crashes            int    `json:"crashes,omitempty"`
	DeadLetterTopic    string `json:"dead_letter_topic,omitempty"`
	DeadLetterPosition string `json:"dead_letter_position,omitempty"`
}

// New makes a lifecycle event at a time. Its subject is the worker's id, or the group's name: always
// that of coverage.
func New(kind string, at time.Time, d Data) *event.Event {
	if d.Topic == "" && len(d.Topics) == 1 {
		d.Topic = d.Topics[0]
	}
	data, err := json.Marshal(fields(kind, d))
	if err != nil {
		panic("lifecycle: " + err.Error()) // Data holds strings and numbers only
	}
	subject := d.WorkerID
	if subject == "" || kind == TypeCoverage {
		subject = d.Group
	}
	return &event.Event{
		ID:              uuid.Must(uuid.NewV7()).String(),
		Source:          Source,
		Type:            kind,
		Subject:         subject,
		Time:            at.UTC().Format(time.RFC3339Nano),
		DataContentType: "application/json",
		Data:            data,
		DataKind:        event.JSONData,
	}
}

// fields is what stands in the data of an event.
func fields(kind string, d Data) any {
	if kind != TypeState && kind != TypeCoverage {
		return d
	}
	if d.Topics == nil {
		d.Topics = []string{}
	}
	return struct { // its own fields hide those of Data
		WorkerID string   `json:"worker_id"`
		Topics   []string `json:"topics"`
		State    string   `json:"state"`
		Reason   string   `json:"reason"`
		Data
	}{d.WorkerID, d.Topics, d.State, d.Reason, d}
}
