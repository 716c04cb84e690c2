package builtin

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/turnlane/turnlane/actor"
	"github.com/turnlane/turnlane/event"
)

// ReportType is the type of a probe's reports, and DefaultReports the topic that they go to when the
// worker's config names none.
const (
	ReportType     = "probe.turn"
	DefaultReports = "probe.out"
)

// Report is the data of what a probe publishes after every attempt.
type Report struct {
	WorkerID   string `json:"worker_id"`
	WorkerName string `json:"worker_name"`
	WorkerType string `json:"worker_type"`
	Group      string `json:"group"`       // "" for a dedicated worker
	GroupIndex uint32 `json:"group_index"` // 0 for a dedicated worker
	Token      uint64 `json:"token"`
	Topic      string `json:"topic"`
	Position   string `json:"position"`
	EventID    string `json:"event_id"`
	Attempt    int    `json:"attempt"`
	Replayed   bool   `json:"replayed"`
	Outcome    string `json:"outcome"` // the name of an actor.Outcome
	Started    int64  `json:"started_unix_ns"`
	Finished   int64  `json:"finished_unix_ns"`
	PID        int    `json:"pid"`
}

// A report is written while the turn is still open, and tried again under the same id, so that a
// repeat can be told from a second attempt.
const (
	reportTries   = 4
	reportTimeout = 2 * time.Second // of one try
	reportPause   = 50 * time.Millisecond
)

// probe does what the data of an event says, step by step, and reports every attempt by a direct
// publish, which stands whatever becomes of the turn.
//
// An attempt never counts as done, dropped or given up on unless its report is stored: when the store
// refuses it for good the attempt fails, and is tried and reported again. Only the end of the process
// leaves an attempt without a report, and then the event comes again. The other way round a report can
// be stored for an attempt whose end never was: that is a repeat, and marked as one.
type probe struct {
	worker *actor.Worker
	pub    actor.Publisher
	out    string
}

func newProbe(w *actor.Worker, pub actor.Publisher) (actor.Handler, error) {
	out, err := outTopic(w, DefaultReports)
	if err != nil {
		return nil, err
	}
	return &probe{worker: w, pub: pub, out: out}, nil
}

// attempt is one run of a script, and the one report about it.
//
//	handler returns, panics or exits ──┐
//	                                   ├─ who comes first reports
//	deadline passes ───────────────────┘
//
// A handler that hangs past its deadline cannot report by itself in time, so the end of the context
// does it, and the handler's own end, whenever it comes, finds the report made.
type attempt struct {
	*probe
	turn    *actor.Turn
	started time.Time
	ended   atomic.Int64 // when the context ended other than by its deadline, Unix nanoseconds
}

func (p *probe) Handle(ctx context.Context, turn *actor.Turn) (err error) {
	a := &attempt{probe: p, turn: turn, started: time.Now()}
	late := make(chan error, 1) // what became of the report that the deadline made
	stop := context.AfterFunc(ctx, func() {
		if !expired(ctx) {
			a.ended.Store(time.Now().UnixNano())
			late <- nil
			return
		}
		late <- a.report(ctx, actor.OutcomeTimeout, deadline(ctx))
	})

	outcome := actor.OutcomePanic // stands if what follows does not return
	defer func() {
		// The handler can see that its deadline has passed before the function above is called: then
		// stop says true, and it is reported here.
		var failed error
		switch stopped := stop(); {
		case !stopped && expired(ctx):
			failed = <-late
		case expired(ctx):
			failed = a.report(ctx, actor.OutcomeTimeout, deadline(ctx))
		default:
			if !stopped {
				<-late //nolint:errcheck // nil: no deadline made a report
			}
			failed = a.report(ctx, a.final(outcome), a.finished())
		}
		if failed != nil {
			err = failed
		}
	}()

	err = a.run(ctx, &outcome)
	outcome = actor.OutcomeOf(err)
	return err
}

// expired reports whether the turn has passed its deadline, as a runtime sees it: a context can be a
// little late to say so.
func expired(ctx context.Context) bool {
	if cause := context.Cause(ctx); cause != nil {
		return errors.Is(cause, context.DeadlineExceeded)
	}
	d, ok := ctx.Deadline()
	return ok && !time.Now().Before(d)
}

func deadline(ctx context.Context) time.Time {
	if d, ok := ctx.Deadline(); ok {
		return d
	}
	return time.Now()
}

