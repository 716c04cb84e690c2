// Package actor is what a worker's author writes: a Handler, which takes one Turn at a time and ends
// it with an outcome.
package actor

import (
	"context"
	"time"

	"github.com/turnlane/turnlane/event"
)

// Handler handles a worker's events. A runtime calls it with one turn at a time per worker, each on a
// goroutine that the handler may block. The context ends at the turn's deadline, and when the worker
// stops and its drain limit has passed; a handler that goes on for long after that is given up as
// stuck, and its turn is closed.
//
// The result is the outcome: nil is done, an error is a failed attempt that is tried again, and
// Permanent, RetryAfter and Drop say otherwise. A panic, or a runtime.Goexit, is a failed attempt.
type Handler interface {
	Handle(ctx context.Context, turn *Turn) error
}

// HandlerFunc is a function as a Handler.
type HandlerFunc func(ctx context.Context, turn *Turn) error

// Handle calls f.
func (f HandlerFunc) Handle(ctx context.Context, turn *Turn) error { return f(ctx, turn) }

// Factory makes the handler of one activation of a worker: fields of the handler live as long as the
// activation does. An error is FAILED for the worker: it needs a person. It may block; it counts as
// starting.
type Factory func(w *Worker) (Handler, error)

// Starter is an optional interface of a Handler, called once before the first turn. An error, or a
// panic, fails the activation.
type Starter interface {
	Start(ctx context.Context, w *Worker) error
}

// Stopper is an optional interface of a Handler, called once after the last turn of an activation that
// ends in order. An error, or a panic, is logged.
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
	DefaultBackoff        = 200 * time.Millisecond
	DefaultMaxBackoff     = time.Minute
)
