// Package turnlane is the front door for programs that host handlers or embed a whole server.
//
//	srv, err := turnlane.NewServer(turnlane.Config{})
//	if err != nil { … }
//	srv.HandleFunc("greeter", func(ctx context.Context, turn *turnlane.Turn) error {
//		fmt.Println("hello,", turn.Event().Subject)
//		return nil
//	})
//	err = srv.Run(ctx)
//
// A Server has every role in one process, on the embedded store: it keeps topics, runs workers, and
// serves the gRPC and HTTP interfaces, which the turnlane command talks to.
package turnlane

import (
	"context"

	"github.com/turnlane/turnlane/actor"
	"github.com/turnlane/turnlane/event"
)

// The names that handlers are written with.
type (
	// Handler is the code of one activation of a worker; see actor.Handler.
	Handler = actor.Handler
	// HandlerFunc is a function as a Handler.
	HandlerFunc = actor.HandlerFunc
	// Factory makes the Handler of an activation; see actor.Factory.
	Factory = actor.Factory
	// Turn is what a Handler is called with; see actor.Turn.
	Turn = actor.Turn
	// Worker says which worker a Handler runs for; see actor.Worker.
	Worker = actor.Worker
	// Event is a CloudEvents 1.0 event; see package event.
	Event = event.Event
)

// Handle registers the code of a worker type: the factory is called for every activation of a worker of
// that type. It replaces a built-in type of the same name (echo, marker, probe). Call it before Run; it
// panics for a malformed or repeated type, since that is a mistake in the program.
func (s *Server) Handle(workerType string, factory Factory) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.running:
		panic("turnlane: Handle(" + workerType + ") after Run")
	case !typeName.MatchString(workerType):
		panic("turnlane: worker type " + workerType + ": want [A-Za-z0-9_-]{1,64}")
	case s.handlers[workerType] != nil:
		panic("turnlane: worker type " + workerType + " registered twice")
	}
	s.handlers[workerType] = factory
}

// HandleFunc registers a function as the code of a worker type: one function for all its activations.
func (s *Server) HandleFunc(workerType string, handle func(ctx context.Context, turn *Turn) error) {
	s.Handle(workerType, func(*Worker) (Handler, error) { return HandlerFunc(handle), nil })
}
