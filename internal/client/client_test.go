package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/turnlane/turnlane/internal/rpcerr"
	turnlanev1 "github.com/turnlane/turnlane/proto/turnlane/v1"
)

func TestDialRefusesWhatIsNoAddress(t *testing.T) {
	for _, addr := range []string{"localhost", ":7400", "http://127.0.0.1:7400", "127.0.0.1:", "127.0.0.1:0", "127.0.0.1:70000", "a:b:c"} {
		if c, err := Dial(addr); err == nil {
			c.Close()
			t.Errorf("%q was dialled", addr)
		} else if !strings.Contains(err.Error(), fmt.Sprintf("address %q: ", addr)) || !strings.Contains(err.Error(), "host:port") {
			t.Errorf("%q: %v", addr, err)
		}
	}
}

func TestExplain(t *testing.T) {
	c, err := Dial("example.test:7400")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	plain := errors.New("plain")
	for _, x := range []struct {
		err          error
		want, reason string
	}{
		{rpcerr.Invalid("topic", "is empty", "name one"), "topic: is empty; name one", rpcerr.InvalidField},
		{rpcerr.New(codes.Unavailable, rpcerr.TailUnreadable, "topic t: its end cannot be read; try again", nil), "topic t: its end cannot be read; try again", rpcerr.TailUnreadable},
		{status.Error(codes.Unavailable, `connection error: desc = "transport: Error while dialing: dial tcp 127.0.0.1:1: connect: connection refused"`),
			`cannot reach the server at example.test:7400: connection refused; is "turnlane dev" running? Start it, or name another server with --addr or TURNLANE_ADDR`, ""},
		{status.Error(codes.Unavailable, "name resolver error: produced zero addresses"), "there is no such host", ""},
		{status.Error(codes.Unavailable, "error reading from server: EOF"), "lost the server at example.test:7400 (error reading from server: EOF); ", ""},
		{status.Error(codes.Unimplemented, "unknown service"), "is it a Turnlane server of this version?", ""},
		{status.Error(codes.DeadlineExceeded, "x"), "no answer from the server at example.test:7400 in time", ""},
		{context.Canceled, "interrupted", ""},
		{status.Error(codes.Internal, "two\nlines\x1b"), "two lines?", ""},
		{plain, "plain", ""},
	} {
		got := c.Explain(x.err)
		if !strings.Contains(got.Error(), x.want) || strings.ContainsAny(got.Error(), "\n\x1b") {
			t.Errorf("%v became %q, want %q", x.err, got, x.want)
		}
		var e *Error
		if errors.As(got, &e) && (e.Reason != x.reason || e.Code != status.Code(x.err) && !errors.Is(x.err, context.Canceled)) {
			t.Errorf("%v has code %s and reason %q", x.err, e.Code, e.Reason)
		}
		if !errors.Is(got, x.err) {
			t.Errorf("%v is lost in %v", x.err, got)
		}
		if again := c.Explain(got); again.Error() != got.Error() {
			t.Errorf("explained twice: %v", again)
		}
	}
	if c.Explain(nil) != nil {
		t.Error("nil became an error")
	}
}

// A port that speaks HTTP is an easy mistake: it is the server's other port.
func TestExplainKnowsAnHTTPPort(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	c, err := Dial(server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, err = c.Gateway.ListTopics(t.Context(), &turnlanev1.ListTopicsRequest{})
	if err = c.Explain(err); !strings.Contains(err.Error(), "give the server's gRPC address") {
		t.Error(err)
	}
}
