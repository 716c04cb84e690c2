// Package command is the form of a command to one worker, on the topic of its own.
//
// A command is an event whose type is its name. Of its extensions correlationid stands in the reply
// (the event's id does if there is none), replyto names the topic of the reply (the worker's own if
// there is none), and commanddeadline is the time until which somebody waits for it. The reply's id is
// <id of the command>.reply, the same however often it is given; its type is <name>.reply. One that
// says that the command failed has the extension commanderror, a stable reason, and its data is
// {"error": "<text>"}.
//
// The package is pure: no goroutine, no clock, no input or output.
package command

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/internal/admission"
)

// Source is the source of commands that SendCommand makes.
const Source = "/turnlane/command"

// Extensions of commands and replies.
const (
	ExtCorrelation = "correlationid"
	ExtReplyTo     = "replyto"
	ExtDeadline    = "commanddeadline"
	ExtError       = "commanderror"
)

// Reasons of a command's failure that the runtime gives. Handlers may give others.
const (
	ReasonUnknown = "UNKNOWN_COMMAND" // the handler has no command of the name
	ReasonFailed  = "FAILED"          // the handler failed, and is not tried again
	ReasonInvalid = "INVALID_COMMAND" // the command itself, or its data, cannot be read
)

// suffix makes the id and type of a reply from those of its command.
const suffix = ".reply"

// MaxName bounds the name of a command, in bytes.
const MaxName = 128

// Command is a command as its worker sees it.
type Command struct {
	ID          string
	Name        string
	Data        []byte // nil if there is none
	ContentType string
	Correlation string    // what the reply carries; the id unless the sender said otherwise
	ReplyTo     string    // the topic of the reply, never empty after Parse
	Deadline    time.Time // until then somebody waits for the reply; zero if nobody does
}

// Request makes the event of a command. Correlation, ReplyTo and Deadline are left out if they are not
// set. It breaks rules of CloudEvents where its parts do; publishing tells.
func Request(c Command, at time.Time) *event.Event {
	e := &event.Event{ID: c.ID, Source: Source, Type: c.Name, Time: text(at)}
	setData(e, c.Data, c.ContentType)
	set(e, ExtCorrelation, c.Correlation)
	set(e, ExtReplyTo, c.ReplyTo)
	if !c.Deadline.IsZero() {
		e.SetExtension(ExtDeadline, event.Timestamp(text(c.Deadline)))
	}
	return e
}

// Parse reads a command to a worker of the type and id. An error says what is wrong with it; what
// Parse returns then still serves to answer.
func Parse(e *event.Event, typ, id string) (Command, error) {
	c := Command{ID: e.ID, Name: e.Type, Data: e.Data, ContentType: e.DataContentType,
		Correlation: e.ID, ReplyTo: ReplyTopic(typ, id)}
	if s := extension(e, ExtCorrelation); s != "" {
		c.Correlation = s
	}
	if s := extension(e, ExtReplyTo); s != "" && s != c.ReplyTo {
		if err := CheckReplyTo(s); err != nil {
			return c, err
		}
		c.ReplyTo = s
	}
	if s := extension(e, ExtDeadline); s != "" {
		t, ok := (&event.Event{Time: s}).TimeValue()
		if !ok {
			return c, &event.Error{Field: ExtDeadline, Rule: "is not a timestamp", Fix: "write it like 2018-04-05T17:31:00Z, or leave it out"}
		}
		c.Deadline = t
	}
	return c, nil
}

// CheckReplyTo reports whether a topic may take the replies to a caller's command: a topic that users
// publish to. A worker's own topics are refused, since a reply that is a command again could go round
// for ever.
func CheckReplyTo(topic string) error {
	err := admission.Topic(topic, admission.User)
	if e, ok := errors.AsType[*event.Error](err); ok {
		return &event.Error{Field: ExtReplyTo, Rule: e.Rule, Fix: "name a topic that users publish to, or leave it out"}
	}
	return err
}

