package workmanager_test

import (
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/turnlane/turnlane/internal/catalog"
	"github.com/turnlane/turnlane/internal/lifecycle"
	"github.com/turnlane/turnlane/internal/rpcerr"
	storev1 "github.com/turnlane/turnlane/proto/turnlane/store/v1"
	v1 "github.com/turnlane/turnlane/proto/turnlane/v1"
	"github.com/turnlane/turnlane/store"
)

func tagSet(kv ...string) *v1.TagSet {
	s := &v1.TagSet{Tags: map[string]string{}}
	for i := 0; i < len(kv); i += 2 {
		s.Tags[kv[i]] = kv[i+1]
	}
	return s
}

// placement is the only placement of a worker.
func (w *world) placement(id string) *storev1.Placement {
	w.t.Helper()
	for _, key := range w.keys(catalog.PlacePrefix) {
		if _, worker, _ := catalog.SplitPlace(key); worker == id {
			item, err := w.store.Get(w.t.Context(), key)
			if err != nil {
				w.t.Fatal(err)
			}
			p, err := catalog.Decode(item, &storev1.Placement{})
			if err != nil {
				w.t.Fatal(err)
			}
			return p
		}
	}
	w.t.Fatalf("worker %s has no placement", id)
	return nil
}

func TestUpdateChangesWhatIsSetAndNothingElse(t *testing.T) {
	w := newWorld(t)
	m := w.manager()
	r := w.runtime("pod-1", "echo")
	req := dedicated("a")
	req.Tags, req.Config = map[string]string{"team": "red", "n": "1"}, map[string]string{"out": "x"}
	req.Policy = &v1.Policy{MaxAttempts: 7, DeadLetterTopic: new("dlq.ours"), Backoff: durationpb.New(1500 * time.Millisecond)}
	m.create(t, req)
	m.start(t, "a")
	was := m.get(t, "a")
	update := func(req *v1.UpdateWorkerRequest) *v1.Worker {
		t.Helper()
		req.Worker, req.Revision = "a", was.GetRevision()
		resp, err := m.UpdateWorker(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		now := resp.GetWorker()
		if now.GetRevision() <= was.GetRevision() {
			t.Errorf("revision %d after %d", now.GetRevision(), was.GetRevision())
		}
		p := w.placement("a")
		if p.GetEdition() != w.record("a").GetEdition() || p.GetRun() != was.GetRun() || p.GetGeneration() != 1 {
			t.Errorf("placement %v of record %v", p, w.record("a"))
		}
		was = now
		return now
	}

	now := update(&v1.UpdateWorkerRequest{Tags: tagSet("team", "blue")})
	if len(now.GetTags()) != 1 || now.GetTags()["team"] != "blue" || now.GetConfig()["out"] != "x" || now.GetPolicy().GetMaxAttempts() != 7 {
		t.Errorf("after new tags: %v", now)
	}
	now = update(&v1.UpdateWorkerRequest{Config: &v1.ConfigSet{}})
	if len(now.GetConfig()) != 0 || len(now.GetTags()) != 1 {
		t.Errorf("after an empty config: %v", now)
	}
	now = update(&v1.UpdateWorkerRequest{Policy: &v1.Policy{MaxCrashes: 1, Backoff: durationpb.New(2 * time.Second)}})
	if p := now.GetPolicy(); p.GetMaxCrashes() != 1 || p.GetMaxAttempts() != 7 || p.GetDeadLetterTopic() != "dlq.ours" || p.GetBackoff().AsDuration() != 2*time.Second {
		t.Errorf("after a new policy: %v", p)
	}
	now = update(&v1.UpdateWorkerRequest{Policy: &v1.Policy{DeadLetterTopic: new("")}})
	if p := now.GetPolicy(); p.DeadLetterTopic != nil || p.GetMaxCrashes() != 1 {
		t.Errorf("after dead letters to the default: %v", p)
	}
	if n := len(r.started("a")); n != 1 {
		t.Errorf("%d activations", n)
	}

	// The same again changes nothing.
	resp, err := m.UpdateWorker(t.Context(), &v1.UpdateWorkerRequest{Worker: "a", Revision: was.GetRevision(), Tags: tagSet("team", "blue")})
	if err != nil || resp.GetWorker().GetRevision() != was.GetRevision() {
		t.Errorf("%v, %v", resp, err)
	}
}

func TestUpdateIsRefused(t *testing.T) {
	w := newWorld(t)
	m := w.manager()
	req := dedicated("a")
	req.Topics = []string{"in", "dlq.in"}
	revision := m.create(t, req).GetRevision()
	d := durationpb.New
	for name, c := range map[string]struct {
		req    *v1.UpdateWorkerRequest
		code   codes.Code
		reason string
		fields string
	}{
		"of nobody":           {&v1.UpdateWorkerRequest{Worker: "b", Revision: 1, Tags: tagSet()}, codes.NotFound, rpcerr.NotFound, ""},
		"without a revision":  {&v1.UpdateWorkerRequest{Tags: tagSet()}, codes.InvalidArgument, rpcerr.InvalidField, "revision"},
		"of another revision": {&v1.UpdateWorkerRequest{Revision: revision + 1, Tags: tagSet()}, codes.Aborted, rpcerr.Conflict, ""},
		"nothing":             {&v1.UpdateWorkerRequest{Revision: revision}, codes.InvalidArgument, rpcerr.InvalidField, "tags"},
		"bad tags and config": {&v1.UpdateWorkerRequest{Revision: revision, Tags: tagSet("", "x"), Config: &v1.ConfigSet{Config: map[string]string{"": ""}}}, codes.InvalidArgument, rpcerr.InvalidField, "tags,config"},
		"too many tags":       {&v1.UpdateWorkerRequest{Revision: revision, Tags: &v1.TagSet{Tags: many(51)}}, codes.InvalidArgument, rpcerr.InvalidField, "tags"},
		"a bad policy": {&v1.UpdateWorkerRequest{Revision: revision, Policy: &v1.Policy{MaxAttempts: 1 << 30, OnExhausted: 9}},
			codes.InvalidArgument, rpcerr.InvalidField, "policy.max_attempts,policy.on_exhausted"},
		"a back-off over the cap": {&v1.UpdateWorkerRequest{Revision: revision, Policy: &v1.Policy{Backoff: d(2 * time.Minute)}}, codes.InvalidArgument, rpcerr.InvalidField, "policy.max_backoff"},
		"a circle":                {&v1.UpdateWorkerRequest{Revision: revision, Policy: &v1.Policy{DeadLetterTopic: new("dlq.in")}}, codes.InvalidArgument, rpcerr.InvalidField, "policy.dead_letter_topic"},
	} {
		t.Run(name, func(t *testing.T) {
			if c.req.Worker == "" {
				c.req.Worker = "a"
			}
			_, err := m.UpdateWorker(t.Context(), c.req)
			wantError(t, err, c.code, c.reason)
			if got := rpcerr.Info(err).GetMetadata()["field"]; got != c.fields {
				t.Errorf("%v: field %q, want %q", err, got, c.fields)
			}
		})
	}
	if got := m.get(t, "a").GetRevision(); got != revision {
		t.Errorf("revision %d, was %d", got, revision)
	}
	_, err := m.UpdateWorker(t.Context(), &v1.UpdateWorkerRequest{Worker: "a", Revision: 1 << 60, Tags: tagSet()})
	if got := rpcerr.Info(err).GetMetadata()["revision"]; got == "" || !strings.Contains(err.Error(), got) {
		t.Errorf("%v does not give the present revision %q", err, got)
	}
}

// Of updates to one revision one is made, however the calls run and however placements move meanwhile.
func TestParallelUpdates(t *testing.T) {
	w := newWorld(t)
	ms := []*process{w.manager(), w.manager()}
	w.runtime("pod-1", "echo")
	ms[0].create(t, dedicated("a"))
	ms[0].start(t, "a")
	revision := ms[0].get(t, "a").GetRevision()
	var wg sync.WaitGroup
	var made atomic.Int64
	for i := range 20 {
		wg.Go(func() {
			_, err := ms[i%2].UpdateWorker(t.Context(), &v1.UpdateWorkerRequest{Worker: "a", Revision: revision, Tags: tagSet("by", string(rune('a'+i)))})
			switch {
			case err == nil:
				made.Add(1)
			case status.Code(err) != codes.Aborted:
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if made.Load() != 1 {
		t.Errorf("%d updates were made", made.Load())
	}
}

// What a placement lost, or was never told, the leader tells it.
func TestTheLeaderMendsPlacements(t *testing.T) {
	w := newWorld(t)
	m := w.manager()
	w.runtime("pod-1", "echo")
	m.create(t, dedicated("a"))
	m.start(t, "a")
	key := w.keys(catalog.PlacePrefix)[0]

	// The record changes without its placement, as when a runtime pauses a worker that is just moving.
	rec := w.record("a")
	rec.Edition, rec.Paused = 9, true
	put, err := catalog.Put(catalog.WorkerKey("a"), rec, store.Any)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.store.Txn(t.Context(), put); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the placement says what the record does", func() bool {
		p := w.placement("a")
		return p.GetEdition() == 9 && p.GetPaused()
	})

	// A placement that is wrong is found by the next leader.
	m.stop()
	put, err = catalog.Put(key, &storev1.Placement{WorkerId: "a", Run: 1, Generation: 1}, store.Any)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.store.Txn(t.Context(), put); err != nil {
		t.Fatal(err)
	}
	w.expire(m.session)
	w.manager()
	eventually(t, "the placement is mended", func() bool { return w.placement("a").GetPaused() })
}

func TestPauseAndResume(t *testing.T) {
	w := newWorld(t)
	m := w.manager()
	r := w.runtime("pod-1", "echo")
	m.create(t, dedicated("a"))
	pause := func(reason string) *v1.Worker {
		t.Helper()
		resp, err := m.PauseWorker(t.Context(), &v1.PauseWorkerRequest{Worker: "a", Reason: reason})
		if err != nil {
			t.Fatal(err)
		}
		return resp.GetWorker()
	}
	resume := func() *v1.Worker {
		t.Helper()
		resp, err := m.ResumeWorker(t.Context(), &v1.ResumeWorkerRequest{Worker: "a"})
		if err != nil {
			t.Fatal(err)
		}
		return resp.GetWorker()
	}

	if got := pause("before it starts"); !got.GetPaused() || got.GetState() != stopped {
		t.Errorf("paused while stopped: %v", got)
	}
	m.start(t, "a")
	if !w.placement("a").GetPaused() {
		t.Error("a worker that is paused was placed as if it was not")
	}
	first := pause("another reason")
	if first.GetPauseReason() != "before it starts" || first.GetState() != running {
		t.Errorf("paused twice: %v", first)
	}
	if got := resume(); got.GetPaused() || got.GetPauseReason() != "" || w.placement("a").GetPaused() {
		t.Errorf("resumed: %v", got)
	}
	revision := m.get(t, "a").GetRevision()
	if got := resume(); got.GetRevision() != revision {
		t.Error("resuming what runs changed something")
	}
	pause("while\nit runs")
	eventually(t, "the pause is told", func() bool {
		return slices.ContainsFunc(w.events.all(), func(e told) bool {
			return e.Type == lifecycle.TypePaused && e.Reason == "while it runs" && e.State == "RUNNING"
		})
	})
	if n := len(r.started("a")); n != 1 {
		t.Errorf("%d activations", n)
	}

	// It outlives the processes, and shows in lists.
	r.kill()
	w.kill(m)
	m = w.manager()
	w.runtime("pod-2", "echo")
	eventually(t, "it runs again", func() bool { return m.state(t, "a") == running })
	list, err := m.ListWorkers(t.Context(), &v1.ListWorkersRequest{})
	if err != nil || !list.GetWorkers()[0].GetPaused() || list.GetWorkers()[0].GetPauseReason() != "while it runs" {
		t.Errorf("%v, %v", list, err)
	}
	if !w.placement("a").GetPaused() {
		t.Error("placed as if it was not paused")
	}

	_, err = m.PauseWorker(t.Context(), &v1.PauseWorkerRequest{Worker: "a", Reason: strings.Repeat("x", catalog.MaxReason+1)})
	wantError(t, err, codes.InvalidArgument, rpcerr.InvalidField, "reason")
	_, err = m.PauseWorker(t.Context(), &v1.PauseWorkerRequest{Worker: "b"})
	wantError(t, err, codes.NotFound, rpcerr.NotFound)
	_, err = m.ResumeWorker(t.Context(), &v1.ResumeWorkerRequest{})
	wantError(t, err, codes.InvalidArgument, rpcerr.InvalidField, "worker")
}
