package runtime

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/turnlane/turnlane/actor"
	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/internal/admission"
	"github.com/turnlane/turnlane/internal/command"
)

// command runs the handler's function for a command, which is the turn's event.
func (t *turn) command(ctx context.Context, e *event.Event) error {
	c, err := command.Parse(e, t.a.worker.Type, t.a.worker.ID)
	if err != nil {
		return &actor.CommandError{Reason: command.ReasonInvalid, Err: err}
	}
	f := t.a.commands[c.Name]
	if f == nil {
		return &actor.CommandError{Reason: command.ReasonUnknown, Err: unknownCommand(t.a.worker.Type, c.Name, t.a.commands)}
	}
	reply, err := f(ctx, &t.Turn)
	if err == nil {
		t.reply = &reply
	}
	return err
}

func unknownCommand(typ, name string, known actor.Commands) error {
	if len(known) == 0 {
		return fmt.Errorf("workers of type %s take no commands", typ)
	}
	const most = 32
	names := slices.Sorted(maps.Keys(known))
	more := ""
	if len(names) > most {
		names, more = names[:most], " and others"
	}
	return fmt.Errorf("workers of type %s have no command %q; they have %s%s", typ, name, strings.Join(names, ", "), more)
}

// answer turns the outcome of a command into what becomes of it: a command that succeeded, and one that
// failed in a way that trying again does not mend, is done, and the last of its outputs is the reply. What a
// failed one published and changed is dropped. The others are tried again.
func (t *turn) answer(outcome actor.Outcome, err error, outputs []actor.Output, changes []actor.StateChange, now time.Time) (actor.Outcome, []actor.Output, []actor.StateChange) {
	switch outcome {
	case actor.OutcomeDone:
		reply, tooLarge := t.replied(now)
		if tooLarge == nil {
			return outcome, append(outputs, reply), changes
		}
		err = tooLarge
	case actor.OutcomeFailed, actor.OutcomePermanent, actor.OutcomeDropped:
		if _, bad := errors.AsType[*undecodable](err); bad {
			return outcome, nil, nil // there is nobody to answer to
		}
	default:
		return outcome, nil, nil
	}
	t.a.r.log.Info("command failed", "worker", t.a.worker.ID, "type", t.a.worker.Type, "command", clean(t.Turn.Event().Type),
		"position", t.item.Entry.Pos, "outcome", outcome.String(), "error", clean(err.Error()))
	return actor.OutcomeDone, t.lastAnswer(err, now), nil
}

// replied is the reply of a command that succeeded, unless it can never be stored.
func (t *turn) replied(now time.Time) (actor.Output, error) {
	w := t.a.worker
	c, _ := command.Parse(t.Turn.Event(), w.Type, w.ID)
	e := command.Reply(c, w.Type, w.ID, t.reply.Data, t.reply.ContentType, now)
	t.Turn.Trace(e)
	if err := admission.Event(e, t.a.r.cfg.MaxEventBytes); err != nil {
		return actor.Output{}, fmt.Errorf("the reply cannot be stored: %w", err)
	}
	return actor.Output{Topic: c.ReplyTo, Event: e}, nil
}

// lastAnswer is the reply of a command that failed for good; there is none to other events.
func (t *turn) lastAnswer(err error, now time.Time) []actor.Output {
	e := t.Turn.Event()
	if t.lane().kind != commandLane || e == nil {
		return nil
	}
	w := t.a.worker
	reason := command.ReasonFailed
	if own, ok := errors.AsType[*actor.CommandError](err); ok && isReason(own.Reason) {
		reason = own.Reason
	}
	c, _ := command.Parse(e, w.Type, w.ID)
	reply := command.ErrorReply(c, w.Type, w.ID, reason, err.Error(), now)
	t.Turn.Trace(reply)
	return []actor.Output{{Topic: c.ReplyTo, Event: reply}}
}

// isReason reports whether a text can be the reason of a failed command.
func isReason(s string) bool {
	if s == "" || len(s) > 64 || s[0] < 'A' || s[0] > 'Z' {
		return false
	}
	for i := range len(s) {
		if c := s[i]; (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '_' {
			return false
		}
	}
	return true
}
