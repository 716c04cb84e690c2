package flights

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"strconv"
	"sync"
	"time"

	"github.com/turnlane/turnlane/actor"
	"github.com/turnlane/turnlane/examples/flights/data"
)

// lateMinutes is the delay above which a flight counts as late.
const lateMinutes = 15

// crawl is how long the slow member takes for a flight: all of them would take minutes.
const crawl = 50 * time.Millisecond

// ledger is the handler of one member. The figures of the airports whose flights it gets are in the
// worker's state, and so are right whatever happens to the process. What it has in memory, under a lock, is
// for those who look on.
type ledger struct {
	member uint32
	hurry  <-chan struct{} // nil, or what a slow member crawls until

	mu       sync.Mutex
	events   int
	airports map[string]data.Airport
}

func newLedger(member uint32, hurry <-chan struct{}) *ledger {
	return &ledger{member: member, hurry: hurry, airports: make(map[string]data.Airport)}
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
	a, err := read(turn.State().Get(StateKey + e.Subject))
	if err != nil {
		return actor.Permanent(fmt.Errorf("books of %s: %w", e.Subject, err))
	}
	a.Flights++
	a.Delay += flight.Delay
	a.Distance += flight.Distance
	if flight.Delay > lateMinutes {
		a.Late++
	}
	if a.OrderDigest, err = digest(a.OrderDigest, e.ID); err != nil {
		return actor.Permanent(fmt.Errorf("books of %s: %w", e.Subject, err))
	}
	text, err := json.Marshal(a)
	if err != nil {
		return err
	}
	if err := turn.State().Set(StateKey+e.Subject, text); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.events++
	l.airports[e.Subject] = a
	return nil
}

// StateKey is what the keys of the state begin with; the airport follows.
const StateKey = "airport/"

func read(text []byte, ok bool) (a data.Airport, err error) {
	if ok {
		err = json.Unmarshal(text, &a)
	}
	return a, err
}

// digest goes on with the FNV-1a digest of the ids of an airport's flights, in order, by one.
func digest(sofar, id string) (string, error) {
	const start, prime = 14695981039346656037, 1099511628211
	h := uint64(start)
	if sofar != "" {
		var err error
		if h, err = strconv.ParseUint(sofar, 16, 64); err != nil {
			return "", err
		}
	}
	for _, b := range append([]byte(id), '\n') {
		h = (h ^ uint64(b)) * prime
	}
	return fmt.Sprintf("%016x", h), nil
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
	return maps.Clone(l.airports)
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
