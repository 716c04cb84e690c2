package deadletter

import (
	"time"

	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/store"
)

// Workers of marks that are no workers: "~" is in no worker's id.
const (
	undecodableWorker = "~undecodable"
	redriveWorker     = "~redrive"
)

// Mark is what a worker's dead letter is appended under. The topic and position are those that the lane
// read: for a redriven event the ones of the redrive topic. A lane gives its events up in their order, so
// that the second append of one is answered as a repeat.
func Mark(worker string, token, run uint64, topic string, pos event.Position) *store.TurnMark {
	return &store.TurnMark{Worker: worker, Token: token, Run: run, Topic: topic, Position: pos}
}

// UndecodableMark is what a record that cannot be decoded is appended to Pubsub under, whoever finds it
// first: each has a mark of its own, since those who read a topic are not at the same place.
func UndecodableMark(topic string, pos event.Position) *store.TurnMark {
	return &store.TurnMark{Worker: undecodableWorker, Token: 1, Run: 1, Topic: topic + "@" + pos.String(), Position: pos}
}

// RedriveMark is what a job appends the event of the dead letter at a position under. Jobs of one topic
// of dead letters are numbered upwards and take them in their order.
func RedriveMark(token, job uint64, dlq string, pos event.Position) *store.TurnMark {
	return &store.TurnMark{Worker: redriveWorker, Token: token, Run: job, Topic: dlq, Position: pos}
}

// What a dead letter made by WrapUndecodable says of itself.
const (
	UndecodableType = "turnlane.undecodable"
	topicSource     = "/turnlane/topics/"
)

// WrapUndecodable makes the dead letter of a record that cannot be decoded: an event whose data is the
// record as it is stored. It belongs into Pubsub, under UndecodableMark, and is the same whoever makes it.
func WrapUndecodable(topic string, pos event.Position, record []byte, cause error, at time.Time) *event.Event {
	e := &event.Event{
		ID:              topic + "/" + pos.String(),
		Source:          topicSource + topic,
		Type:            UndecodableType,
		Subject:         topic,
		DataContentType: "application/octet-stream",
		Data:            record,
		DataKind:        event.BinaryData,
	}
	if e.Data == nil {
		e.Data = []byte{}
	}
	return Wrap(e, Facts{Reason: Undecodable, Error: cause.Error(), Topic: topic, Position: pos, Key: topic,
		FirstFailed: at, LastFailed: at, Permanent: true})
}
