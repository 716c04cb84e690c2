package deadletter_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"

	"github.com/turnlane/turnlane/deadletter"
	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/internal/admission"
	"github.com/turnlane/turnlane/internal/catalog"
	format "github.com/turnlane/turnlane/internal/deadletter"
	storev1 "github.com/turnlane/turnlane/proto/turnlane/store/v1"
	v1 "github.com/turnlane/turnlane/proto/turnlane/v1"
	"github.com/turnlane/turnlane/store"
	"github.com/turnlane/turnlane/store/pebblestore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a store with dead letters in it.
type world struct {
	t     testing.TB
	store store.Store
	n     uint64
}

func newWorld(t testing.TB) *world {
	t.Helper()
	s, err := pebblestore.Open(pebblestore.Options{Logger: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return &world{t: t, store: s}
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// worker stores a worker's record, or a tombstone.
func (w *world) worker(id, typ string, deleted bool) {
	w.t.Helper()
	change, err := catalog.Put(catalog.WorkerKey(id), &storev1.WorkerRecord{Id: id, Type: typ, Deleted: deleted}, store.Any)
	if err == nil {
		_, err = w.store.Txn(w.t.Context(), change)
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

// die stores a dead letter of a worker, as a runtime does, and returns the original and its place.
func (w *world) die(topic, worker, typ, reason, text string) (*event.Event, event.Position) {
	w.t.Helper()
	w.n++
	e := &event.Event{ID: fmt.Sprint(w.n), Source: "/test", Type: "made", Subject: fmt.Sprint("key", w.n%5),
		DataContentType: "application/json", Data: fmt.Appendf(nil, `{ "n": %d}`, w.n), DataKind: event.JSONData}
	e.SetExtension("traceparent", event.String("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"))
	return e, w.put(topic, e, format.Facts{Reason: reason, Error: text, Attempts: 3, WorkerID: worker, WorkerType: typ, Run: 1,
		Topic: topic, Position: event.Position{Ms: w.n}, Key: e.Subject, FirstFailed: time.Unix(int64(w.n), 0).UTC(), LastFailed: time.Unix(int64(w.n), 5).UTC()})
}

func (w *world) put(topic string, e *event.Event, f format.Facts) event.Position {
	w.t.Helper()
	return w.append(format.Topic(topic, f.WorkerType, ""), admission.Encode(format.Wrap(e, f), time.Now()),
		format.Mark(f.WorkerID, 1, f.Run, f.Topic, f.Position))
}

func (w *world) append(topic string, r event.Record, mark *store.TurnMark) event.Position {
	w.t.Helper()
	out, err := w.store.Append(w.t.Context(), topic, []store.Batch{{Records: []event.Record{r}, Turn: mark}})
	if err != nil || out[0].Err != nil || out[0].Repeat {
		w.t.Fatal(out, err)
	}
	return out[0].Positions[0]
}

// read returns all events of a topic.
func (w *world) read(topic string) (events []*event.Event) {
	w.t.Helper()
	var after event.Position
	for {
		p, err := w.store.Read(context.Background(), topic, after, store.ReadLimit{})
		if err != nil {
			w.t.Fatal(err)
		}
		for _, e := range p.Entries {
			d, err := event.DecodeRecord(e.Record)
			if err != nil {
				w.t.Fatal(err)
			}
			events = append(events, d)
		}
		if after = p.To; len(p.Entries) == 0 {
			return events
		}
	}
}

func ids(events []*event.Event) string {
	s := ""
	for i, e := range events {
		if i > 0 {
			s += " "
		}
		s += e.ID
	}
	return s
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

// process is a Service with its session.
type process struct {
	*deadletter.Service
	w       *world
	session *membership
	cancel  context.CancelFunc
	done    chan struct{}
}

// service makes a Service on a view of the world's store, with its Run when it is to lead.
func (w *world) service(view store.Store, runs bool, changes ...func(*deadletter.Config)) *process {
	w.t.Helper()
	session, err := w.store.OpenSession(context.Background(), store.SessionInfo{Pod: "pod"}, time.Hour)
	if err != nil {
		w.t.Fatal(err)
	}
	p := &process{w: w, session: &membership{id: session.ID}, done: make(chan struct{})}
	cfg := deadletter.Config{Store: view, Session: p.session, Logger: quiet(), Poll: 5 * time.Millisecond, CountEvery: 20 * time.Millisecond}
	for _, change := range changes {
		change(&cfg)
	}
	if p.Service, err = deadletter.New(cfg); err != nil {
		w.t.Fatal(err)
	}
	var ctx context.Context
	ctx, p.cancel = context.WithCancel(context.Background())
	if !runs {
		close(p.done)
	} else {
		go func() {
			defer close(p.done)
			p.Run(ctx)
		}()
	}
	w.t.Cleanup(p.end)
	return p
}

// run lets a service that was made without it lead now.
func (p *process) run() {
	var ctx context.Context
	ctx, p.cancel = context.WithCancel(context.Background())
	p.done = make(chan struct{})
	go func() {
		defer close(p.done)
		p.Run(ctx)
	}()
}

// end ends the process: its session too.
func (p *process) end() {
	p.cancel()
	<-p.done
	p.session.mu.Lock()
	id := p.session.id
	p.session.id = ""
	p.session.mu.Unlock()
	if id != "" {
		if err := p.w.store.CloseSession(context.Background(), id); err != nil && !errors.Is(err, store.ErrClosed) {
			p.w.t.Error(err)
		}
	}
}

// stream takes what a call sends.
type stream[T any] struct {
	grpc.ServerStream
	ctx context.Context
	mu  sync.Mutex
	got []*T
	on  func(*T)
}

func (s *stream[T]) Context() context.Context { return s.ctx }
func (s *stream[T]) Send(m *T) error {
	s.mu.Lock()
	s.got = append(s.got, m)
	s.mu.Unlock()
	if s.on != nil {
		s.on(m)
	}
	return nil
}

func (s *stream[T]) last() *T {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.got) == 0 {
		return nil
	}
	return s.got[len(s.got)-1]
}

func (p *process) redrive(ctx context.Context, req *v1.RedriveRequest) (*v1.RedriveResponse, error) {
	s := &stream[v1.RedriveResponse]{ctx: ctx}
	err := p.Redrive(req, s)
	return s.last(), err
}

// fast is a redrive of a topic as fast as it goes.
func fast(topic string) *v1.RedriveRequest {
	return &v1.RedriveRequest{Filter: &v1.DeadLetterFilter{Topic: topic}, Rate: 1_000_000}
}

// dying is a process's view of the store: the process ends at its n-th write, before it or with its
// answer lost. Nothing that it does afterwards has an effect.
type dying struct {
	store.Store
	after bool // the write is made, and the answer lost

	mu   sync.Mutex
	left int
	dead chan struct{} // closed when the process has ended
	once sync.Once
}

func newDying(s store.Store, n int, after bool) *dying {
	return &dying{Store: s, left: n, after: after, dead: make(chan struct{})}
}

func (d *dying) isDead() bool {
	select {
	case <-d.dead:
		return true
	default:
		return false
	}
}

// write decides about a write: whether it is made, and whether its answer comes.
func (d *dying) write() (made, answered bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.isDead() {
		return false, false
	}
	if d.left--; d.left == 0 {
		d.once.Do(func() { close(d.dead) })
		return d.after, false
	}
	return true, true
}

func write[T any](d *dying, do func() (T, error)) (T, error) {
	made, answered := d.write()
	var none T
	if made {
		got, err := do()
		if answered {
			return got, err
		}
	}
	return none, store.ErrClosed
}

func read[T any](d *dying, do func() (T, error)) (T, error) {
	if d.isDead() {
		var none T
		return none, store.ErrClosed
	}
	return do()
}

func (d *dying) Append(ctx context.Context, topic string, b []store.Batch) ([]store.Appended, error) {
	return write(d, func() ([]store.Appended, error) { return d.Store.Append(ctx, topic, b) })
}

func (d *dying) Remove(ctx context.Context, topic string, ps ...event.Position) (int, error) {
	return write(d, func() (int, error) { return d.Store.Remove(ctx, topic, ps...) })
}

func (d *dying) Txn(ctx context.Context, changes ...store.Change) ([]uint64, error) {
	return write(d, func() ([]uint64, error) { return d.Store.Txn(ctx, changes...) })
}

func (d *dying) Read(ctx context.Context, topic string, after event.Position, limit store.ReadLimit) (store.Page, error) {
	return read(d, func() (store.Page, error) { return d.Store.Read(ctx, topic, after, limit) })
}

func (d *dying) Get(ctx context.Context, key string) (store.Item, error) {
	return read(d, func() (store.Item, error) { return d.Store.Get(ctx, key) })
}

func (d *dying) Lead(ctx context.Context, name, session string) (store.Leader, error) {
	return read(d, func() (store.Leader, error) { return d.Store.Lead(ctx, name, session) })
}
