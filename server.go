package turnlane

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"

	"github.com/turnlane/turnlane/deadletter"
	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/gateway"
	"github.com/turnlane/turnlane/internal/builtin"
	"github.com/turnlane/turnlane/internal/catalog"
	"github.com/turnlane/turnlane/internal/fanout"
	"github.com/turnlane/turnlane/internal/metrics"
	"github.com/turnlane/turnlane/internal/rpcerr"
	"github.com/turnlane/turnlane/internal/session"
	turnlanev1 "github.com/turnlane/turnlane/proto/turnlane/v1"
	"github.com/turnlane/turnlane/runtime"
	"github.com/turnlane/turnlane/store"
	"github.com/turnlane/turnlane/store/pebblestore"
	"github.com/turnlane/turnlane/workmanager"
)

const (
	// closeLimit is how long requests under way may take when the server stops.
	closeLimit = 5 * time.Second
	// streamWriteLimit is how long a client of a stream over HTTP may take nothing.
	streamWriteLimit = time.Minute
	// idleLimit and headerLimit protect the HTTP listener from clients that only hold connections.
	idleLimit   = 2 * time.Minute
	headerLimit = 10 * time.Second
)

var typeName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// Server is every role in one process on the embedded store.
type Server struct {
	cfg   Config
	ready chan struct{}

	mu       sync.Mutex
	running  bool
	handlers map[string]Factory
	grpcAddr string // valid once ready
	httpAddr string
}

// NewServer checks the configuration, and reports every problem of it at once. It opens and starts
// nothing: Run does.
func NewServer(cfg Config) (*Server, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("turnlane: %w", err)
	}
	return &Server{cfg: cfg, ready: make(chan struct{}), handlers: make(map[string]Factory)}, nil
}

// Ready returns a channel that is closed once the server serves.
func (s *Server) Ready() <-chan struct{} { return s.ready }

// GRPCAddr returns the address of the gRPC listener. It is empty until the server is ready.
func (s *Server) GRPCAddr() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.grpcAddr
}

// HTTPAddr returns the address of the HTTP listener. It is empty until the server is ready.
func (s *Server) HTTPAddr() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.httpAddr
}

// Dial connects to the server, which must be ready. The caller closes the connection.
func (s *Server) Dial() (*grpc.ClientConn, error) {
	return grpc.NewClient(s.GRPCAddr(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(gateway.MaxMessageBytes)))
}

// Run serves until ctx ends, then stops in order: no new requests, running turns to their end within
// DrainTimeout, their outputs and cursors stored, the store closed. It returns after its last goroutine
// has, with an error if the server could not start, if a part of it failed, or if something could not be
// brought to its end. It may be called once.
func (s *Server) Run(ctx context.Context) (err error) {
	s.mu.Lock()
	if s.running {
		s.mu.Unlock()
		return errors.New("turnlane: Run called twice")
	}
	s.running = true
	s.mu.Unlock()

	grpcListener, err := net.Listen("tcp", s.cfg.GRPCAddr)
	if err != nil {
		return fmt.Errorf("turnlane: listen for gRPC: %w", err)
	}
	defer grpcListener.Close()
	httpListener, err := net.Listen("tcp", s.cfg.HTTPAddr)
	if err != nil {
		return fmt.Errorf("turnlane: listen for HTTP: %w", err)
	}
	defer httpListener.Close()

	db, err := pebblestore.Open(pebblestore.Options{Dir: s.cfg.DataDir, Fsync: s.cfg.Fsync, Logger: s.cfg.Logger})
	if err != nil {
		return fmt.Errorf("turnlane: open the store: %w", err)
	}
	defer func() { err = errors.Join(err, db.Close()) }()

	p, err := s.assemble(db)
	if err != nil {
		return fmt.Errorf("turnlane: %w", err)
	}
	return p.run(ctx, grpcListener, httpListener)
}

