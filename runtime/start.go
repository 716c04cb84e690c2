package runtime

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/turnlane/turnlane/actor"
	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/grouping"
	"github.com/turnlane/turnlane/inbox"
	"github.com/turnlane/turnlane/internal/catalog"
	"github.com/turnlane/turnlane/internal/engine"
	"github.com/turnlane/turnlane/internal/fanout"
	storev1 "github.com/turnlane/turnlane/proto/turnlane/store/v1"
	turnlanev1 "github.com/turnlane/turnlane/proto/turnlane/v1"
	"github.com/turnlane/turnlane/store"
)

// States of a worker as its owner reports them.
const (
	stateRunning = "RUNNING"
	stateStopped = "STOPPED"
	stateFailed  = "FAILED"
)

var (
	// errFailed: the worker was reported FAILED; it needs a person.
	errFailed = errors.New("the worker failed to start")
	// errNotWanted: the catalog does not want what the placement says; another placement will come.
	errNotWanted = errors.New("the placement is out of date")
)

// start makes an activation. An error that is neither errFailed nor errNotWanted is worth another try.
func (r *Runtime) start(ctx context.Context, session string, p *place, want store.Start) (*activation, error) {
	rec, err := r.record(ctx, p.worker, want)
	if err != nil {
		return nil, err
	}
	owner, err := r.cfg.Store.Acquire(ctx, p.worker, session)
	if err != nil {
		return nil, fmt.Errorf("acquire the worker's lease: %w", err)
	}
	a, err := r.activate(ctx, rec, owner, want)
	if err != nil && !errors.Is(err, errFailed) && ctx.Err() != nil {
		// It is not wanted here any more. Otherwise the lease is kept, and the next try takes it again.
		if err := r.cfg.Store.Release(r.ctx, owner); err != nil && !refusal(err) {
			r.log.Warn("lease not given up; it ends with the process's session", "worker", p.worker, "error", err)
		}
	}
	return a, err
}

// record reads what the catalog says of a worker.
func (r *Runtime) record(ctx context.Context, worker string, want store.Start) (*storev1.WorkerRecord, error) {
	item, err := r.cfg.Store.Get(ctx, catalog.WorkerKey(worker))
	if errors.Is(err, store.ErrNotFound) {
		return nil, errNotWanted
	}
	if err != nil {
		return nil, fmt.Errorf("read the worker's record: %w", err)
	}
	rec, err := catalog.DecodeWorker(item)
	if err != nil {
		r.log.Error("worker's record cannot be read; the worker is left alone", "worker", worker, "error", err)
		return nil, errNotWanted
	}
	if rec.GetDeleted() || rec.GetDesired() != turnlanev1.DesiredState_DESIRED_STATE_RUNNING ||
		rec.GetRun() != want.Run || rec.GetGeneration() != want.Generation {
		return nil, errNotWanted
	}
	return rec, nil
}

func (r *Runtime) activate(ctx context.Context, rec *storev1.WorkerRecord, owner store.Owner, want store.Start) (*activation, error) {
	data, err := r.cfg.Store.Load(ctx, rec.GetId())
	if err != nil {
		return nil, fmt.Errorf("load the worker's cursors: %w", err)
	}
	starts, err := r.decide(ctx, rec, data)
	if err != nil {
		return nil, err
	}
	a := r.newActivation(rec, owner, want, starts, data)
	a.keepState(rec, data.State)
	if err := r.makeHandler(ctx, a); err != nil {
		if ctx.Err() != nil {
			r.stopHandler(a)
			return nil, err // it was told to end
		}
		r.log.Error("worker failed to start; it needs a person", "worker", a.worker.ID, "type", a.worker.Type, "error", clean(err.Error()))
		return nil, r.reportFailed(ctx, a, starts, err)
	}
	if err := r.run(ctx, a, starts); err != nil {
		want := &a.start
		if ctx.Err() != nil {
			want = nil
		}
		r.stop(a, want) // it may have run turns already
		return nil, err
	}
	r.log.Debug("worker runs", "worker", a.worker.ID, "type", a.worker.Type, "token", owner.Token)
	return a, nil
}

// run reports an activation as running, and opens its feeds. Trouble with the store is waited out, so
// that the handler is not made again because of it.
func (r *Runtime) run(ctx context.Context, a *activation, starts []begin) error {
	first := a.commit(stateRunning, "", starts)
	if err := r.insist(ctx, a, "report the worker as running", func() error { return r.starts.commit(ctx, first) }); err != nil {
		return err
	}
	for i := range a.lanes {
		if g := starts[i].skipped; g != nil {
			a.mu.Lock()
			a.lanes[i].gaps++
			a.mu.Unlock()
			r.meters.skipped.Add(1)
			r.reportGap(a, &a.lanes[i], "skipped", g.first, g.last)
		}
	}
	for i := range a.lanes {
		if err := r.insist(ctx, a, "open a feed", func() error {
			if a.lanes[i].kind != topicLane && starts[i].incarnation == "" {
				return r.sentry.add(ctx, &a.lanes[i])
			}
			return r.open(ctx, a, i, starts[i])
		}); err != nil {
			return err
		}
	}
	return nil
}

