package actor

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/turnlane/turnlane/event"
)

// ErrTurnClosed is returned by Publish on a turn that has ended, or whose handler was given up on.
var ErrTurnClosed = errors.New("turn closed: the handler returned, or ignored its deadline for too long")

// Turn is one run of a handler for one event: one attempt at it. Its methods are safe for concurrent
// use. The turn is closed once the handler has returned, or was given up on as stuck: what a goroutine
// left behind still reads from it stays as it was, but nothing can be added any more.
type Turn struct {
	in TurnInput

	mu      sync.Mutex
	closed  bool
	decoded bool
	event   *event.Event
	decErr  error
	trace   *trace // of outputs; nil until somebody asks
	outputs []Output
	refused error // the first output that could never be stored, or why there is no state
	origin  *Origin
	edits   *edits // of the state; nil until there is one
}

// TurnInput is what a runtime, or a test, makes a Turn from.
type TurnInput struct {
	Worker   *Worker // required
	Topic    string
	Entry    event.Entry
	Attempt  int  // 1 for the first
	Replayed bool // see Turn.Replayed
	// Check refuses an output that could never be stored; nil checks nothing.
	Check func(topic string, e *event.Event) error
	// State is the worker's state; nil: the turn has none.
	State *Values
	// Run is part of what makes ids of outputs. 0 stands for the worker's.
	Run uint64
	// Host is whoever runs the turn; nil: it can neither be extended nor tell its progress.
	Host Host
}

// Host is whoever runs a turn.
type Host interface {
	// Extend and Progress are those of Turn.
	Extend(d time.Duration) error
	Progress(text string)
}

// Origin is where an event came from at first that was given up, and was brought back.
type Origin struct {
	Topic    string
	Position event.Position
	Run      uint64
}

// Output is an event that a turn publishes when it succeeds.
type Output struct {
	Topic string
	Event *event.Event
}

// NewTurn makes an open turn. It is for runtimes and tests.
func NewTurn(in TurnInput) *Turn { return &Turn{in: in} }

// Init is NewTurn for a Turn that is part of something larger and was not used before.
func (t *Turn) Init(in TurnInput) { t.in = in }

// Worker returns the worker that the turn is for. It must not be changed.
func (t *Turn) Worker() *Worker { return t.in.Worker }

// Topic returns the topic that the event came on. For one that was given up and brought back it is the
// one that it came on at first.
func (t *Turn) Topic() string {
	if t.origin != nil {
		return t.origin.Topic
	}
	return t.in.Topic
}

// Position returns the event's place in its topic.
func (t *Turn) Position() event.Position {
	if t.origin != nil {
		return t.origin.Position
	}
	return t.in.Entry.Pos
}

// StoredAt returns when the event was accepted, by the clock of the gateway that accepted it.
func (t *Turn) StoredAt() time.Time { return t.in.Entry.Record.StoredAt() }

// Attempt returns 1 for the first attempt at the event.
func (t *Turn) Attempt() int { return t.in.Attempt }

// Replayed reports whether an earlier activation may have handled the event already. No repeat by
// another activation is ever unmarked; an event that is marked may be new all the same. Further
// attempts by the same activation are told by Attempt. Outputs need no care for repeats, they are
// stored once; what a handler does to the outside world does.
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
	return t.decodeLocked()
}

func (t *Turn) decodeLocked() (*event.Event, error) {
	if !t.decoded {
		t.event, t.decErr = event.DecodeRecord(t.in.Entry.Record)
		t.decoded = true
	}
	return t.event, t.decErr
}

// Redriven makes the turn one for an event that was given up and brought back: the event as it was, and
// where it came from at first. It is for runtimes, before the handler is called.
func (t *Turn) Redriven(original *event.Event, from Origin) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.event, t.decErr, t.decoded = original, nil, true
	t.origin, t.in.Replayed = &from, true
}

