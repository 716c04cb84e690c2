package workmanager_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/turnlane/turnlane/internal/catalog"
	"github.com/turnlane/turnlane/internal/lifecycle"
	"github.com/turnlane/turnlane/internal/rpcerr"
	storev1 "github.com/turnlane/turnlane/proto/turnlane/store/v1"
	v1 "github.com/turnlane/turnlane/proto/turnlane/v1"
	"github.com/turnlane/turnlane/store"
	"github.com/turnlane/turnlane/workmanager"
)

// A story is run by a process that dies at its n-th write, for every n, once before the write and once
// with only its answer lost. A new process then finds a catalog in which everything fits, and the story
// can be told to its end.
func TestProcessDiesAtAnyWrite(t *testing.T) {
	story := func(m *workmanager.Manager) (err error) {
		do := func(step func() error) {
			if err == nil {
				err = step()
			}
		}
		ctx := context.Background()
		for i := range uint32(2) {
			id := fmt.Sprint("m", i)
			do(func() error {
				req := member(id, "g", 2, i, "x", "y")
				req.Name = "name of " + id
				_, err := m.CreateWorker(ctx, req)
				return err
			})
			do(func() error {
				_, err := m.StartWorker(ctx, &v1.StartWorkerRequest{Worker: id})
				return err
			})
		}
		do(func() error {
			_, err := m.SeekWorker(ctx, &v1.SeekWorkerRequest{Worker: "m0", To: &v1.Start{At: &v1.Start_Earliest{Earliest: true}}})
			return err
		})
		do(func() error {
			_, err := m.StopWorker(ctx, &v1.StopWorkerRequest{Worker: "m0"})
			return err
		})
		do(func() error {
			_, err := m.DeleteWorker(ctx, &v1.DeleteWorkerRequest{Worker: "m0"})
			return err
		})
		do(func() error {
			_, err := m.DeleteWorker(ctx, &v1.DeleteWorkerRequest{Worker: "m1"})
			return err
		})
		do(func() error {
			_, err := m.CreateWorker(ctx, member("m0", "g", 2, 0))
			return err
		})
		return err
	}
	for _, lost := range []bool{false, true} {
		for n := int64(1); ; n++ {
			w := newWorld(t)
			r := w.runtime("pod-1", "echo")
			f := &faulty{Store: w.store, dieAt: n, lost: lost}
			first := w.manager(func(c *workmanager.Config) { c.Store = f })
			err := story(first.Manager)
			w.kill(first)
			if !f.dead.Load() {
				if err != nil {
					t.Fatalf("without a fault: %v", err)
				}
				if n < 10 {
					t.Fatalf("the story has only %d writes", n)
				}
				break
			}

			second := w.manager()
			check := func(when string) {
				t.Helper()
				eventually(t, fmt.Sprintf("death at write %d (lost %v): everything fits %s", n, lost, when), func() bool {
					return w.misfit(r) == ""
				})
			}
			check("after the death")
			for _, id := range []string{"m0", "m1"} {
				if _, err := second.DeleteWorker(t.Context(), &v1.DeleteWorkerRequest{Worker: id}); status.Code(err) != codes.NotFound && err != nil {
					t.Errorf("death at write %d (lost %v): delete after it: %v", n, lost, err)
				}
			}
			if err := story(second.Manager); err != nil {
				t.Errorf("death at write %d (lost %v): the story after it: %v", n, lost, err)
			}
			check("at the end")
			if rec := w.record("m0"); rec.GetDeleted() || rec.GetRun() < 2 {
				t.Errorf("death at write %d (lost %v): m0 is %v", n, lost, rec)
			}
			second.stop()
			r.stop()
		}
	}
}

