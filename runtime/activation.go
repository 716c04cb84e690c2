package runtime

import (
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/turnlane/turnlane/actor"
	"github.com/turnlane/turnlane/cursors"
	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/grouping"
	"github.com/turnlane/turnlane/inbox"
	"github.com/turnlane/turnlane/internal/engine"
	"github.com/turnlane/turnlane/internal/fanout"
	turnlanev1 "github.com/turnlane/turnlane/proto/turnlane/v1"
	"github.com/turnlane/turnlane/store"
)

// activation is one live worker. It is the Body of its cell.
type activation struct {
	r      *Runtime
	typ    *hosted
	worker *actor.Worker // who it is, which never changes: config and tags may, see shown
	// handler and commands change between two turns only, by whoever settles the place.
	handler  actor.Handler
	commands actor.Commands
	rules    atomic.Pointer[policy] // see policy; what is stored is not changed
	failure  error                  // why it must be reported as FAILED when it stops
	edition  uint64                 // of the record that it has taken over; used by whoever settles the place
	owner    store.Owner            // Worker, Session and Token; never changed
	start    store.Start
	slots    grouping.Set
	cell     engine.Cell

	// ended says that the activation must go: it was stopped, or refused by the store, or its handler
	// is stuck.
	ended atomic.Bool
	// wasRefused says that the store refused a write.
	wasRefused atomic.Bool
	// lost says that a handler was given up, and may still run.
	lost atomic.Bool
	// inTurn says that a turn was given out and has not been told as ended.
	inTurn atomic.Bool
	pause  pause

	mu       sync.Mutex
	shown    *actor.Worker // what turns see
	values   actor.Values  // of the state; changed between two turns only
	state    *ledger       // nil while the worker has no state
	box      inbox.Inbox
	lanes    []lane
	frozen   bool          // nothing is taken, published or stored any more
	closing  bool          // the flusher leaves its cursors to stop
	blocked  bool          // a turn was refused because of the outbox
	outTurns int           // in the outbox
	outBytes int           // in the outbox
	drained  chan struct{} // closed when the outbox has nothing of this activation; nil if nobody waits
	dirty    []int32       // lanes
	warm     bool          // its lanes or floors may hold memory that they do not need
	marking  bool          // an event waits for its start mark to be stored; nothing else is started
	ready    *turn         // its mark is stored: it is the next one
	pausing  bool          // its events are held back, and the catalog does not know yet
	permit   permit        // guarded by the type's limiter
}

// policy is how a worker's turns are run.
type policy struct {
	timeout, grace      time.Duration
	maxAttempts         uint32
	maxCrashes          uint32
	exhausted           turnlanev1.OnExhausted
	deadTopic           string // "" for that of the event's topic
	backoff, maxBackoff time.Duration
}

// policy returns how the worker's turns are run now.
func (a *activation) policy() *policy { return a.rules.Load() }

// lane is one topic of an activation: the sink of its feed.
type lane struct {
	a     *activation
	index int
	kind  laneKind
	topic string
	feed  *fanout.Feed // set once it is open; guarded by a.mu

	floor cursors.Floor
	// replayTo is the topic's end when the activation took over: events up to it may be repeats.
	replayTo event.Position
	// markTo is as far as events may have been in the hands of an activation that did not end in order:
	// the handler gets them under a mark, so that one that ends the process is found.
	markTo  event.Position
	known   []attempt        // of events after the cursor, in order
	gone    []event.Position // of records to be removed
	next    next
	old     attempt // of an event of a former log: it is in no store
	cuts    uint32  // changes of the log
	retry   *time.Timer
	retryAt time.Time // of the event that is held
	dirty   bool
	stored  event.Position // the cursor that the store has
	log     string         // the incarnation that floor and stored are of
	gaps    uint32
}

// Offer implements feed.Sink.
func (l *lane) Offer(entries []event.Entry) int {
	a := l.a
	a.mu.Lock()
	if a.frozen {
		a.mu.Unlock()
		return 0
	}
	n, rings := a.box.Offer(l.index, entries)
	a.mu.Unlock()
	if rings {
		a.cell.Ring()
	}
	return n
}

// Room implements feed.Sink.
func (l *lane) Room() bool {
	a := l.a
	a.mu.Lock()
	defer a.mu.Unlock()
	return !a.frozen && a.box.Room(l.index)
}

// Name implements engine.Body.
func (a *activation) Name() string {
	return a.worker.ID + "." + strconv.FormatUint(a.owner.Token, 10)
}

// Next implements engine.Body.
func (a *activation) Next() engine.Turn {
	for {
		t, again := a.next()
		if t != nil {
			return t
		}
		if !again {
			return nil
		}
	}
}

