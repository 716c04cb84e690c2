package rpcerr

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/store"
)

func TestFrom(t *testing.T) {
	for _, c := range []struct {
		err    error
		code   codes.Code
		reason string
	}{
		{store.ErrOutcomeUnknown, codes.Unknown, OutcomeUnknown},
		{store.ErrExhausted, codes.ResourceExhausted, StoreExhausted},
		{store.ErrPositions, codes.ResourceExhausted, StoreExhausted},
		{store.ErrUnavailable, codes.Unavailable, StoreUnavailable},
		{store.ErrClosed, codes.Unavailable, StoreUnavailable},
		{store.ErrSessionExpired, codes.Unavailable, StoreUnavailable},
		{store.ErrNotFound, codes.NotFound, NotFound},
		{store.ErrConflict, codes.Aborted, Conflict},
		{&store.ConflictError{Key: "k"}, codes.Aborted, Conflict},
		{store.ErrOwned, codes.Aborted, Conflict},
		{store.ErrStaleToken, codes.Aborted, Conflict},
		{store.ErrCorrupt, codes.DataLoss, Internal},
		{errors.New("what nobody thought of"), codes.Internal, Internal},
		{&event.Error{Field: "id", Rule: "is empty", Fix: "set it"}, codes.InvalidArgument, InvalidField},
	} {
		t.Run(c.err.Error(), func(t *testing.T) {
			// However it is wrapped, and whichever context ended with it.
			for name, err := range map[string]error{
				"bare":            c.err,
				"wrapped":         fmt.Errorf("append to t: %w", c.err),
				"wrapped twice":   fmt.Errorf("publish: %w", fmt.Errorf("append to t: %w", c.err)),
				"joined":          errors.Join(errors.New("another"), c.err),
				"and told again":  From(c.err),
				"told and passed": fmt.Errorf("over there: %w", From(c.err)),
			} {
				want(t, name, err, c.code, c.reason)
			}
			if c.code == codes.Internal {
				return // a context's error is the only thing known then
			}
			for _, end := range []error{context.Canceled, context.DeadlineExceeded} {
				want(t, "before "+end.Error(), fmt.Errorf("%w: %w", c.err, end), c.code, c.reason)
				want(t, "after "+end.Error(), errors.Join(end, c.err), c.code, c.reason)
			}
		})
	}
	want(t, "cancelled", fmt.Errorf("wait: %w", context.Canceled), codes.Canceled, "")
	want(t, "late", fmt.Errorf("wait: %w", context.DeadlineExceeded), codes.DeadlineExceeded, "")
	want(t, "of unknown outcome, with a status", errors.Join(status.Error(codes.Canceled, "gone"), store.ErrOutcomeUnknown), codes.Unknown, OutcomeUnknown)
	want(t, "a status", status.Error(codes.PermissionDenied, "no"), codes.PermissionDenied, "")
	if From(nil) != nil {
		t.Error("an error of nothing")
	}
}

func want(t *testing.T, name string, err error, code codes.Code, reason string) {
	t.Helper()
	got := From(err)
	if status.Code(got) != code || Reason(got) != reason {
		t.Errorf("%s: %v is told as %s %q, want %s %q", name, err, status.Code(got), Reason(got), code, reason)
	}
}

func TestInvalidSaysWhatToDo(t *testing.T) {
	err := From(fmt.Errorf("publish: %w", &event.Error{Field: "events[3].id", Rule: "is empty", Fix: "give it an id"}))
	info := Info(err).GetMetadata()
	for key, part := range map[string]string{"field": "events[3].id", "rule": "is empty", "fix": "give it an id"} {
		if info[key] != part || !strings.Contains(err.Error(), part) {
			t.Errorf("%s is %q, want %q, also in %v", key, info[key], part, err)
		}
	}
}

func TestInvalidWithoutAFixEndsWithTheRule(t *testing.T) {
	if got := status.Convert(Invalid("id", "is empty", "")).Message(); got != "id: is empty" {
		t.Errorf("got %q", got)
	}
}
