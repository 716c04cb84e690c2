package client

import (
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"testing"

	cepb "github.com/cloudevents/sdk-go/binding/format/protobuf/v2/pb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/internal/rpcerr"
	turnlanev1 "github.com/turnlane/turnlane/proto/turnlane/v1"
)

// script is a gateway whose streams do what a test says.
type script struct {
	turnlanev1.UnimplementedGatewayServiceServer
	publish   func(turnlanev1.GatewayService_PublishStreamServer) error
	subscribe func(*turnlanev1.SubscribeRequest, turnlanev1.GatewayService_SubscribeServer) error
}

func (s *script) PublishStream(stream turnlanev1.GatewayService_PublishStreamServer) error {
	return s.publish(stream)
}

func (s *script) Subscribe(req *turnlanev1.SubscribeRequest, stream turnlanev1.GatewayService_SubscribeServer) error {
	return s.subscribe(req, stream)
}

func serve(t *testing.T, s *script) *Client {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	turnlanev1.RegisterGatewayServiceServer(server, s)
	go server.Serve(l)
	t.Cleanup(server.Stop)
	c, err := Dial(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// numbered offers n batches of one event, with their number as line, until done is closed.
func numbered(n int, done <-chan struct{}) <-chan Batch {
	batches := make(chan Batch)
	go func() {
		defer close(batches)
		for i := range n {
			e := &event.Event{ID: strconv.Itoa(i), Source: "/s", Type: "t"}
			select {
			case batches <- Batch{Events: []*event.Event{e}, Lines: []int{i}}:
			case <-done:
				return
			}
		}
	}()
	return batches
}

// Given a server that refuses batch 20, and ends the stream after 50 answers or not at all, every batch
// that was sent is settled once, in order, with what became of it.
func TestPublishStreamSettlesEverythingSent(t *testing.T) {
	for _, c := range []struct {
		name            string
		refuse, breakAt int // -1: never
		wantErr         codes.Code
	}{
		{"all is well", -1, -1, codes.OK},
		{"one is refused", 20, -1, codes.InvalidArgument},
		{"the stream breaks", -1, 50, codes.DataLoss},
		{"the stream breaks at once", -1, 0, codes.DataLoss},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := &script{publish: func(stream turnlanev1.GatewayService_PublishStreamServer) error {
				for i := 0; ; i++ {
					if i == c.breakAt {
						return rpcerr.New(codes.DataLoss, rpcerr.Internal, "the log is broken; look at it", nil)
					}
					if _, err := stream.Recv(); errors.Is(err, io.EOF) {
						return nil
					} else if err != nil {
						return err
					}
					resp := &turnlanev1.PublishStreamResponse{Positions: []string{fmt.Sprintf("1-%d", i)}}
					if i == c.refuse {
						resp = &turnlanev1.PublishStreamResponse{Error: &turnlanev1.Error{
							Code: int32(codes.InvalidArgument), Reason: rpcerr.InvalidField, Message: "no", Metadata: map[string]string{"field": "x"}}}
					}
					if err := stream.Send(resp); err != nil {
						return err
					}
				}
			}}
			client := serve(t, s)
			const n = 200
			done := make(chan struct{})
			defer close(done)
			settled := 0
			err := client.PublishStream(t.Context(), "t", numbered(n, done), func(b Batch, positions []event.Position, err error) {
				if b.Lines[0] != settled {
					t.Fatalf("batch %d is settled in place of %d", b.Lines[0], settled)
				}
				var e *Error
				switch {
				case settled == c.refuse:
					if !errors.As(err, &e) || e.Reason != rpcerr.InvalidField || e.Facts["field"] != "x" {
						t.Errorf("batch %d: %v", settled, err)
					}
				case c.breakAt >= 0 && settled >= c.breakAt:
					if !errors.As(err, &e) || e.Reason != rpcerr.OutcomeUnknown {
						t.Errorf("batch %d: %v", settled, err)
					}
				case err != nil || !slices.Equal(positions, []event.Position{{Ms: 1, Seq: uint64(settled)}}):
					t.Errorf("batch %d: %v %v", settled, positions, err)
				}
				settled++
			})
			var e *Error
			if got := codes.OK; errors.As(err, &e) && e.Code != c.wantErr || err == nil && got != c.wantErr {
				t.Errorf("got %v, want %s", err, c.wantErr)
			}
			if err == nil && settled != n {
				t.Errorf("%d batches are settled", settled)
			}
		})
	}
}

