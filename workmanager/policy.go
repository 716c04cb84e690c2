package workmanager

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/turnlane/turnlane/actor"
	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/internal/admission"
	turnlanev1 "github.com/turnlane/turnlane/proto/turnlane/v1"
)

const (
	maxTimeout  = 24 * time.Hour
	minTimeout  = time.Millisecond
	maxAttempts = 1_000_000 // and crashes
)

// definePolicy checks a policy and fills in defaults. An unset back-off gives way to one that was set,
// so that a single setting is never refused for a default.
func definePolicy(p *problems, in *turnlanev1.Policy, topics []string) *turnlanev1.Policy {
	timeout := duration(p, "policy.handler_timeout", in.GetHandlerTimeout(), actor.DefaultHandlerTimeout)
	grace := duration(p, "policy.handler_grace", in.GetHandlerGrace(), actor.DefaultHandlerGrace)
	backoff := duration(p, "policy.backoff", in.GetBackoff(), actor.DefaultBackoff)
	maxBackoff := duration(p, "policy.max_backoff", in.GetMaxBackoff(), actor.DefaultMaxBackoff)
	switch {
	case in.GetBackoff() == nil:
		backoff = min(backoff, maxBackoff)
	case in.GetMaxBackoff() == nil:
		maxBackoff = max(backoff, maxBackoff)
	case backoff > maxBackoff:
		p.add("policy.max_backoff", fmt.Sprintf("%s is less than policy.backoff, %s", maxBackoff, backoff),
			"set the cap to at least the first back-off")
	}
	attempts := count(p, "policy.max_attempts", in.GetMaxAttempts(), actor.DefaultMaxAttempts, "nothing is tried again")
	crashes := count(p, "policy.max_crashes", in.GetMaxCrashes(), actor.DefaultMaxCrashes, "an event is given up when it has ended the process once")
	exhausted := in.GetOnExhausted()
	switch {
	case exhausted == turnlanev1.OnExhausted_ON_EXHAUSTED_UNSPECIFIED:
		exhausted = turnlanev1.OnExhausted_ON_EXHAUSTED_DEAD_LETTER
	case turnlanev1.OnExhausted_name[int32(exhausted)] == "":
		p.add("policy.on_exhausted", fmt.Sprintf("%d is unknown", exhausted), "use DEAD_LETTER, DROP or PAUSE")
	}
	policy := &turnlanev1.Policy{
		HandlerTimeout: durationpb.New(timeout),
		HandlerGrace:   durationpb.New(grace),
		MaxAttempts:    attempts,
		Backoff:        durationpb.New(backoff),
		MaxBackoff:     durationpb.New(maxBackoff),
		MaxCrashes:     crashes,
		OnExhausted:    exhausted,
	}
	if topic := in.GetDeadLetterTopic(); topic != "" {
		checkDeadLetterTopic(p, topic, topics)
		policy.DeadLetterTopic = new(topic)
	}
	return policy
}

// completePolicy is a stored policy with the defaults of what it was stored without.
func completePolicy(stored *turnlanev1.Policy) *turnlanev1.Policy {
	var p problems // of a record there are none, or it is too late
	return definePolicy(&p, stored, nil)
}

// mergePolicy is a policy with changes to it: what they set is replaced.
func mergePolicy(now, changes *turnlanev1.Policy) *turnlanev1.Policy {
	next := proto.CloneOf(now)
	proto.Merge(next, withoutDurations(changes))
	for _, d := range []struct {
		to   **durationpb.Duration
		from *durationpb.Duration
	}{
		{&next.HandlerTimeout, changes.GetHandlerTimeout()}, {&next.HandlerGrace, changes.GetHandlerGrace()},
		{&next.Backoff, changes.GetBackoff()}, {&next.MaxBackoff, changes.GetMaxBackoff()},
	} {
		if d.from != nil {
			*d.to = d.from
		}
	}
	return next
}

// withoutDurations leaves out what Merge would merge field by field: 1.5 s over 2 s is not 1 s and
// some of both.
func withoutDurations(p *turnlanev1.Policy) *turnlanev1.Policy {
	p = proto.CloneOf(p)
	p.HandlerTimeout, p.HandlerGrace, p.Backoff, p.MaxBackoff = nil, nil, nil, nil
	return p
}

func count(p *problems, field string, n, standard uint32, one string) uint32 {
	switch {
	case n == 0:
		return standard
	case n > maxAttempts:
		p.add(field, fmt.Sprintf("%d is out of range", n), fmt.Sprintf("set 1 to %d; 1 means that %s", maxAttempts, one))
	}
	return n
}

func duration(p *problems, field string, in *durationpb.Duration, standard time.Duration) time.Duration {
	if in == nil {
		return standard
	}
	d := in.AsDuration()
	if err := in.CheckValid(); err != nil || d < minTimeout || d > maxTimeout {
		p.add(field, fmt.Sprintf("%s is out of range", d), fmt.Sprintf("set %s to %s, or leave it out for %s", minTimeout, maxTimeout, standard))
		return standard
	}
	return d
}

// checkDeadLetterTopic checks where a worker's dead letters go. A worker that read them itself would
// fail on its own failures for ever.
func checkDeadLetterTopic(p *problems, topic string, topics []string) {
	const field, fix = "policy.dead_letter_topic", "name it dlq.<something>, or leave it out for dlq.<topic of the event>"
	rest, ok := strings.CutPrefix(topic, "dlq.")
	switch err := admission.Readable(topic); {
	case err != nil:
		rule := err.Error()
		if e, ok := errors.AsType[*event.Error](err); ok {
			rule = e.Rule
		}
		p.add(field, rule, fix)
	case !ok || rest == "":
		p.add(field, quote(topic)+" is not the name of a topic of dead letters", fix)
	case rest == "dlq" || strings.HasPrefix(rest, "dlq."):
		p.add(field, quote(topic)+" would hold dead letters of dead letters, and there are none", fix)
	case slices.Contains(topics, topic):
		p.add(field, quote(topic)+" is one of the topics that the worker reads, so that it would fail on its own failures",
			"choose another topic for the dead letters, or read them with another worker")
	}
}
