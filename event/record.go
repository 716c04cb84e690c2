package event

import (
	"encoding/binary"
	"fmt"
	"time"
)

// Record is a stored event: a 13-byte header, then a protobuf message (turnlane.store.v1.Event).
//
//	byte 0      version, now 1
//	bytes 1-4   slot hash of the routing key, big-endian
//	bytes 5-12  stored time, Unix nanoseconds, big-endian
//	bytes 13-   the message
//
// The header is all that fan-out looks at; the message is decoded in the turn.
type Record []byte

const (
	recordVersion = 1
	recordHeader  = 13
)

// Check reports whether r has a header of a version that this program can read.
func (r Record) Check() error {
	switch {
	case len(r) < recordHeader:
		return fmt.Errorf("record of %d bytes: want a header of %d", len(r), recordHeader)
	case r[0] != recordVersion:
		return fmt.Errorf("record version %d: this program reads version %d; upgrade it", r[0], recordVersion)
	}
	return nil
}

// Hash returns the slot hash of the event's routing key. The record must have passed Check.
func (r Record) Hash() uint32 { return binary.BigEndian.Uint32(r[1:5]) }

// StoredAt returns when the event was accepted, by the clock of the gateway that accepted it. The
// record must have passed Check.
func (r Record) StoredAt() time.Time {
	return time.Unix(0, int64(binary.BigEndian.Uint64(r[5:13]))).UTC()
}
