package flights

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/turnlane/turnlane/actor"
	"github.com/turnlane/turnlane/actor/actortest"
	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/examples/flights/data"
	"github.com/turnlane/turnlane/grouping"
)

// books enters the flights into four ledgers by the slot rule, without a server.
func books(t *testing.T, events []*event.Event) []*ledger {
	t.Helper()
	var all []*ledger
	var of [members][]*event.Event
	for _, e := range events {
		slot := grouping.Slot(grouping.Hash(e.RoutingKey()), members)
		of[slot] = append(of[slot], e)
	}
	for slot := range uint32(members) {
		l := newLedger(slot, nil)
		for _, r := range actortest.Run(t, l, actor.Worker{}, of[slot]...) {
			if r.Outcome != actor.OutcomeDone {
				t.Fatal(r.Err)
			}
		}
		all = append(all, l)
	}
	return all
}

func flightsAndAnswer(t *testing.T) ([]*event.Event, data.Answer) {
	t.Helper()
	events, err := data.Events()
	if err != nil {
		t.Fatal(err)
	}
	want, err := data.Expected()
	if err != nil {
		t.Fatal(err)
	}
	if len(events) != 20_000 || want.Events != len(events) || len(want.Airports) != 220 {
		t.Fatalf("%d flights, an answer for %d from %d airports", len(events), want.Events, len(want.Airports))
	}
	return events, want
}

func TestLedgersAddUpToTheAnswer(t *testing.T) {
	events, want := flightsAndAnswer(t)
	all := books(t, events)
	if d := compare(all, want); len(d) > 0 {
		t.Errorf("differences: %s", strings.Join(d, "\n"))
	}
	var out strings.Builder
	if err := table(&out, all); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"DFW     1103            269       10462           827223     1", "+ 212 more", "5615"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the table does not show %q:\n%s", want, out.String())
		}
	}
}

// A comparison that finds nothing is worth only as much as what it would have found.
func TestCompareFindsEveryKindOfMistake(t *testing.T) {
	events, _ := flightsAndAnswer(t)
	events = events[:400] // with several flights from the airport of the first one
	right := books(t, events)
	want := data.Answer{Airports: make(map[string]data.Airport)}
	for _, l := range right {
		maps.Copy(want.Airports, l.figures())
		want.EventsOfSlot = append(want.EventsOfSlot, l.count())
	}
	if d := compare(right, want); len(d) > 0 {
		t.Fatalf("a comparison with itself: %s", strings.Join(d, "\n"))
	}
	elsewhere := *events[0]
	elsewhere.Subject = "XXX"
	for _, c := range []struct {
		name  string
		input []*event.Event
		text  string
	}{
		{"lost", events[1:], "DTW: {"},
		{"repeated", append([]*event.Event{events[0]}, events...), "events per slot"},
		{"out of order", append(append([]*event.Event{}, events[1:]...), events[0]), "DTW: {"},
		{"from nowhere", append(slices.Clip(events), &elsewhere), "XXX: {"},
		{"none", nil, "DTW: no flights"},
	} {
		if d := strings.Join(compare(books(t, c.input), want), "\n"); !strings.Contains(d, c.text) {
			t.Errorf("%s: found %q, want %q", c.name, d, c.text)
		}
	}
	twice := append(right, &ledger{member: 0, airports: right[3].airports})
	if d := strings.Join(compare(twice, want), "\n"); !strings.Contains(d, "books of member 3 and of member 0") {
		t.Errorf("an airport with two members: found %q", d)
	}
}

func TestFlightThatCannotBeReadIsGivenUpOn(t *testing.T) {
	r := actortest.Run(t, newLedger(0, nil), actor.Worker{}, actortest.JSON("DTW", `{"delay":"much"}`))
	if r[0].Outcome != actor.OutcomePermanent {
		t.Errorf("%+v", r[0])
	}
}
