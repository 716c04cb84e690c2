package actor

import (
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/turnlane/turnlane/event"
)

// ErrTurnClosed is returned by every call on a turn that has ended, or whose handler was given up on.
var ErrTurnClosed = errors.New("turn closed: the handler returned, or ignored its deadline for too long")

// Turn is one run of a handler for one event. Its methods are safe for concurrent use until the
// handler returns; afterwards the turn is closed.
type Turn struct {
	in TurnInput

	mu      sync.Mutex
	closed  bool
	decoded bool
	event   *event.Event
	decErr  error
	outputs []Output
	refused error // the first output that could never be stored
}

// TurnInput is what a runtime, or a test, makes a Turn from.
type TurnInput struct {
	Worker   *Worker
	Topic    string
	Entry    event.Entry
	Attempt  int  // 1 for the first
	Replayed bool // see Turn.Replayed
	// Check refuses an output that could never be stored; nil checks nothing.
	Check func(topic string, e *event.Event) error
}

// Output is an event that a turn publishes when it succeeds.
type Output struct {
	Topic string
	Event *event.Event
}

// NewTurn makes an open turn. It is for runtimes and tests.
func NewTurn(in TurnInput) *Turn { return &Turn{in: in} }

// Worker returns the worker that the turn is for.
func (t *Turn) Worker() *Worker { return t.in.Worker }

// Topic returns the topic that the event came on.
func (t *Turn) Topic() string { return t.in.Topic }

// Position returns the event's place in its topic.
func (t *Turn) Position() event.Position { return t.in.Entry.Pos }

// StoredAt returns when the event was accepted, by the clock of the gateway that accepted it.
func (t *Turn) StoredAt() time.Time { return t.in.Entry.Record.StoredAt() }

// Attempt returns 1 for the first attempt at the event.
func (t *Turn) Attempt() int { return t.in.Attempt }

// Replayed reports whether an earlier activation may have handled the event already. No repeat is
// ever unmarked; an event that is marked may be new.
func (t *Turn) Replayed() bool { return t.in.Replayed }

// Event returns the event, decoded at the first call. It must not be changed: Clone it. A record that
// cannot be decoded gives an error here, and the turn fails for good without calling the handler, so
// that handlers need not look at it.
func (t *Turn) Event() *event.Event {
	e, _ := t.Decode()
	return e
}

// Decode is Event with its error. It is for runtimes, which call it before the handler.
func (t *Turn) Decode() (*event.Event, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.decoded {
		t.event, t.decErr = event.DecodeRecord(t.in.Entry.Record)
		t.decoded = true
	}
	return t.event, t.decErr
}

// Publish adds an output, which is stored, in order, if the turn succeeds, and exactly once however
// often the turn is repeated. It takes the event over. An empty id becomes
// <worker>.<run>.<input topic>.<position>.<index>, an empty source /turnlane/<type>/<worker>. An output that could never be
// stored is an error here, and fails the turn also when the handler ignores it.
func (t *Turn) Publish(topic string, e *event.Event) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return ErrTurnClosed
	}
	w := t.in.Worker
	if e.ID == "" {
		b := make([]byte, 0, len(w.ID)+len(t.in.Topic)+40)
		b = append(b, w.ID...)
		b = strconv.AppendUint(append(b, '.'), w.Run, 10)
		b = append(append(b, '.'), t.in.Topic...)
		b = append(append(b, '.'), t.in.Entry.Pos.String()...)
		b = strconv.AppendInt(append(b, '.'), int64(len(t.outputs)), 10)
		e.ID = string(b)
	}
	if e.Source == "" {
		e.Source = "/turnlane/" + w.Type + "/" + w.ID
	}
	if t.in.Check != nil {
		if err := t.in.Check(topic, e); err != nil {
			err = fmt.Errorf("output %d to topic %q: %w", len(t.outputs), topic, err)
			if t.refused == nil {
				t.refused = err
			}
			return err
		}
	}
	t.outputs = append(t.outputs, Output{topic, e})
	return nil
}

// Close ends the turn and returns its outputs, or why it must fail although its handler succeeded.
// Only the first call returns them. It is for runtimes and tests.
func (t *Turn) Close() ([]Output, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, ErrTurnClosed
	}
	t.closed = true
	return t.outputs, t.refused
}
