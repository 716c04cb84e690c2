package actor_test

import (
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/turnlane/turnlane/actor"
)

func TestOutcomeOf(t *testing.T) {
	for _, c := range []struct {
		name string
		err  error
		want actor.Outcome
	}{
		{"nil", nil, actor.OutcomeDone},
		{"an error", io.ErrUnexpectedEOF, actor.OutcomeFailed},
		{"permanent", actor.Permanent(io.EOF), actor.OutcomePermanent},
		{"permanent of nothing", actor.Permanent(nil), actor.OutcomePermanent},
		{"retry after", actor.RetryAfter(time.Second), actor.OutcomeRetryAfter},
		{"dropped", actor.Drop("too old"), actor.OutcomeDropped},
		{"wrapped", fmt.Errorf("settle: %w", actor.Drop("too old")), actor.OutcomeDropped},
		{"permanent around another outcome", actor.Permanent(actor.RetryAfter(1)), actor.OutcomePermanent},
		{"permanent beside others", errors.Join(actor.RetryAfter(1), actor.Drop(""), actor.Permanent(nil)), actor.OutcomePermanent},
		{"drop beside retry after", errors.Join(actor.RetryAfter(1), actor.Drop("")), actor.OutcomeDropped},
	} {
		if got := actor.OutcomeOf(c.err); got != c.want {
			t.Errorf("%s: %v is %s, want %s", c.name, c.err, got, c.want)
		}
	}
}

func TestOutcomesKeepWhatTheySay(t *testing.T) {
	if err := actor.Permanent(fmt.Errorf("read trade: %w", io.EOF)); !errors.Is(err, io.EOF) || err.Error() != "read trade: EOF" {
		t.Errorf("Permanent hides its cause: %v", err)
	}
	if err := actor.Permanent(nil); err.Error() != "permanent failure" {
		t.Errorf("Permanent(nil) says %q", err)
	}
	for _, c := range []struct{ given, want time.Duration }{{time.Minute, time.Minute}, {0, 0}, {-time.Second, 0}} {
		e, ok := errors.AsType[*actor.RetryAfterError](fmt.Errorf("busy: %w", actor.RetryAfter(c.given)))
		if !ok || e.After != c.want {
			t.Errorf("RetryAfter(%s) asks for %+v, want %s", c.given, e, c.want)
		}
	}
	if e, ok := errors.AsType[*actor.DropError](actor.Drop("a test trade")); !ok || e.Reason != "a test trade" {
		t.Errorf("Drop keeps %+v", e)
	}
}

func TestOutcomeNames(t *testing.T) {
	names := map[actor.Outcome]string{
		actor.OutcomeDone: "done", actor.OutcomeFailed: "failed", actor.OutcomePermanent: "permanent",
		actor.OutcomeRetryAfter: "retry_after", actor.OutcomeDropped: "dropped", actor.OutcomeTimeout: "timeout",
		actor.OutcomePanic: "panic", actor.OutcomeGoexit: "goexit", 200: "outcome(200)",
	}
	for o, want := range names {
		if got := o.String(); got != want {
			t.Errorf("outcome %d is called %q, want %q", uint8(o), got, want)
		}
	}
}
