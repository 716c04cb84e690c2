package workmanager_test

import (
	"slices"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/internal/catalog"
	"github.com/turnlane/turnlane/internal/command"
	storev1 "github.com/turnlane/turnlane/proto/turnlane/store/v1"
	v1 "github.com/turnlane/turnlane/proto/turnlane/v1"
	"github.com/turnlane/turnlane/store"
	"github.com/turnlane/turnlane/workmanager"
)

const commands = "wrk.echo.command.a"

// startOn is where the record of worker a says that a topic begins.
func (w *world) startOn(topic string) *storev1.TopicStart {
	w.t.Helper()
	for _, s := range w.record("a").GetStarts() {
		if s.GetTopic() == topic {
			return s
		}
	}
	w.t.Fatalf("no start for %s in %v", topic, w.record("a"))
	return nil
}

func at(s *storev1.TopicStart) event.Position { return event.Position{Ms: s.GetMs(), Seq: s.GetSeq()} }

// Commands are for the worker from its creation on, and go on from their cursor whatever happens to the
// worker otherwise, in every replay mode.
func TestWhereCommandsBegin(t *testing.T) {
	for _, mode := range []v1.ReplayMode{v1.ReplayMode_REPLAY_MODE_CURSOR, v1.ReplayMode_REPLAY_MODE_OFF} {
		t.Run(mode.String(), func(t *testing.T) {
			w := newWorld(t)
			m := w.manager()
			w.runtime("pod-1", "echo")
			former := w.append(commands, 3)
			w.append("in", 5)
			req := dedicated("a")
			req.Replay = &v1.Replay{Mode: mode}
			m.create(t, req)
			if got := at(w.startOn(commands)); got != former[2] {
				t.Errorf("created: after %s, want %s", got, former[2])
			}
			waiting := w.append(commands, 4)
			m.start(t, "a")
			if got := at(w.startOn(commands)); got != former[2] {
				t.Errorf("started: after %s, want %s", got, former[2])
			}

			commit := func(begin store.Start, pos event.Position) {
				t.Helper()
				owner, err := w.store.Owner(t.Context(), "a")
				if err != nil {
					t.Fatal(err)
				}
				incarnation := w.startOn(commands).GetIncarnation()
				errs, err := w.store.Commit(t.Context(), []store.Commit{{Owner: owner, Start: begin,
					Cursors: []store.Cursor{{Topic: commands, Incarnation: incarnation, Position: pos}, {Topic: "in", Position: event.Position{Ms: 1}}}}})
				if err != nil || errs[0] != nil {
					t.Fatal(err, errs)
				}
			}
			commit(store.Start{Run: 1, Generation: 1}, waiting[0])
			m.stopWorker(t, "a")
			m.start(t, "a")
			if got := at(w.startOn(commands)); got != waiting[0] {
				t.Errorf("started again: after %s, want %s", got, waiting[0])
			}

			commit(store.Start{Run: 1, Generation: 2}, waiting[1])
			for range 2 {
				_, err := m.SeekWorker(t.Context(), &v1.SeekWorkerRequest{Worker: "a", To: &v1.Start{At: &v1.Start_Earliest{Earliest: true}}})
				if err != nil {
					t.Fatal(err)
				}
				if got := at(w.startOn(commands)); got != waiting[1] {
					t.Errorf("sought: after %s, want %s", got, waiting[1])
				}
				m.stopWorker(t, "a") // and once more while it is stopped
			}
			m.start(t, "a")
			if got := at(w.startOn(commands)); got != waiting[1] {
				t.Errorf("started after it was sought: after %s, want %s", got, waiting[1])
			}
			if got := at(w.startOn("in")); got != (event.Position{}) {
				t.Errorf("its events begin after %s, and it was sought to the earliest", got)
			}

			status := m.get(t, "a").GetTopicStatus()
			i := slices.IndexFunc(status, func(s *v1.WorkerTopic) bool { return s.GetTopic() == commands })
			if len(status) != 2 || i < 0 || status[i].GetCursor() != waiting[1].String() || status[i].GetLagEntries() != 2 {
				t.Errorf("status %v", status)
			}
		})
	}
}

