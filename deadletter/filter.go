package deadletter

import (
	"regexp"
	"strings"

	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/internal/admission"
	format "github.com/turnlane/turnlane/internal/deadletter"
	"github.com/turnlane/turnlane/internal/rpcerr"
	turnlanev1 "github.com/turnlane/turnlane/proto/turnlane/v1"
)

var (
	typeForm        = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)
	fingerprintForm = regexp.MustCompile(`^[0-9a-f]{12}$`)
)

// filter picks dead letters; what is set must match.
type filter struct {
	topic, typ, fingerprint string
	position                event.Position // zero: any
}

// parseFilter checks a filter.
func parseFilter(f *turnlanev1.DeadLetterFilter) (filter, error) {
	out := filter{topic: f.GetTopic(), typ: f.GetType(), fingerprint: strings.ToLower(f.GetFingerprint())}
	if out.topic != "" {
		if err := checkTopic("filter.topic", out.topic); err != nil {
			return out, err
		}
	}
	if out.typ != "" && !typeForm.MatchString(out.typ) {
		return out, rpcerr.Invalid("filter.type", "is not the name of a worker type", "use 1 to 64 of A-Z a-z 0-9 _ -")
	}
	if out.fingerprint != "" && !fingerprintForm.MatchString(out.fingerprint) {
		return out, rpcerr.Invalid("filter.fingerprint", "is not a fingerprint: those have 12 hexadecimal digits", `take one from "turnlane dlq list"`)
	}
	if p := f.GetPosition(); p != "" {
		var err error
		if out.position, err = event.ParsePosition(p); err != nil {
			return out, rpcerr.Invalid("filter.position", err.Error(), `take one from "turnlane dlq show"`)
		}
		if out.topic == "" {
			return out, rpcerr.Invalid("filter.topic", "is missing: a position is one in a topic", "name the topic too")
		}
		if out.position.IsZero() {
			return out, rpcerr.Invalid("filter.position", "lies before every entry", `take one from "turnlane dlq show"`)
		}
	}
	return out, nil
}

// checkTopic takes the names of topics of dead letters only.
func checkTopic(field, topic string) error {
	if err := admission.Readable(topic); err != nil {
		return rpcerr.From(err)
	}
	if !strings.HasPrefix(topic, format.Prefix) {
		return rpcerr.Invalid(field, "does not begin with dlq., and so is no topic of dead letters",
			`dead letters of a topic are in dlq.<topic>; "turnlane dlq list" shows the topics that there are`)
	}
	return nil
}

func (f filter) matches(l *letter) bool {
	return (f.typ == "" || f.typ == l.facts.WorkerType) &&
		(f.fingerprint == "" || f.fingerprint == l.fingerprint)
}

// within returns where to read: after a position, up to another one.
func (f filter) within(until event.Position) (after, upTo event.Position) {
	if f.position.IsZero() {
		return event.Position{}, until
	}
	if until.Less(f.position) {
		return until, until
	}
	return f.position.Prev(), f.position
}
