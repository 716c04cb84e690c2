package workmanager_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/internal/admission"
	"github.com/turnlane/turnlane/internal/catalog"
	"github.com/turnlane/turnlane/internal/lifecycle"
	"github.com/turnlane/turnlane/internal/rpcerr"
	storev1 "github.com/turnlane/turnlane/proto/turnlane/store/v1"
	v1 "github.com/turnlane/turnlane/proto/turnlane/v1"
	"github.com/turnlane/turnlane/store"
	"github.com/turnlane/turnlane/store/pebblestore"
	"github.com/turnlane/turnlane/workmanager"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	starting = v1.WorkerState_WORKER_STATE_STARTING
	running  = v1.WorkerState_WORKER_STATE_RUNNING
	stopping = v1.WorkerState_WORKER_STATE_STOPPING
	stopped  = v1.WorkerState_WORKER_STATE_STOPPED
	failed   = v1.WorkerState_WORKER_STATE_FAILED
)

// world is a store with whoever lives on it.
type world struct {
	t      testing.TB
	store  store.Store
	events *recorder
}

func newWorld(t testing.TB) *world {
	t.Helper()
	s, err := pebblestore.Open(pebblestore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return &world{t: t, store: s, events: &recorder{}}
}

// membership is a session that lives until it is closed.
type membership struct {
	mu sync.Mutex
	id string
}

func (m *membership) Current() (string, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.id, m.id != ""
}

func (w *world) session(roles ...string) *membership {
	return w.sessionOf(store.SessionInfo{Pod: "pod", Roles: roles})
}

func (w *world) sessionOf(info store.SessionInfo) *membership {
	w.t.Helper()
	s, err := w.store.OpenSession(w.t.Context(), info, time.Hour)
	if err != nil {
		w.t.Fatal(err)
	}
	return &membership{id: s.ID}
}

func (w *world) expire(m *membership) {
	w.t.Helper()
	m.mu.Lock()
	id := m.id
	m.id = ""
	m.mu.Unlock()
	if err := w.store.CloseSession(context.Background(), id); err != nil {
		w.t.Fatal(err)
	}
}

// process is a Manager with its session.
type process struct {
	*workmanager.Manager
	session *membership
	stop    func() // idempotent; returns after Run has
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// manager starts a Manager on the world's store; changes come last.
func (w *world) manager(changes ...func(*workmanager.Config)) *process {
	w.t.Helper()
	session := w.session("workmanager")
	cfg := workmanager.Config{
		Store: w.store, Session: session, Publisher: w.events, Logger: quiet(),
		Poll: 20 * time.Millisecond, DrainLimit: 5 * time.Second,
	}
	for _, change := range changes {
		change(&cfg)
	}
	m, err := workmanager.New(cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	p := &process{Manager: m, session: session, stop: sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			w.t.Error(err)
		}
	})}
	w.t.Cleanup(p.stop)
	return p
}

// kill ends a process without a word: its session expires.
func (w *world) kill(p *process) {
	p.stop()
	w.expire(p.session)
}

// fakeRuntime runs what is placed on its session as a runtime does: it owns, commits and releases, but
// it reads no topics.
type fakeRuntime struct {
	w       *world
	pod     string
	session *membership
	stop    func() // ends it without releasing anything

	mu     sync.Mutex
	owned  map[string]*activation
	fail   map[string]string // worker → why its activation fails
	hold   map[string]bool   // workers whose last turn does not end
	starts map[string][]store.Start
}

type activation struct {
	owner store.Owner
	start store.Start
}

