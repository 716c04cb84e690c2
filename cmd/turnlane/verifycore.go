package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/turnlane/turnlane/actor"
	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/internal/builtin"
)

// parseReport reads the data of a probe.turn event.
func parseReport(data []byte) (builtin.Report, error) {
	var r builtin.Report
	if err := json.Unmarshal(data, &r); err != nil {
		return r, err
	}
	if r.WorkerID == "" || r.Topic == "" || r.Position == "" {
		return r, errors.New("worker_id, topic or position is missing")
	}
	return r, nil
}

// verdict is what verify found, as -o json tells it.
type verdict struct {
	Topic            string `json:"topic"`
	Events           int    `json:"events"`
	Turns            int    `json:"turns"`   // reports about these events
	Workers          int    `json:"workers"` // that reported
	Lost             int    `json:"lost"`
	RepeatedMarked   int    `json:"repeated_marked"`
	RepeatedUnmarked int    `json:"repeated_unmarked"`
	OutOfOrder       int    `json:"out_of_order"`
	Overlapping      int    `json:"overlapping"`
	GivenUp          int    `json:"given_up"`  // handled, but without success, to the end
	Malformed        int    `json:"malformed"` // reports that cannot be read
	// First is the topic's first event, set if retention removed what was before it and was asked for.
	First string `json:"first,omitempty"`
	OK    bool   `json:"ok"`
	// Examples has up to ten of each kind, in words.
	Examples map[string][]string `json:"examples,omitempty"`

	removed   string // the last position that retention removed
	lostEarly int    // lost before the first report of who lost them
}

const maxExamples = 10

func (v *verdict) example(kind, format string, args ...any) {
	if len(v.Examples[kind]) >= maxExamples {
		return
	}
	if v.Examples == nil {
		v.Examples = make(map[string][]string)
	}
	v.Examples[kind] = append(v.Examples[kind], fmt.Sprintf(format, args...))
}

// verification joins the events of a topic with what probe workers reported of them. Events are added
// in order, then reports in the order in which they were published, then passings.
//
// Who must have handled an event is a party: a dedicated worker, or a slot group as one, since exactly
// one of its members owns each event. Every party that reported anything in the range must have
// handled every event of it.
type verification struct {
	topic  string
	events map[event.Position]int // to its index in ids
	at     []event.Position
	ids    []string

	parties map[string]*party
	workers map[string]*reporter
	turns   int
}

// party is a dedicated worker or a slot group.
type party struct {
	name    string
	handled []handling // by event
	first   int        // index of the earliest event reported
}

// handling is what a party reported of one event.
type handling struct {
	settled bool // with an outcome that ends the work on the event
	passed  bool // given up on
}

// reporter is a worker that reported.
type reporter struct {
	label    string
	turns    []turn
	attempts map[attemptKey]bool
	reports  map[string]struct{} // ids of the events that carried its reports
}

type attemptKey struct{ index, attempt int }

// turn is a report in short.
type turn struct {
	token             uint64
	started, finished int64
	index, attempt    int
	replayed, timeout bool
}

func newVerification(topic string) *verification {
	return &verification{
		topic: topic, events: make(map[event.Position]int),
		parties: make(map[string]*party), workers: make(map[string]*reporter),
	}
}

// addEvent adds the next event of the topic.
func (v *verification) addEvent(at event.Position, id string) {
	v.events[at] = len(v.at)
	v.at = append(v.at, at)
	v.ids = append(v.ids, id)
}

// settles tells the outcomes after which the event is not tried again.
func settles(outcome string) bool {
	switch outcome {
	case actor.OutcomeDone.String(), actor.OutcomeDropped.String(), actor.OutcomePermanent.String():
		return true
	}
	return false
}

// addReport adds the report that came in the event with the given id, and counts repeats into out. Left
// out are reports about other topics and events, and those that came before under the same id: a probe
// sends a report again when it can't know whether the first one was stored.
func (v *verification) addReport(id string, r builtin.Report, out *verdict) error {
	if r.Topic != v.topic {
		return nil
	}
	at, err := event.ParsePosition(r.Position)
	if err != nil {
		return fmt.Errorf("position %q is not one", r.Position)
	}
	index, known := v.events[at]
	if !known {
		return nil
	}
	w := v.reporter(r)
	if _, again := w.reports[id]; again {
		return nil
	}
	w.reports[id] = struct{}{}
	v.turns++
	p := v.party(r)
	key := attemptKey{index, r.Attempt}
	repeat := w.attempts[key]
	w.attempts[key] = true
	h := &p.handled[index]
	if settles(r.Outcome) {
		repeat = repeat || h.settled
		h.settled = true
	}
	p.first = min(p.first, index)
	if repeat {
		if r.Replayed {
			out.RepeatedMarked++
		} else {
			out.RepeatedUnmarked++
			out.example("repeated_unmarked", "%s at %s: attempt %d by %s again, %s, and not marked as replayed",
				v.ids[index], at, r.Attempt, w.label, r.Outcome)
		}
	}
	w.turns = append(w.turns, turn{
		token: r.Token, started: r.Started, finished: r.Finished, index: index, attempt: r.Attempt,
		replayed: r.Replayed, timeout: r.Outcome == actor.OutcomeTimeout.String(),
	})
	return nil
}

