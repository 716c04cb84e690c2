package actortest

import (
	"fmt"
	"sync/atomic"

	"github.com/turnlane/turnlane/event"
)

var made atomic.Uint64

// JSON makes an event with a subject, absent if "", and a JSON value as data. Its id is new in this
// process, its source is /actortest and its type test.event; change them as you like.
func JSON(subject, data string) *event.Event {
	return &event.Event{
		ID:              fmt.Sprintf("test-%d", made.Add(1)),
		Source:          "/actortest",
		Type:            "test.event",
		Subject:         subject,
		DataContentType: "application/json",
		Data:            []byte(data),
		DataKind:        event.JSONData,
	}
}
