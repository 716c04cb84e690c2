package builtin

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/turnlane/turnlane/actor"
	"github.com/turnlane/turnlane/actor/actortest"
	"github.com/turnlane/turnlane/event"
)

func probing(t *testing.T, pub actor.Publisher) *actortest.Activation {
	t.Helper()
	a := actortest.Activate(t, Types(pub)[Probe], member(Probe, ""))
	a.MaxAttempts = 3
	return a
}

func reports(t *testing.T, p *actortest.Publisher) []Report {
	t.Helper()
	var all []Report
	for _, e := range p.On(DefaultReports) {
		var r Report
		if err := json.Unmarshal(e.Data, &r); err != nil {
			t.Fatal(err)
		}
		all = append(all, r)
	}
	return all
}

func outcomes(t *testing.T, p *actortest.Publisher) string {
	t.Helper()
	var names []string
	for _, r := range reports(t, p) {
		names = append(names, r.Outcome)
	}
	return strings.Join(names, " ")
}

func TestAProbeAddsToItsState(t *testing.T) {
	a := probing(t, &actortest.Publisher{})
	for _, data := range []string{
		`{"do":[{"state":{"add":{"a":40,"b":1}}}]}`,
		`{"do":[{"state":{"add":{"a":1}}},{"fail":"dropped with the attempt","times":1}]}`,
		`{"do":[{"state":{"add":{"a":1,"b":-3}}}]}`,
	} {
		if r := a.Handle("trades", actortest.JSON("x", data)); r.Outcome != actor.OutcomeDone {
			t.Fatalf("%s: %v", data, r.Err)
		}
	}
	if s := a.State(); string(s["a"]) != "42" || string(s["b"]) != "-2" || len(s) != 2 {
		t.Errorf("the state is %s", s)
	}
}

// Every attempt is reported with its outcome, and the outcome is the one that a runtime sees.
func TestScriptsDoWhatTheySay(t *testing.T) {
	for _, c := range []struct{ data, want string }{
		{`1`, "done"},
		{`"text"`, "done"},
		{`[]`, "done"},
		{`{}`, "done"},
		{`{"do":null}`, "done"},
		{`{"do":{"fail":"not a list"}}`, "done"},
		{`{"do":[]}`, "done"},
		{`{"do":[1,"fail",null,[{"fail":"nested"}]]}`, "done"},
		{`{"do":[{"dance":true,"times":2},{"state":{"add":{"k":1}}}]}`, "done"},
		{`{"DO":[{"fail":"names have a case"}]}`, "done"},
		{`{"do":[{"fail":null}]}`, "done"},
		{`{"do":[{"fail":"x"}],"more":1}`, "failed failed failed"},
		{`{"do":[{"fail":"x","times":1}]}`, "failed done"},
		{`{"do":[{"fail":"x","times":2}]}`, "failed failed done"},
		{`{"do":[{"fail":"x","times":0}]}`, "done"},
		{`{"do":[{"fail":"x","times":1},{"panic":"y","times":2}]}`, "failed panic done"},
		{`{"do":[{"permanent":"x"}]}`, "permanent"},
		{`{"do":[{"fail":"x","times":1},{"permanent":"y"}]}`, "failed permanent"},
		{`{"do":[{"retry_after_ms":5,"times":1}]}`, "retry_after done"},
		{`{"do":[{"drop":"stale"}]}`, "dropped"},
		{`{"do":[{"panic":"x"}]}`, "panic panic panic"},
		{`{"do":[{"panic":{"a":1},"times":1}]}`, "panic done"},
		{`{"do":[{"goexit":true,"times":2}]}`, "goexit goexit done"},
		{`{"do":[{"goexit":false}]}`, "done"},
		{`{"do":[{"sleep_ms":60000,"times":1}]}`, "timeout done"},
		{`{"do":[{"sleep_ms":29999.5},{"drop":"late"}]}`, "dropped"},
		{`{"do":[{"sleep_ms":30000,"times":1}]}`, "timeout done"},
		{`{"do":[{"hang_ms":30000,"times":1}]}`, "timeout done"},
		{`{"do":[{"sleep_ms":-5}]}`, "done"},
		{`{"do":[{"hang_ms":31000,"times":1},{"panic":"never reached","times":1}]}`, "timeout done"},
		{`{"do":[{"hang_ms":100}]}`, "done"},
		{`{"do":[{"publish":{"topic":"sys.no"}}]}`, "failed failed failed"},
		{`{"do":[{"sleep_ms":"soon"}]}`, "permanent"},
		{`{"do":[{"fail":"x","times":"twice"}]}`, "permanent"},
		{`{"do":[{"publish":[]}]}`, "permanent"},
	} {
		synctest.Test(t, func(t *testing.T) {
			var pub actortest.Publisher
			r := probing(t, &pub).Handle("trades", actortest.JSON("ACME", c.data))
			if got := outcomes(t, &pub); got != c.want {
				t.Errorf("%s: reported %s, want %s", c.data, got, c.want)
			}
			var seen []string
			for _, a := range r.Attempts {
				seen = append(seen, a.Outcome.String())
			}
			if got := strings.Join(seen, " "); got != c.want {
				t.Errorf("%s: the runtime sees %s, want %s (%v)", c.data, got, c.want, r.Err)
			}
		})
	}
}