// addPassed adds that a worker gave up on an event after its last attempt.
func (v *verification) addPassed(topic, position, workerID, group string) {
	at, err := event.ParsePosition(position)
	index, known := v.events[at]
	if err != nil || !known || topic != v.topic {
		return
	}
	if p := v.parties[partyKey(workerID, group)]; p != nil {
		p.handled[index].passed = true
	}
}

func partyKey(workerID, group string) string {
	if group != "" {
		return "group " + group
	}
	return "worker " + workerID
}

func (v *verification) party(r builtin.Report) *party {
	key := partyKey(r.WorkerID, r.Group)
	p := v.parties[key]
	if p == nil {
		p = &party{name: key, handled: make([]handling, len(v.at)), first: len(v.at)}
		if r.Group == "" && r.WorkerName != "" {
			p.name = "worker " + r.WorkerName
		}
		v.parties[key] = p
	}
	return p
}

func (v *verification) reporter(r builtin.Report) *reporter {
	w := v.workers[r.WorkerID]
	if w == nil {
		w = &reporter{label: r.WorkerID, attempts: make(map[attemptKey]bool), reports: make(map[string]struct{})}
		if r.WorkerName != "" {
			w.label = r.WorkerName
		}
		v.workers[r.WorkerID] = w
	}
	return w
}

// finish counts what can only be told with all reports at hand.
func (v *verification) finish(out *verdict) {
	out.Topic, out.Events, out.Turns, out.Workers = v.topic, len(v.at), v.turns, len(v.workers)
	v.countLost(out)
	for _, id := range sortedKeys(v.workers) {
		w := v.workers[id]
		v.countDisorder(w, out)
		v.countOverlaps(w, out)
	}
	out.OK = out.Lost == 0 && out.RepeatedUnmarked == 0 && out.OutOfOrder == 0 && out.Overlapping == 0 && out.Malformed == 0
}

func (v *verification) countLost(out *verdict) {
	if len(v.parties) == 0 {
		out.Lost = len(v.at)
		for i := range min(len(v.at), maxExamples) {
			out.example("lost", "%s at %s: nobody reported it", v.ids[i], v.at[i])
		}
		return
	}
	for _, key := range sortedKeys(v.parties) {
		p := v.parties[key]
		for index, h := range p.handled {
			switch {
			case h.settled:
			case h.passed:
				out.GivenUp++
			default:
				out.Lost++
				if index < p.first {
					out.lostEarly++
				}
				out.example("lost", "%s at %s: %s did not finish it", v.ids[index], v.at[index], p.name)
			}
		}
	}
}

// countDisorder counts events that a worker took after a later one of the lane: among those not
// replayed, and within each activation. Turns are ordered by activation and by when they began: a
// stuck handler may report long after its successors.
func (v *verification) countDisorder(w *reporter, out *verdict) {
	slices.SortStableFunc(w.turns, func(a, b turn) int {
		return cmp.Or(cmp.Compare(a.token, b.token), cmp.Compare(a.started, b.started))
	})
	newest := -1 // index of the latest event that was new
	ofToken, token := -1, uint64(0)
	for _, t := range w.turns {
		if t.attempt != 1 {
			continue
		}
		if t.token != token {
			ofToken, token = -1, t.token
		}
		before := ofToken
		if !t.replayed {
			before = max(before, newest)
			newest = max(newest, t.index)
		}
		if t.index < before {
			out.OutOfOrder++
			out.example("out_of_order", "%s at %s: %s took it after %s", v.ids[t.index], v.at[t.index], w.label, v.at[before])
		}
		ofToken = max(ofToken, t.index)
	}
}

// countOverlaps counts turns of a worker that began before an earlier one had ended, also under another
// token. The turn of a handler that ignored its deadline was closed at that time, however long the
// handler itself went on, so a timeout does not hold up what follows.
func (v *verification) countOverlaps(w *reporter, out *verdict) {
	slices.SortStableFunc(w.turns, func(a, b turn) int { return cmp.Compare(a.started, b.started) })
	var last *turn // of those begun, the one that ends last
	for i := range w.turns {
		t := &w.turns[i]
		if last != nil && t.started < last.finished {
			out.Overlapping++
			out.example("overlapping", "%s at %s: %s began it %s before it had finished %s", v.ids[t.index], v.at[t.index],
				w.label, nanos(last.finished-t.started), v.at[last.index])
		}
		if !t.timeout && (last == nil || t.finished > last.finished) {
			last = t
		}
	}
}
