package turnlane_test

import (
	"context"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/turnlane/turnlane"
	turnlanev1 "github.com/turnlane/turnlane/proto/turnlane/v1"
)

// Clients that have sent half of a request, or hold a stream and do nothing, do not hold a server up:
// Run returns, in order.
func TestClientsThatDoNothingDoNotHoldRun(t *testing.T) {
	srv, err := turnlane.NewServer(config())
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- srv.Run(ctx) }()
	select {
	case <-srv.Ready():
	case err := <-ended:
		t.Fatal(err)
	}
	for _, half := range []string{
		"", // not even a request
		"POST /v1/topics/t/events HTTP/1.1\r\nHost: x\r\nContent-Ty",
		"POST /v1/topics/t/events HTTP/1.1\r\nHost: x\r\nContent-Type: text/plain\r\nContent-Length: 100\r\n\r\nhalf",
		"POST /v1/topics/t/events HTTP/1.1\r\nHost: x\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n",
	} {
		conn, err := net.Dial("tcp", srv.HTTPAddr())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := fmt.Fprint(conn, half); err != nil {
			t.Fatal(err)
		}
	}
	silent, err := net.Dial("tcp", srv.GRPCAddr())
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	conn, err := srv.Dial()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	gateway := turnlanev1.NewGatewayServiceClient(conn)
	subscription, err := gateway.Subscribe(t.Context(), &turnlanev1.SubscribeRequest{Topic: "t"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := subscription.Recv(); err != nil {
		t.Fatal(err)
	}
	publishing, err := gateway.PublishStream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := publishing.Send(&turnlanev1.PublishStreamRequest{Topic: "t", Events: nil}); err != nil {
		t.Fatal(err)
	}
	if _, err := publishing.Recv(); err != nil {
		t.Fatal(err)
	}

	stop()
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Fatal("Run has not returned")
	}
}
