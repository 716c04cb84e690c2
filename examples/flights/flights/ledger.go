package flights

import (
	"context"
	"encoding/json"
	"fmt"
	"hash"
	"hash/fnv"
	"sync"
	"time"

	"github.com/turnlane/turnlane/actor"
	"github.com/turnlane/turnlane/examples/flights/data"
)

// lateMinutes is the delay above which a flight counts as late.
const lateMinutes = 15

// crawl is how long the slow member takes for a flight: all of them would take minutes.
const crawl = 50 * time.Millisecond

// ledger is the handler of one member: the figures of the airports whose flights it gets. Its worker
// has one turn at a time; the lock is for those who look on.
type ledger struct {
	member uint32
	hurry  <-chan struct{} // nil, or what a slow member crawls until

	mu       sync.Mutex
	events   int
	airports map[string]*airport
}

type airport struct {
	data.Airport
	order hash.Hash64
}

func newLedger(member uint32, hurry <-chan struct{}) *ledger {
	return &ledger{member: member, hurry: hurry, airports: make(map[string]*airport)}
}

// Handle enters one flight.
func (l *ledger) Handle(ctx context.Context, turn *actor.Turn) error {
	e := turn.Event()
	var flight struct {
		Delay    int `json:"delay"`
		Distance int `json:"distance"`
	}
	if err := json.Unmarshal(e.Data, &flight); err != nil {
		return actor.Permanent(fmt.Errorf("flight %s: %w", e.ID, err))
	}
	if err := l.wait(ctx); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.airports[e.Subject]
	if a == nil {
		a = &airport{order: fnv.New64a()}
		l.airports[e.Subject] = a
	}
	l.events++
	a.Flights++
	a.Delay += flight.Delay
	a.Distance += flight.Distance
	if flight.Delay > lateMinutes {
		a.Late++
	}
	a.order.Write(append([]byte(e.ID), '\n'))
	return nil
}

func (l *ledger) wait(ctx context.Context) error {
	if l.hurry == nil {
		return nil
	}
	pause := time.NewTimer(crawl)
	defer pause.Stop()
	select {
	case <-l.hurry:
	case <-pause.C:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

func (l *ledger) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.events
}

// figures returns what was added up so far.
func (l *ledger) figures() map[string]data.Airport {
	l.mu.Lock()
	defer l.mu.Unlock()
	figures := make(map[string]data.Airport, len(l.airports))
	for name, a := range l.airports {
		f := a.Airport
		f.OrderDigest = fmt.Sprintf("%016x", a.order.Sum64())
		figures[name] = f
	}
	return figures
}

// ledgers are all that the members of one group made, one for each activation.
type ledgers struct {
	slow  func(member uint32) <-chan struct{}
	mu    sync.Mutex
	books []*ledger
}

// open is the factory of the worker type.
func (ls *ledgers) open(w *actor.Worker) (actor.Handler, error) {
	l := newLedger(w.GroupIndex, ls.slow(w.GroupIndex))
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.books = append(ls.books, l)
	return l, nil
}

func (ls *ledgers) all() []*ledger {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	return append([]*ledger(nil), ls.books...)
}

// perMember returns how many flights each member entered.
func (ls *ledgers) perMember() [members]int {
	var n [members]int
	for _, l := range ls.all() {
		n[l.member] += l.count()
	}
	return n
}
