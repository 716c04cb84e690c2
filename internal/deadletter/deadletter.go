// Package deadletter is the form of dead letters: which topic an event that was given up goes to, what
// is written beside it and how it is read back, and the marks that make each of them exist once.
//
//	event on orders ── given up ─▶ Wrap ─▶ dlq.orders              under Mark: one per (worker, run, topic, position)
//	dlq.orders ── redrive ─▶ Redrive ─▶ wrk.<type>.redrive.<id>    under RedriveMark: one per job and dead letter
//	wrk.<type>.redrive.<id> ── Redriven ─▶ the turn gets the original; given up again ─▶ Wrap ─▶ dlq.orders
//
// It is pure: no goroutine, no clock, no input or output.
package deadletter

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/turnlane/turnlane/event"
)

// Reasons for giving an event up.
const (
	Failed      = "failed"      // the handler failed max_attempts times
	Permanent   = "permanent"   // the handler said that trying again is of no use
	Timeout     = "timeout"     // the last attempt passed its deadline
	Panic       = "panic"       // the last attempt panicked
	Goexit      = "goexit"      // the last attempt ended its goroutine
	Crashed     = "crashed"     // the process ended max_crashes times with the event in hand
	Undecodable = "undecodable" // the record cannot be decoded
	Expired     = "expired"     // the event was too old when its turn came
)

// Facts is what a dead letter says beside the event. What is zero is left out.
type Facts struct {
	Reason   string // one of the constants, or what the runtime gives
	Error    string // cut at MaxError bytes, control characters escaped
	Attempts uint32 // failed starts of the handler
	Crashes  uint32 // starts that ended with the process

	WorkerID, WorkerName, WorkerType string
	Version                          string // of the program that gave up
	Run                              uint64

	// Topic and Position are those of the original event. A redriven event keeps them: they are not its
	// place in the redrive topic.
	Topic    string
	Position event.Position
	Key      string // the routing key; cut like Error
	// Group is the slot group of a member, and Slot its slot. Slot says nothing without Group.
	Group string
	Slot  uint32

	FirstFailed, LastFailed time.Time
	Permanent               bool // trying again is of no use, as the handler said
	// Redrives is how often the event was brought back before this failure.
	Redrives uint32
}

const (
	// MaxError bounds the error and the key of a dead letter, in bytes.
	MaxError = 1024
	// MaxFacts bounds what a dead letter takes more than its event, in bytes. Dead letters may be larger
	// than the limit of events by as much.
	MaxFacts = 64 << 10
)

// The names of the extensions, sorted.
const (
	extAttempts  = "dlqattempts"
	extCrashes   = "dlqcrashes"
	extError     = "dlqerror"
	extFirst     = "dlqfirst"
	extGroup     = "dlqgroup"
	extKey       = "dlqkey"
	extLast      = "dlqlast"
	extName      = "dlqname"
	extPermanent = "dlqpermanent"
	extPosition  = "dlqposition"
	extReason    = "dlqreason"
	extRedrives  = "dlqredrives"
	extRun       = "dlqrun"
	extSlot      = "dlqslot"
	extTopic     = "dlqtopic"
	extType      = "dlqtype"
	extVersion   = "dlqversion"
	extWorker    = "dlqworker"
)

var ours = []string{extAttempts, extCrashes, extError, extFirst, extGroup, extKey, extLast, extName, extPermanent,
	extPosition, extReason, extRedrives, extRun, extSlot, extTopic, extType, extVersion, extWorker}

// ErrNotOne is wrapped by the errors of Unwrap and Redriven for an event that is not what they read.
var ErrNotOne = errors.New("not a dead letter")

// Wrap makes the dead letter of an event: every attribute, extension and byte as it was, and the facts
// beside it. The result shares the original's data, which neither may write to. Of a record written by
// another program that already has extensions with the names of ours, those are replaced.
func Wrap(original *event.Event, f Facts) *event.Event {
	return with(original, []event.Extension{
		{Name: extAttempts, Value: count(f.Attempts)},
		{Name: extCrashes, Value: count(f.Crashes)},
		{Name: extError, Value: text(f.Error)},
		{Name: extFirst, Value: at(f.FirstFailed)},
		{Name: extGroup, Value: text(f.Group)},
		{Name: extKey, Value: text(f.Key)},
		{Name: extLast, Value: at(f.LastFailed)},
		{Name: extName, Value: text(f.WorkerName)},
		{Name: extPermanent, Value: event.Boolean(f.Permanent)},
		{Name: extPosition, Value: event.String(f.Position.String())},
		{Name: extReason, Value: text(f.Reason)},
		{Name: extRedrives, Value: count(f.Redrives)},
		{Name: extRun, Value: number(f.Run)},
		{Name: extSlot, Value: slot(f)},
		{Name: extTopic, Value: text(f.Topic)},
		{Name: extType, Value: text(f.WorkerType)},
		{Name: extVersion, Value: text(f.Version)},
		{Name: extWorker, Value: text(f.WorkerID)},
	})
}

// Unwrap takes a dead letter apart. The original shares the data of the dead letter. The error says
// what is wrong with an event that is none, and wraps ErrNotOne.
func Unwrap(dead *event.Event) (original *event.Event, f Facts, err error) {
	if f, err = facts(dead); err != nil {
		return nil, Facts{}, err
	}
	if f.Reason == "" {
		return nil, Facts{}, fmt.Errorf("%w: it has no %s", ErrNotOne, extReason)
	}
	return without(dead), f, nil
}

