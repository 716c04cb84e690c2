// Package storetest is the conformance suite of stores: each promise of package store as a story.
package storetest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/store"
)

// Harness is an open store and what can be done to it from outside. Optional parts are nil where a
// store has no such thing; the stories that need them are skipped. The opener closes what is open
// through t.Cleanup.
type Harness struct {
	Store store.Store

	// Reopen closes the store and opens it again, Crash ends it without Close, with the loss of whatever
	// it has not made durable, and opens what is left. Both set Store and return it.
	Reopen, Crash func() store.Store

	// CrashAt fixes, from now on, the n-th write to the disk (from 1) as the moment that Crash goes back
	// to. Until Crash the store answers as if nothing had happened. The function it returns reports
	// whether that moment is over: what was answered before must be there after Crash.
	CrashAt func(n int) (over func() bool)

	// KeepsSessions says that sessions outlive Reopen and Crash, as they do in a server.
	KeepsSessions bool

	// Advance lets time pass for the store's clocks. StepClock sets the wall clock forward or back while
	// no time passes.
	Advance, StepClock func(d time.Duration)

	// Lift makes to the last position given out in a topic, which must exist.
	Lift func(topic string, to event.Position)

	// Break damages the stored record of a registry key.
	Break func(key string)
}

// Run runs the whole suite on stores made by open, each of which is empty.
func Run(t *testing.T, open func(t *testing.T) *Harness) {
	for _, part := range []struct {
		name    string
		stories []story
	}{
		{"Log", logStories},
		{"Trim", trimStories},
		{"Remove", removeStories},
		{"Turns", turnStories},
		{"News", newsStories},
		{"Registry", registryStories},
		{"Leases", leaseStories},
		{"Commit", commitStories},
		{"Whole", wholeStories},
	} {
		t.Run(part.name, func(t *testing.T) {
			for _, s := range part.stories {
				t.Run(s.name, func(t *testing.T) {
					s.tell(t, open(t))
				})
			}
		})
	}
	t.Run("Model", func(t *testing.T) { runModel(t, open) })
	t.Run("EndOfProcess", func(t *testing.T) { runEnds(t, open) })
	t.Run("LostAnswers", func(t *testing.T) { runLost(t, open) })
}

type story struct {
	name string
	tell func(t *testing.T, h *Harness)
}

// need skips a story that the store has no means for.
func need(t *testing.T, what string, have bool) {
	t.Helper()
	if !have {
		t.Skipf("this store can't %s", what)
	}
}

// Record makes a record stored at a time.
func Record(at time.Time, body string) event.Record {
	r := make([]byte, 13, 13+len(body))
	r[0] = 1
	binary.BigEndian.PutUint64(r[5:], uint64(at.UnixNano()))
	return append(r, body...)
}

// noon is a stored time for records of which it does not matter.
var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func records(bodies ...string) []event.Record {
	var rs []event.Record
	for _, b := range bodies {
		rs = append(rs, Record(noon, b))
	}
	return rs
}

func body(r event.Record) string { return string(r[13:]) }

func bodies(entries []event.Entry) []string {
	var bs []string
	for _, e := range entries {
		bs = append(bs, body(e.Record))
	}
	return bs
}

func numbered(prefix string, n int) []string {
	var bs []string
	for i := range n {
		bs = append(bs, fmt.Sprintf("%s%d", prefix, i))
	}
	return bs
}

// publish appends one batch and returns its positions.
func publish(t *testing.T, s store.Store, topic string, rs ...event.Record) []event.Position {
	t.Helper()
	out, err := s.Append(t.Context(), topic, []store.Batch{{Records: rs}})
	if err != nil {
		t.Fatalf("append to %s: %v", topic, err)
	}
	if len(out) != 1 || out[0].Err != nil || len(out[0].Positions) != len(rs) {
		t.Fatalf("append of %d records to %s: %+v", len(rs), topic, out)
	}
	return out[0].Positions
}

// read reads a topic page by page from after to its end.
func read(t *testing.T, s store.Store, topic string, after event.Position) []event.Entry {
	t.Helper()
	entries, err := readAll(t.Context(), s, topic, after, store.ReadLimit{})
	if err != nil {
		t.Fatal(err)
	}
	return entries
}

func bounds(t *testing.T, s store.Store, topic string) store.Bounds {
	t.Helper()
	b, err := s.Bounds(t.Context(), topic)
	if err != nil {
		t.Fatalf("bounds of %s: %v", topic, err)
	}
	return b
}

func check(t *testing.T, what string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

func wantErr(t *testing.T, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("%s: got %v, want %v", what, err, want)
	}
}

func equal[T any](t *testing.T, what string, got, want T) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("%s:\n got %+v\nwant %+v", what, got, want)
	}
}

func increasing(t *testing.T, ps []event.Position) {
	t.Helper()
	for i := 1; i < len(ps); i++ {
		if !ps[i-1].Less(ps[i]) {
			t.Fatalf("positions %s and %s are not increasing", ps[i-1], ps[i])
		}
	}
}
