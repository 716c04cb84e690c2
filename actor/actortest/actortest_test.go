package actortest_test

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/turnlane/turnlane/actor"
	"github.com/turnlane/turnlane/actor/actortest"
	"github.com/turnlane/turnlane/event"
)

func handler(f func(ctx context.Context, turn *actor.Turn) error) actor.Handler {
	return actor.HandlerFunc(f)
}

func TestEveryOutcomeIsTold(t *testing.T) {
	errBusy := errors.New("busy")
	for _, c := range []struct {
		name   string
		handle func(ctx context.Context, turn *actor.Turn) error
		want   actor.Outcome
		text   string // in the error
	}{
		{"done", func(context.Context, *actor.Turn) error { return nil }, actor.OutcomeDone, ""},
		{"an error", func(context.Context, *actor.Turn) error { return errBusy }, actor.OutcomeFailed, "busy"},
		{"permanent", func(context.Context, *actor.Turn) error { return actor.Permanent(errBusy) }, actor.OutcomePermanent, "busy"},
		{"retry after", func(context.Context, *actor.Turn) error { return actor.RetryAfter(time.Hour) }, actor.OutcomeRetryAfter, "1h0m0s"},
		{"drop", func(context.Context, *actor.Turn) error { return actor.Drop("a test") }, actor.OutcomeDropped, "a test"},
		{"panic", func(context.Context, *actor.Turn) error { panic("no such desk") }, actor.OutcomePanic, "no such desk"},
		{"panic with nil", func(context.Context, *actor.Turn) error { panic(nil) }, actor.OutcomePanic, "nil"},
		{"goexit", func(context.Context, *actor.Turn) error { runtime.Goexit(); return nil }, actor.OutcomeGoexit, "Goexit"},
		{"a refused output", func(_ context.Context, turn *actor.Turn) error {
			_ = turn.Publish("sys.mine", actortest.JSON("", "1"))
			return nil
		}, actor.OutcomeFailed, "sys."},
	} {
		r := actortest.Run(t, handler(c.handle), actor.Worker{}, actortest.JSON("ACME", "1"))[0]
		if r.Outcome != c.want || (r.Err == nil) != (c.text == "") || len(r.Attempts) != 1 {
			t.Errorf("%s: %+v, want %s", c.name, r, c.want)
		}
		if c.text != "" && (r.Err == nil || !strings.Contains(r.Err.Error(), c.text)) {
			t.Errorf("%s: the error %q does not say %q", c.name, r.Err, c.text)
		}
	}
}

func TestOutputsAreShownOnlyWhenTheyWouldBeStored(t *testing.T) {
	h := handler(func(_ context.Context, turn *actor.Turn) error {
		if err := turn.Publish("out", actortest.JSON(turn.Event().Subject, "2")); err != nil {
			return err
		}
		if turn.Event().Subject == "bad" {
			return errors.New("no")
		}
		return nil
	})
	r := actortest.Run(t, h, actor.Worker{Topics: []string{"trades"}}, actortest.JSON("good", "1"), actortest.JSON("bad", "1"))
	if len(r[0].Outputs) != 1 || r[0].Outputs[0].Topic != "out" || r[0].Outputs[0].Event.Subject != "good" {
		t.Errorf("outputs of the good turn: %+v", r[0].Outputs)
	}
	if len(r[1].Outputs) != 0 {
		t.Errorf("outputs of the failed turn: %+v", r[1].Outputs)
	}
	if !r[0].Position.Less(r[1].Position) {
		t.Errorf("positions %s and %s do not rise", r[0].Position, r[1].Position)
	}
}

func TestAnEventIsTriedAsOftenAsItsOutcomesAsk(t *testing.T) {
	var seen []int
	a := actortest.Activate(t, func(w *actor.Worker) (actor.Handler, error) {
		return handler(func(_ context.Context, turn *actor.Turn) error {
			seen = append(seen, turn.Attempt())
			if turn.Attempt() < 3 {
				return actor.RetryAfter(time.Duration(turn.Attempt()) * time.Minute)
			}
			return nil
		}), nil
	}, actor.Worker{})
	a.MaxAttempts = 5
	r := a.Handle("input", actortest.JSON("", "1"))
	if r.Outcome != actor.OutcomeDone || !slices.Equal(seen, []int{1, 2, 3}) {
		t.Errorf("%s after attempts %v", r.Outcome, seen)
	}
	if r.Attempts[0].After != time.Minute || r.Attempts[1].After != 2*time.Minute {
		t.Errorf("attempts asked for %s and %s", r.Attempts[0].After, r.Attempts[1].After)
	}
	a.MaxAttempts = 2
	if r := a.Handle("input", actortest.JSON("", "1")); r.Outcome != actor.OutcomeRetryAfter || len(r.Attempts) != 2 {
		t.Errorf("two attempts of three gave %s after %d", r.Outcome, len(r.Attempts))
	}
}

func TestDeadlinesPassInNoTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		polite := handler(func(ctx context.Context, _ *actor.Turn) error { <-ctx.Done(); return ctx.Err() })
		r := actortest.Run(t, polite, actor.Worker{}, actortest.JSON("", "1"))[0]
		if r.Outcome != actor.OutcomeTimeout || r.Attempts[0].Stuck || time.Since(begin) != actor.DefaultHandlerTimeout {
			t.Errorf("a handler that obeys: %+v after %s", r, time.Since(begin))
		}
		ended := make(chan struct{})
		stubborn := handler(func(_ context.Context, turn *actor.Turn) error {
			defer close(ended)
			time.Sleep(time.Hour)
			if !turn.Closed() || !errors.Is(turn.Publish("out", actortest.JSON("", "1")), actor.ErrTurnClosed) {
				t.Error("the turn of a stuck handler is open")
			}
			return nil
		})
		begin = time.Now()
		r = actortest.Run(t, stubborn, actor.Worker{}, actortest.JSON("", "1"))[0]
		if want := actor.DefaultHandlerTimeout + actor.DefaultHandlerGrace; r.Outcome != actor.OutcomeTimeout || !r.Attempts[0].Stuck || time.Since(begin) != want {
			t.Errorf("a handler that ignores it: %+v after %s", r, time.Since(begin))
		}
		<-ended
	})
}

type life struct{ log *[]string }

func (l life) Start(context.Context, *actor.Worker) error {
	*l.log = append(*l.log, "start")
	return nil
}
func (l life) Handle(context.Context, *actor.Turn) error { *l.log = append(*l.log, "turn"); return nil }
func (l life) Stop(context.Context) error                { *l.log = append(*l.log, "stop"); return nil }

func TestAHandlerIsStartedAndStoppedOnce(t *testing.T) {
	var log []string
	t.Run("life", func(t *testing.T) {
		actortest.Run(t, life{&log}, actor.Worker{}, actortest.JSON("", "1"), actortest.JSON("", "2"))
	})
	if want := []string{"start", "turn", "turn", "stop"}; !slices.Equal(log, want) {
		t.Errorf("the handler saw %v, want %v", log, want)
	}
}

func TestPublisherKeepsAndRefuses(t *testing.T) {
	var p actortest.Publisher
	a, b := actortest.JSON("a", "1"), actortest.JSON("b", "2")
	positions, err := p.Publish(t.Context(), "x", a, b)
	if err != nil || len(positions) != 2 || !positions[0].Less(positions[1]) {
		t.Fatalf("Publish gives %v and %v", positions, err)
	}
	if _, err := p.Publish(t.Context(), "dlq.x", a); !errors.Is(err, event.ErrInvalid) {
		t.Errorf("a topic that nobody may write to gives %v", err)
	}
	errDown := errors.New("down")
	p.Before = func(context.Context, string, []*event.Event) error { return errDown }
	if _, err := p.Publish(t.Context(), "y", a); !errors.Is(err, errDown) {
		t.Errorf("Before is not asked: %v", err)
	}
	if on := p.On("x"); len(p.Published()) != 2 || len(on) != 2 || !on[1].Equal(b) || on[1] == b || p.On("y") != nil {
		t.Errorf("kept %+v", p.Published())
	}
}

func TestStateIsKeptFromTurnToTurn(t *testing.T) {
	a := actortest.Activate(t, func(*actor.Worker) (actor.Handler, error) {
		return handler(func(_ context.Context, turn *actor.Turn) error {
			seen, _ := turn.State().Get("seen")
			if err := turn.State().Set("seen", append(seen, turn.Event().Subject...)); err != nil {
				return err
			}
			if turn.Attempt() == 1 {
				return errors.New("the change of this attempt is dropped")
			}
			return nil
		}), nil
	}, actor.Worker{})
	a.MaxAttempts = 2
	for _, subject := range []string{"a", "b", "c"} {
		a.Handle("in", actortest.JSON(subject, "1"))
	}
	if got := string(a.State()["seen"]); got != "abc" {
		t.Errorf("the state is %q", got)
	}
}

func TestATurnCanBeExtended(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := actortest.Activate(t, func(*actor.Worker) (actor.Handler, error) {
			return handler(func(ctx context.Context, turn *actor.Turn) error {
				for range 10 {
					if err := turn.Extend(30 * time.Second); turn.Event().Subject == "long" && err != nil {
						return err
					}
					select {
					case <-time.After(29 * time.Second):
					case <-ctx.Done():
						return ctx.Err()
					}
					if turn.Event().Subject == "short" {
						<-ctx.Done()
					}
				}
				return nil
			}), nil
		}, actor.Worker{})
		if r := a.Handle("in", actortest.JSON("long", "1")); r.Outcome != actor.OutcomeDone {
			t.Errorf("extended: %s, %v", r.Outcome, r.Err)
		}
		if r := a.Handle("in", actortest.JSON("short", "1")); r.Outcome != actor.OutcomeTimeout {
			t.Errorf("no longer extended: %s, %v", r.Outcome, r.Err)
		}
	})
}
