package turnlane_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/turnlane/turnlane"
	turnlanev1 "github.com/turnlane/turnlane/proto/turnlane/v1"
)

// What is published after StartWorker has returned is never missed, also on a topic that nobody has
// read or written before.
func TestAnEventRightAfterStartWorkerIsNeverMissed(t *testing.T) {
	turns := make(chan string, 1)
	s := newSystem(t, config(), map[string]turnlane.HandlerFunc{"tell": func(_ context.Context, turn *turnlane.Turn) error {
		turns <- turn.Topic() + " " + turn.Event().ID
		return nil
	}})
	for i := range 200 {
		topic := fmt.Sprintf("fresh%d", i)
		s.startWorker(&turnlanev1.CreateWorkerRequest{Id: topic, Type: "tell", Topics: []string{topic}})
		s.publish(topic, textEvent("first"))
		select {
		case got := <-turns:
			if got != topic+" first" {
				t.Fatalf("a turn for %s, want %s", got, topic)
			}
		case <-s.ctx.Done():
			t.Fatalf("no turn for the event on %s", topic)
		}
	}
}
