package actor_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/turnlane/turnlane/actor"
	"github.com/turnlane/turnlane/event"
)

type move struct {
	Account string `json:"account"`
	Amount  int    `json:"amount"`
}

func commandTurn(data string) *actor.Turn {
	in := given()
	e := &event.Event{ID: "c1", Source: "/s", Type: "move"}
	if data != "" {
		e.Data, e.DataKind = []byte(data), event.JSONData
	}
	in.Entry.Record = event.AppendRecord(nil, e, 1, stored)
	return actor.NewTurn(in)
}

func TestCommandsWithTypes(t *testing.T) {
	f := actor.Command(func(_ context.Context, _ *actor.Turn, req move) (map[string]int, error) {
		if req.Amount < 0 {
			return nil, &actor.CommandError{Reason: "NEGATIVE", Err: errors.New("amount is negative")}
		}
		return map[string]int{req.Account: req.Amount}, nil
	})
	for _, c := range []struct{ name, data, reply, reason, says string }{
		{"data", `{"account":"a","amount":3}`, `{"a":3}`, "", ""},
		{"no data", ``, `{"":0}`, "", ""},
		{"a member that is not known", `{"acount":"a"}`, "", actor.InvalidCommand, `unknown field "acount"`},
		{"another type", `{"amount":"3"}`, "", actor.InvalidCommand, "amount"},
		{"cut", `{"amount":`, "", actor.InvalidCommand, "ends too early"},
		{"too much", `{"amount":1} 2`, "", actor.InvalidCommand, "more after"},
		{"an error", `{"amount":-1}`, "", "NEGATIVE", "amount is negative"},
	} {
		reply, err := f(t.Context(), commandTurn(c.data))
		if c.reason == "" {
			if err != nil || string(reply.Data) != c.reply || reply.ContentType != "application/json" {
				t.Errorf("%s: %s, %v", c.name, reply.Data, err)
			}
			continue
		}
		e, ok := errors.AsType[*actor.CommandError](err)
		if !ok || e.Reason != c.reason || !strings.Contains(err.Error(), c.says) || reply.Data != nil {
			t.Errorf("%s: %s, %v", c.name, reply.Data, err)
		}
	}
	unwritable := actor.Command(func(context.Context, *actor.Turn, struct{}) (chan int, error) { return nil, nil })
	if _, err := unwritable(t.Context(), commandTurn("")); err == nil {
		t.Error("a reply that is no JSON is no error")
	}
}

func ExampleCommand() {
	var balance int
	commands := actor.Commands{
		"deposit": actor.Command(func(_ context.Context, _ *actor.Turn, req struct{ Amount int }) (struct{ Balance int }, error) {
			balance += req.Amount
			return struct{ Balance int }{balance}, nil
		}),
	}
	reply, err := commands["deposit"](context.Background(), commandTurn(`{"amount":40}`))
	fmt.Println(string(reply.Data), err)
	_, err = commands["deposit"](context.Background(), commandTurn(`{"amuont":40}`))
	fmt.Println(err)
	// Output:
	// {"Balance":40} <nil>
	// data of command move: json: unknown field "amuont"
}