func TestScriptsComeInEveryKindOfData(t *testing.T) {
	for _, kind := range []event.DataKind{event.JSONData, event.TextData, event.BinaryData} {
		var pub actortest.Publisher
		e := actortest.JSON("", ` {"do":[{"permanent":"x"}]}`)
		e.DataKind = kind
		probing(t, &pub).Handle("trades", e)
		if got := outcomes(t, &pub); got != "permanent" {
			t.Errorf("data of kind %d: %s", kind, got)
		}
	}
	var pub actortest.Publisher
	e := actortest.JSON("", "")
	e.Data, e.DataKind, e.DataContentType = nil, event.NoData, ""
	probing(t, &pub).Handle("trades", e)
	if got := outcomes(t, &pub); got != "done" {
		t.Errorf("no data: %s", got)
	}
}

func TestScriptPublishesOutputsOfTheTurn(t *testing.T) {
	var pub actortest.Publisher
	r := probing(t, &pub).Handle("trades", actortest.JSON("ACME",
		`{"do":[{"publish":{"topic":"a","subject":"S","data":{"n": [1]},"more":1}},{"publish":{"topic":"b"}}]}`))
	if r.Outcome != actor.OutcomeDone || len(r.Outputs) != 2 {
		t.Fatalf("%+v", r)
	}
	a, b := r.Outputs[0], r.Outputs[1]
	if a.Topic != "a" || a.Event.Subject != "S" || string(a.Event.Data) != `{"n": [1]}` || a.Event.DataKind != event.JSONData {
		t.Errorf("the first output is %+v to %s", a.Event, a.Topic)
	}
	if b.Topic != "b" || b.Event.Subject != "" || b.Event.DataKind != event.NoData || !strings.HasSuffix(b.Event.ID, ".1") {
		t.Errorf("the second output is %+v to %s", b.Event, b.Topic)
	}
}

func TestReportTellsEverything(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var pub actortest.Publisher
		a := probing(t, &pub)
		a.Replayed = true
		started := time.Now()
		e := actortest.JSON("ACME", `{"do":[{"sleep_ms":250},{"fail":"x","times":1}]}`)
		r := a.Handle("trades", e)
		want := Report{WorkerID: "w-7", WorkerName: "pairs-1", WorkerType: "probe", Group: "pairs", GroupIndex: 0, Token: 9,
			Topic: "trades", Position: r.Position.String(), EventID: e.ID, Attempt: 1, Replayed: true, Outcome: "failed",
			Started: started.UnixNano(), Finished: started.Add(250 * time.Millisecond).UnixNano(), PID: os.Getpid()}
		again := want
		again.Attempt, again.Outcome = 2, "done"
		again.Started, again.Finished = want.Finished, started.Add(500*time.Millisecond).UnixNano()
		if got := reports(t, &pub); !slices.Equal(got, []Report{want, again}) {
			t.Errorf("reports\n%+v\nwant\n%+v\n%+v", got, want, again)
		}
		on := pub.On(DefaultReports)
		if on[0].Type != "probe.turn" || on[0].Subject != "ACME" || on[0].ID == "" || on[0].ID == on[1].ID {
			t.Errorf("the events are %+v and %+v", on[0], on[1])
		}
		var names map[string]any
		if err := json.Unmarshal(on[0].Data, &names); err != nil || len(names) != 15 {
			t.Errorf("the report has %d members: %v", len(names), names)
		}
	})
}

