package workmanager_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/grouping"
	"github.com/turnlane/turnlane/internal/rpcerr"
	v1 "github.com/turnlane/turnlane/proto/turnlane/v1"
	"github.com/turnlane/turnlane/store"
	"github.com/turnlane/turnlane/workmanager"
)

// knows is an Inspector of some workers.
type knows map[string]*v1.WorkerTopic

func (k knows) Inspect(worker string) ([]*v1.WorkerTopic, bool) {
	f, ok := k[worker]
	if !ok {
		return nil, false
	}
	return []*v1.WorkerTopic{proto.CloneOf(f)}, true
}

func (k knows) Progress(worker string) string { return worker + " is half way" }

func (p *process) fate(t testing.TB, topic string, pos event.Position) map[string]*v1.EventAtWorker {
	t.Helper()
	resp, err := p.GetEventStatus(t.Context(), &v1.GetEventStatusRequest{Topic: topic, Position: pos.String()})
	if err != nil {
		t.Fatal(err)
	}
	fates := map[string]*v1.EventAtWorker{}
	for _, f := range resp.GetWorkers() {
		fates[f.GetWorkerId()] = f
	}
	return fates
}

func (w *world) commit(id string, c store.Commit) {
	w.t.Helper()
	owner, err := w.store.Owner(w.t.Context(), id)
	if err != nil {
		w.t.Fatal(err)
	}
	rec := w.record(id)
	c.Owner, c.Start = owner, store.Start{Run: rec.GetRun(), Generation: rec.GetGeneration()}
	errs, err := w.store.Commit(w.t.Context(), []store.Commit{c})
	if err != nil || errs[0] != nil {
		w.t.Fatal(err, errs)
	}
}

func (w *world) deadLetter(dlq, worker, topic string, pos event.Position, why string) event.Position {
	w.t.Helper()
	e := &event.Event{ID: "1", Source: "/test", Type: "test"}
	for name, text := range map[string]string{"dlqworker": worker, "dlqtopic": topic, "dlqposition": pos.String(), "dlqerror": why, "dlqreason": "failed"} {
		e.SetExtension(name, event.String(text))
	}
	r := event.AppendRecord(nil, e, 0, time.Now())
	out, err := w.store.Append(w.t.Context(), dlq, []store.Batch{{Records: []event.Record{r}}})
	if err != nil {
		w.t.Fatal(err)
	}
	return out[0].Positions[0]
}

