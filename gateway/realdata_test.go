package gateway

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	cloudevents "github.com/cloudevents/sdk-go/binding/format/protobuf/v2/pb"

	"github.com/turnlane/turnlane/event"
	turnlanev1 "github.com/turnlane/turnlane/proto/turnlane/v1"
)

// realEvents reads a file of JSON lines, at most n of them.
func realEvents(t *testing.T, path string, n int) (lines [][]byte, events []*event.Event) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	scan := bufio.NewScanner(z)
	scan.Buffer(nil, 4<<20)
	for scan.Scan() && len(lines) < n {
		line := bytes.Clone(scan.Bytes())
		e, err := event.ParseJSON(line)
		if err != nil {
			t.Fatalf("line %d: %v", len(lines)+1, err)
		}
		lines, events = append(lines, line), append(events, e)
	}
	if err := scan.Err(); err != nil {
		t.Fatal(err)
	}
	return lines, events
}

// Real events of three kinds go in by every way and come out as they went in.
func TestRealEvents(t *testing.T) {
	const each = 300
	s := newServer(t)
	for _, path := range []string{
		"../event/testdata/quakes.cloudevents.jsonl.gz",
		"../event/testdata/webhooks.cloudevents.jsonl.gz",
		"../examples/flights/data/flights.cloudevents.jsonl.gz",
	} {
		lines, events := realEvents(t, path, each)
		for name, publish := range map[string]func(topic string){
			"grpc": func(topic string) {
				req := &turnlanev1.PublishEventsRequest{Topic: topic}
				for _, e := range events {
					p, err := event.ToProto(e)
					if err != nil {
						t.Fatal(err)
					}
					req.Events = append(req.Events, p)
				}
				if _, err := s.client.PublishEvents(deadline(t), req); err != nil {
					t.Fatal(err)
				}
			},
			"structured": func(topic string) {
				for _, line := range lines {
					s.accept(topic, map[string]string{"Content-Type": event.JSONMediaType}, line)
				}
			},
			"batch": func(topic string) {
				body := append(append([]byte("["), bytes.Join(lines, []byte(","))...), ']')
				s.accept(topic, map[string]string{"Content-Type": event.JSONBatchMediaType}, body)
			},
			"binary": func(topic string) {
				for _, e := range events {
					h, body, err := event.ToHTTP(e)
					if err != nil {
						t.Fatal(err)
					}
					headers := map[string]string{}
					for name := range h {
						headers[name] = h.Get(name)
					}
					s.accept(topic, headers, body)
				}
			},
		} {
			t.Run(filepath.Base(path)+"/"+name, func(t *testing.T) {
				topic := "real-" + filepath.Base(path) + "-" + name
				publish(topic)
				sub := s.subscribe(&turnlanev1.SubscribeRequest{Topic: topic, From: earliest(), Until: tail()})
				sub.rest()
				if len(sub.events) != len(events) {
					t.Fatalf("%d events came of %d", len(sub.events), len(events))
				}
				for i, p := range sub.events {
					got, err := event.FromProto(p)
					if err != nil {
						t.Fatal(err)
					}
					want := events[i]
					if name == "binary" { // HTTP has no types: extensions are strings
						want = want.Clone()
						for i := range want.Extensions {
							want.Extensions[i].Value = event.String(want.Extensions[i].Value.String())
						}
					}
					if !got.Equal(want) {
						t.Fatalf("event %d came out as\n%+v, want\n%+v", i, got, want)
					}
				}
			})
		}
	}
}

func (s *server) accept(topic string, headers map[string]string, body []byte) {
	s.t.Helper()
	if code, out := s.do("POST", "/v1/topics/"+topic+"/events", headers, bytes.NewReader(body)); code != http.StatusAccepted {
		s.t.Fatalf("%d: %v", code, out)
	}
}

// Everything that an event can have comes out as it went in, and nothing is added.
func TestNothingIsRewritten(t *testing.T) {
	s := newServer(t)
	e := &event.Event{ID: "  id ", Source: "../s?x#y", Type: "t", Subject: "Ünïcode 😀", Time: "1985-04-12t23:20:50.520-00:00",
		DataContentType: `text/plain; charset="utf-8"`, DataSchema: "https://example.com/s", Data: []byte("line\r\n"), DataKind: event.TextData}
	for i := range 20 {
		values := []event.Value{event.Boolean(i%3 == 0), event.Integer(int32(-i)), event.String("s"), event.Binary([]byte{0, byte(i)}),
			event.URI("https://example.com"), event.URIRef("/x"), event.Timestamp("2020-01-01T00:00:00Z")}
		e.SetExtension(fmt.Sprintf("x%d", i), values[i%len(values)])
	}
	e.SetExtension("traceparent", event.String("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"))
	p, err := event.ToProto(e)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.client.PublishEvents(deadline(t), &turnlanev1.PublishEventsRequest{Topic: "t", Events: []*cloudevents.CloudEvent{p}}); err != nil {
		t.Fatal(err)
	}
	sub := s.subscribe(&turnlanev1.SubscribeRequest{Topic: "t", From: earliest(), Until: tail()})
	sub.rest()
	got, err := event.FromProto(sub.events[0])
	if err != nil || !got.Equal(e) {
		t.Errorf("got %+v, %v\nwant %+v", got, err, e)
	}
}
