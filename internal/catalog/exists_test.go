package catalog

import (
	"testing"
	"time"

	storev1 "github.com/turnlane/turnlane/proto/turnlane/store/v1"
)

func TestDirectoryKnowsNewWorkersAtOnceAndForgetsOldOnesSoon(t *testing.T) {
	s := openStore(t)
	now := time.Unix(1, 0)
	d := NewDirectory(s)
	d.now = func() time.Time { return now }
	want := func(typ string, exists bool) {
		t.Helper()
		if got, err := d.Exists(t.Context(), typ, "w"); err != nil || got != exists {
			t.Errorf("type %s: %t, %v", typ, got, err)
		}
	}
	want("echo", false)
	write(t, s, &storev1.WorkerRecord{Id: "w", Type: "echo"})
	want("echo", true)
	want("other", false)
	write(t, s, &storev1.WorkerRecord{Id: "w", Type: "echo", Deleted: true})
	want("echo", true) // for a second
	now = now.Add(existsFor)
	want("echo", false)
	write(t, s, &storev1.WorkerRecord{Id: "w", Type: "other"})
	want("other", true)
}

func TestDirectoryIsBounded(t *testing.T) {
	s := openStore(t)
	d := NewDirectory(s)
	write(t, s, &storev1.WorkerRecord{Id: "w", Type: "echo"})
	for i := range maxExisted {
		d.known[string(rune(i+0x4e00))] = existed{}
	}
	if ok, err := d.Exists(t.Context(), "echo", "w"); err != nil || !ok || len(d.known) != 1 {
		t.Errorf("%t, %v, %d known", ok, err, len(d.known))
	}
}
