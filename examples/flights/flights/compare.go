package flights

import (
	"fmt"
	"maps"
	"slices"

	"github.com/turnlane/turnlane/examples/flights/data"
)

// compare returns what the ledgers have that the answer has not, and the other way round.
func compare(books []*ledger, want data.Answer) (differences []string) {
	differ := func(format string, args ...any) { differences = append(differences, fmt.Sprintf(format, args...)) }

	var perSlot [members]int
	got := make(map[string]data.Airport)
	member := make(map[string]uint32)
	for _, l := range books {
		perSlot[l.member] += l.count()
		for name, f := range l.figures() {
			if other, taken := member[name]; taken {
				differ("%s: flights are in the books of member %d and of member %d", name, other, l.member)
				continue
			}
			member[name], got[name] = l.member, f
		}
	}
	for _, name := range slices.Sorted(maps.Keys(want.Airports)) {
		if f, ok := got[name]; !ok {
			differ("%s: no flights, want %+v", name, want.Airports[name])
		} else if f != want.Airports[name] {
			differ("%s: %+v, want %+v", name, f, want.Airports[name])
		}
	}
	for _, name := range slices.Sorted(maps.Keys(got)) {
		if _, ok := want.Airports[name]; !ok {
			differ("%s: %+v, want no flights", name, got[name])
		}
	}
	if !slices.Equal(perSlot[:], want.EventsOfSlot) {
		differ("events per slot: %v, want %v", perSlot, want.EventsOfSlot)
	}
	return differences
}
