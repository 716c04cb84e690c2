package workmanager_test

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/internal/catalog"
	"github.com/turnlane/turnlane/internal/rpcerr"
	v1 "github.com/turnlane/turnlane/proto/turnlane/v1"
	"github.com/turnlane/turnlane/store"
	"github.com/turnlane/turnlane/workmanager"
)

func TestLifeOfAWorker(t *testing.T) {
	w := newWorld(t)
	m := w.manager()
	r := w.runtime("pod-1", "echo")

	created := m.create(t, &v1.CreateWorkerRequest{Id: "a", Name: "Anna's worker", Type: "echo", Topics: []string{"in"}})
	if created.GetState() != stopped || created.GetRun() != 1 || created.GetToken() != 0 {
		t.Errorf("created: %v", created)
	}
	eventually(t, "created is told", func() bool { return w.events.states("a") == "STOPPED" })

	started := m.start(t, "Anna's worker").GetWorker()
	if started.GetState() != running || started.GetPod() != "pod-1" || started.GetToken() != 1 {
		t.Errorf("started: %v", started)
	}
	again := m.start(t, "a").GetWorker()
	if again.GetState() != running || again.GetToken() != 1 || len(r.started("a")) != 1 {
		t.Errorf("started twice: %v, %v", again, r.started("a"))
	}
	eventually(t, "running is told", func() bool { return w.events.states("a") == "STOPPED STARTING RUNNING" })

	for range 2 {
		if got := m.stopWorker(t, "a").GetWorker(); got.GetState() != stopped || got.GetPod() != "" {
			t.Errorf("stopped: %v", got)
		}
	}
	eventually(t, "stopped is told", func() bool { return w.events.states("a") == "STOPPED STARTING RUNNING STOPPING STOPPED" })
	if places := w.keys(catalog.PlacePrefix); len(places) != 0 {
		t.Errorf("placements of a stopped worker: %v", places)
	}

	m.start(t, "a")
	m.delete(t, "Anna's worker")
	_, err := m.GetWorker(t.Context(), &v1.GetWorkerRequest{Worker: "a"})
	wantError(t, err, codes.NotFound, rpcerr.NotFound)
	_, err = m.DeleteWorker(t.Context(), &v1.DeleteWorkerRequest{Worker: "a"})
	wantError(t, err, codes.NotFound, rpcerr.NotFound)
	eventually(t, "deleted is told", func() bool {
		return w.events.states("a") == "STOPPED STARTING RUNNING STOPPING STOPPED STARTING RUNNING STOPPING STOPPED DELETED"
	})
	if r.count() != 0 {
		t.Error("a deleted worker runs")
	}
	if names := w.keys(catalog.NamePrefix); len(names) != 0 {
		t.Errorf("names of deleted workers: %v", names)
	}

	// An id that is created again goes on counting.
	reborn := m.create(t, dedicated("a"))
	if reborn.GetRun() != 2 || reborn.GetName() != "" {
		t.Errorf("created again: %v", reborn)
	}
	if got := m.start(t, "a").GetWorker(); got.GetState() != running || got.GetToken() < 3 {
		t.Errorf("started again: %v", got)
	}
	if starts := r.started("a"); starts[2] != (store.Start{Run: 2, Generation: 3}) {
		t.Errorf("activations: %v", starts)
	}
	for _, e := range w.events.all() {
		if e.WorkerID == "a" && (e.WorkerType != "echo" || e.Topic != "in" || len(e.Topics) != 1) {
			t.Errorf("event %+v", e)
		}
		if e.State == "RUNNING" && (e.Pod != "pod-1" || e.Token == 0) {
			t.Errorf("event %+v", e)
		}
	}
}

func TestWorkerWaitsForARuntimeOfItsType(t *testing.T) {
	w := newWorld(t)
	m := w.manager()
	w.runtime("other", "settler")
	m.create(t, dedicated("a"))
	got := m.start(t, "a").GetWorker()
	if got.GetState() != starting || got.GetReason() != `no live runtime has type "echo"` {
		t.Errorf("without a runtime: %v", got)
	}
	eventually(t, "starting is told with its reason", func() bool {
		for _, e := range w.events.all() {
			if e.WorkerID == "a" && e.State == "STARTING" && e.Reason == `no live runtime has type "echo"` {
				return true
			}
		}
		return false
	})
	w.runtime("late", "echo")
	eventually(t, "it is placed on the runtime that came", func() bool { return m.get(t, "a").GetPod() == "late" && m.state(t, "a") == running })
}