// misfit says what does not fit in the catalog, "" if everything does.
func (w *world) misfit(r *fakeRuntime) string {
	names, claims, places := map[string]string{}, map[string]string{}, map[string]bool{}
	var wanted []string
	session, _ := r.session.Current()
	for _, key := range w.keys(catalog.WorkerPrefix) {
		rec := w.record(strings.TrimPrefix(key, catalog.WorkerPrefix))
		switch {
		case rec.GetDeleted() && rec.GetUpdatedAt() != nil:
			return "a tombstone has data"
		case rec.GetDeleted():
			if data, err := w.store.Load(w.t.Context(), rec.GetId()); err != nil || data.Start.Run != 0 {
				return "data of a deleted worker"
			}
			continue
		}
		if rec.GetName() != "" {
			names[catalog.NameKey(rec.GetName())] = rec.GetId()
		}
		if rec.GetDesired() != v1.DesiredState_DESIRED_STATE_RUNNING {
			continue
		}
		wanted = append(wanted, rec.GetId())
		places[catalog.PlaceKey(session, rec.GetId())] = true
		if rec.GetGroup() != "" {
			for _, topic := range rec.GetTopics() {
				claims[fmt.Sprint(catalog.GroupKey(rec.GetGroup(), topic), " ", rec.GetGroupIndex())] = rec.GetId()
			}
		}
	}
	for _, key := range w.keys(catalog.NamePrefix) {
		item, err := w.store.Get(w.t.Context(), key)
		if err != nil || names[key] != string(item.Value) {
			return "name " + key
		}
		delete(names, key)
	}
	for _, key := range w.keys(catalog.GroupPrefix) {
		item, err := w.store.Get(w.t.Context(), key)
		if err != nil {
			return err.Error()
		}
		g, err := catalog.Decode(item, &storev1.GroupRecord{})
		if err != nil {
			return err.Error()
		}
		for index, id := range g.GetMembers() {
			claim := fmt.Sprint(key, " ", index)
			if claims[claim] != id {
				return "claim " + claim
			}
			delete(claims, claim)
		}
	}
	for _, key := range w.keys(catalog.PlacePrefix) {
		if !places[key] {
			return "placement " + key
		}
		delete(places, key)
	}
	if len(names)+len(claims)+len(places) > 0 {
		return fmt.Sprint("missing ", names, claims, places)
	}
	for _, id := range wanted {
		o, err := w.store.Owner(w.t.Context(), id)
		if err != nil || !o.Live || o.State != "RUNNING" {
			return "not running: " + id
		}
	}
	if r.count() != len(wanted) {
		return "runs what nobody wants"
	}
	return ""
}

// What was lost of names, claims and placements is made anew from the workers.
func TestLostKeysAreMadeAgain(t *testing.T) {
	w := newWorld(t)
	m := w.manager()
	r := w.runtime("pod-1", "echo")
	for i := range uint32(3) {
		req := member(fmt.Sprint("m", i), "g", 3, i, "x", "y")
		req.Name = fmt.Sprint("name ", i)
		m.create(t, req)
		m.start(t, req.GetId())
	}
	prefixes := []string{catalog.NamePrefix, catalog.GroupPrefix, catalog.PlacePrefix}
	var all []string
	for _, prefix := range prefixes {
		all = append(all, w.keys(prefix)...)
	}
	for _, damage := range []store.Change{{Delete: true}, {Value: []byte("\xff\xff\xff")}} {
		for _, key := range all {
			w.kill(m)
			damage.Key, damage.If = key, store.Any
			if _, err := w.store.Txn(t.Context(), damage); err != nil {
				t.Fatal(err)
			}
			m = w.manager()
			eventually(t, "everything fits without "+key, func() bool { return w.misfit(r) == "" })
		}
	}
	// And what belongs to nobody goes.
	w.kill(m)
	for _, key := range []string{"name/ghost", "place/nobody/m0", "place/nobody/ghost", catalog.GroupKey("ghost", "x")} {
		change := store.Change{Key: key, Value: []byte("ghost"), If: store.Any}
		if strings.HasPrefix(key, "group/") {
			change, _ = catalog.Put(key, &storev1.GroupRecord{GroupSize: 2, Members: map[uint32]string{1: "m0"}}, store.Any)
		}
		if _, err := w.store.Txn(t.Context(), change); err != nil {
			t.Fatal(err)
		}
	}
	w.manager()
	eventually(t, "everything fits", func() bool { return w.misfit(r) == "" })
}

