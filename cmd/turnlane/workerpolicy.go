package main

import (
	"strings"
	"time"

	"github.com/spf13/pflag"
	"google.golang.org/protobuf/types/known/durationpb"

	turnlanev1 "github.com/turnlane/turnlane/proto/turnlane/v1"
)

// policyHelp is what the help of verbs with policyFlags says of them.
const policyHelp = `An event is given up after --max-attempts, or when it has ended the process --max-crashes times;
attempts are --backoff apart, doubling up to --max-backoff. --on-exhausted says what becomes of it: a
dead letter on dlq.<topic> or --dead-letter-topic, nothing (drop), or a pause of the worker with the
event at the head (pause).`

// policyFlags is what the flags say of a worker's policy.
type policyFlags struct {
	flags               *pflag.FlagSet
	timeout, grace      durationFlag
	attempts, crashes   numberFlag
	backoff, maxBackoff durationFlag
	exhausted           choiceFlag
	deadLetters         string
}

func (f *policyFlags) add(flags *pflag.FlagSet) {
	f.flags = flags
	for _, d := range []*durationFlag{&f.timeout, &f.grace, &f.backoff, &f.maxBackoff} {
		d.min = time.Millisecond
	}
	f.attempts, f.crashes = numberFlag{min: 1, max: 1_000_000}, numberFlag{min: 1, max: 1_000_000}
	f.exhausted.choices = []string{"dead_letter", "drop", "pause"}
	flags.Var(&f.timeout, "handler-timeout", "deadline of a turn (default 30s)")
	flags.Var(&f.grace, "handler-grace", "how long a handler may ignore its deadline (default 2s)")
	flags.Var(&f.attempts, "max-attempts", "how often an event is tried (default 3)")
	flags.Var(&f.crashes, "max-crashes", "how often an event may end the process (default 3)")
	flags.Var(&f.backoff, "backoff", "wait before the second attempt (default 200ms)")
	flags.Var(&f.maxBackoff, "max-backoff", "longest wait between attempts (default 1m)")
	flags.Var(&f.exhausted, "on-exhausted", "what becomes of an event that is given up (default dead_letter)")
	flags.StringVar(&f.deadLetters, "dead-letter-topic", "", "`TOPIC` of the worker's dead letters (default dlq.<topic of the event>)")
}

// policy has what was set; nil if nothing was.
func (f *policyFlags) policy() *turnlanev1.Policy {
	p := &turnlanev1.Policy{
		HandlerTimeout: duration(f.timeout), HandlerGrace: duration(f.grace),
		MaxAttempts: uint32(f.attempts.n), MaxCrashes: uint32(f.crashes.n),
		Backoff: duration(f.backoff), MaxBackoff: duration(f.maxBackoff),
		OnExhausted: turnlanev1.OnExhausted(turnlanev1.OnExhausted_value[onExhausted+strings.ToUpper(f.exhausted.value)]),
	}
	set := f.flags.Changed("dead-letter-topic")
	if set {
		p.DeadLetterTopic = &f.deadLetters
	}
	for _, name := range []string{"handler-timeout", "handler-grace", "max-attempts", "max-crashes", "backoff", "max-backoff", "on-exhausted"} {
		set = set || f.flags.Changed(name)
	}
	if !set {
		return nil
	}
	return p
}

const onExhausted = "ON_EXHAUSTED_"

// exhaustedName is the value of --on-exhausted.
func exhaustedName(e turnlanev1.OnExhausted) string {
	if e == turnlanev1.OnExhausted_ON_EXHAUSTED_UNSPECIFIED {
		return ""
	}
	return strings.ToLower(strings.TrimPrefix(e.String(), onExhausted))
}

func duration(f durationFlag) *durationpb.Duration {
	if f.Duration == 0 {
		return nil
	}
	return durationpb.New(f.Duration)
}
