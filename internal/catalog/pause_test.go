package catalog

import (
	"context"
	"strings"
	"sync"
	"testing"

	storev1 "github.com/turnlane/turnlane/proto/turnlane/store/v1"
	turnlanev1 "github.com/turnlane/turnlane/proto/turnlane/v1"
	"github.com/turnlane/turnlane/store"
	"github.com/turnlane/turnlane/store/pebblestore"
)

const (
	wanted = turnlanev1.DesiredState_DESIRED_STATE_RUNNING
	idle   = turnlanev1.DesiredState_DESIRED_STATE_STOPPED
)

func openStore(t *testing.T) store.Store {
	t.Helper()
	s, err := pebblestore.Open(pebblestore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func write(t *testing.T, s store.Store, w *storev1.WorkerRecord, places ...string) {
	t.Helper()
	var changes []store.Change
	put, err := Put(WorkerKey(w.GetId()), w, store.Any)
	if err != nil {
		t.Fatal(err)
	}
	changes = append(changes, put)
	for _, session := range places {
		put, err := Put(PlaceKey(session, w.GetId()), PlacementOf(w), store.Any)
		if err != nil {
			t.Fatal(err)
		}
		changes = append(changes, put)
	}
	if _, err := s.Txn(t.Context(), changes...); err != nil {
		t.Fatal(err)
	}
}

func TestPause(t *testing.T) {
	for _, c := range []struct {
		name   string
		record *storev1.WorkerRecord
		want   bool
		reason string
	}{
		{"a running worker", &storev1.WorkerRecord{Id: "w", Desired: wanted, Run: 2, Generation: 3, Edition: 7}, true, "out of attempts "},
		{"one that is paused already", &storev1.WorkerRecord{Id: "w", Desired: wanted, Run: 2, Generation: 3, Paused: true, PauseReason: "by hand"}, true, "by hand"},
		{"one that was stopped", &storev1.WorkerRecord{Id: "w", Desired: idle, Run: 2, Generation: 3}, false, ""},
		{"one that was sought", &storev1.WorkerRecord{Id: "w", Desired: wanted, Run: 3, Generation: 3}, false, ""},
		{"one that was started anew", &storev1.WorkerRecord{Id: "w", Desired: wanted, Run: 2, Generation: 4}, false, ""},
		{"one that was deleted", &storev1.WorkerRecord{Id: "w", Deleted: true, Run: 2, Generation: 3}, false, ""},
		{"one that there is not", &storev1.WorkerRecord{Id: "other", Desired: wanted}, false, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := openStore(t)
			write(t, s, c.record, "here")
			paused, err := Pause(t.Context(), s, "w", store.Start{Run: 2, Generation: 3}, "here", "out of attempts\n")
			if err != nil || paused != c.want {
				t.Fatalf("%t, %v", paused, err)
			}
			if !c.want {
				return
			}
			item, err := s.Get(t.Context(), WorkerKey("w"))
			if err != nil {
				t.Fatal(err)
			}
			w, err := DecodeWorker(item)
			if err != nil || !w.GetPaused() || w.GetPauseReason() != c.reason {
				t.Errorf("record %v, %v", w, err)
			}
			item, err = s.Get(t.Context(), PlaceKey("here", "w"))
			if err != nil {
				t.Fatal(err)
			}
			p, err := Decode(item, &storev1.Placement{})
			if err != nil || !p.GetPaused() || p.GetRun() != 2 || p.GetGeneration() != 3 || p.GetEdition() != c.record.GetEdition() {
				t.Errorf("placement %v, %v", p, err)
			}
		})
	}
}

// A pause finds its way between other changes of the record.
func TestPauseBesideOtherChanges(t *testing.T) {
	s := openStore(t)
	w := &storev1.WorkerRecord{Id: "w", Desired: wanted, Run: 1, Generation: 1}
	write(t, s, w, "here")
	ctx, cancel := context.WithCancel(t.Context())
	var others sync.WaitGroup
	others.Go(func() {
		for ctx.Err() == nil {
			item, err := s.Get(ctx, WorkerKey("w"))
			if err != nil {
				return
			}
			w, err := DecodeWorker(item)
			if err != nil {
				t.Error(err)
				return
			}
			w.Edition++
			put, _ := Put(item.Key, w, item.Revision)
			_, _ = s.Txn(ctx, put)
		}
	})
	paused, err := Pause(t.Context(), s, "w", store.Start{Run: 1, Generation: 1}, "here", strings.Repeat("é", MaxReason))
	cancel()
	others.Wait()
	if err != nil || !paused {
		t.Fatalf("%t, %v", paused, err)
	}
}