// next returns the turn to take, if there is one. Again says that an event was given up instead.
func (a *activation) next() (t *turn, again bool) {
	a.mu.Lock()
	if a.pause.wanted.Load() && !a.frozen {
		a.mu.Unlock()
		a.typ.limit.give(a)
		return nil, false
	}
	if t := a.ready; t != nil && !a.frozen {
		a.ready = nil
		a.inTurn.Store(true)
		a.mu.Unlock()
		return t, false
	}
	if a.marking && !a.frozen {
		a.mu.Unlock()
		return nil, false
	}
	if a.frozen || a.overOutboxLocked() || !a.box.Ready() {
		a.mu.Unlock()
		a.typ.limit.give(a)
		return nil, false
	}
	if !a.typ.limit.take(a) {
		a.mu.Unlock()
		return nil, false
	}
	item, drained, ok := a.box.Next()
	if !ok {
		a.mu.Unlock()
		a.typ.limit.give(a)
		return nil, false
	}
	l := &a.lanes[item.Lane]
	t = &turn{a: a, item: item, cuts: l.cuts}
	k := &l.old
	if !item.Former {
		t.ticket = l.floor.Begin(item.Entry.Pos)
		k = l.knownLocked(item.Entry.Pos)
	} else if k.Position != item.Entry.Pos {
		k = nil
	}
	attempt := 1
	if k != nil {
		attempt += int(k.Attempts) + int(k.Crashes)
		t.last = k.Attempt
	}
	t.Turn.Init(actor.TurnInput{
		Worker:   a.shown,
		Topic:    l.topic,
		Entry:    item.Entry,
		Attempt:  attempt,
		Replayed: !item.Former && !l.replayTo.Less(item.Entry.Pos),
		Check:    a.r.check,
		State:    &a.values,
		Run:      l.run(),
		Host:     t,
	})
	verdict := a.policy().verdict(k)
	mark := verdict == "" && !item.Former && !l.markTo.Less(item.Entry.Pos)
	if mark {
		k := l.noteLocked(item.Entry.Pos)
		k.Started, k.dirty = true, true
		l.next = next{what: beginMarked, t: t}
		a.marking = true
		l.markDirtyLocked()
	}
	feed := l.feed
	a.inTurn.Store(verdict == "" && !mark)
	a.mu.Unlock()
	if drained && feed != nil {
		feed.Drained()
	}
	switch {
	case verdict != "":
		t.last.GivenUp = verdict
		a.giveUp(t, time.Now())
		a.typ.limit.give(a)
		return nil, true
	case mark:
		a.r.flush.urgent(a)
		return nil, false
	}
	return t, false
}

// overOutboxLocked reports whether a turn must wait until outputs are stored.
func (a *activation) overOutboxLocked() bool {
	c := &a.r.cfg
	a.blocked = a.outTurns >= c.OutboxTurns || a.outBytes >= c.OutboxBytes ||
		a.outTurns > 0 && a.r.outbox.bytes.Load() >= c.OutboxBudget ||
		a.state.full(c.OutboxTurns, c.OutboxBytes)
	return a.blocked
}

// resume lets a lane whose event waited for its retry be served again.
func (l *lane) resume() {
	a := l.a
	a.mu.Lock()
	rings := !a.frozen && a.box.Resume(l.index)
	l.retryAt = time.Time{}
	a.mu.Unlock()
	if rings {
		a.cell.Ring()
	}
}

// markDirtyLocked has the lane's cursor stored with the next flush. It reports whether the activation
// must be told to the flusher.
func (l *lane) markDirtyLocked() bool {
	a := l.a
	if l.dirty {
		return false
	}
	l.dirty = true
	a.dirty = append(a.dirty, int32(l.index))
	a.warm = true
	return len(a.dirty) == 1
}

// cursor returns the lane's cursor as it is now, with the facts around it.
func (l *lane) cursor() (c store.Cursor, events, bytes int) {
	a := l.a
	observe := func(pos event.Position, incarnation string) {
		a.mu.Lock()
		defer a.mu.Unlock()
		if incarnation != l.log && l.log == "" {
			l.log = incarnation // the topic had no log before
		}
		if incarnation != l.log {
			// The feed has left the log that the floor is of without OnGap having been told yet.
			pos = event.Position{}
		}
		c = l.cursorLocked(pos)
		events, bytes = a.box.Len(l.index), a.box.Bytes(l.index)
	}
	a.mu.Lock()
	feed := l.feed
	a.mu.Unlock()
	if feed == nil {
		observe(event.Position{}, l.log)
	} else {
		feed.Observe(observe)
	}
	return c, events, bytes
}

// cursorLocked returns the lane's cursor, given what its feed has examined; the zero position for what it
// was known to have examined when the floor was read last.
func (l *lane) cursorLocked(examined event.Position) store.Cursor {
	oldest, waits := l.a.box.Oldest(l.index)
	return store.Cursor{Topic: l.topic, Incarnation: l.log, Position: l.floor.At(oldest, waits, examined)}
}

// freeze drops the activation as it is: nothing of it is written any more, and its turn is closed.
func (a *activation) freeze() {
	a.ended.Store(true)
	a.mu.Lock()
	a.frozen = true
	a.stopTimersLocked()
	a.mu.Unlock()
	a.cell.Abandon()
	if a.typ != nil {
		a.typ.limit.leave(a)
	}
	a.closeFeeds()
	a.mu.Lock()
	a.ready = nil
	a.box.Clear()
	a.tellDrainedLocked()
	a.mu.Unlock()
}

func (a *activation) stopTimersLocked() {
	for i := range a.lanes {
		if t := a.lanes[i].retry; t != nil {
			t.Stop()
		}
	}
}

func (a *activation) closeFeeds() {
	for i := range a.lanes {
		a.mu.Lock()
		feed := a.lanes[i].feed
		a.mu.Unlock()
		if feed != nil {
			feed.Close()
		} else if a.lanes[i].kind != topicLane {
			a.r.sentry.drop(&a.lanes[i])
		}
	}
}

func (a *activation) tellDrainedLocked() {
	if a.drained != nil && (a.outTurns == 0 || a.frozen) {
		close(a.drained)
		a.drained = nil
	}
}

// refused ends an activation whose write the store has refused: somebody else owns the worker, or will.
func (a *activation) refused(why error) {
	if a.wasRefused.Swap(true) {
		return
	}
	a.r.log.Error("worker given up: a write of it was refused", "worker", a.worker.ID, "token", a.owner.Token, "error", why)
	a.r.work.Go(func() {
		a.freeze()
		a.r.replace(a)
	})
}
