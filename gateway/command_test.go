package gateway

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	cloudevents "github.com/cloudevents/sdk-go/binding/format/protobuf/v2/pb"
	"google.golang.org/grpc/codes"

	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/internal/rpcerr"
	turnlanev1 "github.com/turnlane/turnlane/proto/turnlane/v1"
	"github.com/turnlane/turnlane/store"
)

// directory knows one worker, "w" of type "echo", and cannot look for "lost".
type directory struct{}

func (directory) Exists(_ context.Context, typ, id string) (bool, error) {
	if id == "lost" {
		return false, store.ErrUnavailable
	}
	return typ == "echo" && id == "w", nil
}

// Users write to topics of workers only as commands to one that exists, whichever way they come.
func TestCommandsToWorkersThatExist(t *testing.T) {
	s := newServer(t, func(c *Config) { c.Commands = directory{} })
	ctx := deadline(t)
	astray := numbered(0, 1)
	astray[0].Attributes = map[string]*cloudevents.CloudEventAttributeValue{
		"replyto": {Attr: &cloudevents.CloudEventAttributeValue_CeString{CeString: "sys.x"}}}
	for _, c := range []struct {
		name, topic string
		events      []*cloudevents.CloudEvent
		field       string // "" for what is taken
		says        string
	}{
		{"a command", "wrk.echo.command.w", numbered(0, 2), "", ""},
		{"to nobody", "wrk.echo.command.v", numbered(0, 1), "topic", "there is none"},
		{"to another type", "wrk.marker.command.w", numbered(0, 1), "topic", "there is none"},
		{"a reply", "wrk.echo.reply.w", numbered(0, 1), "topic", "written by Turnlane itself"},
		{"a redrive", "wrk.echo.redrive.w", numbered(0, 1), "topic", "written by Turnlane itself"},
		{"no topic of a worker's", "wrk.echo", numbered(0, 1), "topic", "wrk.<type>.command.<worker id>"},
		{"an odd topic", "wrk.echo.command.w x", numbered(0, 1), "topic", "not allowed"},
		{"a long topic", "wrk." + strings.Repeat("x", 255), numbered(0, 1), "topic", "bytes"},
		{"one with a reply to us", "wrk.echo.command.w", astray, "replyto", "written by Turnlane"},
		{"several, one with a reply to us", "wrk.echo.command.w", append(numbered(0, 1), astray...), "events[1].replyto", "written by Turnlane"},
		{"such an extension elsewhere", "t", astray, "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := s.client.PublishEvents(ctx, &turnlanev1.PublishEventsRequest{Topic: c.topic, Events: c.events})
			stream, serr := s.client.PublishStream(ctx)
			if serr != nil {
				t.Fatal(serr)
			}
			if serr := stream.Send(&turnlanev1.PublishStreamRequest{Topic: c.topic, Events: c.events}); serr != nil {
				t.Fatal(serr)
			}
			answer, serr := stream.Recv()
			_ = stream.CloseSend()
			if c.field == "" {
				if err != nil || serr != nil || answer.GetError() != nil {
					t.Errorf("%v, %v, %v", err, serr, answer)
				}
				return
			}
			wantRefused(t, err, codes.InvalidArgument, rpcerr.InvalidField, c.field)
			if !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v does not say %q", err, c.says)
			}
			if serr == nil && answer.GetError() == nil {
				t.Error("the stream took it")
			}
		})
	}
	_, err := s.client.PublishEvents(ctx, &turnlanev1.PublishEventsRequest{Topic: "wrk.echo.command.lost", Events: numbered(0, 1)})
	wantRefused(t, err, codes.Unavailable, rpcerr.StoreUnavailable, "")

	for topic, status := range map[string]int{"wrk.echo.command.w": 202, "wrk.echo.command.v": 400, "wrk.echo.reply.w": 400, "wrk.echo.command.lost": 503} {
		resp, err := http.Post(s.http.URL+"/v1/topics/"+topic+"/events", "application/json", strings.NewReader(`{"n":1}`))
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != status {
			t.Errorf("%s over HTTP: %d %s", topic, resp.StatusCode, body)
		}
	}

	e := &event.Event{ID: "1", Source: "/s", Type: "ping"}
	if _, err := s.g.ForHandlers().Publish(ctx, "wrk.echo.command.w", e); err != nil {
		t.Errorf("from a handler: %v", err)
	}
	bad := e.Clone()
	bad.SetExtension("replyto", event.String("dlq.x"))
	for topic, e := range map[string]*event.Event{"wrk.echo.command.v": e, "wrk.echo.command.w": bad} {
		if _, err := s.g.ForHandlers().Publish(ctx, topic, e); !errors.Is(err, event.ErrInvalid) {
			t.Errorf("from a handler to %s: %v", topic, err)
		}
	}
}
