package runtime

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/turnlane/turnlane/actor"
	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/internal/admission"
	"github.com/turnlane/turnlane/internal/catalog"
	"github.com/turnlane/turnlane/internal/fanout"
	"github.com/turnlane/turnlane/internal/lifecycle"
	"github.com/turnlane/turnlane/internal/session"
	storev1 "github.com/turnlane/turnlane/proto/turnlane/store/v1"
	turnlanev1 "github.com/turnlane/turnlane/proto/turnlane/v1"
	"github.com/turnlane/turnlane/store"
	"github.com/turnlane/turnlane/store/pebblestore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a store with what it takes to run workers on it: the test is the workmanager.
type rig struct {
	t     testing.TB
	store store.Store
	types map[string]actor.Factory
	cfg   func(*Config)
	fault func(*faulty)
	ttl   time.Duration
	jump  atomic.Int64 // of the store's clock for sessions
}

// process is one process of the rig.
type process struct {
	*rig
	r       *Runtime
	faults  *faulty
	hub     *fanout.Hub
	keeper  *session.Keeper
	stop    context.CancelFunc // in order
	crash   context.CancelFunc // of everything but the runtime
	ended   chan error
	session string
}

func newRig(t testing.TB) *rig {
	t.Helper()
	g := &rig{t: t, types: map[string]actor.Factory{}}
	began := time.Now()
	s, err := pebblestore.Open(pebblestore.Options{
		Elapsed: func() time.Duration { return time.Since(began) + time.Duration(g.jump.Load()) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	g.store = s
	return g
}

// faulty is the store as one process sees it.
type faulty struct {
	store.Store
	dead   atomic.Bool // no write gets through any more
	append func(topic string, batches []store.Batch) error
	commit func(commits []store.Commit) error
}

func (f *faulty) Append(ctx context.Context, topic string, batches []store.Batch) ([]store.Appended, error) {
	if f.dead.Load() {
		return nil, store.ErrUnavailable
	}
	if f.append != nil {
		if err := f.append(topic, batches); errors.Is(err, store.ErrOutcomeUnknown) {
			_, _ = f.Store.Append(ctx, topic, batches)
			return nil, err
		} else if err != nil {
			return nil, err
		}
	}
	return f.Store.Append(ctx, topic, batches)
}

func (f *faulty) Commit(ctx context.Context, commits []store.Commit) ([]error, error) {
	if f.dead.Load() {
		return nil, store.ErrUnavailable
	}
	if f.commit != nil {
		if err := f.commit(commits); err != nil {
			return nil, err
		}
	}
	return f.Store.Commit(ctx, commits)
}

func (f *faulty) Acquire(ctx context.Context, worker, session string) (store.Owner, error) {
	if f.dead.Load() {
		return store.Owner{}, store.ErrUnavailable
	}
	return f.Store.Acquire(ctx, worker, session)
}

func (f *faulty) Release(ctx context.Context, o store.Owner) error {
	if f.dead.Load() {
		return store.ErrUnavailable
	}
	return f.Store.Release(ctx, o)
}

func (f *faulty) OpenSession(ctx context.Context, info store.SessionInfo, ttl time.Duration) (store.Session, error) {
	if f.dead.Load() {
		return store.Session{}, store.ErrUnavailable
	}
	return f.Store.OpenSession(ctx, info, ttl)
}

func (f *faulty) RenewSession(ctx context.Context, id string, info store.SessionInfo, ttl time.Duration) error {
	if f.dead.Load() {
		return store.ErrUnavailable
	}
	return f.Store.RenewSession(ctx, id, info, ttl)
}

func (f *faulty) CloseSession(ctx context.Context, id string) error {
	if f.dead.Load() {
		return store.ErrUnavailable
	}
	return f.Store.CloseSession(ctx, id)
}

// die cuts the process off from the store, as if it had been killed or paused for long, and lets its
// session expire.
func (p *process) die() {
	p.faults.dead.Store(true)
	p.jump.Add(int64(time.Minute))
}

// handle makes a worker type of a function.
func (g *rig) handle(typ string, f func(ctx context.Context, turn *actor.Turn) error) {
	g.types[typ] = func(*actor.Worker) (actor.Handler, error) { return actor.HandlerFunc(f), nil }
}

// run starts a process, which ends in order when the test does.
func (g *rig) run(pod string) *process {
	g.t.Helper()
	p := &process{rig: g, ended: make(chan error, 1), faults: &faulty{Store: g.store}}
	var err error
	info := store.SessionInfo{Pod: pod, Roles: []string{"runtime"}}
	p.keeper, err = session.New(session.Config{Leases: p.faults, Info: info, TTL: g.ttl})
	if err != nil {
		g.t.Fatal(err)
	}
	p.hub = fanout.New(fanout.Config{Upstream: p.faults})
	c := Config{Store: p.faults, Hub: p.hub, Session: p.keeper, Types: g.types, Pod: pod,
		Publisher: publisher{p.faults}, CursorFlushInterval: 5 * time.Millisecond,
		DrainTimeout: time.Second}
	if os.Getenv("TURNLANE_TEST_LOG") != "" {
		c.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	if g.cfg != nil {
		g.cfg(&c)
	}
	if g.fault != nil {
		g.fault(p.faults)
	}
	if p.r, err = New(c); err != nil {
		g.t.Fatal(err)
	}
	base, crash := context.WithCancel(context.Background())
	ctx, stop := context.WithCancel(base)
	p.stop, p.crash = stop, crash
	var helpers sync.WaitGroup
	helpers.Go(func() { p.keeper.Run(base) })
	helpers.Go(func() { p.hub.Run(base) })
	go func() {
		err := p.r.Run(ctx)
		crash()
		helpers.Wait()
		p.ended <- err
		close(p.ended)
	}()
	g.t.Cleanup(func() { p.stop(); <-p.ended })
	p.eventually("a session and a hub", func() bool {
		p.session, _ = p.keeper.Current()
		return p.session != "" && p.hub.Ready() == nil
	})
	return p
}

// end stops the process in order and waits for it.
func (p *process) end() {
	p.t.Helper()
	p.stop()
	if err := <-p.ended; err != nil {
		p.t.Errorf("the runtime ended with %v", err)
	}
}

// worker is a record with the fields that tests care about.
type worker struct {
	id, typ  string
	topics   []string
	group    string
	size     uint32
	index    uint32
	replay   turnlanev1.ReplayMode
	attempts uint32
	crashes  uint32
	then     turnlanev1.OnExhausted
	dead     string // topic of its dead letters
	paused   bool
	timeout  time.Duration
	grace    time.Duration
	backoff  time.Duration
	run, gen uint64
	config   map[string]string
	after    event.Position // in every topic
}

// place writes a worker's record, beginning at the earliest event of each topic unless told otherwise, and its placement.
func (p *process) place(w worker) {
	p.t.Helper()
	p.put(w, p.session)
}

func (g *rig) put(w worker, session string) {
	g.t.Helper()
	g.txn(g.changes(w, session)...)
}

func (g *rig) changes(w worker, session string) []store.Change {
	g.t.Helper()
	w.defaults()
	rec := &storev1.WorkerRecord{
		Id: w.id, Type: w.typ, Topics: w.topics, Group: w.group, GroupSize: w.size, GroupIndex: w.index, Config: w.config,
		Policy: &turnlanev1.Policy{
			HandlerTimeout: durationpb.New(w.timeout), HandlerGrace: durationpb.New(w.grace), MaxAttempts: w.attempts,
			Backoff: durationpb.New(w.backoff), MaxBackoff: durationpb.New(20 * w.backoff),
			MaxCrashes: w.crashes, OnExhausted: w.then, DeadLetterTopic: &w.dead},
		Paused:  w.paused,
		Replay:  &turnlanev1.Replay{Mode: w.replay},
		Desired: turnlanev1.DesiredState_DESIRED_STATE_RUNNING,
		Run:     w.run, Generation: w.gen,
	}
	for _, topic := range w.topics {
		rec.Starts = append(rec.Starts, &storev1.TopicStart{Topic: topic, Ms: w.after.Ms, Seq: w.after.Seq})
	}
	return []store.Change{g.putChange(catalog.WorkerKey(w.id), rec),
		g.putChange(catalog.PlaceKey(session, w.id), &storev1.Placement{WorkerId: w.id, Run: w.run, Generation: w.gen, Paused: w.paused})}
}

func (w *worker) defaults() {
	def := func(d *time.Duration, or time.Duration) {
		if *d == 0 {
			*d = or
		}
	}
	def(&w.timeout, 30*time.Second)
	def(&w.grace, 2*time.Second)
	def(&w.backoff, 10*time.Millisecond)
	if w.attempts == 0 {
		w.attempts = 3
	}
	if w.replay == 0 {
		w.replay = turnlanev1.ReplayMode_REPLAY_MODE_CURSOR
	}
	w.run, w.gen = max(w.run, 1), max(w.gen, 1)
}

func (g *rig) putChange(key string, m proto.Message) store.Change {

	c, err := catalog.Put(key, m, store.Any)
	if err != nil {
		g.t.Fatal(err)
	}
	return c
}

func (g *rig) txn(changes ...store.Change) {
	g.t.Helper()
	if _, err := g.store.Txn(g.t.Context(), changes...); err != nil {
		g.t.Fatal(err)
	}
}

// unplace removes a worker's placement.
func (p *process) unplace(id string) {
	p.t.Helper()
	p.txn(store.Change{Key: catalog.PlaceKey(p.session, id), Delete: true, If: store.Any})
}

// publish appends n events, numbered from 0 in their ids, with a subject of their own each.
func (g *rig) publish(topic string, n int) []event.Position {
	g.t.Helper()
	records := make([]event.Record, n)
	for i := range records {
		records[i] = admission.Encode(numbered(i), time.Now())
	}
	out, err := g.store.Append(g.t.Context(), topic, []store.Batch{{Records: records}})
	if err != nil {
		g.t.Fatal(err)
	}
	return out[0].Positions
}

func numbered(i int) *event.Event {
	return &event.Event{ID: fmt.Sprintf("e%d", i), Source: "/test", Type: "test", Subject: fmt.Sprintf("s%d", i)}
}

// read returns all events of a topic.
func (g *rig) read(topic string) []*event.Event {
	g.t.Helper()
	var all []*event.Event
	for after := (event.Position{}); ; {
		page, err := g.store.Read(g.t.Context(), topic, after, store.ReadLimit{})
		if err != nil {
			g.t.Fatal(err)
		}
		if len(page.Entries) == 0 {
			return all
		}
		for _, e := range page.Entries {
			ev, err := event.DecodeRecord(e.Record)
			if err != nil {
				g.t.Fatal(err)
			}
			all = append(all, ev)
		}
		after = page.To
	}
}

// reported returns the lifecycle events of a type.
func (g *rig) reported(kind string) []*event.Event {
	g.t.Helper()
	var found []*event.Event
	for _, e := range g.read(lifecycle.Topic) {
		if e.Type == kind {
			found = append(found, e)
		}
	}
	return found
}

func (g *rig) owner(id string) store.Owner {
	g.t.Helper()
	o, err := g.store.Owner(g.t.Context(), id)
	if err != nil {
		g.t.Fatal(err)
	}
	return o
}

func (g *rig) load(id string) store.WorkerData {
	g.t.Helper()
	d, err := g.store.Load(g.t.Context(), id)
	if err != nil {
		g.t.Fatal(err)
	}
	return d
}

// eventually waits for a condition that real goroutines bring about.
func (g *rig) eventually(what string, ok func() bool) {
	g.t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			g.t.Fatalf("never came: %s", what)
		}
		time.Sleep(time.Millisecond)
	}
}

// running waits until a worker is reported as running under a token above the given one.
func (g *rig) running(id string, above uint64) store.Owner {
	g.t.Helper()
	var o store.Owner
	g.eventually(id+" running", func() bool {
		o = g.owner(id)
		return o.Live && o.State == stateRunning && o.Token > above
	})
	return o
}

// publisher stores lifecycle events, as the gateway would.
type publisher struct{ log store.Log }

func (p publisher) Publish(ctx context.Context, topic string, events ...*event.Event) ([]event.Position, error) {
	records := make([]event.Record, len(events))
	for i, e := range events {
		records[i] = admission.Encode(e, time.Now())
	}
	out, err := p.log.Append(ctx, topic, []store.Batch{{Records: records}})
	if err != nil {
		return nil, err
	}
	return out[0].Positions, out[0].Err
}

// seen collects what handlers saw, in order.
type seen struct {
	mu   sync.Mutex
	list []string
}

func (s *seen) add(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = append(s.list, what)
}

func (s *seen) all() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.list...)
}

func (s *seen) len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.list)
}

func (s *seen) text() string { return strings.Join(s.all(), " ") }

func ids(n int) string {
	var b []string
	for i := range n {
		b = append(b, fmt.Sprintf("e%d", i))
	}
	return strings.Join(b, " ")
}

var errBoom = errors.New("boom")

func goexit() { runtime.Goexit() }

func (g *rig) appendRecord(topic string, record event.Record) {
	g.t.Helper()
	if _, err := g.store.Append(g.t.Context(), topic, []store.Batch{{Records: []event.Record{record}}}); err != nil {
		g.t.Fatal(err)
	}
}

func (g *rig) publishEvent(topic string, e *event.Event) event.Position {
	g.t.Helper()
	out, err := g.store.Append(g.t.Context(), topic, []store.Batch{{Records: []event.Record{admission.Encode(e, time.Now())}}})
	if err != nil {
		g.t.Fatal(err)
	}
	return out[0].Positions[0]
}
