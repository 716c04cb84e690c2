// Package gateway is the role that stands between clients and the store: it publishes events, and
// serves topics to subscribers.
//
// A Gateway is a gRPC service (turnlane.v1.GatewayService), an HTTP handler, the publisher of the
// process that it is in, and the keeper of retention. It keeps no state of its own: any number of
// gateways serve one store.
package gateway

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"

	"github.com/turnlane/turnlane/actor"
	"github.com/turnlane/turnlane/internal/rpcerr"
	"github.com/turnlane/turnlane/internal/tracing"
	turnlanev1 "github.com/turnlane/turnlane/proto/turnlane/v1"
)

// finishLimit is how long batches under way may take when the gateway ends.
const finishLimit = 10 * time.Second

// Gateway serves one store. See New.
type Gateway struct {
	turnlanev1.UnimplementedGatewayServiceServer

	cfg         Config
	appender    *appender
	retention   *retention
	instruments *instruments
	tracer      *tracing.Tracer // nil: no spans

	undecodables *undecodables

	stop    chan struct{} // closed by Shutdown
	stopped sync.Once
	streams sync.WaitGroup // goroutines of streams; see stream
	mu      sync.Mutex     // orders streams.Add before streams.Wait
}

var (
	_ actor.Publisher                 = (*Gateway)(nil)
	_ turnlanev1.GatewayServiceServer = (*Gateway)(nil)
)

// New makes a gateway. It starts nothing: Run does. Publishing and reading work before Run.
func New(cfg Config) (*Gateway, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	g := &Gateway{cfg: cfg, tracer: tracing.New(cfg.TracerProvider), stop: make(chan struct{})}
	g.retention = newRetention(cfg)
	g.undecodables = newUndecodables(cfg)
	g.appender = newAppender(cfg.Store, cfg.InFlightBytes, g.appended)
	if g.instruments, err = newInstruments(cfg.Meter, g); err != nil {
		return nil, err
	}
	return g, nil
}

// Run keeps retention, and dead letters of what cannot be decoded, until ctx ends, then shuts down: see Shutdown. It returns once the batches under
// way are answered and every stream has ended; neither takes longer than about 10 s.
func (g *Gateway) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return g.retention.run(ctx) })
	group.Go(func() error { return g.undecodables.run(ctx) })
	err := group.Wait()
	g.Shutdown()
	g.appender.close(finishLimit)
	ended := make(chan struct{})
	go func() { defer close(ended); g.streams.Wait() }()
	limit := time.NewTimer(finishLimit)
	defer limit.Stop()
	select {
	case <-ended:
	case <-limit.C: // a connection that neither takes nor breaks: its server has to end it
		g.cfg.Logger.Warn("streams are left behind: their connections are blocked")
	}
	g.instruments.close()
	return err
}

// Shutdown stops the intake: streams end with UNAVAILABLE and reason SHUTTING_DOWN, and users'
// publishes are refused so. Publish, for the process itself, goes on until Run's context ends. It
// returns at once. A caller that drains a gRPC server calls it first, since open streams would hold it.
func (g *Gateway) Shutdown() {
	g.stopped.Do(func() {
		g.mu.Lock()
		close(g.stop)
		g.mu.Unlock()
	})
}

func (g *Gateway) stopping() bool {
	select {
	case <-g.stop:
		return true
	default:
		return false
	}
}

// appended hears of every append.
func (g *Gateway) appended(topic string, events, bytes int) {
	g.instruments.appended(topic, events, bytes)
	g.retention.grew(topic, bytes)
}

// stream starts a goroutine that belongs to a stream, unless the gateway is stopping.
func (g *Gateway) stream(f func()) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.stopping() {
		return errShuttingDown()
	}
	g.streams.Go(f)
	return nil
}

func errShuttingDown() error {
	return rpcerr.New(codes.Unavailable, rpcerr.ShuttingDown,
		"this gateway is shutting down; nothing was done: try again, at another one if there is", nil)
}
