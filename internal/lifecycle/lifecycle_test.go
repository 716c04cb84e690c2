package lifecycle_test

import (
	"encoding/json"
	"slices"
	"testing"
	"time"

	"github.com/turnlane/turnlane/internal/lifecycle"
)

// Scripts read these members of every event of state and of coverage.
func TestMembersThatAreAlwaysThere(t *testing.T) {
	always := []string{"worker_id", "topics", "state", "reason"}
	running := 0
	for _, c := range []struct {
		kind    string
		data    lifecycle.Data
		subject string
		always  []string
		absent  []string
	}{
		{lifecycle.TypeState, lifecycle.Data{WorkerID: "w", State: "RUNNING"}, "w", always, []string{"group", "pod", "topic"}},
		{lifecycle.TypeCoverage, lifecycle.Data{Group: "g", Running: &running}, "g", append(always, "running"), []string{"kind"}},
		{lifecycle.TypeCoverage, lifecycle.Data{Group: "g", WorkerID: "w", Topics: []string{"in"}}, "g", append(always, "topic"), nil},
		{lifecycle.TypeGap, lifecycle.Data{WorkerID: "w"}, "w", []string{"worker_id"}, []string{"state", "reason", "topics"}},
	} {
		e := lifecycle.New(c.kind, time.Now(), c.data)
		if e.Subject != c.subject {
			t.Errorf("%s: subject %q, want %q", c.kind, e.Subject, c.subject)
		}
		var got map[string]any
		if err := json.Unmarshal(e.Data, &got); err != nil {
			t.Fatal(err)
		}
		for _, name := range c.always {
			if value, ok := got[name]; !ok || value == nil {
				t.Errorf("%s lacks %s: %s", c.kind, name, e.Data)
			}
		}
		for name := range got {
			if slices.Contains(c.absent, name) {
				t.Errorf("%s has %s: %s", c.kind, name, e.Data)
			}
		}
		var back lifecycle.Data
		if err := json.Unmarshal(e.Data, &back); err != nil || back.WorkerID != c.data.WorkerID || back.State != c.data.State {
			t.Errorf("%s: %+v, %v", c.kind, back, err)
		}
	}
}