// Records of programs that knew no commands get theirs from the beginning: there were none.
func TestCommandsOfOldRecords(t *testing.T) {
	w := newWorld(t)
	m := w.manager()
	w.runtime("pod-1", "echo")
	m.create(t, dedicated("a"))
	rec := w.record("a")
	rec.Starts, rec.Policy = nil, &v1.Policy{MaxAttempts: 3}
	put, err := catalog.Put(catalog.WorkerKey("a"), rec, store.Any)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.store.Txn(t.Context(), put); err != nil {
		t.Fatal(err)
	}
	sent := w.append(commands, 1)
	m.start(t, "a")
	if got := at(w.startOn(commands)); !got.Less(sent[0]) {
		t.Errorf("begins after %s, and %s was sent", got, sent[0])
	}
	if p := m.get(t, "a").GetPolicy(); p.GetMaxCrashes() != 3 || p.GetHandlerTimeout() == nil {
		t.Errorf("policy %v", p)
	}
	// The same definition is still the same worker.
	if got := m.create(t, dedicated("a")); got.GetState() == stopped {
		t.Errorf("created anew: %v", got)
	}
}

// The topics of a worker's own go with it, whatever it was.
func TestDeletedWorkersLeaveNoTopics(t *testing.T) {
	for name, c := range map[string]struct {
		before func(w *world, m *process)
		broken bool
	}{
		"never started": {before: func(w *world, m *process) {}},
		"running": {before: func(w *world, m *process) {
			w.runtime("pod-1", "echo")
			m.start(t, "a")
		}},
		"with a broken record": {broken: true, before: func(w *world, m *process) {
			_, err := w.store.Txn(t.Context(), store.Change{Key: catalog.WorkerKey("a"), Value: []byte("\xff"), If: store.Any})
			if err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			m := w.manager()
			m.create(t, dedicated("a"))
			m.create(t, dedicated("b"))
			for _, id := range []string{"a", "b"} {
				for _, topic := range command.Topics("echo", id) {
					w.append(topic, 2)
				}
			}
			c.before(w, m)
			m.delete(t, "a")
			topics, err := w.store.Topics(t.Context(), command.Prefix, "", 100)
			if err != nil {
				t.Fatal(err)
			}
			var left []string
			for _, topic := range topics {
				left = append(left, topic.Topic)
			}
			if want := command.Topics("echo", "b"); !slices.Equal(slices.Sorted(slices.Values(left)), slices.Sorted(slices.Values(want))) {
				t.Errorf("left %v", left)
			}
			if rec := w.record("a"); !rec.GetDeleted() || rec.GetUpdatedAt() != nil || rec.GetType() != "" {
				t.Errorf("tombstone %v", rec)
			}

			// What was sent to it is not for the next one of the id.
			late := w.append(commands, 1)
			m.create(t, dedicated("a"))
			if got := at(w.startOn(commands)); got != late[0] {
				t.Errorf("begins after %s, want %s", got, late[0])
			}
		})
	}
}

// Where the process dies while it removes topics, the leader goes on.
func TestTheLeaderRemovesTopicsOfDeletedWorkers(t *testing.T) {
	w := newWorld(t)
	m := w.manager()
	w.runtime("pod-1", "echo")
	m.create(t, dedicated("a"))
	m.start(t, "a")
	w.append(commands, 2)
	m.stop()
	dying := &faulty{Store: w.store, dieAt: 5} // stop, tombstone, acquire, forget, the topic
	other := w.manager(func(c *workmanager.Config) { c.Store = dying })
	_, err := other.DeleteWorker(t.Context(), &v1.DeleteWorkerRequest{Worker: "a"})
	w.kill(other)
	if b, berr := w.store.Bounds(t.Context(), commands); berr != nil {
		t.Fatal(berr)
	} else if b.Incarnation == "" && err != nil {
		t.Log("it was removed before the end")
	}
	w.expire(m.session)
	m = w.manager()
	if err != nil {
		_, err := m.DeleteWorker(t.Context(), &v1.DeleteWorkerRequest{Worker: "a"})
		tolerate(t, err, codes.NotFound)
	}
	eventually(t, "its topics are gone", func() bool {
		b, err := w.store.Bounds(t.Context(), commands)
		return err == nil && b.Incarnation == "" && w.record("a").GetUpdatedAt() == nil
	})
	if !proto.Equal(w.record("a"), &storev1.WorkerRecord{Id: "a", Run: 1, Generation: 1, Deleted: true}) {
		t.Errorf("tombstone %v", w.record("a"))
	}
}
