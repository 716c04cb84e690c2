// Package client is a thin gRPC client of a Turnlane server, as the command line and the examples use
// it.
//
// It connects when the first call is made and again after a loss. Calls return the errors of gRPC;
// Explain makes one line for people of them.
package client

import (
	"context"
	"fmt"
	"net"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	turnlanev1 "github.com/turnlane/turnlane/proto/turnlane/v1"
)

// DefaultAddr is where "turnlane dev" listens for gRPC.
const DefaultAddr = "127.0.0.1:7400"

// EnvAddr names the environment variable that holds the address of the server.
const EnvAddr = "TURNLANE_ADDR"

// maxReceive bounds one message of the server, in bytes. Batches are far smaller; one event may be as
// large as the server's limit.
const maxReceive = 64 << 20

// Client is a connection to one server. Its services are safe for concurrent use.
type Client struct {
	addr string
	conn *grpc.ClientConn

	Gateway     turnlanev1.GatewayServiceClient
	Workers     turnlanev1.WorkManagerServiceClient
	DeadLetters turnlanev1.DeadLetterServiceClient
}

// Dial returns a client of the server at host:port; "" means DefaultAddr. It does not connect yet. The
// caller closes the client.
func Dial(addr string) (*Client, error) {
	if addr == "" {
		addr = DefaultAddr
	}
	if err := checkAddr(addr); err != nil {
		return nil, err
	}
	conn, err := grpc.NewClient(addr,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxReceive)),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 2 * time.Second},
			MinConnectTimeout: 5 * time.Second,
		}))
	if err != nil {
		return nil, fmt.Errorf("address %q: %w", addr, err)
	}
	return &Client{
		addr:        addr,
		conn:        conn,
		Gateway:     turnlanev1.NewGatewayServiceClient(conn),
		Workers:     turnlanev1.NewWorkManagerServiceClient(conn),
		DeadLetters: turnlanev1.NewDeadLetterServiceClient(conn),
	}, nil
}

// ReadyService is the name under which a server's health says whether it is ready: whether its store can
// be read and written, and the process is a member. The health of "" says only that it serves.
const ReadyService = "turnlane.Ready"

// Ready asks a server whether it is ready. The error says what is missing.
func (c *Client) Ready(ctx context.Context) error {
	resp, err := healthv1.NewHealthClient(c.conn).Check(ctx, &healthv1.HealthCheckRequest{Service: ReadyService})
	if err != nil {
		return c.Explain(err)
	}
	if s := resp.GetStatus(); s != healthv1.HealthCheckResponse_SERVING {
		return fmt.Errorf("the server at %s is not ready: it says %s", c.addr, s)
	}
	return nil
}

// Addr returns the address that was dialled.
func (c *Client) Addr() string { return c.addr }

// Close ends the connection and every call on it.
func (c *Client) Close() {
	_ = c.conn.Close() // it fails only when it is closed already
}

func checkAddr(addr string) error {
	if scheme, _, found := strings.Cut(addr, "://"); found {
		return fmt.Errorf("address %q: leave out %s:// and give host:port, such as %s", addr, scheme, DefaultAddr)
	}
	host, port, err := net.SplitHostPort(addr)
	switch {
	case err != nil:
		return fmt.Errorf("address %q: want host:port, such as %s", addr, DefaultAddr)
	case host == "":
		return fmt.Errorf("address %q: the host is missing; want host:port, such as %s", addr, DefaultAddr)
	}
	if n, err := net.LookupPort("tcp", port); err != nil || n == 0 {
		return fmt.Errorf("address %q: %q is not a port; want host:port, such as %s", addr, port, DefaultAddr)
	}
	return nil
}