// insist does something until it succeeds, ctx ends, or the store refuses.
func (r *Runtime) insist(ctx context.Context, a *activation, what string, do func() error) error {
	for n := 0; ; n++ {
		err := do()
		if err == nil {
			return nil
		}
		if refusal(err) || errors.Is(err, store.ErrClosed) || a.isFrozen() {
			return fmt.Errorf("%s: %w", what, err)
		}
		if n == 4 && ctx.Err() == nil {
			r.log.Warn("worker cannot be started; trying again", "worker", a.worker.ID, "doing", what, "error", err)
		}
		slept := false
		r.unslotted(func() { slept = sleep(ctx, backoff(n, 10*time.Millisecond, 2*time.Second)) })
		if !slept {
			return fmt.Errorf("%s: %w", what, err)
		}
	}
}

// newActivation makes an activation without a handler.
func (r *Runtime) newActivation(rec *storev1.WorkerRecord, owner store.Owner, want store.Start, starts []begin, data store.WorkerData) *activation {
	a := &activation{
		r:     r,
		typ:   r.types[rec.GetType()],
		owner: store.Owner{Worker: owner.Worker, Session: owner.Session, Token: owner.Token},
		start: want,
		worker: &actor.Worker{
			ID: rec.GetId(), Name: rec.GetName(), Type: rec.GetType(), Topics: rec.GetTopics(),
			Group: rec.GetGroup(), GroupSize: rec.GetGroupSize(), GroupIndex: rec.GetGroupIndex(),
			Config: rec.GetConfig(), Tags: rec.GetTags(),
			Run: want.Run, Token: owner.Token, Pod: r.cfg.Pod,
		},
	}
	rules := policyOf(rec.GetPolicy())
	a.rules.Store(&rules)
	if a.worker.Group != "" {
		a.slots = grouping.NewSet(a.worker.GroupSize, a.worker.GroupIndex)
	}
	a.shown = a.worker
	topics := topicsOf(a.worker.Type, a.worker.ID, a.worker.Topics)
	n := len(topics)
	a.box = inbox.New(n, r.cfg.Lane, r.budget)
	a.lanes = make([]lane, n)
	for i := range a.lanes {
		l := &a.lanes[i]
		l.a, l.index, l.topic, l.kind = a, i, topics[i], kindOf(i, len(a.worker.Topics))
		if l.kind == commandLane {
			a.box.SetPriority(i)
		}
		l.log, l.stored, l.replayTo = starts[i].incarnation, starts[i].after, starts[i].end
		if !data.Handover {
			l.markTo = starts[i].end
		}
		l.floor.Reset(starts[i].after)
	}
	a.recall(data, starts, rec.GetPaused(), time.Now().UTC())
	if rec.GetPaused() {
		a.pauseLocked(true) // nobody else has it yet
	}
	a.cell.Init(r.engine, a, a.policy().timeout, a.policy().grace)
	return a
}

func policyOf(p *turnlanev1.Policy) policy {
	d := func(v *durationpb.Duration, or time.Duration) time.Duration {
		if v == nil || v.AsDuration() <= 0 {
			return or
		}
		return v.AsDuration()
	}
	q := policy{
		timeout:     d(p.GetHandlerTimeout(), actor.DefaultHandlerTimeout),
		grace:       d(p.GetHandlerGrace(), actor.DefaultHandlerGrace),
		maxAttempts: p.GetMaxAttempts(),
		backoff:     d(p.GetBackoff(), actor.DefaultBackoff),
		maxBackoff:  d(p.GetMaxBackoff(), actor.DefaultMaxBackoff),
		maxCrashes:  p.GetMaxCrashes(),
		exhausted:   p.GetOnExhausted(),
		deadTopic:   p.GetDeadLetterTopic(),
	}
	if q.maxCrashes == 0 {
		q.maxCrashes = actor.DefaultMaxCrashes
	}
	if q.maxAttempts == 0 {
		q.maxAttempts = actor.DefaultMaxAttempts
	}
	return q
}

// makeHandler runs the factory and the handler's Start, guarded like turns.
func (r *Runtime) makeHandler(ctx context.Context, a *activation) error {
	if a.typ == nil {
		return fmt.Errorf("this runtime does not host the type %q", a.worker.Type)
	}
	shown := a.shown
	call := func(what string, f func(context.Context) error) error {
		var res engine.Result
		r.unslotted(func() { res = r.engine.Call(ctx, a.policy().timeout, min(a.policy().grace, r.cfg.DrainTimeout), f) })
		if res.Kind == engine.Stuck {
			r.meterStuck(a)
		}
		if res.Err != nil {
			return fmt.Errorf("%s: %w", what, res.Err)
		}
		return nil
	}
	made := make(chan handlerMade, 1)
	err := call("make the handler", func(context.Context) error {
		h, err := a.typ.factory(shown)
		if err == nil && h == nil {
			err = errors.New("the factory returned no handler")
		}
		m := handlerMade{handler: h}
		if c, ok := h.(actor.Commander); ok && err == nil {
			m.commands = c.Commands()
		}
		made <- m
		return err
	})
	if err != nil {
		return err
	}
	m := <-made
	a.handler, a.commands = m.handler, m.commands
	if s, ok := m.handler.(actor.Starter); ok {
		return call("start the handler", func(ctx context.Context) error { return s.Start(ctx, shown) })
	}
	return nil
}

