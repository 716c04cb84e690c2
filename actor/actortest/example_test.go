package actortest_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/turnlane/turnlane/actor"
	"github.com/turnlane/turnlane/actor/actortest"
	"github.com/turnlane/turnlane/event"
)

// forward is the handler under test: it passes events on to another topic, and drops those without a
// subject.
func forward(_ context.Context, turn *actor.Turn) error {
	if turn.Event().Subject == "" {
		return actor.Drop("no subject")
	}
	e := turn.Event().Clone()
	e.ID = "" // an id of its own
	return turn.Publish("forwarded", e)
}

func ExampleRun() {
	var t testing.TB = &exampleTB{} // in a test, the *testing.T

	results := actortest.Run(t, actor.HandlerFunc(forward), actor.Worker{},
		actortest.JSON("ACME", `{"price":12}`),
		actortest.JSON("", `{"price":13}`),
	)
	for _, r := range results {
		fmt.Println(r.Outcome, len(r.Outputs), r.Err)
	}
	fmt.Println(results[0].Outputs[0].Topic, string(results[0].Outputs[0].Event.Data))
	// Output:
	// done 1 <nil>
	// dropped 0 dropped: no subject
	// forwarded {"price":12}
}

func ExamplePublisher() {
	var p actortest.Publisher
	p.Before = func(_ context.Context, topic string, _ []*event.Event) error {
		if topic == "broken" {
			return errors.New("the store is away")
		}
		return nil
	}
	_, err := p.Publish(context.Background(), "alarms", actortest.JSON("pump-1", `{"hot":true}`))
	fmt.Println(err, len(p.On("alarms")))
	_, err = p.Publish(context.Background(), "broken", actortest.JSON("pump-1", `{}`))
	fmt.Println(err, len(p.On("broken")))
	// Output:
	// <nil> 1
	// the store is away 0
}

// exampleTB stands in for the *testing.T that an example does not have.
type exampleTB struct{ testing.TB }

func (*exampleTB) Helper()                  {}
func (*exampleTB) Context() context.Context { return context.Background() }
func (*exampleTB) Cleanup(func())           {}
