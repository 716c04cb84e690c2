package runtime

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/turnlane/turnlane/actor"
	"github.com/turnlane/turnlane/cursors"
	"github.com/turnlane/turnlane/inbox"
	"github.com/turnlane/turnlane/internal/deadletter"
	"github.com/turnlane/turnlane/internal/engine"
	"github.com/turnlane/turnlane/internal/tracing"
	"github.com/turnlane/turnlane/store"
)

// turn is all that one turn needs, in one piece of memory.
type turn struct {
	engine.Context
	Turn   actor.Turn
	a      *activation
	item   inbox.Item
	ticket cursors.Ticket
	done   *done                  // its line in the ledger; nil if it needs none
	reply  *actor.Reply           // of a command that succeeded
	told   atomic.Pointer[string] // its progress
	cuts   uint32                 // those of the lane when the event was taken
	last   store.Attempt          // what was known of the event when it was taken, then why it is given up

	deadTopic string                       // where its dead letter goes
	span      atomic.Pointer[tracing.Span] // nil: none
}

// undecodable marks the error of a record that cannot be decoded.
type undecodable struct{ err error }

func (e *undecodable) Error() string { return "the record cannot be decoded: " + e.err.Error() }
func (e *undecodable) Unwrap() error { return e.err }

// Handle implements engine.Turn.
func (t *turn) Handle() error {
	ctx := context.Context(&t.Context)
	if tracer := t.a.r.tracer; tracer != nil {
		var span *tracing.Span
		ctx, span = tracer.StartTurn(ctx, &t.Turn)
		t.span.Store(span)
	}
	e, err := t.Turn.Decode()
	if err != nil {
		return actor.Permanent(&undecodable{err})
	}
	switch t.lane().kind {
	case commandLane:
		return t.command(ctx, e)
	case redriveLane:
		if err := t.bringBack(e); err != nil {
			return err
		}
	}
	return t.a.handler.Handle(ctx, &t.Turn)
}

func (t *turn) lane() *lane { return &t.a.lanes[t.item.Lane] }

// Ended implements engine.Body.
func (a *activation) Ended(ended engine.Turn, r engine.Result) {
	defer a.turnEnded()
	t := ended.(*turn)
	outputs, refused := t.Turn.Close()
	defer a.typ.limit.give(a)
	if r.Kind == engine.Cancelled {
		t.span.Load().EndTurn("cancelled", nil)
		return // the event stays unfinished, for whoever goes on
	}
	outcome, err := outcomeOf(r)
	if refused != nil && (outcome == actor.OutcomeDone || outcome == actor.OutcomeFailed && actor.OutcomeOf(refused) == actor.OutcomePermanent) {
		outcome, err, outputs = actor.OutcomeOf(refused), refused, nil
	}
	a.typ.meter.turn(outcome, t, r)
	t.span.Load().EndTurn(outcome.String(), err)
	var changes []actor.StateChange
	if outcome == actor.OutcomeDone {
		changes = t.Turn.Changes()
	}
	if t.lane().kind == commandLane {
		outcome, outputs, changes = t.answer(outcome, err, outputs, changes, r.End)
	}
	switch outcome {
	case actor.OutcomeDone:
		a.finish(t, outputs, changes, r.End)
	case actor.OutcomeDropped:
		a.r.log.Info("event dropped by its handler", "worker", a.worker.ID, "topic", t.Turn.Topic(),
			"position", t.item.Entry.Pos, "reason", clean(err.Error()))
		a.finish(t, nil, nil, r.End)
	default:
		a.failed(t, r.Kind, outcome, err, r.End)
	}
	if r.Kind == engine.Stuck {
		a.stuck(t)
	}
}

// outcomeOf says what an attempt came to, and its error unless it is done.
func outcomeOf(r engine.Result) (actor.Outcome, error) {
	switch r.Kind {
	case engine.Returned:
		if r.Err == nil {
			return actor.OutcomeDone, nil
		}
		return actor.OutcomeOf(r.Err), r.Err
	case engine.Panicked:
		return actor.OutcomePanic, r.Err
	case engine.Exited:
		return actor.OutcomeGoexit, r.Err
	}
	return actor.OutcomeTimeout, r.Err
}

// finish ends an event for good: at once, or when its outputs are stored.
func (a *activation) finish(t *turn, outputs []actor.Output, changes []actor.StateChange, now time.Time) {
	a.enter(t, changes)
	if len(outputs) > 0 {
		a.r.outbox.add(t, outputs, now)
	}
	a.passed(t, len(outputs) > 0, now)
}

// passed lets an event's lane go on, and ends the event for good unless it is pending in the outbox.
func (a *activation) passed(t *turn, pending bool, now time.Time) {
	l := &a.lanes[t.item.Lane]
	a.mu.Lock()
	unmark := t.cuts == l.cuts && l.unmarkLocked(t.item.Entry.Pos)
	tell := false
	if !pending {
		tell = a.settledLocked(t)
	}
	if !a.frozen {
		a.box.Done(t.item.Lane)
	}
	a.mu.Unlock()
	switch {
	case unmark:
		a.r.flush.urgent(a)
	case tell:
		a.r.flush.add(a, now)
	}
}