type handlerMade struct {
	handler  actor.Handler
	commands actor.Commands
}

// stopHandler runs the handler's Stop, guarded like turns. Its failure is logged. The caller has a slot.
func (r *Runtime) stopHandler(a *activation) {
	s, ok := a.handler.(actor.Stopper)
	if !ok {
		return
	}
	var res engine.Result
	r.unslotted(func() {
		res = r.engine.Call(context.WithoutCancel(r.ctx), min(a.policy().timeout, r.cfg.DrainTimeout), min(a.policy().grace, r.cfg.DrainTimeout), s.Stop)
	})
	if res.Kind == engine.Stuck {
		r.meterStuck(a)
	}
	if res.Err != nil {
		r.log.Error("the handler's Stop failed", "worker", a.worker.ID, "type", a.worker.Type, "error", clean(res.Err.Error()))
	}
}

func (r *Runtime) meterStuck(a *activation) {
	if a.typ != nil {
		a.typ.meter.stuck.Add(1)
	}
}

// reportFailed stores that the worker has failed, and why, and gives up its lease.
func (r *Runtime) reportFailed(ctx context.Context, a *activation, starts []begin, why error) error {
	c := a.commit(stateFailed, clean(why.Error()), starts)
	c.Handover = true // nothing was taken in hand
	if err := r.starts.commit(ctx, c); err != nil {
		return fmt.Errorf("report the worker as failed: %w", err)
	}
	if err := r.cfg.Store.Release(ctx, c.Owner); err != nil && !refusal(err) {
		return fmt.Errorf("release the worker that failed: %w", err)
	}
	return errFailed
}

// commit is the first commit of an activation: it says which beginning all later ones belong to.
func (a *activation) commit(state, reason string, starts []begin) store.Commit {
	c := store.Commit{Owner: a.owner, Start: a.start}
	c.Owner.State, c.Owner.Reason, c.Owner.Pod = state, reason, a.r.cfg.Pod
	c.Cursors = make([]store.Cursor, 0, len(starts))
	for i, s := range starts {
		l := &a.lanes[i]
		c.Cursors = appendCursor(c.Cursors, l, store.Cursor{Topic: l.topic, Incarnation: s.incarnation, Position: s.after})
		a.mu.Lock()
		c.Attempts = l.changesLocked(s.after, c.Attempts)
		a.mu.Unlock()
	}
	return c
}

// open opens the feed of one lane.
func (r *Runtime) open(ctx context.Context, a *activation, i int, b begin) error {
	l := &a.lanes[i]
	slots := a.slots
	if l.kind != topicLane {
		slots = grouping.Set{}
	}
	f, err := r.cfg.Hub.Open(ctx, l.topic, fanout.Options{
		Start: fanout.After(b.after, b.incarnation),
		Slots: slots,
		Sink:  l,
		OnGap: l.onGap,
	})
	if err != nil {
		return err
	}
	a.mu.Lock()
	l.feed = f
	ending := a.frozen || a.closing
	a.mu.Unlock()
	if ending {
		f.Close()
		return errors.New("the activation ends")
	}
	f.Drained() // turns that ran meanwhile could not tell
	return nil
}

// starter commits the first commits of activations, many at once: whoever comes while a commit is under
// way goes with the next one.
type starter struct {
	r *Runtime

	mu      sync.Mutex
	waiting []firstCommit
	busy    bool
}

type firstCommit struct {
	commit store.Commit
	done   chan error
}

func (s *starter) commit(ctx context.Context, c store.Commit) error {
	mine := firstCommit{c, make(chan error, 1)}
	s.mu.Lock()
	s.waiting = append(s.waiting, mine)
	if !s.busy {
		s.busy = true
		s.r.work.Go(s.run)
	}
	s.mu.Unlock()
	select {
	case err := <-mine.done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *starter) run() {
	for {
		s.mu.Lock()
		batch := s.waiting
		s.waiting = nil
		if len(batch) == 0 {
			s.busy = false
			s.mu.Unlock()
			return
		}
		s.mu.Unlock()
		commits := make([]store.Commit, len(batch))
		for i := range batch {
			commits[i] = batch[i].commit
		}
		errs, err := s.r.cfg.Store.Commit(s.r.ctx, commits)
		for i := range batch {
			if err != nil {
				batch[i].done <- err
			} else {
				batch[i].done <- errs[i]
			}
		}
	}
}

// begin is where one topic of an activation begins.
type begin struct {
	after       event.Position
	incarnation string
	end         event.Position // see lane.replayTo
	skipped     *stretch
}

type stretch struct{ first, last event.Position }