// final is the outcome to report. A turn that was given up on while its handler ignored the end of the
// context, as when the worker stopped, is not done, whatever the handler thinks.
func (a *attempt) final(outcome actor.Outcome) actor.Outcome {
	if a.turn.Closed() {
		return actor.OutcomeFailed
	}
	return outcome
}

// finished is now. But a turn that was given up on was over when its context ended: another activation
// may have gone on since.
func (a *attempt) finished() time.Time {
	if ended := a.ended.Load(); ended != 0 && a.turn.Closed() {
		return time.Unix(0, ended)
	}
	return time.Now()
}

// run does the steps. A panic and a Goexit go through it as they are: the outcome says beforehand
// which of them it will be.
func (a *attempt) run(ctx context.Context, outcome *actor.Outcome) error {
	steps, err := parseScript(a.turn.Event())
	if err != nil {
		return actor.Permanent(err)
	}
	for _, s := range steps {
		if a.turn.Attempt() > s.times {
			continue
		}
		if s.sleep != nil {
			if err := sleep(ctx, *s.sleep); err != nil {
				return err
			}
		}
		if s.hang != nil {
			time.Sleep(*s.hang)
			if err := ctx.Err(); err != nil {
				return err
			}
		}
		if s.publish != nil {
			if err := a.turn.Publish(s.publish.topic, s.publish.event()); err != nil {
				return err
			}
		}
		if err := a.add(s.add); err != nil {
			return err
		}
		switch {
		case s.fail != nil:
			return errors.New(*s.fail)
		case s.permanent != nil:
			return actor.Permanent(errors.New(*s.permanent))
		case s.retryAfter != nil:
			return actor.RetryAfter(*s.retryAfter)
		case s.drop != nil:
			return actor.Drop(*s.drop)
		case s.panic != nil:
			panic(*s.panic)
		case s.goexit:
			*outcome = actor.OutcomeGoexit
			runtime.Goexit()
		case s.exit != nil:
			os.Exit(*s.exit)
		}
	}
	return nil
}

// add adds to numbers in the worker's state, which are kept as decimal text.
func (a *attempt) add(numbers map[string]int64) error {
	state := a.turn.State()
	for _, key := range slices.Sorted(maps.Keys(numbers)) {
		var old int64
		if text, ok := state.Get(key); ok {
			var err error
			if old, err = strconv.ParseInt(string(text), 10, 64); err != nil {
				return actor.Permanent(fmt.Errorf("state: key %q holds %q, which is no number to add to", key, text))
			}
		}
		if err := state.Set(key, strconv.AppendInt(nil, old+numbers[key], 10)); err != nil {
			return actor.Permanent(err)
		}
	}
	return nil
}

func (o *output) event() *event.Event {
	e := &event.Event{Type: "probe.output", Subject: o.subject}
	if o.data != nil {
		e.DataContentType, e.Data, e.DataKind = "application/json", o.data, event.JSONData
	}
	return e
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// report stores the report of this attempt. It does so also when the turn's context has ended.
func (a *attempt) report(ctx context.Context, outcome actor.Outcome, finished time.Time) error {
	w, e := a.worker, a.turn.Event()
	r := jsonEvent(ReportType, e.Subject, Report{
		WorkerID:   w.ID,
		WorkerName: w.Name,
		WorkerType: w.Type,
		Group:      w.Group,
		GroupIndex: w.GroupIndex,
		Token:      w.Token,
		Topic:      a.turn.Topic(),
		Position:   a.turn.Position().String(),
		EventID:    e.ID,
		Attempt:    a.turn.Attempt(),
		Replayed:   a.turn.Replayed(),
		Outcome:    outcome.String(),
		Started:    a.started.UnixNano(),
		Finished:   finished.UnixNano(),
		PID:        os.Getpid(),
	})
	r.ID = uuid.Must(uuid.NewV7()).String()
	r.Source = "/turnlane/" + w.Type + "/" + w.ID
	r.Time = finished.UTC().Format(time.RFC3339Nano)

	ctx = context.WithoutCancel(ctx)
	var err error
	for try := range reportTries {
		if try > 0 {
			time.Sleep(reportPause << try)
		}
		if err = a.store(ctx, r); err == nil || errors.Is(err, event.ErrInvalid) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("report of outcome %s to topic %q is not stored: %w", outcome, a.out, err)
	}
	return nil
}

func (a *attempt) store(ctx context.Context, r *event.Event) error {
	ctx, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	_, err := a.pub.Publish(ctx, a.out, r)
	return err
}
