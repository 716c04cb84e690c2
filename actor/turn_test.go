package actor_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/turnlane/turnlane/actor"
	"github.com/turnlane/turnlane/event"
)

var stored = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func given() actor.TurnInput {
	e := &event.Event{ID: "t-1", Source: "/desk", Type: "trade", Subject: "ACME", Data: []byte(`{"n":1}`), DataKind: event.JSONData}
	return actor.TurnInput{
		Worker:  &actor.Worker{ID: "w1", Type: "settler", Run: 2, Token: 7},
		Topic:   "trades",
		Entry:   event.Entry{Pos: event.Position{Ms: 1700000000000, Seq: 4}, Record: event.AppendRecord(nil, e, 1, stored)},
		Attempt: 1,
	}
}

func output(id string) *event.Event { return &event.Event{ID: id, Type: "settled"} }

func TestTurnTellsItsEvent(t *testing.T) {
	in := given()
	in.Attempt, in.Replayed = 3, true
	turn := actor.NewTurn(in)
	if e := turn.Event(); e.ID != "t-1" || e.Subject != "ACME" || string(e.Data) != `{"n":1}` {
		t.Errorf("Event is %+v", e)
	}
	if first, second := turn.Event(), turn.Event(); first != second {
		t.Error("the event is decoded twice")
	}
	if turn.Topic() != "trades" || turn.Position() != in.Entry.Pos || turn.Worker() != in.Worker {
		t.Errorf("the turn is for %s of %s at %s", turn.Worker().ID, turn.Topic(), turn.Position())
	}
	if turn.Attempt() != 3 || !turn.Replayed() || !turn.StoredAt().Equal(stored) {
		t.Errorf("attempt %d, replayed %t, stored at %s", turn.Attempt(), turn.Replayed(), turn.StoredAt())
	}
}

func TestTurnOfABrokenRecordSaysSo(t *testing.T) {
	in := given()
	in.Entry.Record = append(in.Entry.Record, 0xff)
	if e, err := actor.NewTurn(in).Decode(); err == nil || e != nil {
		t.Errorf("Decode gives %v and %v", e, err)
	}
}

// An event's trace goes on in the outputs of its turn, unless these have one of their own.
func TestOutputsBelongToTheTraceOfTheEvent(t *testing.T) {
	const parent, state = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "congo=t61rcWkgMzE"
	const own = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"
	traced := func(parent, state string) []event.Extension {
		x := []event.Extension{{Name: "a", Value: event.Integer(1)}}
		for _, v := range []struct{ name, text string }{{"traceparent", parent}, {"tracestate", state}} {
			if v.text != "" {
				x = append(x, event.Extension{Name: v.name, Value: event.String(v.text)})
			}
		}
		return x
	}
	for _, c := range []struct {
		name      string
		in        []event.Extension
		set       []string // by the runtime
		out, want []event.Extension
	}{
		{"none", nil, nil, traced("", ""), traced("", "")},
		{"parent and state", traced(parent, state), nil, traced("", ""), traced(parent, state)},
		{"parent only", traced(parent, ""), nil, traced("", ""), traced(parent, "")},
		{"state only", traced("", state), nil, traced("", ""), traced("", "")},
		{"own parent", traced(parent, state), nil, traced(own, ""), traced(own, "")},
		{"own parent and state", traced(parent, state), nil, traced(own, "x=y"), traced(own, "x=y")},
		{"own state without a parent", traced(parent, ""), nil, traced("", "x=y"), traced(parent, "")},
		{"a span of the turn", traced(parent, state), []string{own, "x=y"}, traced("", ""), traced(own, "x=y")},
		{"a span of the turn, without a state", traced(parent, state), []string{own, ""}, traced("", ""), traced(own, "")},
		{"a span, and a clone of the event", traced(parent, state), []string{own, ""}, traced(parent, state), traced(own, "")},
		{"a span and an output's own", nil, []string{own, ""}, traced(parent, state), traced(parent, state)},
	} {
		e := &event.Event{ID: "1", Source: "/s", Type: "t", Extensions: c.in}
		turn := actor.NewTurn(actor.TurnInput{Worker: &actor.Worker{ID: "w", Type: "echo"}, Topic: "in", Attempt: 1,
			Entry: event.Entry{Record: event.AppendRecord(nil, e, 1, stored)}})
		if c.set != nil {
			turn.SetTrace(c.set[0], c.set[1])
		}
		shared := append(make([]event.Extension, 0, 10), c.out...)
		for range 2 {
			if err := turn.Publish("out", &event.Event{Type: "t", Extensions: shared}); err != nil {
				t.Fatal(err)
			}
		}
		outputs, err := turn.Close()
		if err != nil {
			t.Fatal(err)
		}
		for i, o := range outputs {
			if !slices.Equal(o.Event.Extensions, c.want) {
				t.Errorf("%s: output %d has %v, want %v", c.name, i, o.Event.Extensions, c.want)
			}
		}
		if !slices.Equal(shared, c.out) {
			t.Errorf("%s: the handler's own slice became %v", c.name, shared)
		}
	}
}

