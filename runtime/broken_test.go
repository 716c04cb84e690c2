package runtime

import (
	"bytes"
	"context"
	"slices"
	"testing"
	"time"

	"github.com/turnlane/turnlane/actor"
	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/internal/admission"
	"github.com/turnlane/turnlane/store"
)

// newer is a store in which the record of some events was written by a newer program: one whose id
// begins with "newer".
type newer struct{ store.Store }

func (n newer) Read(ctx context.Context, topic string, after event.Position, limit store.ReadLimit) (store.Page, error) {
	page, err := n.Store.Read(ctx, topic, after, limit)
	page.Entries = slices.Clone(page.Entries)
	for i, e := range page.Entries {
		if bytes.Contains(e.Record, []byte("newer")) {
			page.Entries[i].Record = append(event.Record{99}, e.Record[1:]...)
		}
	}
	return page, err
}

// A record whose header is broken reaches no handler. The worker is told of a gap, goes on after it, and
// its cursor passes it.
func TestARecordWithABrokenHeaderIsAGap(t *testing.T) {
	g := newRig(t)
	g.store = newer{g.store}
	var got seen
	g.handle("echo", func(_ context.Context, turn *actor.Turn) error {
		got.add(turn.Event().ID)
		return nil
	})
	p := g.run("pod-1")
	p.place(worker{id: "w", typ: "echo", topics: []string{"in"}})
	g.publish("in", 2)
	broken := admission.Encode(&event.Event{ID: "newer", Source: "/s", Type: "t"}, time.Now())
	out, err := g.store.Append(t.Context(), "in", []store.Batch{{Records: []event.Record{broken}}})
	if err != nil {
		t.Fatal(err)
	}
	g.eventually("the cursor behind the broken record", func() bool {
		cursors := g.load("w").Cursors
		return len(cursors) == 1 && cursors[0].Position == out[0].Positions[0]
	})
	last := g.publish("in", 1)
	g.eventually("the cursor at the end", func() bool { return g.load("w").Cursors[0].Position == last[0] })
	if got.text() != "e0 e1 e0" {
		t.Errorf("handled %q", got.text())
	}
	facts, _ := p.r.Inspect("w")
	if facts[0].Gaps != 1 {
		t.Errorf("%d gaps are shown, want 1", facts[0].Gaps)
	}
}
