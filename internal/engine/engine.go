// Package engine runs turns: one at a time per activation, on goroutines that handlers may block, panic
// on, exit, or never give back.
//
// An activation is a Cell. Ring tells it that there is work, at the cost of an atomic operation while
// it knows already. The first ring spawns an actor of protoactor-go by name, and each ring is one
// message to it, a doorbell; what waits is never in the actor's mailbox, which loses messages when it
// stops. The actor never runs a handler, since a handler that exits its goroutine would take the
// mailbox with it: it starts a runner on a goroutine, which takes turns from the cell's Body until
// there are none, or it has taken a burst and lets others on:
//
//	idle ──Ring──▶ rung ──actor──▶ running ──no turn──▶ idle
//	                ▲                │  ▲
//	                └──burst taken───┘  └─ Ring while running: looks once more
//
// A turn ends when its handler returns, panics or exits; or when it is given up as stuck, because it
// went on for longer than a grace period after its deadline. A cell that lost its goroutine to a stuck
// handler is closed; its owner puts another in its place.
//
// Only the package actor of protoactor-go is used: spawn by name, send, stop, and a guardian that stops
// what fails. Actors are never restarted in place.
package engine

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/asynkron/protoactor-go/actor"
)

// DefaultBurst is how many turns a runner takes in a row.
const DefaultBurst = 128

// Config of an Engine.
type Config struct {
	Burst  int // turns in a row before others get on; default DefaultBurst
	Logger *slog.Logger
}

// Engine is where cells run.
type Engine struct {
	system *actor.ActorSystem
	props  *actor.Props
	burst  int

	running atomic.Int64 // turns
	leaked  atomic.Int64 // goroutines of handlers that were given up
	spawned atomic.Int64 // actors
}

// New returns an engine. Close it when all of its cells are closed.
func New(c Config) *Engine {
	if c.Burst <= 0 {
		c.Burst = DefaultBurst
	}
	quiet := slog.New(slog.DiscardHandler)
	e := &Engine{burst: c.Burst}
	e.system = actor.NewActorSystem(
		actor.WithLoggerFactory(func(*actor.ActorSystem) *slog.Logger { return quiet }),
		actor.WithDeadLetterRequestLogging(false))
	stop := actor.NewOneForOneStrategy(0, 0, func(any) actor.Directive { return actor.StopDirective })
	shared := receiver{}
	e.props = actor.PropsFromProducer(func() actor.Actor { return shared },
		actor.WithGuardian(stop), actor.WithSupervisor(stop))
	return e
}

// Close ends the engine. Goroutines of stuck handlers stay until the handlers return.
func (e *Engine) Close() { e.system.Shutdown() }

// Stats are the engine's counts now.
type Stats struct {
	Running int64 // turns
	Leaked  int64 // goroutines of handlers that were given up and have not returned
	Actors  int64 // spawned and not stopped
}

// Stats returns the engine's counts.
func (e *Engine) Stats() Stats {
	return Stats{e.running.Load(), e.leaked.Load(), e.spawned.Load()}
}

// receiver is the actor of every cell: the doorbell is the cell itself.
type receiver struct{}

func (receiver) Receive(ctx actor.Context) {
	if c, ok := ctx.Message().(*Cell); ok {
		go c.run()
	}
}

// Call runs f, which is not ours, once, outside any cell, with the same guards as a turn. It returns when
// f has, or when f is stuck or ctx has ended and f did not return within the grace period; its goroutine
// then counts as leaked until it ends.
func (e *Engine) Call(ctx context.Context, timeout, grace time.Duration, f func(context.Context) error) Result {
	call, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	start := time.Now()
	ended := make(chan Result, 1)
	var givenUp atomic.Bool
	go func() {
		r := Result{Kind: Exited}
		defer func() {
			if r.Kind == Exited {
				if v := recover(); v != nil {
					r = panicked(v)
				} else {
					r.Err = ErrExited
				}
			}
			r.Took = time.Since(start)
			if givenUp.Swap(true) {
				e.leaked.Add(-1)
			}
			ended <- r
		}()
		r = Result{Kind: Returned, Err: f(call)}
	}()
	select {
	case r := <-ended:
		return r
	case <-call.Done():
	}
	wait := time.NewTimer(grace)
	defer wait.Stop()
	select {
	case r := <-ended:
		if r.Kind == Returned && ctx.Err() == nil {
			r.Kind, r.Err = TimedOut, ErrTimedOut
		}
		return r
	case <-wait.C:
	}
	e.leaked.Add(1)
	if givenUp.Swap(true) { // it ended just now
		e.leaked.Add(-1)
		return <-ended
	}
	return Result{Kind: Stuck, Err: ErrStuck, Took: time.Since(start)}
}
