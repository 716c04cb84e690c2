package storetest

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/store"
)

// model is what a store must hold, in the simplest form. Values in it are never changed in place, so a
// clone is a copy of the maps.
type model struct {
	topics   map[string]modelTopic
	floors   map[string]event.Position // last positions of deleted topics
	records  map[string]modelRecord
	revision uint64 // the largest seen
	live     map[string]bool
	owners   map[string]store.Owner // without Live
	leaders  map[string]store.Leader
	workers  map[string]store.WorkerData
}

type modelTopic struct {
	incarnation   string
	entries       []event.Entry
	last, removed event.Position
	tokens        map[string]uint64
	turns         map[[2]string]modelTurn
}

type modelTurn struct {
	run uint64
	pos event.Position
}

type modelRecord struct {
	value    string
	revision uint64
}

func newModel() *model {
	return &model{
		topics: map[string]modelTopic{}, floors: map[string]event.Position{}, records: map[string]modelRecord{},
		live: map[string]bool{}, owners: map[string]store.Owner{}, leaders: map[string]store.Leader{},
		workers: map[string]store.WorkerData{},
	}
}

func (m *model) clone() *model {
	c := *m
	c.topics, c.floors, c.records = maps.Clone(m.topics), maps.Clone(m.floors), maps.Clone(m.records)
	c.live, c.owners, c.leaders, c.workers = maps.Clone(m.live), maps.Clone(m.owners), maps.Clone(m.leaders), maps.Clone(m.workers)
	return &c
}

// restarted is the model after an end of the process.
func (m *model) restarted(keepsSessions bool) *model {
	c := m.clone()
	if !keepsSessions {
		clear(c.live)
	}
	return c
}

// admit says what becomes of a turn's batch.
func (t modelTopic) admit(turn *store.TurnMark) (repeat, stale bool) {
	if turn == nil {
		return false, false
	}
	if turn.Token < t.tokens[turn.Worker] {
		return false, true
	}
	last, known := t.turns[[2]string{turn.Worker, turn.Topic}]
	return known && (turn.Run < last.run || turn.Run == last.run && !last.pos.Less(turn.Position)), false
}

// append adds a batch that was answered with positions, and says what is wrong with that answer.
func (m *model) append(topic string, b store.Batch, got store.Appended) string {
	t := m.topics[topic]
	repeat, stale := t.admit(b.Turn)
	switch {
	case stale != (got.Err != nil):
		return fmt.Sprintf("stale is %t, the answer %v", stale, got.Err)
	case stale:
		return ""
	case repeat != got.Repeat:
		return fmt.Sprintf("repeat is %t, the answer %t", repeat, got.Repeat)
	}
	if b.Turn != nil {
		t.tokens, t.turns = maps.Clone(t.tokens), maps.Clone(t.turns)
		if t.tokens == nil {
			t.tokens, t.turns = map[string]uint64{}, map[[2]string]modelTurn{}
		}
		t.tokens[b.Turn.Worker] = max(t.tokens[b.Turn.Worker], b.Turn.Token)
	}
	if !repeat {
		if len(got.Positions) != len(b.Records) {
			return fmt.Sprintf("%d positions for %d records", len(got.Positions), len(b.Records))
		}
		if b.Turn != nil {
			t.turns[[2]string{b.Turn.Worker, b.Turn.Topic}] = modelTurn{b.Turn.Run, b.Turn.Position}
		}
		t.entries = slices.Clip(t.entries)
		for i, r := range b.Records {
			p := got.Positions[i]
			if !t.last.Less(p) || !m.floors[topic].Less(p) {
				return fmt.Sprintf("position %s is not above %s and %s", p, t.last, m.floors[topic])
			}
			t.last = p
			t.entries = append(t.entries, event.Entry{Pos: p, Record: r})
		}
	}
	m.topics[topic] = t
	return ""
}

// trim removes leading entries up to a position.
func (t modelTopic) trim(to event.Position) modelTopic {
	n := 0
	for n < len(t.entries) && !to.Less(t.entries[n].Pos) {
		n++
	}
	if n > 0 {
		t.removed = t.entries[n-1].Pos
		t.entries = t.entries[n:]
	}
	return t
}

// commit applies one commit if its fences hold.
func (m *model) commit(c store.Commit) (want error) {
	o := m.owners[c.Owner.Worker]
	d := m.workers[c.Owner.Worker]
	switch {
	case o.Session == "" || o.Session != c.Owner.Session || o.Token != c.Owner.Token:
		return store.ErrStaleToken
	case !m.live[o.Session]:
		return store.ErrSessionExpired
	case older(c.Start, d.Start):
		return store.ErrStaleToken
	}
	if c.Owner.State != "" {
		o.State, o.Reason = c.Owner.State, c.Owner.Reason
		m.owners[o.Worker] = o
	}
	if older(d.Start, c.Start) {
		d.Cursors, d.Attempts = nil, nil
	}
	d.Start, d.Handover = c.Start, c.Handover
	for _, x := range c.Cursors {
		d.Cursors = replace(d.Cursors, x, func(y store.Cursor) bool { return y.Topic == x.Topic }, true)
	}
	for _, x := range c.Attempts {
		same := func(y store.Attempt) bool { return y.Topic == x.Topic && y.Position == x.Position }
		d.Attempts = replace(d.Attempts, x, same, x.Attempts > 0 || x.Crashes > 0 || x.Started)
	}
	if len(c.State) > 0 {
		d.State = maps.Clone(d.State)
	}
	for _, x := range c.State {
		if x.Delete {
			delete(d.State, x.Key)
			continue
		}
		if d.State == nil {
			d.State = map[string][]byte{}
		}
		d.State[x.Key] = x.Value
	}
	m.workers[c.Owner.Worker] = d
	return nil
}

