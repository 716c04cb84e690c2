package actor_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/turnlane/turnlane/actor"
	"github.com/turnlane/turnlane/event"
)

// total keeps a sum per desk. Its worker has one turn at a time, so the map needs no lock.
type total struct {
	out  string
	sums map[string]int
}

// newTotal is a Factory: it checks the worker's config and makes the handler of one activation.
func newTotal(w *actor.Worker) (actor.Handler, error) {
	out := w.Config["out"]
	if out == "" {
		return nil, errors.New(`config "out" is missing: set it to the topic that sums go to`)
	}
	return &total{out: out, sums: make(map[string]int)}, nil
}

func (h *total) Handle(_ context.Context, turn *actor.Turn) error {
	var trade struct{ Amount int }
	if err := json.Unmarshal(turn.Event().Data, &trade); err != nil {
		return actor.Permanent(err)
	}
	desk := turn.Event().Subject
	h.sums[desk] += trade.Amount
	return turn.Publish(h.out, &event.Event{
		Type:            "desk.total",
		Subject:         desk,
		DataContentType: "application/json",
		Data:            strconv.AppendInt(nil, int64(h.sums[desk]), 10),
		DataKind:        event.JSONData,
	})
}

// A runtime makes the handler and gives it one turn after the other. In a test of your own the package
// actortest does all this.
func Example() {
	w := &actor.Worker{ID: "w1", Type: "total", Run: 1, Config: map[string]string{"out": "totals"}}
	h, err := newTotal(w)
	if err != nil {
		fmt.Println(err)
		return
	}
	for i, data := range []string{`{"amount":40}`, `{"amount":2}`} {
		e := &event.Event{ID: fmt.Sprint("trade-", i), Source: "/desk", Type: "trade", Subject: "north", Data: []byte(data), DataKind: event.JSONData}
		turn := actor.NewTurn(actor.TurnInput{
			Worker:  w,
			Topic:   "trades",
			Entry:   event.Entry{Pos: event.Position{Ms: 1700000000000, Seq: uint64(i)}, Record: event.AppendRecord(nil, e, 0, time.Unix(1700000000, 0))},
			Attempt: 1,
		})
		err := h.Handle(context.Background(), turn)
		outputs, _ := turn.Close()
		fmt.Println(actor.OutcomeOf(err), outputs[0].Topic, outputs[0].Event.ID, string(outputs[0].Event.Data))
	}
	// Output:
	// done totals w1.1.trades.1700000000000-0.0 40
	// done totals w1.1.trades.1700000000000-1.0 42
}

func ExampleFactory() {
	_, err := newTotal(&actor.Worker{ID: "w1"})
	fmt.Println(err)
	// Output:
	// config "out" is missing: set it to the topic that sums go to
}

func ExamplePermanent() {
	_, err := strconv.Atoi("twelve")
	err = actor.Permanent(fmt.Errorf("read the amount: %w", err))
	fmt.Println(actor.OutcomeOf(err), "|", err)
	// Output:
	// permanent | read the amount: strconv.Atoi: parsing "twelve": invalid syntax
}

func ExampleRetryAfter() {
	limited := actor.RetryAfter(30 * time.Second) // as a Retry-After header asked
	fmt.Println(actor.OutcomeOf(limited), "|", limited)
	// Output:
	// retry_after | retry after 30s
}

func ExampleDrop() {
	stale := actor.Drop("quote is older than the book")
	fmt.Println(actor.OutcomeOf(stale), "|", stale)
	// Output:
	// dropped | dropped: quote is older than the book
}