func TestWorkersMoveWhenTheirRuntimeDies(t *testing.T) {
	w := newWorld(t)
	m := w.manager()
	first := w.runtime("first", "echo")
	for i := range 20 {
		m.create(t, dedicated(fmt.Sprint(i)))
		m.start(t, fmt.Sprint(i))
	}
	second := w.runtime("second", "echo")
	if second.count() != 0 {
		t.Error("joining moved workers")
	}
	first.kill()
	eventually(t, "all workers run on the other", func() bool { return second.count() == 20 && m.state(t, "7") == running })
	if got := m.get(t, "7"); got.GetPod() != "second" || got.GetToken() != 2 {
		t.Errorf("after the move: %v", got)
	}
	eventually(t, "the dead session has no placement", func() bool { return len(w.keys(catalog.PlacePrefix)) == 20 })
}

func TestWorkersLeaveADrainingRuntime(t *testing.T) {
	w := newWorld(t)
	m := w.manager()
	first := w.runtime("first", "echo")
	m.create(t, dedicated("a"))
	m.start(t, "a")
	id, _ := first.session.Current()
	draining := store.SessionInfo{Pod: "first", Roles: []string{"runtime"}, Types: []string{"echo"}, Draining: true}
	if err := w.store.RenewSession(t.Context(), id, draining, time.Hour); err != nil {
		t.Fatal(err)
	}
	m.create(t, dedicated("b"))
	if got := m.start(t, "b").GetWorker(); got.GetState() != starting {
		t.Errorf("placed on a runtime that leaves: %v", got)
	}
	if m.state(t, "a") != running {
		t.Error("moved although there is no other runtime")
	}
	second := w.runtime("second", "echo")
	eventually(t, "both run on the other", func() bool { return second.count() == 2 && first.count() == 0 })
}

func TestPlacementIsEven(t *testing.T) {
	w := newWorld(t)
	m := w.manager()
	var all []*fakeRuntime
	for i := range 4 {
		all = append(all, w.runtime(fmt.Sprint("pod-", i), "echo"))
	}
	for i := range 40 {
		m.create(t, dedicated(fmt.Sprint(i)))
		m.start(t, fmt.Sprint(i))
	}
	for _, r := range all {
		if r.count() < 9 || r.count() > 11 {
			t.Errorf("%s has %d of 40 workers", r.pod, r.count())
		}
	}
}

func TestFailedWorkerNeedsAPerson(t *testing.T) {
	w := newWorld(t)
	m := w.manager()
	r := w.runtime("pod-1", "echo")
	r.failing("a", "config: out is missing")
	m.create(t, dedicated("a"))
	got := m.start(t, "a").GetWorker()
	if got.GetState() != failed || got.GetReason() != "config: out is missing" {
		t.Fatalf("started: %v", got)
	}
	eventually(t, "its placement goes", func() bool { return len(w.keys(catalog.PlacePrefix)) == 0 })
	eventually(t, "failed is told", func() bool { return w.events.states("a") == "STOPPED STARTING FAILED" })

	// It stays so, also over a restart of everything.
	r.kill()
	w.kill(m)
	m = w.manager()
	r = w.runtime("pod-2", "echo")
	m.create(t, dedicated("b"))
	m.start(t, "b")
	if got := m.get(t, "a"); got.GetState() != failed || len(r.started("a")) != 0 {
		t.Errorf("after a restart: %v, activations %v", got, r.started("a"))
	}
	list, err := m.ListWorkers(t.Context(), &v1.ListWorkersRequest{State: failed})
	if err != nil || len(list.GetWorkers()) != 1 {
		t.Errorf("list of failed workers: %v, %v", list, err)
	}
	if got := m.start(t, "a").GetWorker(); got.GetState() != running {
		t.Errorf("started by a person: %v", got)
	}
	if got := r.started("a"); len(got) != 1 || got[0].Generation != 2 {
		t.Errorf("activations %v", got)
	}

	r.failing("c", "no")
	m.create(t, dedicated("c"))
	m.start(t, "c")
	if got := m.stopWorker(t, "c").GetWorker(); got.GetState() != stopped || got.GetReason() != "" {
		t.Errorf("a failed worker that was stopped: %v", got)
	}
}

