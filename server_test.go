package turnlane_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/turnlane/turnlane"
	"github.com/turnlane/turnlane/actor"
	"github.com/turnlane/turnlane/internal/client"
	"github.com/turnlane/turnlane/internal/rpcerr"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func config() turnlane.Config {
	return turnlane.Config{GRPCAddr: "127.0.0.1:0", HTTPAddr: "127.0.0.1:0", Logger: slog.New(slog.DiscardHandler)}
}

// start runs a server until the test ends, and checks that it ends without an error.
func start(t *testing.T, srv *turnlane.Server) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- srv.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	select {
	case <-srv.Ready():
	case err := <-ended:
		ended <- nil
		t.Fatalf("Run ended before the server was ready: %v", err)
	}
}

// Given every field wrong, when a server is made, then one error names them all.
func TestBadConfigNamesEveryField(t *testing.T) {
	_, err := turnlane.NewServer(turnlane.Config{GRPCAddr: "nowhere", HTTPAddr: ":x", DrainTimeout: -1})
	if err == nil {
		t.Fatal("no error")
	}
	for _, field := range []string{"GRPCAddr", "HTTPAddr", "DrainTimeout"} {
		if !strings.Contains(err.Error(), field) {
			t.Errorf("%v: does not name %s", err, field)
		}
	}
}

// Given a context that has ended already, when a server runs, then it returns in order.
func TestRunWithEndedContext(t *testing.T) {
	srv, err := turnlane.NewServer(config())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := srv.Run(ctx); err != nil {
		t.Errorf("Run: %v", err)
	}
	if err := srv.Run(ctx); err == nil {
		t.Error("a second Run is allowed")
	}
}

func TestServerIsHealthyOnceReady(t *testing.T) {
	srv, err := turnlane.NewServer(config())
	if err != nil {
		t.Fatal(err)
	}
	start(t, srv)
	conn, err := srv.Dial()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for _, service := range []string{"", "turnlane.v1.GatewayService", "turnlane.v1.WorkManagerService", "turnlane.v1.DeadLetterService"} {
		resp, err := grpc_health_v1.NewHealthClient(conn).Check(t.Context(), &grpc_health_v1.HealthCheckRequest{Service: service})
		if err != nil || resp.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING {
			t.Errorf("health of %q: %v, %v", service, resp, err)
		}
	}
	// What cannot be read is the client's mistake, on every way in.
	bad := &grpc_health_v1.HealthCheckRequest{}
	bad.ProtoReflect().SetUnknown([]byte{0x0a, 1, 0xff}) // field 1, a string
	err = conn.Invoke(t.Context(), "/turnlane.v1.WorkManagerService/GetWorker", bad, &grpc_health_v1.HealthCheckResponse{})
	if facts := rpcerr.Info(err).GetMetadata(); rpcerr.Reason(err) != rpcerr.InvalidField || facts["field"] != "worker" {
		t.Errorf("a name that is not UTF-8: %v, %v", err, facts)
	}
	c, err := client.Dial(srv.GRPCAddr())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.Ready(t.Context()); err != nil {
		t.Errorf("ready: %v", err)
	}
}

func TestHandleRefusesMistakes(t *testing.T) {
	none := func(*actor.Worker) (actor.Handler, error) { return nil, nil }
	for name, types := range map[string][]string{
		"bad name": {"not a type"},
		"empty":    {""},
		"twice":    {"a", "a"},
	} {
		t.Run(name, func(t *testing.T) {
			srv, err := turnlane.NewServer(config())
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			for _, workerType := range types {
				srv.Handle(workerType, none)
			}
		})
	}
}