func TestOutputsGetIdsThatARepeatGetsAgain(t *testing.T) {
	for attempt := 1; attempt <= 2; attempt++ {
		in := given()
		in.Attempt, in.Replayed, in.Worker.Token = attempt, attempt > 1, uint64(6+attempt)
		turn := actor.NewTurn(in)
		for _, e := range []*event.Event{output(""), {ID: "mine", Source: "/own", Type: "settled"}, output("")} {
			if err := turn.Publish("settled", e); err != nil {
				t.Fatal(err)
			}
		}
		outputs, err := turn.Close()
		if err != nil || len(outputs) != 3 {
			t.Fatalf("Close gives %d outputs and %v", len(outputs), err)
		}
		for i, want := range []struct{ id, source string }{
			{"w1.2.trades.1700000000000-4.0", "/turnlane/settler/w1"},
			{"mine", "/own"},
			{"w1.2.trades.1700000000000-4.2", "/turnlane/settler/w1"},
		} {
			if e := outputs[i].Event; e.ID != want.id || e.Source != want.source || outputs[i].Topic != "settled" {
				t.Errorf("attempt %d, output %d is %s from %s to %s, want %s from %s", attempt, i, e.ID, e.Source, outputs[i].Topic, want.id, want.source)
			}
		}
	}
}

func TestClosedTurnTakesNothing(t *testing.T) {
	turn := actor.NewTurn(given())
	if turn.Closed() {
		t.Error("a new turn is closed")
	}
	if err := turn.Publish("settled", output("a")); err != nil {
		t.Fatal(err)
	}
	if outputs, err := turn.Close(); len(outputs) != 1 || err != nil {
		t.Fatalf("Close gives %v and %v", outputs, err)
	}
	if err := turn.Publish("settled", output("b")); !errors.Is(err, actor.ErrTurnClosed) {
		t.Errorf("Publish on a closed turn gives %v", err)
	}
	if outputs, err := turn.Close(); outputs != nil || !errors.Is(err, actor.ErrTurnClosed) {
		t.Errorf("the second Close gives %v and %v", outputs, err)
	}
	if !turn.Closed() || turn.Event().ID != "t-1" {
		t.Error("a closed turn can still be read, and says that it is closed")
	}
}

// A handler that ignores the error of Publish must not count as done: its output would be missing.
func TestRefusedOutputFailsTheTurn(t *testing.T) {
	errRule := errors.New("topic: 201 characters")
	in := given()
	in.Check = func(topic string, e *event.Event) error {
		if topic == "bad" {
			return errRule
		}
		return e.Validate()
	}
	for name, publish := range map[string]func(*actor.Turn) error{
		"by the topic": func(turn *actor.Turn) error { return turn.Publish("bad", output("a")) },
		"by the event": func(turn *actor.Turn) error { return turn.Publish("good", &event.Event{ID: "a"}) },
		"nil":          func(turn *actor.Turn) error { return turn.Publish("good", nil) },
	} {
		turn := actor.NewTurn(in)
		first := publish(turn)
		if first == nil || !strings.Contains(first.Error(), "output 0 to topic") {
			t.Errorf("refused %s: Publish gives %v", name, first)
		}
		if err := turn.Publish("good", output("b")); err != nil {
			t.Errorf("refused %s: a later good output gives %v", name, err)
		}
		if outputs, err := turn.Close(); outputs != nil || !errors.Is(err, first) {
			t.Errorf("refused %s: Close gives %v and %v, want the first refusal", name, outputs, err)
		}
	}
}

func TestTurnIsSafeForTheGoroutinesOfAHandler(t *testing.T) {
	turn := actor.NewTurn(given())
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := range 50 {
				if err := turn.Publish("settled", output(fmt.Sprintf("%s-%d-%d", turn.Event().ID, i, j))); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if outputs, err := turn.Close(); len(outputs) != 400 || err != nil {
		t.Errorf("%d outputs, %v", len(outputs), err)
	}
}

func BenchmarkTurn(b *testing.B) {
	in := given()
	b.ReportAllocs()
	for b.Loop() {
		turn := actor.NewTurn(in)
		_ = turn.Event()
		_ = turn.Publish("settled", &event.Event{Type: "settled"})
		_, _ = turn.Close()
	}
}