// Given a server that loses each reader after some entries, at changing places, a reading sees every
// event once and in order, and is told of each loss once.
func TestReadGoesOnWhereItWas(t *testing.T) {
	const entries = 50
	connections := 0
	c := serve(t, &script{subscribe: func(req *turnlanev1.SubscribeRequest, stream turnlanev1.GatewayService_SubscribeServer) error {
		connections++
		next := uint64(0)
		if p := req.GetFrom().GetPosition(); p != "" {
			at, err := event.ParsePosition(p)
			if err != nil {
				return err
			}
			next = at.Seq
		}
		started := &turnlanev1.Started{After: event.Position{Ms: 1, Seq: next}.Prev().String()}
		if err := stream.Send(&turnlanev1.SubscribeResponse{Response: &turnlanev1.SubscribeResponse_Started{Started: started}}); err != nil {
			return err
		}
		for ; next < entries; next++ {
			if next%13 == 12 && next > uint64(connections*10) {
				return rpcerr.New(codes.Aborted, rpcerr.SubscriberStalled, "you were slow", nil)
			}
			p := event.Position{Ms: 1, Seq: next}.String()
			batch := &turnlanev1.EventBatch{From: started.After, To: p, Events: []*turnlanev1.StoredEvent{{Position: p, Event: &cepb.CloudEvent{Id: p}}}}
			if next%5 == 4 { // an empty range moves a reading too
				batch.Events = nil
			}
			if err := stream.Send(&turnlanev1.SubscribeResponse{Response: &turnlanev1.SubscribeResponse_Batch{Batch: batch}}); err != nil {
				return err
			}
		}
		return nil
	}})
	want, lost, started := uint64(0), 0, 0
	err := c.Read(t.Context(), Read{
		Topic: "t", From: Earliest(), Until: Tail(),
		Started: func(event.Position) { started++ },
		Event: func(p event.Position, e *cepb.CloudEvent) error {
			if want%5 == 4 {
				want++
			}
			if p != (event.Position{Ms: 1, Seq: want}) || e.GetId() != p.String() {
				t.Fatalf("got %s, want %d", p, want)
			}
			want++
			return nil
		},
		Lost: func(error) { lost++ },
	})
	if err != nil || want != entries-1 || lost != connections-1 || lost < 2 || started != 1 {
		t.Errorf("%v; next is %d, %d connections, %d losses told, %d starts", err, want, connections, lost, started)
	}
}

func TestReadEnds(t *testing.T) {
	refusal := rpcerr.Invalid("topic", "is empty", "name one")
	c := serve(t, &script{subscribe: func(req *turnlanev1.SubscribeRequest, stream turnlanev1.GatewayService_SubscribeServer) error {
		if req.GetTopic() == "" {
			return refusal
		}
		p := "1-0"
		for _, r := range []*turnlanev1.SubscribeResponse{
			{Response: &turnlanev1.SubscribeResponse_Started{Started: &turnlanev1.Started{After: "0-0"}}},
			{Response: &turnlanev1.SubscribeResponse_Gap{Gap: &turnlanev1.Gap{First: "0-1", Last: "0-9", Kind: "trimmed"}}},
			{Response: &turnlanev1.SubscribeResponse_Batch{Batch: &turnlanev1.EventBatch{To: p, Events: []*turnlanev1.StoredEvent{{Position: p}}}}},
		} {
			if err := stream.Send(r); err != nil {
				return err
			}
		}
		if req.GetTopic() == "closed" {
			return nil
		}
		<-stream.Context().Done()
		return nil
	}})
	event1 := func(result error) func(event.Position, *cepb.CloudEvent) error {
		return func(event.Position, *cepb.CloudEvent) error { return result }
	}
	if err := c.Read(t.Context(), Read{Topic: "t", Event: event1(ErrStop)}); err != nil {
		t.Errorf("a callback that stops: %v", err)
	}
	own := errors.New("own")
	if err := c.Read(t.Context(), Read{Topic: "t", Event: event1(own)}); !errors.Is(err, own) {
		t.Errorf("a callback that fails: %v", err)
	}
	if err := c.Read(t.Context(), Read{Topic: "", Lost: func(error) { t.Error("lost") }, Event: event1(nil)}); err == nil || err.Error() != "topic: is empty; name one" {
		t.Errorf("a refusal: %v", err)
	}
	gaps := 0
	if err := c.Read(t.Context(), Read{Topic: "closed", Event: event1(nil), Gap: func(*turnlanev1.Gap) { gaps++ }}); err == nil || gaps != 1 {
		t.Errorf("an unbounded stream that ends is a loss: %v, %d gaps", err, gaps)
	}
}