// SetTrace makes outputs that have no trace of their own belong to this one, instead of that of the
// turn's event. It is for runtimes, which trace turns, before the handler is called. The texts are those
// of the W3C's headers; state may be empty.
func (t *Turn) SetTrace(parent, state string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.trace = &trace{parent: event.String(parent)}
	if state != "" {
		t.trace.state = event.String(state)
	}
}

// trace is the extensions that tell what trace an event belongs to, as the Distributed Tracing extension
// of CloudEvents names them.
type trace struct{ parent, state event.Value }

var noTrace = &trace{}

const (
	traceParent = "traceparent"
	traceState  = "tracestate"
)

// Trace gives an event that belongs to the turn, and is not one of its outputs, the turn's trace, unless it
// has one. It is for runtimes.
func (t *Turn) Trace(e *event.Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.traceLocked(e)
}

// traceLocked gives an output the turn's trace, unless it has one.
func (t *Turn) traceLocked(e *event.Event) {
	if t.trace == nil {
		t.trace = noTrace
		if in, err := t.decodeLocked(); err == nil {
			if parent, ok := in.Extension(traceParent); ok {
				state, _ := in.Extension(traceState)
				t.trace = &trace{parent, state}
			}
		}
	}
	if t.trace.parent.IsZero() {
		return
	}
	if own, ok := e.Extension(traceParent); ok {
		in, err := t.decodeLocked()
		if err != nil {
			return
		}
		if inherited, _ := in.Extension(traceParent); own != inherited || own == t.trace.parent {
			return
		}
		// A Clone of the turn's event, which has the trace from there.
	}
	// The extensions may be a slice that the handler gives to other events too.
	e.Extensions = append(make([]event.Extension, 0, len(e.Extensions)+2), e.Extensions...)
	e.SetExtension(traceParent, t.trace.parent)
	e.SetExtension(traceState, t.trace.state) // a state without its parent says nothing
}

// Publish adds an output: an event that is stored if the turn succeeds, after the outputs added before
// it, and exactly once however often the turn is repeated. The outputs of a failed, dropped or
// abandoned attempt are discarded. Publish itself stores nothing and does not block.
//
// It takes the event over, which must not be changed or published again afterwards. An empty id
// becomes <worker>.<run>.<input topic>.<position>.<index>, the same in every attempt as long as the
// handler adds its outputs in the same order; an empty source becomes /turnlane/<type>/<worker>. To
// pass the turn's own event on, publish a Clone of it, with an empty id if it is to get one of its own.
//
// An output belongs to the trace of the turn's event: unless the handler has set a traceparent extension
// on it, it gets the event's traceparent and tracestate, if there are any, or those of the turn's own span.
//
// An output that could never be stored, because it breaks a rule of CloudEvents, of topic names or of
// size, is an error that names the field, and the turn fails also when the handler ignores it. After
// the handler has returned the error is ErrTurnClosed.
func (t *Turn) Publish(topic string, e *event.Event) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return ErrTurnClosed
	}
	if e == nil {
		return t.refuseLocked(topic, errors.New("the event is nil"))
	}
	if e.ID == "" {
		e.ID = t.outputIDLocked()
	}
	if e.Source == "" {
		e.Source = "/turnlane/" + t.in.Worker.Type + "/" + t.in.Worker.ID
	}
	t.traceLocked(e)
	if t.in.Check != nil {
		if err := t.in.Check(topic, e); err != nil {
			return t.refuseLocked(topic, err)
		}
	}
	t.outputs = append(t.outputs, Output{topic, e})
	return nil
}

func (t *Turn) outputIDLocked() string {
	b := appendPlace(make([]byte, 0, len(t.in.Worker.ID)+len(t.in.Topic)+64), t.in.Worker.ID, t.run(), t.in.Topic, t.in.Entry.Pos)
	b = strconv.AppendInt(append(b, '.'), int64(len(t.outputs)), 10)
	return string(b)
}