// process is the parts of a running server.
type process struct {
	server  *Server
	metrics *metrics.Metrics
	hub     *fanout.Hub
	session *session.Keeper
	gateway *gateway.Gateway
	runtime *runtime.Runtime
	manager *workmanager.Manager
	letters *deadletter.Service
	health  *health.Server
	grpc    *grpc.Server
	http    *http.Server
}

// assemble makes the parts; it starts none.
func (s *Server) assemble(db store.Store) (*process, error) {
	p := &process{server: s, health: health.NewServer()}
	var err error
	if p.metrics, err = metrics.New(); err != nil {
		return nil, err
	}
	log, meter := s.cfg.Logger, p.metrics.Meter()
	feeds, err := gateway.NewFeedMeter(meter)
	if err != nil {
		return nil, err
	}
	hooks := feeds.Hooks()
	count := hooks.Bad
	hooks.Bad = func(topic string, entry event.Entry, err error) {
		count(topic, entry, err)
		p.gateway.Undecodable(topic, entry, err)
	}
	p.hub = fanout.New(fanout.Config{Upstream: db, Logger: log.With("role", "fanout"), Hooks: hooks})
	feeds.Watch(p.hub)
	if p.gateway, err = gateway.New(gateway.Config{Store: db, Hub: p.hub, Commands: catalog.NewDirectory(db), Logger: log.With("role", "gateway"),
		Meter: meter, TracerProvider: s.cfg.TracerProvider}); err != nil {
		return nil, err
	}

	types := builtin.Types(p.gateway.ForHandlers())
	maps.Copy(types, s.handlers)
	if p.session, err = session.New(session.Config{Leases: db, Logger: log, Info: store.SessionInfo{
		Pod: s.cfg.Pod, Addr: s.cfg.GRPCAddr, Version: Version,
		Roles: []string{"gateway", "runtime", "workmanager"},
		Types: slices.Sorted(maps.Keys(types)),
	}}); err != nil {
		return nil, err
	}
	if p.runtime, err = runtime.New(runtime.Config{
		Store: db, Hub: p.hub, Session: p.session, Types: types, Publisher: p.gateway, Pod: s.cfg.Pod, Version: Version,
		MaxTurns: s.cfg.MaxTurns, DrainTimeout: s.cfg.DrainTimeout, Logger: log.With("role", "runtime"), Meter: meter,
		TracerProvider: s.cfg.TracerProvider,
	}); err != nil {
		return nil, err
	}
	if p.manager, err = workmanager.New(workmanager.Config{
		Store: db, Session: p.session, Inspector: p.runtime, Publisher: p.gateway, Follower: follower{p.hub}, Slots: counter{p.hub},
		DrainLimit: s.cfg.DrainTimeout, Logger: log.With("role", "workmanager"), Meter: meter,
	}); err != nil {
		return nil, err
	}

	if p.letters, err = deadletter.New(deadletter.Config{
		Store: db, Session: p.session, Logger: log.With("role", "deadletter"), Meter: meter,
	}); err != nil {
		return nil, err
	}

	p.grpc = grpc.NewServer(append(rpcerr.ServerOptions(),
		grpc.MaxRecvMsgSize(gateway.MaxMessageBytes),
		grpc.ConnectionTimeout(closeLimit), // a stop waits for connections that have not said a word
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: time.Minute, Timeout: 20 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}),
	)...)
	turnlanev1.RegisterGatewayServiceServer(p.grpc, p.gateway)
	turnlanev1.RegisterWorkManagerServiceServer(p.grpc, p.manager)
	turnlanev1.RegisterDeadLetterServiceServer(p.grpc, p.letters)
	checks := append(p.gateway.Checks(), gateway.Check{Name: "session", Do: p.checkSession})
	p.setServing(healthv1.HealthCheckResponse_NOT_SERVING) // until run has made it ready
	healthv1.RegisterHealthServer(p.grpc, readiness{p.health, checks})
	reflection.Register(p.grpc)
	services, err := gateway.JSON(p.grpc, gateway.MaxMessageBytes, streamWriteLimit)
	if err != nil {
		return nil, err
	}

	mux := http.NewServeMux()
	mux.Handle("/v1/", p.gateway.HTTP())
	mux.Handle("/metrics", p.metrics.Handler())
	mux.Handle("/livez", gateway.Livez())
	mux.Handle("/readyz", gateway.Readyz(checks...))
	mux.Handle("/", services)
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true) // streams both ways need it
	p.http = &http.Server{Handler: mux, Protocols: protocols, ReadHeaderTimeout: headerLimit, IdleTimeout: idleLimit}
	return p, nil
}