func TestWhatBecameOfAnEvent(t *testing.T) {
	w := newWorld(t)
	live := knows{}
	m := w.manager(func(c *workmanager.Config) { c.Inspector = live })
	w.runtime("pod-1", "echo")
	in := w.append("in", 10) // ids 0 to 9, which are the routing keys
	incarnation := func(topic string) string {
		b, err := w.store.Bounds(t.Context(), topic)
		if err != nil {
			t.Fatal(err)
		}
		return b.Incarnation
	}
	begun := func(id string, change func(*v1.CreateWorkerRequest)) {
		t.Helper()
		req := dedicated(id)
		req.Replay = &v1.Replay{Mode: v1.ReplayMode_REPLAY_MODE_FIRST, First: &v1.Start{At: &v1.Start_Position{Position: in[2].String()}}}
		if change != nil {
			change(req)
		}
		m.create(t, req)
		m.start(t, id)
	}
	cursor := func(id string, pos event.Position, attempts ...store.Attempt) {
		t.Helper()
		w.commit(id, store.Commit{Cursors: []store.Cursor{{Topic: "in", Incarnation: incarnation("in"), Position: pos}}, Attempts: attempts})
	}
	retry := time.Now().Add(time.Minute)

	begun("ahead", nil) // done with all but the last one
	cursor("ahead", in[8])
	begun("behind", nil)
	begun("failing", nil) // in another process: its sixth event failed twice
	cursor("failing", in[4], store.Attempt{Topic: "in", Position: in[5], Attempts: 2, Error: "no seat"})
	begun("busy", nil)
	live["busy"] = &v1.WorkerTopic{Topic: "in", Cursor: in[3].String(), InTurn: in[5].String(), Attempt: 2}
	begun("waits", nil)
	live["waits"] = &v1.WorkerTopic{Topic: "in", Cursor: in[4].String(), InTurn: in[5].String(), Attempt: 2, RetryAt: timestamppb.New(retry)}
	begun("gave_up", nil) // by default: to dlq.in
	cursor("gave_up", in[8])
	lost := w.deadLetter("dlq.in", "gave_up", "in", in[5], "no table")
	w.deadLetter("dlq.in", "gave_up", "other", in[4], "no table")
	begun("gave_up_elsewhere", func(r *v1.CreateWorkerRequest) {
		r.Policy = &v1.Policy{DeadLetterTopic: new("dlq.ours")}
	})
	cursor("gave_up_elsewhere", in[8])
	w.deadLetter("dlq.in", "gave_up_elsewhere", "in", in[6], "not there")
	elsewhere := w.deadLetter("dlq.ours", "gave_up_elsewhere", "in", in[5], "no chair")
	begun("paused", nil)
	if _, err := m.PauseWorker(t.Context(), &v1.PauseWorkerRequest{Worker: "paused", Reason: "for lunch"}); err != nil {
		t.Fatal(err)
	}
	begun("stopped", nil)
	cursor("stopped", in[4], store.Attempt{Topic: "in", Position: in[5], Attempts: 1, Error: "no seat"})
	m.stopWorker(t, "stopped")
	m.create(t, dedicated("new"))
	slot := grouping.Slot(grouping.Hash("5"), 2)
	begun("member", func(r *v1.CreateWorkerRequest) { r.Group, r.GroupSize, r.GroupIndex = "g", 2, slot })
	begun("other_member", func(r *v1.CreateWorkerRequest) { r.Group, r.GroupSize, r.GroupIndex = "g", 2, 1-slot })
	begun("sought", nil)
	cursor("sought", in[3])
	if _, err := m.SeekWorker(t.Context(), &v1.SeekWorkerRequest{Worker: "sought", To: &v1.Start{At: &v1.Start_Position{Position: in[7].String()}}}); err != nil {
		t.Fatal(err)
	}
	m.create(t, &v1.CreateWorkerRequest{Id: "elsewhere", Type: "echo", Topics: []string{"out"}})
	tails := dedicated("tails")
	tails.Replay = &v1.Replay{Mode: v1.ReplayMode_REPLAY_MODE_OFF}
	m.create(t, tails)
	m.start(t, "tails")
	m.stopWorker(t, "tails")
	last := w.append("in", 1)[0]

	check := func(pos event.Position, want map[string]string) {
		t.Helper()
		fates := m.fate(t, "in", pos)
		for id, text := range want {
			f := fates[id]
			got := strings.TrimPrefix(f.GetFate().String(), "EVENT_FATE_")
			if f.GetAttempt() > 0 {
				got += fmt.Sprintf(" %d", f.GetAttempt())
			}
			if f.GetRetryAt() != nil {
				got += " at " + f.GetRetryAt().AsTime().Format(time.TimeOnly)
			}
			if f.GetError() != "" {
				got += " " + f.GetError()
			}
			if f.GetDeadLetterTopic() != "" {
				got += " " + f.GetDeadLetterTopic() + "@" + f.GetDeadLetterPosition()
			}
			if f.GetHeldUp() != "" {
				got += " (" + f.GetHeldUp() + ")"
			}
			if got != text {
				t.Errorf("event %s at %s: %s, want %s", pos, id, got, text)
			}
		}
		if fates["elsewhere"] != nil || len(fates) != 14 {
			t.Errorf("%d workers: %v", len(fates), fates)
		}
	}
	check(in[5], map[string]string{
		"ahead":             "DONE",
		"behind":            "WAITING",
		"failing":           "RETRYING 2 no seat",
		"busy":              "IN_TURN 2",
		"waits":             "RETRYING 2 at " + retry.UTC().Format(time.TimeOnly),
		"gave_up":           "DEAD no table dlq.in@" + lost.String(),
		"gave_up_elsewhere": "DEAD no chair dlq.ours@" + elsewhere.String(),
		"paused":            "WAITING (the worker is paused: for lunch)",
		"stopped":           "WAITING 1 no seat (the worker is STOPPED)",
		"new":               "SKIPPED (the worker was never started: it will begin at the tail)",
		"member":            "WAITING",
		"other_member":      "FILTERED",
		"sought":            "PASSED",
		"tails":             "SKIPPED",
	})
	check(in[0], map[string]string{"ahead": "SKIPPED", "sought": "SKIPPED", "busy": "SKIPPED"})
	check(in[4], map[string]string{"busy": "IN_TURN", "gave_up": "DONE", "failing": "DONE", "waits": "DONE"})
	check(in[6], map[string]string{"busy": "WAITING", "gave_up_elsewhere": "DONE"})
	check(in[8], map[string]string{"sought": "WAITING"})
	check(last, map[string]string{"tails": "SKIPPED (the worker is STOPPED and replays nothing: it will begin at the tail)", "ahead": "WAITING"})

	if got := m.get(t, "busy").GetProgress(); got != "busy is half way" {
		t.Errorf("progress %q", got)
	}

	// What the topic holds no more is still known to be done.
	if _, err := w.store.Trim(t.Context(), "in", store.TrimLimit{UpTo: in[5]}); err != nil {
		t.Fatal(err)
	}
	resp, err := m.GetEventStatus(t.Context(), &v1.GetEventStatusRequest{Topic: "in", Position: in[5].String(), Worker: "gave_up"})
	if err != nil || resp.GetHeld() || len(resp.GetWorkers()) != 1 || resp.GetWorkers()[0].GetFate() != v1.EventFate_EVENT_FATE_DEAD {
		t.Errorf("%v, %v", resp, err)
	}

	// In pages.
	var ids []string
	req := &v1.GetEventStatusRequest{Topic: "in", Position: in[7].String(), PageSize: 4}
	for {
		resp, err := m.GetEventStatus(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range resp.GetWorkers() {
			ids = append(ids, f.GetWorkerId())
		}
		if req.PageToken = resp.GetNextPageToken(); req.PageToken == "" {
			break
		}
	}
	if len(ids) != 14 || !slices.IsSorted(ids) {
		t.Errorf("%v", ids)
	}
}

func TestWhatBecameOfACommand(t *testing.T) {
	w := newWorld(t)
	m := w.manager()
	w.runtime("pod-1", "echo")
	m.create(t, dedicated("a"))
	m.create(t, dedicated("b"))
	sent := w.append(commands, 3)
	m.start(t, "a")
	w.commit("a", store.Commit{Cursors: []store.Cursor{{Topic: commands, Position: sent[1]}}})
	if _, err := m.PauseWorker(t.Context(), &v1.PauseWorkerRequest{Worker: "a"}); err != nil {
		t.Fatal(err)
	}
	w.deadLetter("dlq.wrk.echo", "a", commands, sent[1], "no such command")
	for i, want := range []v1.EventFate{v1.EventFate_EVENT_FATE_DONE, v1.EventFate_EVENT_FATE_DEAD, v1.EventFate_EVENT_FATE_WAITING} {
		fates := m.fate(t, commands, sent[i])
		if len(fates) != 1 || fates["a"].GetFate() != want || fates["a"].GetHeldUp() != "" {
			t.Errorf("command %d: %v, want %s", i, fates, want)
		}
	}
}

func TestFatesAreRefused(t *testing.T) {
	w := newWorld(t)
	m := w.manager()
	in := w.append("in", 2)
	m.create(t, dedicated("a"))
	m.create(t, &v1.CreateWorkerRequest{Id: "b", Type: "echo", Topics: []string{"out"}})
	for name, c := range map[string]struct {
		req    *v1.GetEventStatusRequest
		code   codes.Code
		reason string
		fields string
	}{
		"no topic":               {&v1.GetEventStatusRequest{Position: "1-0"}, codes.InvalidArgument, rpcerr.InvalidField, "topic"},
		"all of it wrong":        {&v1.GetEventStatusRequest{Topic: "a b", Position: "x", PageSize: 1001, PageToken: "%"}, codes.InvalidArgument, rpcerr.InvalidField, "topic,position,page_size,page_token"},
		"a topic there is not":   {&v1.GetEventStatusRequest{Topic: "none", Position: "1-0"}, codes.NotFound, rpcerr.NotFound, ""},
		"a position between two": {&v1.GetEventStatusRequest{Topic: "in", Position: in[0].Prev().String()}, codes.NotFound, rpcerr.NotFound, ""},
		"a position to come":     {&v1.GetEventStatusRequest{Topic: "in", Position: in[1].Next().String()}, codes.NotFound, rpcerr.NotFound, ""},
		"of nobody":              {&v1.GetEventStatusRequest{Topic: "in", Position: in[0].String(), Worker: "c"}, codes.NotFound, rpcerr.NotFound, ""},
		"of another's topic":     {&v1.GetEventStatusRequest{Topic: "in", Position: in[0].String(), Worker: "b"}, codes.InvalidArgument, rpcerr.InvalidField, "worker"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := m.GetEventStatus(t.Context(), c.req)
			wantError(t, err, c.code, c.reason)
			if got := rpcerr.Info(err).GetMetadata()["field"]; got != c.fields {
				t.Errorf("%v: field %q, want %q", err, got, c.fields)
			}
		})
	}
}
