package client

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"unicode"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/turnlane/turnlane/internal/rpcerr"
)

// Error is a failed call in words: one line that says what was wrong, where, and what to do.
type Error struct {
	Code    codes.Code
	Reason  string            // the stable reason, "" if the server gave none
	Facts   map[string]string // may be nil
	Message string            // one line without control characters

	cause error
}

func (e *Error) Error() string { return e.Message }

// Unwrap returns the error of the call.
func (e *Error) Unwrap() error { return e.cause }

// Explain puts the error of a call to this client's server into words. Other errors stay as they are,
// and so does nil.
func (c *Client) Explain(err error) error {
	var known *Error
	if err == nil || errors.As(err, &known) {
		return err
	}
	if errors.Is(err, context.Canceled) {
		return &Error{Code: codes.Canceled, Message: "interrupted", cause: err}
	}
	s, ok := status.FromError(err)
	if !ok {
		return err
	}
	e := &Error{Code: s.Code(), Message: oneLine(s.Message()), cause: err}
	if info := rpcerr.Info(err); info != nil {
		e.Reason, e.Facts = info.GetReason(), info.GetMetadata()
		return e
	}
	switch s.Code() {
	case codes.Unavailable:
		e.Message = c.unreachable(e.Message)
	case codes.Unimplemented:
		e.Message = fmt.Sprintf("the server at %s does not know this call (%s); is it a Turnlane server of this version?", c.addr, e.Message)
	case codes.DeadlineExceeded:
		e.Message = fmt.Sprintf("no answer from the server at %s in time; look at its log, or try again", c.addr)
	case codes.Canceled:
		e.Message = "interrupted"
	}
	return e
}

// unreachable words what the transport says of a server that does not answer.
func (c *Client) unreachable(text string) string {
	const advice = `is "turnlane dev" running? Start it, or name another server with --addr or ` + EnvAddr
	lower := strings.ToLower(text)
	for _, known := range []struct{ mark, says string }{
		{"looked like an http/1.1 header", "that port speaks HTTP, not gRPC; give the server's gRPC address"},
		{"frame too large", "that port does not speak gRPC; give the server's gRPC address"},
		{"connection refused", "connection refused; " + advice},
		{"no such host", "there is no such host; check --addr or " + EnvAddr},
		{"produced zero addresses", "there is no such host; check --addr or " + EnvAddr},
		{"i/o timeout", "no answer; " + advice},
		{"network is unreachable", "the network is unreachable; check --addr or " + EnvAddr},
	} {
		if strings.Contains(lower, known.mark) {
			return fmt.Sprintf("cannot reach the server at %s: %s", c.addr, known.says)
		}
	}
	return fmt.Sprintf("lost the server at %s (%s); %s", c.addr, text, advice)
}

// oneLine makes any text fit for a line of an error message.
func oneLine(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return ' '
		case !unicode.IsPrint(r):
			return '?'
		}
		return r
	}, strings.TrimSpace(s))
}
