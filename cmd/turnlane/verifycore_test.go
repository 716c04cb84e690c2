package main

import (
	"math/rand/v2"
	"strconv"
	"testing"

	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/internal/builtin"
)

func pos(i int) event.Position { return event.Position{Ms: 1000, Seq: uint64(i)} }

// rep is a report about event i by a worker under token 1, one tick long, at tick i.
func rep(worker string, i int, change ...func(*builtin.Report)) builtin.Report {
	r := builtin.Report{
		WorkerID: worker, Token: 1, Topic: "t", Position: pos(i).String(), Attempt: 1, Outcome: "done",
		Started: int64(10 * i), Finished: int64(10*i + 9),
	}
	for _, c := range change {
		c(&r)
	}
	return r
}

func at(from, to int64) func(*builtin.Report) {
	return func(r *builtin.Report) { r.Started, r.Finished = from, to }
}
func attempt(n int, outcome string) func(*builtin.Report) {
	return func(r *builtin.Report) { r.Attempt, r.Outcome = n, outcome }
}
func token(n uint64) func(*builtin.Report) { return func(r *builtin.Report) { r.Token = n } }
func group(g string) func(*builtin.Report) { return func(r *builtin.Report) { r.Group = g } }
func replayed(r *builtin.Report)           { r.Replayed = true }
func elsewhere(r *builtin.Report)          { r.Topic = "other" }

func verifyReports(t *testing.T, events int, reports []builtin.Report, passed ...int) *verdict {
	t.Helper()
	v, out := newVerification("t"), &verdict{}
	for i := range events {
		v.addEvent(pos(i), "e"+strconv.Itoa(i))
	}
	for i, r := range reports {
		if err := v.addReport("r"+strconv.Itoa(i), r, out); err != nil {
			t.Fatal(err)
		}
	}
	for _, i := range passed {
		v.addPassed("t", pos(i).String(), "w", "")
	}
	v.finish(out)
	return out
}

func TestVerifyFinds(t *testing.T) {
	type want struct{ turns, lost, marked, unmarked, disorder, overlapping, givenUp int }
	for _, c := range []struct {
		name    string
		events  int
		reports []builtin.Report
		passed  []int
		want    want
	}{
		{"nothing in an empty topic", 0, nil, nil, want{}},
		{"everything lost when nobody reports", 3, nil, nil, want{lost: 3}},
		{"nothing when all is well", 2, []builtin.Report{rep("w", 0), rep("w", 1)}, nil, want{turns: 2}},
		{"one lost", 3, []builtin.Report{rep("w", 0), rep("w", 2)}, nil, want{turns: 2, lost: 1}},
		{"each dedicated worker must have all", 2, []builtin.Report{rep("a", 0), rep("a", 1), rep("b", 1)}, nil, want{turns: 3, lost: 1}},
		{"members of a group share", 2, []builtin.Report{rep("a", 0, group("g")), rep("b", 1, group("g"))}, nil, want{turns: 2}},
		{"groups do not share", 2, []builtin.Report{rep("a", 0, group("g")), rep("b", 1, group("h"))}, nil, want{turns: 2, lost: 2}},
		{"reports about other topics and events left out", 1, []builtin.Report{rep("w", 0), rep("w", 5), rep("w", 0, elsewhere)}, nil, want{turns: 1}},
		{"a retry is no repeat", 1, []builtin.Report{rep("w", 0, attempt(1, "failed")), rep("w", 0, at(20, 21), attempt(2, "done"))}, nil, want{turns: 2}},
		{"an event that only failed is lost", 1, []builtin.Report{rep("w", 0, attempt(1, "failed"))}, nil, want{turns: 1, lost: 1}},
		{"but not when it was given up on", 1, []builtin.Report{rep("w", 0, attempt(1, "failed"))}, []int{0}, want{turns: 1, givenUp: 1}},
		{"dropped and permanent are ends", 2, []builtin.Report{rep("w", 0, attempt(1, "dropped")), rep("w", 1, attempt(1, "permanent"))}, nil, want{turns: 2}},
		{"a repeat", 1, []builtin.Report{rep("w", 0), rep("w", 0, at(20, 21))}, nil, want{turns: 2, unmarked: 1}},
		{"a marked repeat", 1, []builtin.Report{rep("w", 0), rep("w", 0, at(20, 21), token(2), replayed)}, nil, want{turns: 2, marked: 1}},
		{"done again at a later attempt", 1, []builtin.Report{rep("w", 0), rep("w", 0, at(20, 21), attempt(2, "done"))}, nil, want{turns: 2, unmarked: 1}},
		{"the same attempt failed twice", 1, []builtin.Report{rep("w", 0, attempt(1, "failed")), rep("w", 0, at(20, 21), attempt(1, "failed")), rep("w", 0, at(30, 31), attempt(2, "done"))}, nil, want{turns: 3, unmarked: 1}},
		{"two members of a group", 1, []builtin.Report{rep("a", 0, group("g")), rep("b", 0, group("g"))}, nil, want{turns: 2, unmarked: 1}},
		{"out of order", 3, []builtin.Report{rep("w", 0, at(0, 1)), rep("w", 2, at(2, 3)), rep("w", 1, at(4, 5))}, nil, want{turns: 3, disorder: 1}},
		{"order is by start, not by report", 2, []builtin.Report{rep("w", 1, at(4, 5)), rep("w", 0, at(2, 3))}, nil, want{turns: 2}},
		{"going back after a restart is no disorder when marked", 3,
			[]builtin.Report{rep("w", 0, at(0, 1)), rep("w", 1, at(2, 3)), rep("w", 0, at(4, 5), token(2), replayed), rep("w", 1, at(6, 7), token(2), replayed), rep("w", 2, at(8, 9), token(2))},
			nil, want{turns: 5, marked: 2}},
		{"disorder among replayed events of one activation", 2,
			[]builtin.Report{rep("w", 1, at(4, 5), token(2), replayed), rep("w", 0, at(6, 7), token(2), replayed)}, nil, want{turns: 2, disorder: 1}},
		{"a retry after later events is no disorder of first attempts", 2,
			[]builtin.Report{rep("w", 0, at(0, 1), attempt(1, "failed")), rep("w", 1, at(2, 3)), rep("w", 0, at(4, 5), attempt(2, "done"))}, nil, want{turns: 3}},
		{"overlapping turns", 2, []builtin.Report{rep("w", 0, at(0, 10)), rep("w", 1, at(9, 12))}, nil, want{turns: 2, overlapping: 1}},
		{"turns that touch", 2, []builtin.Report{rep("w", 0, at(0, 10)), rep("w", 1, at(10, 12))}, nil, want{turns: 2}},
		{"two turns inside a long one", 3, []builtin.Report{rep("w", 0, at(0, 100)), rep("w", 1, at(10, 12)), rep("w", 2, at(20, 22))}, nil, want{turns: 3, overlapping: 2}},
		{"overlap over tokens", 2, []builtin.Report{rep("w", 0, at(0, 10)), rep("w", 1, at(5, 12), token(2))}, nil, want{turns: 2, overlapping: 1}},
		{"workers side by side do not overlap", 1, []builtin.Report{rep("a", 0), rep("b", 0)}, nil, want{turns: 2}},
		{"a handler that hangs past its deadline holds up nothing", 2,
			[]builtin.Report{rep("w", 0, at(0, 100), attempt(1, "timeout")), rep("w", 0, at(50, 60), token(2), attempt(2, "done")), rep("w", 1, at(61, 62), token(2))},
			nil, want{turns: 3}},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := verifyReports(t, c.events, c.reports, c.passed...)
			got := want{v.Turns, v.Lost, v.RepeatedMarked, v.RepeatedUnmarked, v.OutOfOrder, v.Overlapping, v.GivenUp}
			if got != c.want {
				t.Errorf("got %+v, want %+v\n%v", got, c.want, v.Examples)
			}
			ok := got.lost+got.unmarked+got.disorder+got.overlapping == 0
			if v.OK != ok {
				t.Errorf("ok is %v", v.OK)
			}
		})
	}
}