func (w *world) runtime(pod string, types ...string) *fakeRuntime {
	w.t.Helper()
	r := &fakeRuntime{
		w: w, pod: pod, session: w.sessionOf(store.SessionInfo{Pod: pod, Roles: []string{"runtime"}, Types: types}),
		owned: map[string]*activation{}, fail: map[string]string{}, hold: map[string]bool{}, starts: map[string][]store.Start{},
	}
	ctx, cancel := context.WithCancel(context.Background())
	id, _ := r.session.Current()
	bell, err := w.store.WatchKeys(ctx, catalog.SessionPlaces(id))
	if err != nil {
		w.t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer bell.Close()
		retry := map[string]bool{}
		for {
			wait := ctx
			stop := func() {}
			if len(retry) > 0 {
				wait, stop = context.WithTimeout(ctx, 5*time.Millisecond)
			}
			keys, err := bell.Wait(wait)
			stop()
			if ctx.Err() != nil {
				return
			}
			if err != nil {
				for key := range retry {
					keys = append(keys, key)
				}
			}
			var wg errgroup.Group
			wg.SetLimit(32)
			settled := make([]bool, len(keys))
			for i, key := range keys {
				wg.Go(func() error {
					settled[i] = r.settle(ctx, id, key)
					return nil
				})
			}
			_ = wg.Wait()
			for i, key := range keys {
				if settled[i] {
					delete(retry, key)
				} else {
					retry[key] = true
				}
			}
		}
	}()
	r.stop = sync.OnceFunc(func() { cancel(); <-done })
	w.t.Cleanup(r.stop)
	return r
}

// settle brings one worker to what its placement says; false means again later.
func (r *fakeRuntime) settle(ctx context.Context, session, key string) bool {
	_, id, _ := catalog.SplitPlace(key)
	r.mu.Lock()
	now, why, hold := r.owned[id], r.fail[id], r.hold[id]
	r.mu.Unlock()
	item, err := r.w.store.Get(ctx, key)
	var want *store.Start
	if err == nil {
		p, err := catalog.Decode(item, &storev1.Placement{})
		if err != nil {
			return true
		}
		want = &store.Start{Run: p.GetRun(), Generation: p.GetGeneration()}
	}
	if now != nil && (want == nil || *want != now.start) {
		if hold {
			return false
		}
		now.owner.State = "STOPPED"
		if _, err := r.w.store.Commit(ctx, []store.Commit{{Owner: now.owner, Start: now.start, Handover: true}}); err != nil {
			return false
		}
		if err := r.w.store.Release(ctx, now.owner); err != nil && ctx.Err() == nil {
			r.w.t.Logf("release of %s: %v", id, err)
		}
		r.mu.Lock()
		delete(r.owned, id)
		r.mu.Unlock()
		now = nil
	}
	if want == nil || now != nil {
		return true
	}
	r.mu.Lock()
	if past := r.starts[id]; why != "" && slices.Contains(past, *want) {
		r.mu.Unlock()
		return true // it has failed already
	}
	r.mu.Unlock()
	owner, err := r.w.store.Acquire(ctx, id, session)
	if err != nil {
		return false
	}
	data, err := r.w.store.Load(ctx, id)
	if err != nil {
		return false
	}
	var cursors []store.Cursor
	if data.Start.Run == want.Run {
		cursors = data.Cursors
	}
	r.mu.Lock()
	r.starts[id] = append(r.starts[id], *want)
	r.mu.Unlock()
	owner.State = "RUNNING"
	if why != "" {
		owner.State, owner.Reason = "FAILED", why
	}
	errs, err := r.w.store.Commit(ctx, []store.Commit{{Owner: owner, Start: *want, Cursors: cursors}})
	if err != nil || errs[0] != nil {
		_ = r.w.store.Release(ctx, owner)
		return false
	}
	if why != "" {
		_ = r.w.store.Release(ctx, owner)
		return true
	}
	r.mu.Lock()
	r.owned[id] = &activation{owner, *want}
	r.mu.Unlock()
	return true
}

// kill ends the runtime without a word.
func (r *fakeRuntime) kill() {
	r.stop()
	r.w.expire(r.session)
}

func (r *fakeRuntime) failing(id, why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if why == "" {
		delete(r.fail, id)
	} else {
		r.fail[id] = why
	}
}

func (r *fakeRuntime) holding(id string, hold bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hold[id] = hold
}

func (r *fakeRuntime) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.owned)
}

func (r *fakeRuntime) started(id string) []store.Start {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.starts[id])
}

// recorder keeps lifecycle events in memory.
type recorder struct {
	mu     sync.Mutex
	events []*event.Event
}