// A handler that ignores its deadline is reported when the deadline passes, once, and nothing is left
// behind when it ends at last: a goroutine left in the bubble would end the test.
func TestHangIsReportedAtTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var pub actortest.Publisher
		a := probing(t, &pub)
		a.MaxAttempts = 1
		begin := time.Now()
		r := a.Handle("trades", actortest.JSON("", `{"do":[{"hang_ms":3600000}]}`))
		if !r.Attempts[0].Stuck {
			t.Errorf("%+v", r)
		}
		time.Sleep(2 * time.Hour)
		got := reports(t, &pub)
		if len(got) != 1 || got[0].Outcome != "timeout" || got[0].Finished != begin.Add(a.HandlerTimeout).UnixNano() {
			t.Errorf("reports %+v", got)
		}
	})
}

// When a stopping worker gives up on a turn whose handler hangs, the turn was over when its context
// ended: the report must not claim the time after it, in which another activation may have gone on.
func TestHangOverAStopIsReportedAsOverWhenItsContextEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var pub actortest.Publisher
		w := member(Probe, "")
		h, err := Types(&pub)[Probe](&w)
		if err != nil {
			t.Fatal(err)
		}
		e := actortest.JSON("", `{"do":[{"hang_ms":60000}]}`)
		turn := actor.NewTurn(actor.TurnInput{Worker: &w, Topic: "trades", Attempt: 1,
			Entry: event.Entry{Record: event.AppendRecord(nil, e, 0, time.Now())}})
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
		go h.Handle(ctx, turn)
		time.Sleep(10 * time.Second)
		cancelled := time.Now()
		cancel()
		time.Sleep(10 * time.Second)
		_, _ = turn.Close()
		time.Sleep(time.Minute)
		got := reports(t, &pub)
		if len(got) != 1 || got[0].Outcome != "failed" || got[0].Finished != cancelled.UnixNano() {
			t.Errorf("reports %+v, want one that ends at %d", got, cancelled.UnixNano())
		}
	})
}

// While reports cannot be stored an attempt must not count: nobody could tell that it happened.
func TestAnAttemptWithoutItsReportIsTriedAgain(t *testing.T) {
	for _, script := range []string{`{}`, `{"do":[{"drop":"x"}]}`, `{"do":[{"permanent":"x"}]}`} {
		synctest.Test(t, func(t *testing.T) {
			var tries atomic.Int32
			errAway := errors.New("the store is away")
			pub := actortest.Publisher{Before: func(context.Context, string, []*event.Event) error {
				if tries.Add(1) <= reportTries {
					return errAway
				}
				return nil
			}}
			r := probing(t, &pub).Handle("trades", actortest.JSON("", script))
			if len(r.Attempts) != 2 || r.Attempts[0].Outcome != actor.OutcomeFailed || !errors.Is(r.Attempts[0].Err, errAway) {
				t.Errorf("%s: %+v", script, r)
			}
			if got := reports(t, &pub); len(got) != 1 || got[0].Attempt != 2 {
				t.Errorf("%s: reports %+v", script, got)
			}
		})
	}
}

func TestAReportSurvivesAShortOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var tries atomic.Int32
		var ids []string
		pub := actortest.Publisher{Before: func(ctx context.Context, _ string, events []*event.Event) error {
			ids = append(ids, events[0].ID)
			if tries.Add(1) == 1 {
				<-ctx.Done() // a store that does not answer
				return ctx.Err()
			}
			return nil
		}}
		r := probing(t, &pub).Handle("trades", actortest.JSON("", `{"do":[{"panic":"x","times":1}]}`))
		if got := outcomes(t, &pub); got != "panic done" || r.Outcome != actor.OutcomeDone {
			t.Errorf("%s, %s", got, r.Outcome)
		}
		if ids[0] != ids[1] || ids[1] == ids[2] {
			t.Errorf("one report is sent again under its id, another has its own: %v", ids)
		}
	})
}

// Exit ends the process without a report; the test runs itself to see it.
func TestExitEndsTheProcess(t *testing.T) {
	if os.Getenv("TURNLANE_TEST_EXIT") != "" {
		var pub actortest.Publisher
		probing(t, &pub).Handle("trades", actortest.JSON("", `{"do":[{"exit":0,"times":0},{"exit":42}]}`))
		t.Fatal("still here")
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestExitEndsTheProcess$")
	cmd.Env = append(os.Environ(), "TURNLANE_TEST_EXIT=1")
	out, err := cmd.CombinedOutput()
	if code, ok := errors.AsType[*exec.ExitError](err); !ok || code.ExitCode() != 42 {
		t.Errorf("the process ended with %v: %s", err, out)
	}
}
