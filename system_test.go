package turnlane_test

import (
	"context"
	"testing"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/binding/format/protobuf/v2/pb"
	"google.golang.org/grpc"

	"github.com/turnlane/turnlane"
	turnlanev1 "github.com/turnlane/turnlane/proto/turnlane/v1"
)

// system is a running server, and its services as clients see them.
type system struct {
	t       *testing.T
	server  *turnlane.Server
	conn    *grpc.ClientConn
	gateway turnlanev1.GatewayServiceClient
	manager turnlanev1.WorkManagerServiceClient
	ctx     context.Context // of calls; it only turns a test that hangs into one that fails
}

func newSystem(t *testing.T, cfg turnlane.Config, handlers map[string]turnlane.HandlerFunc) *system {
	t.Helper()
	srv, err := turnlane.NewServer(cfg)
	if err != nil {
		t.Fatal(err)
	}
	for name, handle := range handlers {
		srv.HandleFunc(name, handle)
	}
	start(t, srv)
	conn, err := srv.Dial()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return &system{t, srv, conn, turnlanev1.NewGatewayServiceClient(conn), turnlanev1.NewWorkManagerServiceClient(conn), ctx}
}

// startWorker creates a worker and starts it.
func (s *system) startWorker(req *turnlanev1.CreateWorkerRequest) {
	s.t.Helper()
	if _, err := s.manager.CreateWorker(s.ctx, req); err != nil {
		s.t.Fatal(err)
	}
	if _, err := s.manager.StartWorker(s.ctx, &turnlanev1.StartWorkerRequest{Worker: req.GetId()}); err != nil {
		s.t.Fatal(err)
	}
}

func (s *system) publish(topic string, events ...*cloudevents.CloudEvent) []string {
	s.t.Helper()
	resp, err := s.gateway.PublishEvents(s.ctx, &turnlanev1.PublishEventsRequest{Topic: topic, Events: events})
	if err != nil {
		s.t.Fatal(err)
	}
	return resp.GetPositions()
}

func (s *system) subscribe(topic string) turnlanev1.GatewayService_SubscribeClient {
	s.t.Helper()
	stream, err := s.gateway.Subscribe(s.ctx, &turnlanev1.SubscribeRequest{Topic: topic})
	if err != nil {
		s.t.Fatal(err)
	}
	if first, err := stream.Recv(); err != nil || first.GetStarted() == nil {
		s.t.Fatalf("got %v, %v", first, err)
	}
	return stream
}

func textEvent(id string) *cloudevents.CloudEvent {
	return &cloudevents.CloudEvent{Id: id, Source: "/test", SpecVersion: "1.0", Type: "t",
		Data: &cloudevents.CloudEvent_TextData{TextData: "x"}}
}
