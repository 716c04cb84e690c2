package store

import (
	"errors"
	"fmt"
)

// The kinds of failure. Implementations wrap them; callers use errors.Is, never a text.
var (
	// ErrUnavailable: the store cannot be reached or cannot serve now; nothing was written.
	ErrUnavailable = errors.New("store unavailable")
	// ErrOutcomeUnknown: a write may or may not have happened.
	ErrOutcomeUnknown = errors.New("outcome unknown")
	// ErrExhausted: no room to write (disk floor, memory limit); nothing was written.
	ErrExhausted = errors.New("store exhausted")
	// ErrClosed: the store or the bell is closed.
	ErrClosed = errors.New("store closed")
	// ErrCorrupt: what was read back is damaged.
	ErrCorrupt = errors.New("store corrupt")
	// ErrNotFound: no such record.
	ErrNotFound = errors.New("not found")
	// ErrConflict: a condition of a Txn does not hold; nothing was written. See ConflictError.
	ErrConflict = errors.New("revision conflict")
	// ErrSessionExpired: the session has ended, for good.
	ErrSessionExpired = errors.New("session expired")
	// ErrOwned: a live session owns the worker.
	ErrOwned = errors.New("worker owned by a live session")
	// ErrStaleToken: the token (or start) is not, or no longer, the worker's.
	ErrStaleToken = errors.New("stale token")
	// ErrPositions: the topic has no positions left above its last one.
	ErrPositions = errors.New("positions exhausted")
)

// ConflictError says which change of a Txn did not hold. It is an ErrConflict.
type ConflictError struct {
	Index    int    // of the change
	Key      string // of the change
	Revision uint64 // that the key has; Absent if it has no record
}

func (e *ConflictError) Error() string {
	return fmt.Sprintf("revision conflict: %s is at revision %d", e.Key, e.Revision)
}

func (e *ConflictError) Unwrap() error { return ErrConflict }