// checkSession is the condition of readiness that the process is a member.
func (p *process) checkSession(context.Context) error {
	if _, ok := p.session.Current(); !ok {
		return errors.New("no session: the store has not taken the process as a member, or could not be reached in time")
	}
	return nil
}

// run starts the parts, and stops them in the order senders, then receivers:
//
//	intake (listeners, streams) → dead letters → workmanager → runtime → gateway → session → hub
func (p *process) run(ctx context.Context, grpcListener, httpListener net.Listener) error {
	parts := newParts(ctx)
	hub := parts.start("fan-out", p.hub.Run)
	keeper := parts.start("session", p.session.Run)
	publishing := parts.start("gateway", p.gateway.Run)
	turns := parts.start("runtime", p.runtime.Run)
	catalog := parts.start("workmanager", p.manager.Run)
	letters := parts.start("dead letters", p.letters.Run)
	intake := parts.start("listeners", func(ctx context.Context) error {
		return p.serve(ctx, grpcListener, httpListener)
	})
	if p.awaitSession(parts.failed) {
		p.server.mu.Lock()
		p.server.grpcAddr, p.server.httpAddr = grpcListener.Addr().String(), httpListener.Addr().String()
		p.server.mu.Unlock()
		p.setServing(healthv1.HealthCheckResponse_SERVING)
		close(p.server.ready)
	}

	<-parts.failed.Done()
	p.health.Shutdown()
	p.session.Update(func(info *store.SessionInfo) { info.Draining = true })
	for _, stop := range []func(){intake, letters, catalog, turns, publishing, keeper, hub} {
		stop()
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeLimit)
	defer cancel()
	return errors.Join(parts.err(), p.metrics.Shutdown(ctx))
}

// setServing says of the server as a whole, which is the name "", and of each of its own services whether
// it serves. They stand and fall together.
func (p *process) setServing(s healthv1.HealthCheckResponse_ServingStatus) {
	p.health.SetServingStatus("", s)
	for name := range p.grpc.GetServiceInfo() {
		if strings.HasPrefix(name, "turnlane.") {
			p.health.SetServingStatus(name, s)
		}
	}
}

// awaitSession waits until the process is a member; it returns false if ctx ends first.
func (p *process) awaitSession(ctx context.Context) bool {
	for {
		changed := p.session.Changes()
		if _, ok := p.session.Current(); ok {
			return true
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}

// serve serves both listeners until ctx ends, then ends what is under way: streams at once, requests
// within closeLimit.
func (p *process) serve(ctx context.Context, grpcListener, httpListener net.Listener) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		if err := p.grpc.Serve(grpcListener); !errors.Is(err, grpc.ErrServerStopped) {
			return err
		}
		return nil // stopped before it began
	})
	group.Go(func() error {
		if err := p.http.Serve(httpListener); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	group.Go(func() error {
		<-ctx.Done()
		p.gateway.Shutdown()
		p.letters.Shutdown()
		p.manager.EndWaiting()
		hard := time.AfterFunc(closeLimit, p.grpc.Stop)
		defer hard.Stop()
		limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeLimit)
		defer cancel()
		var both sync.WaitGroup
		both.Go(func() {
			if err := p.http.Shutdown(limit); err != nil {
				_ = p.http.Close()
			}
		})
		both.Go(p.grpc.GracefulStop)
		both.Wait()
		return nil
	})
	return group.Wait()
}
