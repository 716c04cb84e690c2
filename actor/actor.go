// Package actor is what a worker's author writes: a Handler, which takes one Turn at a time and ends
// it with an outcome.
//
//	func settle(ctx context.Context, turn *actor.Turn) error {
//		trade, err := parse(turn.Event().Data)
//		if err != nil {
//			return actor.Permanent(err) // no attempt can mend it
//		}
//		settlement, err := clearing.Settle(ctx, trade)
//		if err != nil {
//			return err // tried again, after a back-off
//		}
//		return turn.Publish("settlements", settlement) // stored exactly once, if the turn succeeds
//	}
//
// # What a handler can rely on
//
// A worker has one turn at a time, so a handler's fields need no lock. Events of one topic come in the
// order of the topic. An event comes at least once: after a crash a few come again, and Turn.Replayed
// is true for each of them. Outputs added with Turn.Publish are stored exactly once. The worker's
// place in its topics moves past an event only after its outputs are stored. What it keeps with Turn.State is
// stored in one step with that place: each event counts in it exactly once.
//
// A handler may implement Starter, Stopper and Commander too. When the worker's config is changed while it
// runs, its handler is stopped between two turns and the factory makes another one; changed tags are there
// with the next turn's Worker.
//
// # What a handler must do
//
// Return soon after its context has ended. Keep no reference to the turn after returning. Recover
// panics in goroutines that it starts: Go ends the whole process for one that is not recovered.
package actor

import (
	"context"
	"time"

	"github.com/turnlane/turnlane/event"
)

// Handler handles a worker's events. A runtime calls it with one turn at a time per worker, each on a
// goroutine that the handler may block. The context ends at the turn's deadline (the worker's handler
// timeout, 30 s unless it says otherwise), and when the worker stops and its drain limit has passed.
//
// The result is the outcome: nil is done, an error is a failed attempt that is tried again, and
// Permanent, RetryAfter and Drop say otherwise. A panic, a runtime.Goexit and a deadline that passed
// before the handler returned are failed attempts too, and do no harm to the worker's other events. A
// handler that ignores the end of its context for longer than the worker's handler grace (2 s) is
// given up as stuck: its turn is closed, and a new activation takes over beside it.
type Handler interface {
	Handle(ctx context.Context, turn *Turn) error
}

// HandlerFunc is a function as a Handler.
type HandlerFunc func(ctx context.Context, turn *Turn) error

// Handle calls f.
func (f HandlerFunc) Handle(ctx context.Context, turn *Turn) error { return f(ctx, turn) }

// Factory makes the handler of one activation of a worker: fields of the handler live as long as the
// activation does, and another activation begins without them. It is the place to check the worker's
// config: an error makes the worker FAILED with that text as the reason, until a person starts it
// again. It may block, and counts as starting; it may be called for several workers at once.
type Factory func(w *Worker) (Handler, error)

// Starter is an optional interface of a Handler. Start is called once, before the first turn of an
// activation. An error, or a panic, fails the activation.
type Starter interface {
	Start(ctx context.Context, w *Worker) error
}

// Stopper is an optional interface of a Handler. Stop is called once, after the last turn of an
// activation that ends in order; a crash, a lost lease and a stuck handler end one without it. An
// error, or a panic, is logged.
type Stopper interface {
	Stop(ctx context.Context) error
}

// Worker is what a handler may know of the worker that it runs for. It must not be changed.
type Worker struct {
	ID, Name, Type string
	Topics         []string
	Group          string // "" for a dedicated worker
	GroupSize      uint32
	GroupIndex     uint32
	Config         map[string]string
	Tags           map[string]string
	Run            uint64 // grows when the worker is sought
	Token          uint64 // grows with every activation
	Pod            string // the runtime's name
}

// Publisher stores events on topics at once, outside any turn: what is published stays published
// whatever becomes of the turn, and a repeated turn publishes again.
type Publisher interface {
	// Publish appends a batch to one topic, all or nothing, and returns the positions. It blocks until
	// the store has it.
	Publish(ctx context.Context, topic string, events ...*event.Event) ([]event.Position, error)
}

// Defaults of a worker's policy.
const (
	DefaultHandlerTimeout = 30 * time.Second
	DefaultHandlerGrace   = 2 * time.Second
	DefaultMaxAttempts    = 3
	DefaultMaxCrashes     = 3
	DefaultBackoff        = 200 * time.Millisecond
	DefaultMaxBackoff     = time.Minute
)