func (t *Turn) run() uint64 {
	if t.in.Run != 0 {
		return t.in.Run
	}
	return t.in.Worker.Run
}

func appendPlace(b []byte, worker string, run uint64, topic string, pos event.Position) []byte {
	b = append(b, worker...)
	b = strconv.AppendUint(append(b, '.'), run, 10)
	b = append(append(b, '.'), topic...)
	return append(append(b, '.'), pos.String()...)
}

// EffectKey returns a name for the n-th effect of this event on the world outside, such as the idempotency
// key of a payment. It is the same in every attempt at the event, also after a crash, on another runtime,
// and when the event was given up and is brought back; it is another one after a seek, which asks for the
// effect anew.
func (t *Turn) EffectKey(n int) string {
	t.mu.Lock()
	origin := t.origin
	t.mu.Unlock()
	run, topic, pos := t.run(), t.in.Topic, t.in.Entry.Pos
	if origin != nil {
		run, topic, pos = origin.Run, origin.Topic, origin.Position
	}
	b := appendPlace(make([]byte, 0, len(t.in.Worker.ID)+len(topic)+72), t.in.Worker.ID, run, topic, pos)
	return string(strconv.AppendInt(append(b, ".effect."...), int64(n), 10))
}

// ErrCannotExtend is returned by Extend on a turn whose host has no deadline to move.
var ErrCannotExtend = errors.New("this turn has no deadline that can be moved")

// Extend moves the turn's deadline to d from now, unless it is later already, and with it the end of the
// context. A handler that has long work calls it every now and then: it shows that the work goes on. All
// of a turn may take MaxTurn of the worker's handler timeout; beyond that the deadline goes as far as it
// may, and the error says so. After the deadline has passed there is nothing to extend.
func (t *Turn) Extend(d time.Duration) error {
	switch {
	case t.Closed():
		return ErrTurnClosed
	case d <= 0:
		return &event.Error{Field: "extension", Rule: "is " + d.String(), Fix: "give a positive duration: it counts from now"}
	case t.in.Host == nil:
		return ErrCannotExtend
	}
	return t.in.Host.Extend(d)
}

// MaxTurn is how long a turn may take in all, extensions included, of a worker with the handler timeout:
// ten times as long or an hour, whichever is more, but a day at most, and never less than the timeout.
func MaxTurn(handlerTimeout time.Duration) time.Duration {
	const day = 24 * time.Hour
	if handlerTimeout >= day/10 {
		return max(handlerTimeout, day)
	}
	return max(10*handlerTimeout, time.Hour)
}

// MaxProgress bounds what Progress shows, in bytes.
const MaxProgress = 256

// Progress says how far the turn is, for people who look at the worker while it runs: the text is part of
// what GetWorker returns until the turn ends. It is cut at MaxProgress bytes, and control characters become
// spaces. It costs no write, and does not move the deadline.
func (t *Turn) Progress(text string) {
	if t.in.Host == nil || t.Closed() {
		return
	}
	if len(text) > MaxProgress {
		text = text[:MaxProgress]
	}
	text = strings.ToValidUTF8(text, "")
	t.in.Host.Progress(strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, text))
}

func (t *Turn) refuseLocked(topic string, err error) error {
	err = fmt.Errorf("output %d to topic %q: %w", len(t.outputs), topic, err)
	if t.refused == nil {
		t.refused = err
	}
	return err
}

// Closed reports whether the turn has ended: its handler returned, or was given up on as stuck. Code
// that cannot watch the turn's context can ask it whether its work still counts.
func (t *Turn) Closed() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.closed
}

// Close ends the turn and returns its outputs, or why it must fail although its handler succeeded.
// Only the first call returns them, the others ErrTurnClosed. It is for runtimes and tests.
func (t *Turn) Close() ([]Output, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, ErrTurnClosed
	}
	t.closed = true
	outputs := t.outputs
	t.outputs = nil
	if t.refused != nil {
		return nil, t.refused
	}
	return outputs, nil
}