func TestAStoppedWorkerStaysStopped(t *testing.T) {
	w := newWorld(t)
	m := w.manager()
	r := w.runtime("pod-1", "echo")
	for _, id := range []string{"on", "off"} {
		m.create(t, dedicated(id))
		m.start(t, id)
	}
	m.stopWorker(t, "off")
	r.kill()
	w.kill(m)
	m = w.manager()
	r = w.runtime("pod-2", "echo")
	eventually(t, "the started one runs", func() bool { return m.state(t, "on") == running })
	if m.state(t, "off") != stopped || len(r.started("off")) != 0 {
		t.Error("the stopped one was started")
	}
}

func TestStopWaitsForTheTurn(t *testing.T) {
	w := newWorld(t)
	m := w.manager(func(c *workmanager.Config) { c.DrainLimit = 50 * time.Millisecond })
	r := w.runtime("pod-1", "echo")
	m.create(t, dedicated("a"))
	m.start(t, "a")
	r.holding("a", true)
	resp := m.stopWorker(t, "a")
	if resp.GetWorker().GetState() != stopping || len(resp.GetWarnings()) != 1 {
		t.Errorf("stopped while a turn runs: %v", resp)
	}
	// Started again at once, it is not taken for running until the new activation does.
	if got := m.start(t, "a").GetWorker(); got.GetState() != running && got.GetState() != starting {
		t.Errorf("started: %v", got)
	}
	r.holding("a", false)
	eventually(t, "the new activation runs", func() bool { return m.state(t, "a") == running })
	if got := m.get(t, "a").GetToken(); got != 2 {
		t.Errorf("token %d", got)
	}

	r.holding("a", true)
	if warnings := m.delete(t, "a"); len(warnings) != 1 {
		t.Errorf("deleted while a turn runs: %v", warnings)
	}
	_, err := m.CreateWorker(t.Context(), dedicated("a"))
	wantError(t, err, codes.Unavailable, rpcerr.StoreUnavailable, "has not ended")
	r.holding("a", false)
	eventually(t, "the data of the deleted worker is removed", func() bool {
		return w.record("a").GetUpdatedAt() == nil
	})
	if got := m.create(t, dedicated("a")); got.GetRun() != 2 {
		t.Errorf("created again: %v", got)
	}
}

func TestWhereAWorkerStarts(t *testing.T) {
	w := newWorld(t)
	m := w.manager()
	w.runtime("pod-1", "echo")
	before := w.append("in", 10)
	cut := time.Now()
	time.Sleep(2 * time.Millisecond) // the store's clock must step over cut
	after := w.append("in", 5)
	first := func(s *v1.Start) *v1.Replay {
		return &v1.Replay{Mode: v1.ReplayMode_REPLAY_MODE_FIRST, First: s}
	}
	for _, c := range []struct {
		name   string
		replay *v1.Replay
		want   event.Position
	}{
		{"tail", nil, after[4]},
		{"off", &v1.Replay{Mode: v1.ReplayMode_REPLAY_MODE_OFF}, after[4]},
		{"earliest", first(&v1.Start{At: &v1.Start_Earliest{Earliest: true}}), event.Position{}},
		{"time", first(&v1.Start{At: &v1.Start_Time{Time: timestamppb.New(cut)}}), before[9]},
		{"position", first(&v1.Start{At: &v1.Start_Position{Position: before[3].String()}}), before[3].Prev()},
		{"soon", first(&v1.Start{At: &v1.Start_Time{Time: timestamppb.New(time.Now().Add(30 * time.Second))}}), after[4]},
		// The feed tells that the log does not reach so far.
		{"beyond", first(&v1.Start{At: &v1.Start_Position{Position: event.MaxPosition.String()}}), event.MaxPosition.Prev()},
	} {
		m.create(t, &v1.CreateWorkerRequest{Id: c.name, Type: "echo", Topics: []string{"in", "none"}, Replay: c.replay})
		m.start(t, c.name)
		starts := w.record(c.name).GetStarts()
		if len(starts) != 4 || starts[0].GetTopic() != "in" || starts[0].GetIncarnation() == "" || starts[1].GetIncarnation() != "" {
			t.Fatalf("%s: %v", c.name, starts)
		}
		got := event.Position{Ms: starts[0].GetMs(), Seq: starts[0].GetSeq()}
		if c.name == "time" { // anything from the last one before to just before the next is right
			if got.Less(c.want) || !got.Less(after[0]) {
				t.Errorf("time: starts after %s, want %s to %s", got, c.want, after[0])
			}
		} else if got != c.want {
			t.Errorf("%s: starts after %s, want %s", c.name, got, c.want)
		}
	}

	// A later start resumes, and one that replays nothing begins at the tail again.
	last := w.append("in", 1)[0]
	for id, want := range map[string]event.Position{"earliest": {}, "tail": after[4], "off": last} {
		m.stopWorker(t, id)
		m.start(t, id)
		s := w.record(id).GetStarts()[0]
		if got := (event.Position{Ms: s.GetMs(), Seq: s.GetSeq()}); got != want {
			t.Errorf("%s started again: after %s, want %s", id, got, want)
		}
	}
}

