package turnlane

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/grouping"
	"github.com/turnlane/turnlane/internal/admission"
	"github.com/turnlane/turnlane/internal/fanout"
	"github.com/turnlane/turnlane/store"
	"github.com/turnlane/turnlane/store/pebblestore"
	"github.com/turnlane/turnlane/workmanager"
)

// Events of the slots asked for are counted, every one and once, from the call on until closing.
func TestEventsOfSlotsAreCountedExactly(t *testing.T) {
	db, err := pebblestore.Open(pebblestore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	hub := fanout.New(fanout.Config{Upstream: db})
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = hub.Run(ctx) }()
	defer func() { stop(); <-ended }()

	missing := grouping.NewSet(4, 1, 3)
	owned := 0
	publish := func(from, n int) {
		records := make([]event.Record, n)
		for i := range records {
			key := fmt.Sprint("key", from+i)
			if missing.Owns(grouping.Hash(key)) {
				owned++
			}
			records[i] = admission.Encode(&event.Event{ID: fmt.Sprint(from + i), Source: "/s", Type: "t", Subject: key}, time.Now())
		}
		if _, err := db.Append(t.Context(), "in", []store.Batch{{Records: records}}); err != nil {
			t.Fatal(err)
		}
	}
	publish(0, 100)
	before := owned
	bounds, err := db.Bounds(t.Context(), "in")
	if err != nil {
		t.Fatal(err)
	}
	after := workmanager.Place{Position: bounds.Last, Incarnation: bounds.Incarnation}

	var mu sync.Mutex
	counted := 0
	changed := sync.NewCond(&mu)
	closing, err := counter{hub}.CountSlots("in", after, missing, func(n int) {
		mu.Lock()
		counted += n
		changed.Broadcast()
		mu.Unlock()
	})
	if err != nil {
		t.Fatal(err)
	}
	for from := 100; from < 5100; from += 250 {
		publish(from, 250)
	}
	mu.Lock()
	for counted < owned-before {
		changed.Wait()
	}
	mu.Unlock()
	closing()
	want := owned - before
	publish(5100, 100)
	if counted != want {
		t.Errorf("%d events were counted, want %d", counted, want)
	}
}