func older(a, b store.Start) bool {
	return a.Run < b.Run || a.Run == b.Run && a.Generation < b.Generation
}

// replace returns a copy of list without what is the same as x, and with x if keep.
func replace[T any](list []T, x T, same func(T) bool, keep bool) []T {
	var out []T
	for _, y := range list {
		if !same(y) {
			out = append(out, y)
		}
	}
	if keep {
		out = append(out, x)
	}
	return out
}

// differ reads everything that the model knows of from the store and says the first difference.
func (m *model) differ(ctx context.Context, s store.Store) error {
	list, err := s.Topics(ctx, "", "", 0)
	if err != nil {
		return err
	}
	if len(list) != len(m.topics) {
		return fmt.Errorf("%d topics, want %d", len(list), len(m.topics))
	}
	for _, row := range list {
		t, ok := m.topics[row.Topic]
		if !ok {
			return fmt.Errorf("topic %s should not exist", row.Topic)
		}
		if err := m.differTopic(ctx, s, row.Topic, t, row.Bounds); err != nil {
			return fmt.Errorf("topic %s: %w", row.Topic, err)
		}
	}
	items, err := s.List(ctx, "", "", 0)
	if err != nil {
		return err
	}
	got := map[string]modelRecord{}
	for _, i := range items {
		got[i.Key] = modelRecord{string(i.Value), i.Revision}
	}
	if !reflect.DeepEqual(got, m.records) {
		return fmt.Errorf("registry: %v, want %v", got, m.records)
	}
	for worker, want := range m.owners {
		o, err := s.Owner(ctx, worker)
		if err != nil {
			return err
		}
		want.Live = m.live[want.Session]
		if o != want {
			return fmt.Errorf("owner %+v, want %+v", o, want)
		}
	}
	for _, worker := range []string{"w0", "w1", "w2"} {
		d, err := s.Load(ctx, worker)
		if err != nil {
			return err
		}
		if got, want := plain(d), plain(m.workers[worker]); !reflect.DeepEqual(got, want) {
			return fmt.Errorf("data of worker %s: %+v, want %+v", worker, got, want)
		}
	}
	return nil
}

// plain is a worker's data without the difference of order, nil and empty.
func plain(d store.WorkerData) map[string]string {
	p := map[string]string{"start": fmt.Sprint(d.Start, d.Handover)}
	for _, c := range d.Cursors {
		p["cursor "+c.Topic] = fmt.Sprint(c)
	}
	for _, a := range d.Attempts {
		p[fmt.Sprint("attempt ", a.Topic, a.Position)] = fmt.Sprintf("%d %d %t %s %s", a.Attempts, a.Crashes, a.Started, a.Error, a.GivenUp)
	}
	for k, v := range d.State {
		p["state "+k] = string(v)
	}
	return p
}

func (m *model) differTopic(ctx context.Context, s store.Store, name string, t modelTopic, listed store.Bounds) error {
	b, err := s.Bounds(ctx, name)
	if err != nil {
		return err
	}
	want := store.Bounds{Incarnation: t.incarnation, Last: t.last, Removed: t.removed, Entries: uint64(len(t.entries)), Bytes: b.Bytes}
	if want.Incarnation == "" {
		want.Incarnation = b.Incarnation
	}
	if len(t.entries) > 0 {
		want.First = t.entries[0].Pos
	}
	if t.last.IsZero() { // only marks so far
		want.Last = b.Last
	}
	if b != want || b != listed || b.Incarnation == "" {
		return fmt.Errorf("bounds %+v, listed as %+v, want %+v", b, listed, want)
	}
	entries, err := readAll(ctx, s, name, event.Position{}, store.ReadLimit{})
	if err != nil {
		return err
	}
	return sameEntries(entries, t.entries)
}

func sameEntries(got, want []event.Entry) error {
	for i := range min(len(got), len(want)) {
		if got[i].Pos != want[i].Pos || string(got[i].Record) != string(want[i].Record) {
			return fmt.Errorf("entry %d is %s %q, want %s %q", i, got[i].Pos, got[i].Record, want[i].Pos, want[i].Record)
		}
	}
	if len(got) != len(want) {
		return fmt.Errorf("%d entries, want %d", len(got), len(want))
	}
	return nil
}
