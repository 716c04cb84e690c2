// Package rpcerr is the errors of the public services: a gRPC status with a stable reason, the facts,
// and what to do.
package rpcerr

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/store"
)

// Domain is the domain of every google.rpc.ErrorInfo of Turnlane.
const Domain = "turnlane"

// Reasons of ErrorInfo. They are part of the interface and never change.
const (
	InvalidField      = "INVALID_FIELD"
	NotFound          = "NOT_FOUND"
	AlreadyExists     = "ALREADY_EXISTS"
	SlotTaken         = "SLOT_TAKEN"
	GroupSizeConflict = "GROUP_SIZE_CONFLICT"
	NameTaken         = "NAME_TAKEN"
	TailUnreadable    = "TAIL_UNREADABLE"
	StoreUnavailable  = "STORE_UNAVAILABLE"
	StoreExhausted    = "STORE_EXHAUSTED"
	OutcomeUnknown    = "OUTCOME_UNKNOWN"
	SubscriberStalled = "SUBSCRIBER_STALLED"
	ShuttingDown      = "SHUTTING_DOWN"
	Conflict          = "CONFLICT"
	Internal          = "INTERNAL"
)

// New makes a status error. The facts may be nil.
func New(code codes.Code, reason, message string, facts map[string]string) error {
	s := status.New(code, message)
	if d, err := s.WithDetails(&errdetails.ErrorInfo{Reason: reason, Domain: Domain, Metadata: facts}); err == nil {
		s = d
	}
	return s.Err()
}

// Invalid is bad input: which field, which rule it breaks, and how to mend it.
func Invalid(field, rule, fix string) error {
	return InvalidAs(InvalidField, field, rule, fix, nil)
}

// InvalidAs is Invalid with a reason of its own and further facts.
func InvalidAs(reason, field, rule, fix string, facts map[string]string) error {
	m := map[string]string{"field": field, "rule": rule, "fix": fix}
	maps.Copy(m, facts)
	return New(codes.InvalidArgument, reason, fmt.Sprintf("%s: %s; %s", field, rule, fix), m)
}

// From turns the error of a lower layer into a status error; one that is a status already stays.
func From(err error) error {
	if err == nil {
		return nil
	}
	if s, ok := status.FromError(err); ok && s.Code() != codes.Unknown {
		return err
	}
	code, reason, advice := codes.Internal, Internal, "look at the server's log"
	var invalid *event.Error
	switch {
	case errors.As(err, &invalid):
		return Invalid(invalid.Field, invalid.Rule, invalid.Fix)
	case errors.Is(err, context.Canceled):
		return status.FromContextError(err).Err()
	case errors.Is(err, store.ErrOutcomeUnknown):
		code, reason, advice = codes.Unknown, OutcomeUnknown, "it may or may not be stored: read the topic, or send it again with the same id if repeats are harmless"
	case errors.Is(err, context.DeadlineExceeded):
		return status.FromContextError(err).Err()
	case errors.Is(err, store.ErrExhausted):
		code, reason, advice = codes.ResourceExhausted, StoreExhausted, "nothing was stored: free disk space or lower retention, then try again"
	case errors.Is(err, store.ErrUnavailable), errors.Is(err, store.ErrClosed):
		code, reason, advice = codes.Unavailable, StoreUnavailable, "nothing was stored: try again"
	case errors.Is(err, store.ErrNotFound):
		code, reason, advice = codes.NotFound, NotFound, "check the name"
	case errors.Is(err, store.ErrConflict):
		code, reason, advice = codes.Aborted, Conflict, "somebody else changed it at the same time: read it and try again"
	case errors.Is(err, store.ErrCorrupt):
		code, reason = codes.DataLoss, Internal
	}
	return New(code, reason, fmt.Sprintf("%s; %s", err, advice), nil)
}

// Reason returns the stable reason of a status error, "" if it has none.
func Reason(err error) string {
	if info := Info(err); info != nil {
		return info.GetReason()
	}
	return ""
}

// Info returns the ErrorInfo of a status error, nil if it has none.
func Info(err error) *errdetails.ErrorInfo {
	s, ok := status.FromError(err)
	if !ok {
		return nil
	}
	for _, d := range s.Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok && info.GetDomain() == Domain {
			return info
		}
	}
	return nil
}
