package runtime

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/turnlane/turnlane/actor"
	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/inbox"
	"github.com/turnlane/turnlane/internal/lifecycle"
	"github.com/turnlane/turnlane/store"
)

// What retention removes while a worker is behind is told, with its bounds, and the worker goes on
// after it.
func TestATrimmedStretchIsReported(t *testing.T) {
	g := newRig(t)
	g.cfg = func(c *Config) { c.Lane = inbox.Limits{Events: 4} }
	var got seen
	begun, release := make(chan struct{}, 100), make(chan struct{})
	g.handle("slow", func(_ context.Context, turn *actor.Turn) error {
		begun <- struct{}{}
		<-release
		got.add(turn.Event().ID)
		return nil
	})
	p := g.run("pod-1")
	// They are there before the worker is: it reads the log, and not what the fan-out has of it in memory.
	positions := g.publish("in", 20)
	p.place(worker{id: "w", typ: "slow", topics: []string{"in"}})
	<-begun
	taken := 0 // the event in hand was taken before or after the lane was filled
	g.eventually("a full lane", func() bool {
		facts, ok := p.r.Inspect("w")
		if !ok || facts[0].Feed.String() != "FEED_STATE_STALLED" {
			return false
		}
		taken = 1 + int(facts[0].LaneEvents)
		return taken >= 4
	})
	if _, err := g.store.Trim(t.Context(), "in", store.TrimLimit{UpTo: positions[14]}); err != nil {
		t.Fatal(err)
	}
	close(release)
	g.eventually("what is left", func() bool { return strings.HasSuffix(got.text(), "e19") })
	if want := ids(taken) + " e15 e16 e17 e18 e19"; got.text() != want {
		t.Errorf("handled %q, want %q", got.text(), want)
	}
	g.eventually("a report", func() bool { return len(g.reported(lifecycle.TypeGap)) == 1 })
	data := string(g.reported(lifecycle.TypeGap)[0].Data)
	for _, part := range []string{`"kind":"trimmed"`, fmt.Sprintf(`"first":"%s","last":"%s"`, positions[taken-1].Next(), positions[14]), `"worker_id":"w"`, `"topic":"in"`} {
		if !strings.Contains(data, part) {
			t.Errorf("the report lacks %s: %s", part, data)
		}
	}
	g.eventually("the cursor at the end", func() bool { return g.load("w").Cursors[0].Position == positions[19] })
	if facts, _ := p.r.Inspect("w"); facts[0].Gaps != 1 || facts[0].Cursor != positions[19].String() {
		t.Errorf("it looks like %v", facts)
	}
}

// A topic that is deleted and made anew is another log: the worker is told of the gap, finishes what it
// has of the old one, and its cursor belongs to the new one.
func TestATopicMadeAnewIsAnotherLog(t *testing.T) {
	g := newRig(t)
	var got seen
	begun, release := make(chan struct{}, 100), make(chan struct{})
	g.handle("slow", func(_ context.Context, turn *actor.Turn) error {
		begun <- struct{}{}
		<-release
		got.add(turn.Event().Subject)
		return turn.Publish("out", &event.Event{Type: "t", Subject: turn.Event().Subject})
	})
	p := g.run("pod-1")
	p.place(worker{id: "w", typ: "slow", topics: []string{"in"}})
	g.publish("in", 3)
	<-begun
	g.eventually("two in the lane", func() bool {
		facts, ok := p.r.Inspect("w")
		return ok && facts[0].LaneEvents == 2
	})
	if err := g.store.DeleteTopic(t.Context(), "in"); err != nil {
		t.Fatal(err)
	}
	e := numbered(9)
	e.Subject = "new"
	last := g.publishEvent("in", e)
	g.eventually("a report", func() bool { return len(g.reported(lifecycle.TypeGap)) == 1 })
	if data := string(g.reported(lifecycle.TypeGap)[0].Data); !strings.Contains(data, `"kind":"incarnation"`) {
		t.Errorf("the report is %s", data)
	}
	if at := g.load("w").Cursors[0]; !at.Position.Less(last) {
		t.Errorf("the cursor %+v is past the event that waits", at)
	}
	close(release)
	g.eventually("all of both logs", func() bool { return got.text() == "s0 s1 s2 new" })
	log, err := g.store.Bounds(t.Context(), "in")
	if err != nil {
		t.Fatal(err)
	}
	g.eventually("the cursor in the new log", func() bool {
		c := g.load("w").Cursors[0]
		return c.Incarnation == log.Incarnation && c.Position == last
	})
	g.eventually("four outputs", func() bool { return len(g.read("out")) == 4 })
}

// A worker that is to begin where its log has not come yet is told so, and begins at the log's end; also
// on a topic that does not exist yet.
func TestAStartBeyondTheEndIsReported(t *testing.T) {
	g := newRig(t)
	var got seen
	g.handle("echo", func(_ context.Context, turn *actor.Turn) error {
		got.add(turn.Event().ID)
		return nil
	})
	old := g.publish("in", 2)
	beyond := event.Position{Ms: old[1].Ms + 3_600_000}
	p := g.run("pod-1")
	p.place(worker{id: "w", typ: "echo", topics: []string{"in", "none"}, after: beyond})
	g.eventually("two reports", func() bool { return len(g.reported(lifecycle.TypeGap)) == 2 })
	for topic, first := range map[string]string{"in": old[1].Next().String(), "none": "0-1"} {
		told := false
		for _, e := range g.reported(lifecycle.TypeGap) {
			data := string(e.Data)
			told = told || strings.Contains(data, `"topic":"`+topic+`"`) &&
				strings.Contains(data, fmt.Sprintf(`"first":"%s","last":"%s","kind":"regressed"`, first, beyond))
		}
		if !told {
			t.Errorf("no gap of %s from %s to %s", topic, first, beyond)
		}
	}
	last := g.publish("in", 1)[0]
	g.eventually("what comes later", func() bool { return got.text() != "" })
	g.eventually("the cursor at the end", func() bool { return g.load("w").Cursors[0].Position == last })
	if facts, _ := p.r.Inspect("w"); facts[0].Gaps != 1 || strings.Contains(got.text(), " ") {
		t.Errorf("it looks like %v, and handled %s", facts, got.text())
	}
}
