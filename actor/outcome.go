package actor

import (
	"errors"
	"fmt"
	"time"
)

// Outcome is how one attempt at an event ended. Handlers do not use it: they return nil, an error,
// Permanent, RetryAfter or Drop. Its text is the one in metrics and reports.
type Outcome uint8

// The outcomes. OutcomeOf gives the first five; the others are what a runtime finds out by itself,
// and each is a failed attempt, like OutcomeFailed.
const (
	OutcomeDone       Outcome = iota // the handler returned nil
	OutcomeFailed                    // an error: tried again until the attempts are used up
	OutcomePermanent                 // Permanent: given up on at once
	OutcomeRetryAfter                // RetryAfter: tried again then, until the attempts are used up
	OutcomeDropped                   // Drop: passed, nothing is published
	OutcomeTimeout                   // the deadline passed before the handler returned
	OutcomePanic                     // the handler panicked
	OutcomeGoexit                    // the handler called runtime.Goexit
)

var outcomeNames = [...]string{"done", "failed", "permanent", "retry_after", "dropped", "timeout", "panic", "goexit"}

// String returns the outcome in lower case, such as "retry_after".
func (o Outcome) String() string {
	if int(o) < len(outcomeNames) {
		return outcomeNames[o]
	}
	return fmt.Sprintf("outcome(%d)", uint8(o))
}

// OutcomeOf tells what the result of a handler means. An outcome may be wrapped, as with %w, and
// still counts; of several in one error Permanent goes before Drop, and Drop before RetryAfter. It is
// for runtimes and tests.
func OutcomeOf(err error) Outcome {
	if err == nil {
		return OutcomeDone
	}
	if _, ok := errors.AsType[*PermanentError](err); ok {
		return OutcomePermanent
	}
	if _, ok := errors.AsType[*DropError](err); ok {
		return OutcomeDropped
	}
	if _, ok := errors.AsType[*RetryAfterError](err); ok {
		return OutcomeRetryAfter
	}
	return OutcomeFailed
}

// Permanent marks an error that no further attempt can mend: the event is given up on now, whatever
// attempts are left, and the worker goes on with the next one. A nil error becomes one that says
// "permanent failure".
func Permanent(err error) error {
	if err == nil {
		err = errors.New("permanent failure")
	}
	return &PermanentError{err}
}

// RetryAfter fails the attempt and asks for the next one after d instead of the back-off. It counts
// as an attempt, and the last attempt is the last one. Until then the event's lane waits, and the
// worker's other lanes go on. A negative d is 0; a runtime may raise a small d to its floor.
func RetryAfter(d time.Duration) error { return &RetryAfterError{After: max(d, 0)} }

// Drop ends the turn without having handled the event: it is passed and counted as dropped, it is not
// tried again, and the turn's outputs are discarded.
func Drop(reason string) error { return &DropError{Reason: reason} }

// PermanentError is the outcome of Permanent.
type PermanentError struct{ Err error }

func (e *PermanentError) Error() string { return e.Err.Error() }
func (e *PermanentError) Unwrap() error { return e.Err }

// RetryAfterError is the outcome of RetryAfter.
type RetryAfterError struct{ After time.Duration }

func (e *RetryAfterError) Error() string { return fmt.Sprintf("retry after %s", e.After) }

// DropError is the outcome of Drop.
type DropError struct{ Reason string }

func (e *DropError) Error() string { return "dropped: " + e.Reason }