// A report whose fate was unknown is sent again as the same event: that says nothing about the turn. Two
// workers may use the same id, and another report of the same turn is a repeat.
func TestVerifyTakesAReportThatWasSentAgainAsOne(t *testing.T) {
	v, out := newVerification("t"), &verdict{}
	v.addEvent(pos(0), "e0")
	for _, c := range []struct {
		id     string
		report builtin.Report
	}{
		{"1", rep("a", 0)},
		{"1", rep("a", 0)},
		{"1", rep("b", 0)},
		{"1", rep("a", 0)},
		{"2", rep("b", 0, at(20, 21))},
		{"2", rep("b", 0, at(20, 21))},
	} {
		if err := v.addReport(c.id, c.report, out); err != nil {
			t.Fatal(err)
		}
	}
	v.finish(out)
	if out.Turns != 3 || out.Workers != 2 || out.RepeatedUnmarked != 1 || out.Lost != 0 || out.Overlapping != 0 {
		t.Errorf("found %+v", out)
	}
}

func TestVerifyTellsAtMostTenExamples(t *testing.T) {
	v := verifyReports(t, 50, []builtin.Report{rep("w", 49)})
	if v.Lost != 49 || len(v.Examples["lost"]) != maxExamples || v.lostEarly != 49 {
		t.Errorf("lost %d, %d early, %d examples", v.Lost, v.lostEarly, len(v.Examples["lost"]))
	}
}

// Given 100,000 events handled by a group of four and a dedicated worker, with faults put in at random
// places, verify counts exactly those.
func TestVerifyCountsFaultsAmongManyEvents(t *testing.T) {
	const events = 100_000
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	lost, repeated := 0, 0
	var reports []builtin.Report
	clock := int64(0)
	add := func(r builtin.Report) {
		r.Started, r.Finished = clock, clock+1
		clock += 2
		reports = append(reports, r)
	}
	for i := range events {
		for _, r := range []builtin.Report{rep("m"+strconv.Itoa(i%4), i, group("g")), rep("w", i)} {
			if i > 10 && random.IntN(1000) == 0 {
				lost++
				continue
			}
			add(r)
			if random.IntN(1000) == 0 {
				repeated++
				add(r)
			}
		}
	}
	v := verifyReports(t, events, reports)
	if v.Lost != lost || v.RepeatedUnmarked != repeated || v.OutOfOrder != 0 || v.Overlapping != 0 || v.Workers != 5 {
		t.Errorf("found %+v; put in %d lost and %d repeated", v, lost, repeated)
	}
}

func TestParseReportRefusesWhatIsNoReport(t *testing.T) {
	for _, text := range []string{"", "{}", "[]", `{"worker_id":"w","topic":"t"}`, `{"worker_id":7}`} {
		if r, err := parseReport([]byte(text)); err == nil {
			t.Errorf("%q gave %+v", text, r)
		}
	}
}
