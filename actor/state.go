package actor

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/turnlane/turnlane/event"
)

// Limits of a worker's state.
const (
	MaxStateKey   = 512      // bytes of a key
	MaxStateValue = 64 << 10 // bytes of a value
	MaxState      = 1 << 20  // bytes of all keys and values of a worker
)

// State is what a worker keeps from turn to turn, and over restarts and moves: small values under keys.
// What a turn sets and deletes is kept if the turn succeeds, and dropped with every failed attempt; the
// next turn sees it at once. It is stored together with the place in the worker's topics that it brought
// the worker to, in one step: after any crash the two agree, so that each event counts exactly once, and
// an event that is handled again finds the state as it was before.
//
// A key has 1 to MaxStateKey bytes of UTF-8, a value at most MaxStateValue bytes, and all keys and values
// of a worker at most MaxState together. A seek leaves the state as it is; deleting the worker removes it.
//
// A worker that does not resume at its cursor (replay off) would handle no event again and lose what a
// crash took: there the first use of the state fails the turn for good, with an error that says so.
//
// The methods are safe for concurrent use as long as the turn is open.
type State struct{ t *Turn }

// State returns the worker's state as this turn sees it.
func (t *Turn) State() State { return State{t} }

// Get returns a copy of the value of a key, and whether there is one. On a closed turn there is none.
func (s State) Get(key string) ([]byte, bool) {
	t := s.t
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.usableLocked() != nil {
		return nil, false
	}
	v, ok := t.valueLocked(key)
	if !ok {
		return nil, false
	}
	return append([]byte{}, v...), true
}

// Set gives a key a value, of which it keeps a copy. An error names the limit that the key or the value
// breaks; nothing is changed then, and it is for the handler to decide whether the turn can go on.
func (s State) Set(key string, value []byte) error {
	if err := checkStateKey(key); err != nil {
		return err
	}
	if len(value) > MaxStateValue {
		return &event.Error{Field: "state value", Rule: "of key " + shown(key) + " has " + strconv.Itoa(len(value)) + " bytes; at most " +
			strconv.Itoa(MaxStateValue) + " are allowed", Fix: "split it over several keys, or keep it elsewhere and store a reference"}
	}
	t := s.t
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.usableLocked(); err != nil {
		return err
	}
	was := t.grownLocked()
	grown := was + len(value)
	if old, ok := t.valueLocked(key); ok {
		grown -= len(old)
	} else {
		grown += len(key)
	}
	if size := t.in.State.Size() + grown; size > MaxState && grown > was {
		return &event.Error{Field: "state", Rule: "of worker " + t.in.Worker.ID + " would have " + strconv.Itoa(size) + " bytes of keys and values; at most " +
			strconv.Itoa(MaxState) + " are allowed", Fix: "delete keys that are done with, or keep large things elsewhere"}
	}
	t.changeLocked(StateChange{Key: key, Value: append([]byte{}, value...)}, grown)
	return nil
}

// Delete removes a key. It is no error if there is none.
func (s State) Delete(key string) error {
	t := s.t
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.usableLocked(); err != nil {
		return err
	}
	if old, ok := t.valueLocked(key); ok {
		t.changeLocked(StateChange{Key: key, Delete: true}, t.grownLocked()-len(key)-len(old))
	}
	return nil
}

// Keys returns the keys that start with prefix, in order. On a closed turn there are none.
func (s State) Keys(prefix string) []string {
	t := s.t
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.usableLocked() != nil {
		return nil
	}
	var keys []string
	for key := range t.in.State.values {
		if !strings.HasPrefix(key, prefix) {
			continue
		}
		if _, there := t.valueLocked(key); there {
			keys = append(keys, key)
		}
	}
	if t.edits == nil {
		slices.Sort(keys)
		return keys
	}
	for _, c := range t.edits.changes {
		if _, old := t.in.State.values[c.Key]; !old && !c.Delete && strings.HasPrefix(c.Key, prefix) {
			keys = append(keys, c.Key)
		}
	}
	slices.Sort(keys)
	return keys
}

