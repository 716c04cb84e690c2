package gateway

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	cloudevents "github.com/cloudevents/sdk-go/binding/format/protobuf/v2/pb"

	"github.com/turnlane/turnlane/event"
	turnlanev1 "github.com/turnlane/turnlane/proto/turnlane/v1"
)

func benchEvents(n int) []*event.Event {
	events := make([]*event.Event, n)
	for i := range events {
		events[i] = &event.Event{ID: fmt.Sprintf("0190c0de-%08d", i), Source: "/bench", Type: "reading", Subject: fmt.Sprintf("key-%d", i),
			DataContentType: "application/json", Data: []byte(`{"v":"` + strings.Repeat("x", 180) + `"}`), DataKind: event.JSONData}
	}
	return events
}

func rate(b *testing.B, events int) {
	b.ReportMetric(float64(events)/b.Elapsed().Seconds(), "events/s")
}

// Single publishes by 64 goroutines, which the appender puts together.
func BenchmarkPublishSingles(b *testing.B) {
	for _, topics := range []int{1, 100} {
		b.Run(fmt.Sprintf("topics=%d", topics), func(b *testing.B) {
			s := newServer(b)
			const callers = 64
			events := benchEvents(callers)
			b.ReportAllocs()
			var left atomic.Int64
			left.Store(int64(b.N))
			var all sync.WaitGroup
			b.ResetTimer()
			for c := range callers {
				all.Go(func() {
					topic := fmt.Sprintf("t%d", c%topics)
					for left.Add(-1) >= 0 {
						if _, err := s.g.Publish(context.Background(), topic, events[c]); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			all.Wait()
			rate(b, b.N)
		})
	}
}

// Batches of 100 by four goroutines.
func BenchmarkPublishBatches(b *testing.B) {
	s := newServer(b)
	events := benchEvents(100)
	b.ReportAllocs()
	b.SetParallelism(2)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, err := s.g.Publish(context.Background(), "t", events...); err != nil {
				b.Error(err)
				return
			}
		}
	})
	rate(b, b.N*100)
}

func protoEvents(b *testing.B, n int) []*cloudevents.CloudEvent {
	list := make([]*cloudevents.CloudEvent, n)
	for i, e := range benchEvents(n) {
		p, err := event.ToProto(e)
		if err != nil {
			b.Fatal(err)
		}
		list[i] = p
	}
	return list
}

// Batches of 100 through one stream of the public interface.
func BenchmarkPublishStream(b *testing.B) {
	s := newServer(b)
	stream, err := s.client.PublishStream(context.Background())
	if err != nil {
		b.Fatal(err)
	}
	req := &turnlanev1.PublishStreamRequest{Topic: "t", Events: protoEvents(b, 100)}
	var answers sync.WaitGroup
	answers.Go(func() {
		for {
			if resp, err := stream.Recv(); err != nil || resp.GetError() != nil {
				return
			}
		}
	})
	n := 0
	for b.Loop() {
		if err := stream.Send(req); err != nil {
			b.Fatal(err)
		}
		n++
	}
	_ = stream.CloseSend()
	answers.Wait()
	rate(b, n*100)
}

// One publisher, many subscribers of its topic.
func BenchmarkSubscribeFanOut(b *testing.B) {
	for _, subscribers := range []int{1, 16} {
		b.Run(fmt.Sprint(subscribers), func(b *testing.B) {
			s := newServer(b)
			events := benchEvents(100)
			total := 100 * b.N
			var all sync.WaitGroup
			for range subscribers {
				ctx, cancel := context.WithCancel(b.Context())
				defer cancel()
				stream, err := s.client.Subscribe(ctx, &turnlanev1.SubscribeRequest{Topic: "t"})
				if err == nil {
					_, err = stream.Recv()
				}
				if err != nil {
					b.Fatal(err)
				}
				all.Go(func() {
					for got := 0; got < total; {
						resp, err := stream.Recv()
						if err != nil {
							b.Error(err)
							return
						}
						got += len(resp.GetBatch().GetEvents())
					}
				})
			}
			b.ReportAllocs()
			b.ResetTimer()
			for range b.N {
				if _, err := s.g.Publish(context.Background(), "t", events...); err != nil {
					b.Fatal(err)
				}
			}
			all.Wait()
			rate(b, total*subscribers)
		})
	}
}
