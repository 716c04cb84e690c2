// Package admission is the rules at the door: which topics may be written and read, and which events
// may be stored.
//
// Every way in holds its events against the same rules: publishers over gRPC and HTTP, and the outputs
// of turns. Errors are *event.Error: they name the field, the rule and the fix.
package admission

import (
	"strconv"
	"strings"
	"time"

	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/grouping"
)

const (
	// MaxTopic bounds the names of topics, in bytes.
	MaxTopic = 255
	// MaxUserTopic bounds the names of topics that users publish to, so that names made from them,
	// such as dlq.<topic>, fit into MaxTopic.
	MaxUserTopic = 200
	// DefaultMaxEvent bounds an event as it is stored, in bytes.
	DefaultMaxEvent = 1 << 20
)

// SizeError is the *event.Error of what is too large.
type SizeError struct{ Err *event.Error }

func (e *SizeError) Error() string { return e.Err.Error() }

// Unwrap makes errors.As find the *event.Error.
func (e *SizeError) Unwrap() error { return e.Err }

// Who says who is writing.
type Who uint8

// Those who write.
const (
	User   Who = iota // a client of the public interface, or a worker's handler
	System            // Turnlane itself
)

// Topic reports whether a topic may be written to.
func Topic(name string, as Who) error {
	limit := MaxTopic
	if as == User {
		limit = MaxUserTopic
	}
	if err := topicName(name, limit); err != nil || as == System {
		return err
	}
	switch {
	case strings.HasPrefix(name, "sys."), strings.HasPrefix(name, "dlq."):
		return &event.Error{Field: "topic",
			Rule: quote(name) + " is written by Turnlane itself: topics that begin with " + name[:4] + " can only be read",
			Fix:  "publish to a topic that does not begin with sys., dlq. or wrk."}
	case strings.HasPrefix(name, "wrk."):
		return &event.Error{Field: "topic",
			Rule: quote(name) + " begins with wrk., which is kept for commands to workers, and none are taken here",
			Fix:  "publish to a topic that the worker reads, whose name does not begin with sys., dlq. or wrk."}
	}
	return nil
}

// Readable reports whether a name can be that of a topic: every topic can be read.
func Readable(name string) error { return topicName(name, MaxTopic) }

func topicName(name string, limit int) error {
	switch {
	case name == "":
		return &event.Error{Field: "topic", Rule: "is missing or empty", Fix: "name a topic, such as orders.eu"}
	case len(name) > limit:
		return &event.Error{Field: "topic",
			Rule: "has " + strconv.Itoa(len(name)) + " bytes; at most " + strconv.Itoa(limit) + " are allowed", Fix: "shorten it"}
	}
	for i := range len(name) {
		c := name[i]
		switch {
		case c|0x20 >= 'a' && c|0x20 <= 'z', c >= '0' && c <= '9', c == '.', c == '_', c == '-':
		default:
			return &event.Error{Field: "topic",
				Rule: quote(name) + " has a character that is not allowed at byte " + strconv.Itoa(i),
				Fix:  "use only A-Z a-z 0-9 . _ -"}
		}
	}
	return nil
}

// Event reports whether an event may be stored by a publisher: it is a CloudEvents event, does not
// carry extensions of Turnlane's own, and takes at most maxBytes as a record (0 means DefaultMaxEvent).
func Event(e *event.Event, maxBytes int) error {
	if e == nil {
		return &event.Error{Field: "event", Rule: "is not set", Fix: "send a CloudEvents event"}
	}
	if err := e.Validate(); err != nil {
		return err
	}
	return Decoded(e, maxBytes)
}

// Decoded is Event for an event that comes from a decoder, which has validated it.
func Decoded(e *event.Event, maxBytes int) error {
	for _, x := range e.Extensions {
		if strings.HasPrefix(x.Name, "dlq") {
			return &event.Error{Field: x.Name,
				Rule: "begins with dlq: these extensions are set by Turnlane on dead letters",
				Fix:  "choose another name, or remove the dlq extensions before sending a dead letter again"}
		}
	}
	if maxBytes <= 0 {
		maxBytes = DefaultMaxEvent
	}
	size, slack := contentSize(e)
	if size+slack > maxBytes { // too close to tell without encoding
		if size <= maxBytes {
			size = len(event.AppendRecord(nil, e, 0, time.Time{}))
		}
		if size > maxBytes {
			return &SizeError{&event.Error{Field: "event",
				Rule: "takes " + strconv.Itoa(size) + " bytes as it is stored; at most " + strconv.Itoa(maxBytes) + " are allowed",
				Fix:  "make the data smaller, or keep it elsewhere and send a reference"}}
		}
	}
	return nil
}

// contentSize returns a lower bound of the size of an event's record, and how far it may be off.
func contentSize(e *event.Event) (size, slack int) {
	size = len(e.ID) + len(e.Source) + len(e.Type) + len(e.Subject) + len(e.Time) +
		len(e.DataContentType) + len(e.DataSchema) + len(e.Data)
	slack = 256
	for _, x := range e.Extensions {
		size += len(x.Name)
		slack += 64 // framing, and values that are not text
		if text, ok := x.Value.Text(); ok {
			size += len(text)
		} else if x.Value.Kind() == event.BinaryKind {
			slack += len(x.Value.String())
		}
	}
	return size, slack
}

// Encode makes the record of an event that was admitted at the given time.
func Encode(e *event.Event, now time.Time) event.Record {
	size, slack := contentSize(e)
	return event.AppendRecord(make([]byte, 0, size+slack/2), e, grouping.Hash(e.RoutingKey()), now)
}

func quote(s string) string {
	if len(s) > 64 {
		return strconv.Quote(s[:64]) + "…"
	}
	return strconv.Quote(s)
}
