package catalog

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"
	"unicode"

	"google.golang.org/protobuf/types/known/timestamppb"

	storev1 "github.com/turnlane/turnlane/proto/turnlane/store/v1"
	turnlanev1 "github.com/turnlane/turnlane/proto/turnlane/v1"
	"github.com/turnlane/turnlane/store"
)

// PlacementOf is what a placement of the worker says.
func PlacementOf(w *storev1.WorkerRecord) *storev1.Placement {
	return &storev1.Placement{WorkerId: w.GetId(), Run: w.GetRun(), Generation: w.GetGeneration(),
		Edition: w.GetEdition(), Paused: w.GetPaused()}
}

// MaxReason bounds the reason of a pause, in bytes.
const MaxReason = 1024

// Pause holds a worker's events back from now on, for the activation of begin that runs under a
// session: its record and its placement there say so in one step. It returns false, and changes
// nothing, if something else is wanted of the worker by now: it was stopped, sought, started anew or
// deleted. A worker that is paused already stays so, with the reason it has, which is true.
//
// It tries again on conflicts, and returns the errors of the store. The reason is cut at MaxReason.
func Pause(ctx context.Context, r store.Registry, worker string, begin store.Start, session, reason string) (bool, error) {
	for n := 0; ; n++ {
		paused, err := pause(ctx, r, worker, begin, session, reason)
		if !errors.Is(err, store.ErrConflict) || n == maxConflicts {
			return paused, err
		}
		t := time.NewTimer(rand.N(time.Millisecond << min(n, 5)))
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return false, context.Cause(ctx)
		}
	}
}

const maxConflicts = 64

func pause(ctx context.Context, r store.Registry, worker string, begin store.Start, session, reason string) (bool, error) {
	item, err := r.Get(ctx, WorkerKey(worker))
	if errors.Is(err, store.ErrNotFound) {
		return false, nil
	} else if err != nil {
		return false, fmt.Errorf("read worker %s: %w", worker, err)
	}
	w, err := DecodeWorker(item)
	if err != nil {
		return false, err
	}
	now := store.Start{Run: w.GetRun(), Generation: w.GetGeneration()}
	if w.GetDeleted() || w.GetDesired() != turnlanev1.DesiredState_DESIRED_STATE_RUNNING || now != begin {
		return false, nil
	}
	if w.GetPaused() {
		return true, nil
	}
	w.Paused, w.PauseReason, w.UpdatedAt = true, CleanReason(reason), timestamppb.New(time.Now())
	put, err := Put(item.Key, w, item.Revision)
	if err != nil {
		return false, err
	}
	changes := []store.Change{put}
	place, err := r.Get(ctx, PlaceKey(session, worker))
	switch {
	case errors.Is(err, store.ErrNotFound): // another one is, or will be, made from the record
	case errors.Is(err, store.ErrCorrupt): // mended by the leader
	case err != nil:
		return false, fmt.Errorf("read the placement of worker %s: %w", worker, err)
	default:
		put, err := Put(place.Key, PlacementOf(w), place.Revision)
		if err != nil {
			return false, err
		}
		changes = append(changes, put)
	}
	if _, err := r.Txn(ctx, changes...); err != nil {
		return false, fmt.Errorf("pause worker %s: %w", worker, err)
	}
	return true, nil
}

// CleanReason makes any text fit to be the reason of a pause.
func CleanReason(s string) string {
	if len(s) > MaxReason {
		s = s[:MaxReason]
	}
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, ""))
}
