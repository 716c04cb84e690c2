// Package actortest is a workbench for handlers: it gives them events and shows what became of each,
// without a server, a store or a network.
//
//	results := actortest.Run(t, handler, actor.Worker{}, actortest.JSON("ACME", `{"price":12}`))
//
// Run and Activation treat a handler as a runtime does: every turn on a goroutine of its own, with a
// deadline, a panic and a runtime.Goexit as failed attempts, and outputs held against the rules that a
// server has. Inside a testing/synctest bubble all of it runs on the bubble's clock, so that a test of
// a deadline of 30 seconds takes no time.
package actortest

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"testing"
	"time"

	"github.com/turnlane/turnlane/actor"
	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/internal/admission"
)

// DefaultTopic is the input topic of a worker that is given none.
const DefaultTopic = "input"

// Result is what became of one event.
type Result struct {
	Outcome  actor.Outcome  // of the last attempt
	Err      error          // of the last attempt; nil when Outcome is OutcomeDone
	Outputs  []actor.Output // what a server would now store, in order; none unless Outcome is OutcomeDone
	Attempts []Attempt      // all attempts, the first one first
	Position event.Position // where the event stood in its topic
}

// Attempt is one run of the handler.
type Attempt struct {
	Outcome actor.Outcome
	Err     error         // a recovered panic is an error with its value and stack
	After   time.Duration // what RetryAfter asked for
	Stuck   bool          // the handler ignored its deadline for longer than the grace, and still runs
}

// Activation is one life of a handler, as between the start and the stop of its worker. Set its fields
// before a call of Handle; they hold for that call and the later ones.
type Activation struct {
	Worker *actor.Worker
	// HandlerTimeout is the deadline of a turn. Default actor.DefaultHandlerTimeout.
	HandlerTimeout time.Duration
	// HandlerGrace is how long a turn waits for a handler that ignores its deadline. Default
	// actor.DefaultHandlerGrace.
	HandlerGrace time.Duration
	// MaxAttempts is how often an event is tried. Default 1. Attempts follow each other at once:
	// neither the back-off nor the time given to RetryAfter is waited for.
	MaxAttempts int
	// Replayed is what Turn.Replayed tells.
	Replayed bool

	t       testing.TB
	handler actor.Handler
	last    map[string]event.Position // per topic
	state   *actor.Values
}

// State returns the worker's state as the events handled so far left it. It must not be changed.
func (a *Activation) State() map[string][]byte { return a.state.All() }

// Run starts a handler, gives it the events one after the other, and stops it. The results are in the
// order of the events. The zero Worker will do: fields that a server always fills get defaults. All
// events come on the first of the worker's topics, DefaultTopic if it has none.
func Run(t testing.TB, h actor.Handler, w actor.Worker, events ...*event.Event) []Result {
	t.Helper()
	a := Activate(t, func(*actor.Worker) (actor.Handler, error) { return h, nil }, w)
	results := make([]Result, 0, len(events))
	for _, e := range events {
		results = append(results, a.Handle(a.Worker.Topics[0], e))
	}
	return results
}

// Activate makes a handler and starts it; the test stops it when it ends. A factory or a Start that
// fails ends the test.
func Activate(t testing.TB, factory actor.Factory, w actor.Worker) *Activation {
	t.Helper()
	fill(&w)
	h, err := factory(&w)
	if err != nil {
		t.Fatalf("actortest: the factory refused the worker: %v", err)
	}
	if s, ok := h.(actor.Starter); ok {
		if err := s.Start(t.Context(), &w); err != nil {
			t.Fatalf("actortest: start: %v", err)
		}
	}
	if s, ok := h.(actor.Stopper); ok {
		t.Cleanup(func() {
			if err := s.Stop(context.WithoutCancel(t.Context())); err != nil {
				t.Errorf("actortest: stop: %v", err)
			}
		})
	}
	return &Activation{
		Worker:         &w,
		HandlerTimeout: actor.DefaultHandlerTimeout,
		HandlerGrace:   actor.DefaultHandlerGrace,
		MaxAttempts:    1,
		t:              t,
		handler:        h,
		last:           make(map[string]event.Position),
		state:          &actor.Values{},
	}
}

func fill(w *actor.Worker) {
	for _, f := range []struct {
		field    *string
		fallback string
	}{{&w.ID, "worker-1"}, {&w.Name, w.ID}, {&w.Type, "test"}, {&w.Pod, "actortest"}} {
		if *f.field == "" {
			*f.field = f.fallback
		}
	}
	if len(w.Topics) == 0 {
		w.Topics = []string{DefaultTopic}
	}
	w.Run, w.Token = max(w.Run, 1), max(w.Token, 1)
}

