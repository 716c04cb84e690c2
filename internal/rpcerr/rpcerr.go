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
	NotReady          = "NOT_READY"
	Conflict          = "CONFLICT"
	RedriveUnderWay   = "REDRIVE_UNDER_WAY"
	WorkerStopped     = "WORKER_STOPPED" // a command was not to wait for it
	NoReply           = "NO_REPLY"       // to a command, in time
	NoCommands        = "NO_COMMANDS"    // are taken by this process
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
	message := field + ": " + rule
	if fix != "" {
		message += "; " + fix
	}
	return New(codes.InvalidArgument, reason, message, m)
}

// From turns the error of a lower layer into a status error; one that is a status already stays.
//
// An error may be of several kinds: a write that was cut short is of an unknown outcome and a context's.
// What is known of the outcome comes first, the end of a context last.
func From(err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, store.ErrOutcomeUnknown) {
		return kinds[0].status(err)
	}
	if s, ok := status.FromError(err); ok && (s.Code() != codes.Unknown || Info(err) != nil) {
		return err
	}
	if invalid, ok := errors.AsType[*event.Error](err); ok {
		return Invalid(invalid.Field, invalid.Rule, invalid.Fix)
	}
	for _, k := range kinds {
		if errors.Is(err, k.err) {
			return k.status(err)
		}
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return status.FromContextError(err).Err()
	}
	return kind{nil, codes.Internal, Internal, "look at the server's log"}.status(err)
}

// kind is what a kind of error is told as.
type kind struct {
	err    error
	code   codes.Code
	reason string
	advice string
}

// kinds are in the order in which they are looked for.
var kinds = []kind{
	{store.ErrOutcomeUnknown, codes.Unknown, OutcomeUnknown, "it may or may not be stored: read the topic, or send it again with the same id if repeats are harmless"},
	{store.ErrExhausted, codes.ResourceExhausted, StoreExhausted, "nothing was stored: free disk space or lower retention, then try again"},
	{store.ErrPositions, codes.ResourceExhausted, StoreExhausted, "nothing was stored: the topic takes no more, use another one"},
	{store.ErrUnavailable, codes.Unavailable, StoreUnavailable, "nothing was stored: try again"},
	{store.ErrClosed, codes.Unavailable, StoreUnavailable, "nothing was stored: try again"},
	{store.ErrSessionExpired, codes.Unavailable, StoreUnavailable, "nothing was stored: the server is joining anew, try again"},
	{store.ErrNotFound, codes.NotFound, NotFound, "check the name"},
	{store.ErrConflict, codes.Aborted, Conflict, "somebody else changed it at the same time: read it and try again"},
	{store.ErrOwned, codes.Aborted, Conflict, "another server has the worker: try again"},
	{store.ErrStaleToken, codes.Aborted, Conflict, "another server has taken the worker: try again"},
	{store.ErrCorrupt, codes.DataLoss, Internal, "look at the server's log"},
}

func (k kind) status(err error) error {
	return New(k.code, k.reason, fmt.Sprintf("%s; %s", err, k.advice), nil)
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