func TestBrokenRecordsAreQuarantined(t *testing.T) {
	w := newWorld(t)
	m := w.manager()
	r := w.runtime("pod-1", "echo")
	for _, id := range []string{"a", "b", "c"} {
		m.create(t, dedicated(id))
		m.start(t, id)
	}
	damage := func(id, value string) {
		t.Helper()
		if _, err := w.store.Txn(t.Context(), store.Change{Key: catalog.WorkerKey(id), Value: []byte(value), If: store.Any}); err != nil {
			t.Fatal(err)
		}
	}
	damage("b", "\xff\xff")
	reports := func() (n int) {
		for _, e := range w.events.all() {
			if e.Type == lifecycle.TypeQuarantined && e.WorkerID == "b" && e.Error != "" {
				n++
			}
		}
		return n
	}
	eventually(t, "it is reported", func() bool { return reports() == 1 })
	_, err := m.GetWorker(t.Context(), &v1.GetWorkerRequest{Worker: "b"})
	wantError(t, err, codes.DataLoss, rpcerr.Internal, "worker b")
	_, err = m.StartWorker(t.Context(), &v1.StartWorkerRequest{Worker: "b"})
	wantError(t, err, codes.DataLoss, rpcerr.Internal)
	list, err := m.ListWorkers(t.Context(), &v1.ListWorkersRequest{})
	if err != nil || len(list.GetWorkers()) != 2 {
		t.Errorf("list: %v, %v", list, err)
	}
	// The others live on, also under a new leader, which reports it again; it may still be running.
	w.kill(m)
	m = w.manager()
	m.stopWorker(t, "a")
	m.start(t, "a")
	if r.count() != 3 {
		t.Errorf("%d run", r.count())
	}
	eventually(t, "the new leader reports it", func() bool { return reports() == 2 })
	damage("b", "\xff")
	eventually(t, "another revision is reported", func() bool { return reports() == 3 })

	m.delete(t, "b")
	eventually(t, "it no longer runs", func() bool { return r.count() == 2 })
	if got := m.create(t, dedicated("b")); got.GetRun() != 2 {
		t.Errorf("created again: %v", got)
	}
	if reports() != 3 {
		t.Errorf("%d reports", reports())
	}
}

// A leader that was deposed without knowing it can place nothing.
func TestADeposedLeaderWritesNothing(t *testing.T) {
	w := newWorld(t)
	m := w.manager()
	r := w.runtime("pod-1", "echo")
	m.create(t, dedicated("a"))
	m.start(t, "a")
	item, err := w.store.Get(t.Context(), catalog.LeaderKey)
	if err != nil {
		t.Fatal(err)
	}
	change := store.Change{Key: item.Key, Value: []byte("1000"), If: item.Revision}
	if _, err := w.store.Txn(t.Context(), change); err != nil {
		t.Fatal(err)
	}
	m.create(t, dedicated("b"))
	if got := m.start(t, "b").GetWorker(); got.GetState() != starting {
		t.Errorf("placed by a deposed leader: %v", got)
	}
	if r.count() != 1 {
		t.Errorf("%d run", r.count())
	}
}

func TestAnotherManagerTakesOver(t *testing.T) {
	w := newWorld(t)
	ms := []*process{w.manager(), w.manager(), w.manager()}
	w.runtime("pod-1", "echo")
	for i := range 3 {
		id := fmt.Sprint(i)
		ms[2].create(t, dedicated(id))
		ms[2].start(t, id)
		eventually(t, "it runs", func() bool { return ms[2].state(t, id) == running })
		if i < 2 {
			w.kill(ms[i])
		}
	}
	// What changed just before a leader came may be told again; nothing is left out.
	eventually(t, "all is told", func() bool {
		return !slices.ContainsFunc([]string{"0", "1", "2"}, func(id string) bool {
			states := w.events.states(id)
			return !strings.HasPrefix(states, "STOPPED STARTING ") || !strings.HasSuffix(states, " RUNNING")
		})
	})
}