// Handle gives the handler an event that came on a topic, as often as MaxAttempts and the outcomes
// ask for. An event that a server would not have accepted ends the test.
func (a *Activation) Handle(topic string, e *event.Event) Result {
	a.t.Helper()
	if err := errors.Join(admission.Readable(topic), admission.Event(e, 0)); err != nil {
		a.t.Fatalf("actortest: no server would accept this input: %v", err)
	}
	now := time.Now()
	pos := event.Position{Ms: uint64(now.UnixMilli())}
	if last := a.last[topic]; !last.Less(pos) {
		pos = last.Next()
	}
	a.last[topic] = pos
	in := actor.TurnInput{
		Worker:   a.Worker,
		Topic:    topic,
		Entry:    event.Entry{Pos: pos, Record: admission.Encode(e, now)},
		Replayed: a.Replayed,
		Check:    check,
		State:    a.state,
	}
	r := Result{Position: pos}
	for in.Attempt = 1; in.Attempt <= max(a.MaxAttempts, 1); in.Attempt++ {
		attempt, outputs := a.attempt(in)
		r.Attempts = append(r.Attempts, attempt)
		r.Outcome, r.Err, r.Outputs = attempt.Outcome, attempt.Err, outputs
		switch r.Outcome {
		case actor.OutcomeDone, actor.OutcomeDropped, actor.OutcomePermanent:
			return r
		}
	}
	return r
}

func check(topic string, e *event.Event) error {
	if err := admission.Topic(topic, admission.User); err != nil {
		return err
	}
	return admission.Event(e, 0)
}

// ended is how a handler left: at most one of its fields is set.
type ended struct {
	err      error
	panicked error
	goexit   bool
}

func (a *Activation) attempt(in actor.TurnInput) (Attempt, []actor.Output) {
	ctx := newDeadline(a.t.Context(), a.HandlerTimeout)
	defer ctx.end(context.Canceled)
	in.Host = host{ctx}
	turn := actor.NewTurn(in)
	end := call(ctx, a.handler, turn)

	var how ended
	select {
	case how = <-end:
	case <-ctx.Done():
		grace := time.NewTimer(a.HandlerGrace)
		defer grace.Stop()
		select {
		case how = <-end:
		case <-grace.C:
			_, _ = turn.Close()
			return Attempt{Outcome: actor.OutcomeTimeout, Err: ctx.Err(), Stuck: true}, nil
		}
	}
	late := ctx.Err()
	if d, _ := ctx.Deadline(); late == nil && !time.Now().Before(d) {
		late = context.DeadlineExceeded // which the context is about to say
	}
	outputs, refused := turn.Close()
	switch {
	case how.goexit:
		return Attempt{Outcome: actor.OutcomeGoexit, Err: errors.New("the handler called runtime.Goexit")}, nil
	case how.panicked != nil:
		return Attempt{Outcome: actor.OutcomePanic, Err: how.panicked}, nil
	case late != nil:
		return Attempt{Outcome: actor.OutcomeTimeout, Err: errors.Join(late, how.err)}, nil
	case refused != nil && (how.err == nil || actor.OutcomeOf(refused) == actor.OutcomePermanent):
		return Attempt{Outcome: actor.OutcomeOf(refused), Err: refused}, nil
	case how.err == nil:
		a.state.Apply(turn.Changes())
		return Attempt{Outcome: actor.OutcomeDone}, outputs
	}
	result := Attempt{Outcome: actor.OutcomeOf(how.err), Err: how.err}
	if r, ok := errors.AsType[*actor.RetryAfterError](how.err); ok {
		result.After = r.After
	}
	return result, nil
}

// call runs a handler on a goroutine of its own and tells how it left. Goexit runs the deferred
// function with nothing to recover, just as a return does; only returned tells the two apart.
func call(ctx context.Context, h actor.Handler, turn *actor.Turn) <-chan ended {
	end := make(chan ended, 1)
	go func() {
		returned := false
		var err error
		defer func() {
			if returned {
				end <- ended{err: err}
			} else if v := recover(); v != nil {
				end <- ended{panicked: fmt.Errorf("panic: %v\n%s", v, debug.Stack())}
			} else {
				end <- ended{goexit: true}
			}
		}()
		err = h.Handle(ctx, turn)
		returned = true
	}()
	return end
}