// Redrive makes the event that is brought back to its worker from a dead letter's parts, as Unwrap gave
// them: the original with a few facts beside it, which only the runtime sees.
func Redrive(original *event.Event, f Facts) *event.Event {
	redrives := f.Redrives
	if redrives < math.MaxInt32 {
		redrives++
	}
	return with(original, []event.Extension{
		{Name: extFirst, Value: at(f.FirstFailed)},
		{Name: extPosition, Value: event.String(f.Position.String())},
		{Name: extRedrives, Value: count(redrives)},
		{Name: extRun, Value: number(f.Run)},
		{Name: extTopic, Value: text(f.Topic)},
	})
}

// Redriven takes an event of a redrive topic apart, into what the handler gets and the facts that are
// known: Topic, Position and Run as they were at first, FirstFailed of the first failure ever, and
// Redrives, which counts this one. A new dead letter of it is wrapped with the same Topic, Position,
// FirstFailed and Redrives, goes to Topic(f.Topic, …), and is marked with its place in the redrive topic.
// An event that somebody else put there gives an error that wraps ErrNotOne.
func Redriven(e *event.Event) (original *event.Event, f Facts, err error) {
	if f, err = facts(e); err != nil {
		return nil, Facts{}, err
	}
	if f.Redrives == 0 {
		return nil, Facts{}, fmt.Errorf("%w that was brought back: it has no %s", ErrNotOne, extRedrives)
	}
	return without(e), f, nil
}

// with returns a copy of e with extensions of ours, which are sorted; zero values are left out.
func with(e *event.Event, add []event.Extension) *event.Event {
	c := *e
	c.Extensions = make([]event.Extension, 0, len(e.Extensions)+len(add))
	for _, x := range e.Extensions {
		if !isOurs(x.Name) {
			c.Extensions = append(c.Extensions, x)
		}
	}
	for _, x := range add {
		c.SetExtension(x.Name, x.Value)
	}
	if len(c.Extensions) == 0 {
		c.Extensions = nil
	}
	return &c
}

func without(e *event.Event) *event.Event { return with(e, nil) }

func isOurs(name string) bool {
	if !strings.HasPrefix(name, "dlq") {
		return false
	}
	_, ok := slices.BinarySearch(ours, name)
	return ok
}

func facts(e *event.Event) (f Facts, err error) {
	read := reader{e: e}
	f = Facts{
		Reason: read.text(extReason), Error: read.text(extError),
		Attempts: read.count(extAttempts), Crashes: read.count(extCrashes),
		WorkerID: read.text(extWorker), WorkerName: read.text(extName), WorkerType: read.text(extType),
		Version: read.text(extVersion), Run: read.number(extRun),
		Topic: read.text(extTopic), Position: read.position(extPosition),
		Key: read.text(extKey), Group: read.text(extGroup), Slot: read.count(extSlot),
		FirstFailed: read.at(extFirst), LastFailed: read.at(extLast),
		Permanent: read.boolean(extPermanent), Redrives: read.count(extRedrives),
	}
	if read.err == nil && f.Topic == "" {
		read.err = fmt.Errorf("%w: it has no %s", ErrNotOne, extTopic)
	}
	return f, read.err
}

// reader reads extensions until one is wrong.
type reader struct {
	e   *event.Event
	err error
}

func (r *reader) value(name string) string {
	v, _ := r.e.Extension(name)
	return v.String()
}

func (r *reader) text(name string) string { return r.value(name) }

func (r *reader) fail(name, s string, err error) {
	if r.err == nil {
		r.err = fmt.Errorf("%w: its %s %q cannot be read: %w", ErrNotOne, name, clean(s), err)
	}
}

func (r *reader) number(name string) uint64 {
	s := r.value(name)
	if s == "" {
		return 0
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		r.fail(name, s, err)
	}
	return n
}

func (r *reader) count(name string) uint32 {
	n := r.number(name)
	if n > math.MaxInt32 {
		r.fail(name, r.value(name), strconv.ErrRange)
	}
	return uint32(n)
}

func (r *reader) position(name string) event.Position {
	s := r.value(name)
	p, err := event.ParsePosition(s)
	if err != nil {
		r.fail(name, s, err)
	}
	return p
}

func (r *reader) at(name string) time.Time {
	s := r.value(name)
	if s == "" {
		return time.Time{}
	}
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		r.fail(name, s, err)
	}
	return t
}

func (r *reader) boolean(name string) bool { return r.value(name) == "true" }

func text(s string) event.Value {
	if s == "" {
		return event.Value{}
	}
	return event.String(clean(s))
}

// count is an integer of CloudEvents, which has 32 bits and a sign.
func count(n uint32) event.Value {
	if n == 0 {
		return event.Value{}
	}
	return event.Integer(int32(min(n, math.MaxInt32)))
}

// number is a string, since an integer of CloudEvents has 32 bits only.
func number(n uint64) event.Value { return event.String(strconv.FormatUint(n, 10)) }

func slot(f Facts) event.Value {
	if f.Group == "" {
		return event.Value{}
	}
	return event.Integer(int32(min(f.Slot, math.MaxInt32)))
}

func at(t time.Time) event.Value {
	if t.IsZero() || t.Year() > 9999 || t.Year() < 1 {
		return event.Value{}
	}
	return event.Timestamp(t.UTC().Format(time.RFC3339Nano))
}
