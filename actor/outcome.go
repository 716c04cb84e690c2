package actor

import (
	"errors"
	"fmt"
	"time"
)

// Permanent marks an error that no further attempt can mend: the event is given up on now.
func Permanent(err error) error {
	if err == nil {
		err = errors.New("permanent failure")
	}
	return &PermanentError{err}
}

// RetryAfter fails the attempt and asks for the next one after d instead of the back-off. It counts
// as an attempt. A negative d is 0.
func RetryAfter(d time.Duration) error { return &RetryAfterError{After: max(d, 0)} }

// Drop ends the turn without having handled the event: it is passed and counted as dropped, and the
// turn's outputs are discarded.
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
