package turnlane

import (
	"context"
	"testing"
	"time"

	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/internal/admission"
	"github.com/turnlane/turnlane/internal/fanout"
	"github.com/turnlane/turnlane/store"
	"github.com/turnlane/turnlane/store/pebblestore"
)

// A follower gets what is stored after Follow returned, in order, and nothing once it has had enough.
func TestFollow(t *testing.T) {
	db, err := pebblestore.Open(pebblestore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	hub := fanout.New(fanout.Config{Upstream: db})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = hub.Run(ctx) }()
	defer func() { cancel(); <-ended }()
	put := func(id string) {
		t.Helper()
		r := admission.Encode(&event.Event{ID: id, Source: "/s", Type: "t"}, time.Now())
		if _, err := db.Append(t.Context(), "t", []store.Batch{{Records: []event.Record{r}}}); err != nil {
			t.Fatal(err)
		}
	}
	put("before")
	for round := range 2 {
		got := make(chan string, 100)
		closing, err := follower{hub}.Follow(t.Context(), "t", func(entry event.Entry) bool {
			e, err := event.DecodeRecord(entry.Record)
			if err != nil {
				t.Error(err)
				return false
			}
			got <- e.ID
			return e.ID != "2"
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, id := range []string{"1", "2"} {
			put(id)
		}
		for _, want := range []string{"1", "2"} {
			if id := <-got; id != want {
				t.Errorf("round %d: got %s, want %s", round, id, want)
			}
		}
		put("3")
		closing()
		if len(got) > 0 {
			t.Errorf("round %d: got %s after it had enough", round, <-got)
		}
	}
}