// StateChange sets or deletes one key of a worker's state. It is for runtimes and tests.
type StateChange struct {
	Key    string
	Value  []byte
	Delete bool
}

// Values is a worker's state as the turns that succeeded left it. It is for runtimes and tests, which
// apply to it what each turn changed, one after the other; the zero Values is empty.
type Values struct {
	values map[string][]byte
	size   int
	none   error // why there is no state
}

// NoState returns what refuses every use, with an error that says why. It is for runtimes and tests.
func NoState(why error) *Values { return &Values{none: why} }

// NewValues returns the state with the values, which it takes over.
func NewValues(values map[string][]byte) *Values {
	v := &Values{values: values}
	for key, value := range values {
		v.size += len(key) + len(value)
	}
	return v
}

// Size returns how many bytes all keys and values have.
func (v *Values) Size() int { return v.size }

// All returns all values by key. They must not be changed.
func (v *Values) All() map[string][]byte { return v.values }

// Apply makes changes, whose values it takes over. No turn may be open.
func (v *Values) Apply(changes []StateChange) {
	for _, c := range changes {
		if old, ok := v.values[c.Key]; ok {
			v.size -= len(c.Key) + len(old)
			delete(v.values, c.Key)
		}
		if c.Delete {
			continue
		}
		if v.values == nil {
			v.values = make(map[string][]byte)
		}
		v.values[c.Key] = c.Value
		v.size += len(c.Key) + len(c.Value)
	}
}

// Changes returns what the turn changed in the worker's state, one change per key. It is for runtimes and
// tests, which call it after Close, and make the changes if the attempt succeeded.
func (t *Turn) Changes() []StateChange {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.closed || t.refused != nil {
		return nil
	}
	if t.edits == nil {
		return nil
	}
	return t.edits.changes
}

// edits is what a turn changed so far.
type edits struct {
	changes []StateChange  // one per key
	places  map[string]int // of the keys, in changes
	grown   int            // what the changes add to the size of the state
}

func (t *Turn) grownLocked() int {
	if t.edits == nil {
		return 0
	}
	return t.edits.grown
}

// usableLocked says why the state cannot be used, if so. A turn that tries where it has none fails.
func (t *Turn) usableLocked() error {
	if t.closed {
		return ErrTurnClosed
	}
	err := errors.New("this turn has no state")
	if t.in.State != nil {
		if err = t.in.State.none; err == nil {
			return nil
		}
	}
	err = Permanent(err)
	if t.refused == nil {
		t.refused = err
	}
	return err
}

func (t *Turn) valueLocked(key string) ([]byte, bool) {
	if t.edits != nil {
		if i, ok := t.edits.places[key]; ok {
			return t.edits.changes[i].Value, !t.edits.changes[i].Delete
		}
	}
	v, ok := t.in.State.values[key]
	return v, ok
}

func (t *Turn) changeLocked(c StateChange, grown int) {
	if t.edits == nil {
		t.edits = &edits{places: make(map[string]int)}
	}
	x := t.edits
	x.grown = grown
	if i, ok := x.places[c.Key]; ok {
		x.changes[i] = c
		return
	}
	x.places[c.Key] = len(x.changes)
	x.changes = append(x.changes, c)
}

func checkStateKey(key string) error {
	const fix = "use 1 to 512 bytes of UTF-8"
	switch {
	case key == "":
		return &event.Error{Field: "state key", Rule: "is empty", Fix: fix}
	case len(key) > MaxStateKey:
		return &event.Error{Field: "state key", Rule: "has " + strconv.Itoa(len(key)) + " bytes; at most " + strconv.Itoa(MaxStateKey) + " are allowed", Fix: "shorten it"}
	case !utf8.ValidString(key):
		return &event.Error{Field: "state key", Rule: shown(key) + " is not UTF-8", Fix: fix}
	}
	return nil
}

func shown(key string) string {
	if len(key) > 64 {
		return strconv.Quote(key[:64]) + "…"
	}
	return strconv.Quote(key)
}