func TestSeek(t *testing.T) {
	w := newWorld(t)
	m := w.manager()
	r := w.runtime("pod-1", "echo")
	in, more := w.append("in", 10), w.append("more", 10)
	m.create(t, &v1.CreateWorkerRequest{Id: "a", Type: "echo", Topics: []string{"in", "more"}})
	m.start(t, "a")
	// It got to the fourth event of both topics.
	owner, err := w.store.Owner(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	_, err = w.store.Commit(t.Context(), []store.Commit{{Owner: owner, Start: store.Start{Run: 1, Generation: 1}, Cursors: []store.Cursor{
		{Topic: "in", Position: in[3]}, {Topic: "more", Position: more[3]},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	position := func(topic string) event.Position {
		for _, s := range w.record("a").GetStarts() {
			if s.GetTopic() == topic {
				return event.Position{Ms: s.GetMs(), Seq: s.GetSeq()}
			}
		}
		return event.Position{}
	}
	seek := func(to *v1.Start, topics ...string) *v1.Worker {
		t.Helper()
		resp, err := m.SeekWorker(t.Context(), &v1.SeekWorkerRequest{Worker: "a", Topics: topics, To: to})
		if err != nil {
			t.Fatal(err)
		}
		return resp.GetWorker()
	}

	got := seek(&v1.Start{At: &v1.Start_Position{Position: in[1].String()}}, "in")
	if got.GetState() != running || got.GetRun() != 2 || got.GetToken() != 2 {
		t.Errorf("sought while running: %v", got)
	}
	if position("in") != in[1].Prev() || position("more") != more[3] {
		t.Errorf("starts at %s and %s", position("in"), position("more"))
	}
	if starts := r.started("a"); len(starts) != 2 || starts[1] != (store.Start{Run: 2, Generation: 1}) {
		t.Errorf("activations %v", starts)
	}

	m.stopWorker(t, "a")
	got = seek(&v1.Start{At: &v1.Start_Tail{Tail: true}})
	if got.GetState() != stopped || got.GetRun() != 3 || position("in") != in[9] || position("more") != more[9] {
		t.Errorf("sought while stopped: %v, at %s and %s", got, position("in"), position("more"))
	}
	w.append("in", 3)
	m.start(t, "a")
	if position("in") != in[9] {
		t.Errorf("a start after a seek begins at %s", position("in"))
	}

	ahead := &v1.Start{At: &v1.Start_Time{Time: timestamppb.New(time.Now().Add(time.Hour))}}
	_, err = m.SeekWorker(t.Context(), &v1.SeekWorkerRequest{Worker: "a", To: ahead})
	wantError(t, err, codes.InvalidArgument, rpcerr.InvalidField, "to.time: is ", "60 s ahead", "use tail")
	_, err = m.CreateWorker(t.Context(), &v1.CreateWorkerRequest{Type: "echo", Topics: []string{"in"},
		Replay: &v1.Replay{Mode: v1.ReplayMode_REPLAY_MODE_FIRST, First: ahead}})
	wantError(t, err, codes.InvalidArgument, rpcerr.InvalidField, "replay.first.time: is ")

	_, err = m.SeekWorker(t.Context(), &v1.SeekWorkerRequest{Worker: "a", Topics: []string{"x", "in", "in"}})
	wantError(t, err, codes.InvalidArgument, rpcerr.InvalidField, "to: is not set", `topics[0]: "x" is not a topic of the worker`, "topics[2]")
}

// A worker with replay off holds to a seek that was made while it was stopped, once.
func TestSeekOfAWorkerThatReplaysNothing(t *testing.T) {
	w := newWorld(t)
	m := w.manager()
	in := w.append("in", 10)
	req := dedicated("a")
	req.Replay = &v1.Replay{Mode: v1.ReplayMode_REPLAY_MODE_OFF}
	m.create(t, req)
	at := func() event.Position {
		s := w.record("a").GetStarts()[0]
		return event.Position{Ms: s.GetMs(), Seq: s.GetSeq()}
	}
	for round := range 2 {
		_, err := m.SeekWorker(t.Context(), &v1.SeekWorkerRequest{Worker: "a", To: &v1.Start{At: &v1.Start_Position{Position: in[5].String()}}})
		if err != nil {
			t.Fatal(err)
		}
		m.start(t, "a")
		if at() != in[5].Prev() {
			t.Errorf("round %d: starts after %s, want %s", round, at(), in[5].Prev())
		}
		m.stopWorker(t, "a")
		m.start(t, "a")
		if at() != in[9] {
			t.Errorf("round %d: the next start is after %s, want the tail %s", round, at(), in[9])
		}
		m.stopWorker(t, "a")
	}
}

func TestTopicStatus(t *testing.T) {
	w := newWorld(t)
	facts := &inspector{}
	m := w.manager(func(c *workmanager.Config) { c.Inspector = facts })
	in := w.append("in", 100)
	m.create(t, &v1.CreateWorkerRequest{Id: "a", Type: "echo", Topics: []string{"in", "none"},
		Replay: &v1.Replay{Mode: v1.ReplayMode_REPLAY_MODE_FIRST, First: &v1.Start{At: &v1.Start_Earliest{Earliest: true}}}})
	s := m.get(t, "a").GetTopicStatus()
	if len(s) != 2 || s[0].GetCursor() != "" || s[0].GetHead() != in[99].String() || s[0].GetLagEntries() != 0 || s[1].GetHead() != "" {
		t.Errorf("never started: %v", s)
	}
	m.start(t, "a")
	s = m.get(t, "a").GetTopicStatus()
	if s[0].GetCursor() != "0-0" || s[0].GetLagEntries() != 100 || s[0].GetLagTime() == nil {
		t.Errorf("started: %v", s)
	}
	session, _ := w.session().Current()
	owner, err := w.store.Acquire(t.Context(), "a", session)
	if err == nil {
		_, err = w.store.Commit(t.Context(), []store.Commit{{Owner: owner, Start: store.Start{Run: 1, Generation: 1},
			Cursors: []store.Cursor{{Topic: "in", Position: in[59]}}}})
	}
	if err != nil {
		t.Fatal(err)
	}
	if s = m.get(t, "a").GetTopicStatus(); s[0].GetCursor() != in[59].String() || s[0].GetLagEntries() != 40 {
		t.Errorf("with a stored cursor: %v", s)
	}
	facts.topics = []*v1.WorkerTopic{{Topic: "in", Cursor: in[99].String(), Examined: 7, Feed: v1.FeedState_FEED_STATE_LIVE}}
	if s = m.get(t, "a").GetTopicStatus(); s[0].GetLagEntries() != 0 || s[0].GetLagTime() != nil || s[0].GetExamined() != 7 || s[0].GetHead() != in[99].String() {
		t.Errorf("as its activation knows it: %v", s)
	}
}

type inspector struct{ topics []*v1.WorkerTopic }

func (i *inspector) Inspect(string) ([]*v1.WorkerTopic, bool) { return i.topics, i.topics != nil }

func TestNoStartWithoutATail(t *testing.T) {
	w := newWorld(t)
	broken := &faulty{Store: w.store}
	m := w.manager(func(c *workmanager.Config) { c.Store = broken })
	m.create(t, dedicated("a"))
	broken.bounds.Store(true)
	_, err := m.StartWorker(t.Context(), &v1.StartWorkerRequest{Worker: "a"})
	wantError(t, err, codes.Unavailable, rpcerr.TailUnreadable, "topic in")
	if r := w.record("a"); r.GetGeneration() != 0 || r.GetDesired() != v1.DesiredState_DESIRED_STATE_STOPPED || len(r.GetStarts()) != 2 {
		t.Errorf("a start that failed changed something: %v", r)
	}
}