// CheckName reports whether a name can be that of a command.
func CheckName(name string) error {
	const fix = "use 1 to 128 characters of A-Z a-z 0-9 . _ -"
	switch {
	case name == "":
		return &event.Error{Field: "command", Rule: "is missing or empty", Fix: "name the command"}
	case len(name) > MaxName:
		return &event.Error{Field: "command", Rule: fmt.Sprintf("has %d bytes; at most %d are allowed", len(name), MaxName), Fix: "shorten it"}
	}
	for i := range len(name) {
		c := name[i]
		switch {
		case c|0x20 >= 'a' && c|0x20 <= 'z', c >= '0' && c <= '9', c == '.', c == '_', c == '-':
		default:
			return &event.Error{Field: "command", Rule: fmt.Sprintf("has a character that is not allowed at byte %d", i), Fix: fix}
		}
	}
	return nil
}

// Reply makes the answer to a command. An empty content type stands for application/json if the data
// are JSON. The source is the worker's.
func Reply(c Command, typ, id string, data []byte, contentType string, at time.Time) *event.Event {
	e := &event.Event{ID: c.ID + suffix, Source: "/turnlane/" + typ + "/" + id, Type: c.Name + suffix, Time: text(at)}
	setData(e, data, contentType)
	set(e, ExtCorrelation, c.Correlation)
	return e
}

// failure is the data of a reply that says that the command failed.
type failure struct {
	Error string `json:"error"`
}

// ErrorReply makes the answer that says why a command failed: a stable reason, such as ReasonFailed,
// and a text for people, cut where it is long.
func ErrorReply(c Command, typ, id, reason, why string, at time.Time) *event.Event {
	const limit = 4096
	if len(why) > limit {
		why = why[:limit] + "…"
	}
	data, err := json.Marshal(failure{strings.ToValidUTF8(why, "�")})
	if err != nil {
		panic("command: " + err.Error()) // a string always becomes JSON
	}
	e := Reply(c, typ, id, data, "application/json", at)
	set(e, ExtError, reason)
	return e
}

// Answer is a reply as the sender of the command sees it.
type Answer struct {
	ID          string
	Correlation string
	Data        []byte
	ContentType string
	Reason      string // not empty if the command failed
	Error       string // the text for people, of one that failed
}

// ParseReply reads a reply, and returns false for an event that is none.
func ParseReply(e *event.Event) (Answer, bool) {
	a := Answer{ID: e.ID, Correlation: extension(e, ExtCorrelation), Data: e.Data, ContentType: e.DataContentType,
		Reason: extension(e, ExtError)}
	if a.Correlation == "" || !strings.HasSuffix(e.Type, suffix) {
		return Answer{}, false
	}
	if a.Reason != "" {
		var f failure
		if json.Unmarshal(e.Data, &f) == nil {
			a.Error = f.Error
		}
	}
	return a, true
}

// setData gives an event its data, in the kind that their type says: JSON that is none is kept as
// bytes, so that nothing is refused or rewritten.
func setData(e *event.Event, data []byte, contentType string) {
	if data == nil {
		e.DataContentType = contentType
		return
	}
	isJSON := event.IsJSON(contentType) && json.Valid(data)
	if contentType == "" && isJSON {
		contentType = "application/json"
	}
	e.Data, e.DataContentType = data, contentType
	switch {
	case isJSON:
		e.DataKind = event.JSONData
	case contentType != "" && strings.HasPrefix(contentType, "text/") && utf8.Valid(data):
		e.DataKind = event.TextData
	default:
		e.DataKind = event.BinaryData
	}
}

func set(e *event.Event, name, value string) {
	if value != "" {
		e.SetExtension(name, event.String(value))
	}
}

func extension(e *event.Event, name string) string {
	v, _ := e.Extension(name)
	return v.String()
}

func text(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339Nano)
}
