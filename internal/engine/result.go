package engine

import (
	"errors"
	"fmt"
	"runtime/debug"
	"time"
)

// Kind says how a turn ended.
type Kind uint8

const (
	// Returned means that the handler returned in time; Err is what it returned.
	Returned Kind = iota
	// Panicked means that Err is a *PanicError.
	Panicked
	// Exited means that the handler ended its goroutine with runtime.Goexit.
	Exited
	// TimedOut means that the handler returned, whatever it did, after the turn's deadline.
	TimedOut
	// Stuck means that the handler did not return within the grace period after its deadline, and was given up.
	Stuck
	// Cancelled means that the cell was closed, and the handler did not begin, or returned an error after its
	// context had been cancelled by Cancel, or was given up by Abandon.
	Cancelled
)

func (k Kind) String() string {
	switch k {
	case Returned:
		return "returned"
	case Panicked:
		return "panicked"
	case Exited:
		return "exited"
	case TimedOut:
		return "timed out"
	case Stuck:
		return "stuck"
	case Cancelled:
		return "cancelled"
	}
	return fmt.Sprintf("kind(%d)", uint8(k))
}

// Result is how a turn ended.
type Result struct {
	Kind Kind
	Err  error
	Took time.Duration
	End  time.Time
}

// Errors of results.
var (
	ErrExited    = errors.New("the handler ended its goroutine (runtime.Goexit)")
	ErrTimedOut  = errors.New("the handler did not return before its deadline")
	ErrStuck     = errors.New("the handler ignored its deadline for too long and was given up")
	ErrCancelled = errors.New("the worker was stopped")
	ErrExtended  = errors.New("the turn has had all the time that it may have")
)

// PanicError is a recovered panic.
type PanicError struct {
	Value any
	Stack []byte
}

func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v", e.Value) }

// Unwrap returns the value if it is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

func panicked(v any) Result {
	return Result{Kind: Panicked, Err: &PanicError{v, debug.Stack()}}
}
