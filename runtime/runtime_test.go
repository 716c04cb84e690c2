package runtime

import (
	"context"
	"fmt"
	"testing"

	"github.com/turnlane/turnlane/actor"
	"github.com/turnlane/turnlane/event"
)

func TestEventsAreHandledOutputsStoredAndCursorsKept(t *testing.T) {
	g := newRig(t)
	var got seen
	g.handle("copy", func(_ context.Context, turn *actor.Turn) error {
		got.add(turn.Event().ID)
		return turn.Publish("out", &event.Event{Type: "copied", Subject: turn.Event().ID})
	})
	p := g.run("pod-1")
	g.publish("in", 3)
	p.place(worker{id: "w", typ: "copy", topics: []string{"in"}})
	g.eventually("three events", func() bool { return got.len() == 3 })
	last := g.publish("in", 2)[1]
	g.eventually("the cursor at the end", func() bool {
		d := g.load("w")
		return len(d.Cursors) == 1 && d.Cursors[0].Position == last
	})
	out := g.read("out")
	if len(out) != 5 {
		t.Fatalf("%d outputs, want 5", len(out))
	}
	if want := fmt.Sprintf("w.1.in.%s.0", last); out[4].ID != want || out[4].Source != "/turnlane/copy/w" {
		t.Errorf("output is %q from %q, want %q", out[4].ID, out[4].Source, want)
	}
	if o := g.owner("w"); o.State != stateRunning || o.Pod != "pod-1" || !o.Live {
		t.Errorf("owner is %+v", o)
	}
	p.unplace("w")
	g.eventually("the lease given up", func() bool { return !g.owner("w").Live })
	if o := g.owner("w"); o.State != stateStopped {
		t.Errorf("owner is %+v, want stopped", o)
	}
	if d := g.load("w"); !d.Handover || d.Cursors[0].Position != last {
		t.Errorf("it left %+v", d)
	}
	if n := p.r.Workers(); n != 0 {
		t.Errorf("%d workers left", n)
	}
	p.end()
}