// failed counts a failed attempt. Once the store has it the event waits for the next one, or is given
// up.
func (a *activation) failed(t *turn, kind engine.Kind, outcome actor.Outcome, err error, now time.Time) {
	if p, ok := errors.AsType[*engine.PanicError](err); ok {
		a.r.log.Debug("stack of the panic", "worker", a.worker.ID, "stack", string(p.Stack))
	}
	if bad, ok := errors.AsType[*undecodable](err); ok { // which is so at every attempt; the handler had none
		t.last.GivenUp, t.last.Error, t.last.FirstFailed, t.last.LastFailed = deadletter.Undecodable, clean(bad.Error()), now, now
		a.giveUp(t, now)
		return
	}
	l := &a.lanes[t.item.Lane]
	a.mu.Lock()
	former := t.item.Former || t.cuts != l.cuts
	k := &l.old
	if !former {
		k = l.noteLocked(t.item.Entry.Pos)
	} else if k.Position != t.item.Entry.Pos {
		t.last.Position = t.item.Entry.Pos
		*k = attempt{Attempt: t.last}
	}
	k.Attempts++
	k.Started, k.dirty = false, true
	k.LastFailed, k.Error = now.UTC(), clean(err.Error())
	if k.FirstFailed.IsZero() {
		k.FirstFailed = k.LastFailed
	}
	l.next = next{what: retry, t: t}
	if outcome == actor.OutcomePermanent || k.Attempts >= a.policy().maxAttempts {
		k.GivenUp = reasonOf(outcome)
		l.next.what = giveUp
	} else {
		l.next.delay = a.policy().delay(k.Attempts)
		if after, ok := errors.AsType[*actor.RetryAfterError](err); ok && outcome == actor.OutcomeRetryAfter {
			l.next.delay = max(after.After, minBackoff)
		}
	}
	attempts := k.Attempts
	t.last = k.Attempt
	switch {
	case a.frozen || kind == engine.Stuck:
		l.next = next{} // the activation in this one's place goes on
	case l.next.what == retry:
		t.item.Former = former
		a.box.Hold(t.item)
	}
	l.markDirtyLocked()
	do := l.next
	if former {
		l.next = next{}
	}
	a.mu.Unlock()
	a.r.log.Info("attempt failed", "worker", a.worker.ID, "type", a.worker.Type, "topic", t.Turn.Topic(),
		"position", t.item.Entry.Pos, "attempt", attempts, "max_attempts", a.policy().maxAttempts,
		"outcome", outcome.String(), "error", clean(err.Error()))
	if former {
		a.goOn(l, do)
	} else {
		a.r.flush.urgent(a)
	}
}

// goOn does what a lane waited for, now that the store has what is known of its event.
func (a *activation) goOn(l *lane, do next) {
	a.mu.Lock()
	if a.frozen || a.closing {
		a.mu.Unlock()
		return
	}
	switch do.what {
	case retry:
		l.retryAt = time.Now().Add(do.delay)
		if l.retry == nil {
			l.retry = time.AfterFunc(do.delay, l.resume)
		} else {
			l.retry.Reset(do.delay)
		}
		a.mu.Unlock()
	case beginMarked:
		a.marking, a.ready = false, do.t
		a.mu.Unlock()
		a.cell.Ring()
	case giveUp:
		a.mu.Unlock()
		a.giveUp(do.t, time.Now())
		a.cell.Ring()
	default:
		a.mu.Unlock()
	}
}

// stuck has the activation replaced: its handler has the goroutine, and may do anything at any time.
func (a *activation) stuck(t *turn) {
	a.r.log.Error("handler stuck: it ignored its deadline and was given up", "worker", a.worker.ID, "type", a.worker.Type,
		"topic", t.Turn.Topic(), "position", t.item.Entry.Pos, "timeout", a.policy().timeout, "grace", a.policy().grace)
	a.lost.Store(true)
	a.typ.meter.stuck.Add(1)
	a.reportStuck(t)
	a.r.replace(a)
}

// minBackoff is the floor under every pause before a retry.
const minBackoff = 10 * time.Millisecond

// delay is the pause after the n-th failed attempt: exponential with full jitter, between the floor and
// the cap. It is computed without ever shifting out of range.
func (p policy) delay(n uint32) time.Duration {
	ceiling := p.maxBackoff
	if shift := n - 1; shift < 32 && p.backoff <= ceiling>>shift {
		ceiling = p.backoff << shift
	}
	ceiling = max(ceiling, minBackoff)
	return minBackoff + rand.N(ceiling-minBackoff+1)
}

// clean makes an error's text fit for a log line and an event: it is cut when it is long, and control
// characters, and bytes that are not UTF-8, are escaped.
func clean(s string) string {
	const limit = 1024
	cut := len(s) > limit
	if cut {
		s = s[:limit]
		for n := 0; n < utf8.UTFMax-1 && !utf8.ValidString(s[len(s)-1-n:]); n++ {
			if utf8.RuneStart(s[len(s)-1-n]) {
				s = s[:len(s)-1-n]
				break
			}
		}
	}
	plain := !cut
	for i := 0; plain && i < len(s); i++ {
		plain = s[i] >= 0x20 && s[i] < 0x7f
	}
	if plain {
		return s
	}
	var b strings.Builder
	for i, r := range s {
		switch {
		case r == utf8.RuneError && !strings.HasPrefix(s[i:], string(utf8.RuneError)):
			fmt.Fprintf(&b, "\\x%02x", s[i])
		case unicode.IsControl(r), r == '\u2028', r == '\u2029':
			fmt.Fprintf(&b, "\\u%04x", r)
		default:
			b.WriteRune(r)
		}
	}
	if cut {
		b.WriteString("…")
	}
	return b.String()
}
