package main

import (
	"context"
	"testing"
	"time"

	cepb "github.com/cloudevents/sdk-go/binding/format/protobuf/v2/pb"

	"github.com/turnlane/turnlane"
	"github.com/turnlane/turnlane/actor"
	"github.com/turnlane/turnlane/actor/actortest"
	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/internal/client"
	turnlanev1 "github.com/turnlane/turnlane/proto/turnlane/v1"
)

func world() *event.Event {
	return &event.Event{ID: "1", Source: "/test", Type: "name", Data: []byte("world"), DataKind: event.TextData}
}

func TestHelloAlone(t *testing.T) {
	r := actortest.Run(t, actor.HandlerFunc(hello), actor.Worker{}, world())[0]
	if r.Outcome != actor.OutcomeDone || len(r.Outputs) != 1 || string(r.Outputs[0].Event.Data) != "hello, world" {
		t.Errorf("%+v", r)
	}
}

func TestHelloOnAServer(t *testing.T) {
	srv, err := turnlane.NewServer(turnlane.Config{GRPCAddr: "127.0.0.1:0", HTTPAddr: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	srv.HandleFunc("hello", hello)
	serving, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- srv.Run(serving) }()
	select {
	case <-srv.Ready():
	case err := <-ended:
		t.Fatalf("the server ended with %v", err)
	}
	defer func() {
		stop()
		if err := <-ended; err != nil {
			t.Errorf("the server ended with %v", err)
		}
	}()

	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	c, err := client.Dial(srv.GRPCAddr())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	created, err := c.Workers.CreateWorker(ctx, &turnlanev1.CreateWorkerRequest{Type: "hello", Topics: []string{"names"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Workers.StartWorker(ctx, &turnlanev1.StartWorkerRequest{Worker: created.GetWorker().GetId()}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Publish(ctx, "names", world()); err != nil {
		t.Fatal(err)
	}
	var got string
	err = c.Read(ctx, client.Read{Topic: "greetings", From: client.Earliest(), Event: func(_ event.Position, p *cepb.CloudEvent) error {
		e, err := event.FromProto(p)
		if err != nil {
			return err
		}
		got = string(e.Data)
		return client.ErrStop
	}})
	if err != nil || got != "hello, world" {
		t.Errorf("greeted %q, %v", got, err)
	}
}