func (r *recorder) Publish(_ context.Context, topic string, events ...*event.Event) ([]event.Position, error) {
	if topic != lifecycle.Topic {
		return nil, fmt.Errorf("published to %s", topic)
	}
	for _, e := range events {
		if err := e.Validate(); err != nil {
			return nil, err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, events...)
	return make([]event.Position, len(events)), nil
}

type told struct {
	Type string
	lifecycle.Data
}

func (r *recorder) all() []told {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := make([]told, len(r.events))
	for i, e := range r.events {
		list[i].Type = e.Type
		if err := json.Unmarshal(e.Data, &list[i].Data); err != nil {
			panic(err)
		}
	}
	return list
}

// states are the states of a worker in the order in which they were told.
func (r *recorder) states(id string) string {
	var list []string
	for _, e := range r.all() {
		if e.Type == lifecycle.TypeState && e.WorkerID == id {
			list = append(list, e.State)
		}
	}
	return strings.Join(list, " ")
}

// eventually waits for a condition, and fails the test when it does not come.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// append stores n events on a topic and returns their positions.
func (w *world) append(topic string, n int) []event.Position {
	w.t.Helper()
	records := make([]event.Record, n)
	for i := range records {
		e := &event.Event{ID: fmt.Sprint(i), Source: "/test", Type: "test"}
		records[i] = admission.Encode(e, time.Now())
	}
	out, err := w.store.Append(w.t.Context(), topic, []store.Batch{{Records: records}})
	if err != nil {
		w.t.Fatal(err)
	}
	return out[0].Positions
}

func (w *world) record(id string) *storev1.WorkerRecord {
	w.t.Helper()
	item, err := w.store.Get(w.t.Context(), catalog.WorkerKey(id))
	if err != nil {
		w.t.Fatal(err)
	}
	rec, err := catalog.DecodeWorker(item)
	if err != nil {
		w.t.Fatal(err)
	}
	return rec
}

// keys lists the registry's keys under a prefix.
func (w *world) keys(prefix string) []string {
	w.t.Helper()
	items, err := w.store.List(w.t.Context(), prefix, "", 0)
	if err != nil {
		w.t.Fatal(err)
	}
	var keys []string
	for _, item := range items {
		keys = append(keys, item.Key)
	}
	return keys
}

func wantError(t testing.TB, err error, code codes.Code, reason string, parts ...string) {
	t.Helper()
	if status.Code(err) != code || rpcerr.Reason(err) != reason {
		t.Errorf("got %v (%s %s), want %s %s", err, status.Code(err), rpcerr.Reason(err), code, reason)
		return
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%v does not say %q", err, part)
		}
	}
}

// The verbs, failing the test on error.

func (p *process) create(t testing.TB, req *v1.CreateWorkerRequest) *v1.Worker {
	t.Helper()
	resp, err := p.CreateWorker(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	return resp.GetWorker()
}

func (p *process) start(t testing.TB, ref string) *v1.StartWorkerResponse {
	t.Helper()
	resp, err := p.StartWorker(t.Context(), &v1.StartWorkerRequest{Worker: ref})
	if err != nil {
		t.Fatal(err)
	}
	return resp
}

func (p *process) stopWorker(t testing.TB, ref string) *v1.StopWorkerResponse {
	t.Helper()
	resp, err := p.StopWorker(t.Context(), &v1.StopWorkerRequest{Worker: ref})
	if err != nil {
		t.Fatal(err)
	}
	return resp
}

func (p *process) delete(t testing.TB, ref string) []string {
	t.Helper()
	resp, err := p.DeleteWorker(t.Context(), &v1.DeleteWorkerRequest{Worker: ref})
	if err != nil {
		t.Fatal(err)
	}
	return resp.GetWarnings()
}

func (p *process) get(t testing.TB, ref string) *v1.Worker {
	t.Helper()
	resp, err := p.GetWorker(t.Context(), &v1.GetWorkerRequest{Worker: ref})
	if err != nil {
		t.Fatal(err)
	}
	return resp.GetWorker()
}

func (p *process) state(t testing.TB, ref string) v1.WorkerState {
	t.Helper()
	return p.get(t, ref).GetState()
}

// dedicated and member are requests for workers of type "echo" on topic "in".

func dedicated(id string) *v1.CreateWorkerRequest {
	return &v1.CreateWorkerRequest{Id: id, Type: "echo", Topics: []string{"in"}}
}

func member(id, group string, size, index uint32, topics ...string) *v1.CreateWorkerRequest {
	if len(topics) == 0 {
		topics = []string{"in"}
	}
	return &v1.CreateWorkerRequest{Id: id, Type: "echo", Topics: topics, Group: group, GroupSize: size, GroupIndex: index}
}
