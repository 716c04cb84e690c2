package scaling

import (
	"context"
	"errors"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/turnlane/turnlane"
	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/internal/client"
	turnlanev1 "github.com/turnlane/turnlane/proto/turnlane/v1"
)

// What is printed of the three base phases is read by people and by scripts.
const printed = `^fan-out: 1 event -> 3 marker\(s\) from 3 worker\(s\) \(fanout-0, fanout-1, fanout-2\)
exactly-one: 3 events -> 3 marker\(s\); per-event counts \[1, 1, 1\]
  part-0 handled [0-9a-f]{8}, part-1 handled [0-9a-f]{8}, part-2 handled [0-9a-f]{8}
group: 3 events -> 3 marker\(s\); per-event counts \[1, 1, 1\]
  scaling-demo/0 handled [0-9a-f]{8}, scaling-demo/1 handled [0-9a-f]{8}, scaling-demo/2 handled [0-9a-f]{8}
fan-out: PASS
exactly-one: PASS
group: PASS
`

func TestScalingPassesOnAServerOfItsOwn(t *testing.T) {
	var out strings.Builder
	err := Run(t.Context(), Options{Out: &out, Quiet: 200 * time.Millisecond})
	t.Log("\n" + out.String())
	if err != nil {
		t.Errorf("the run ended with %v", err)
	}
	if !regexp.MustCompile(printed).MatchString(out.String()) {
		t.Error("the three base phases are not printed as they should be")
	}
	for _, block := range blocks {
		for _, p := range block {
			if !strings.Contains(out.String(), "\n"+p.name+": PASS\n") {
				t.Errorf("%s did not pass", p.name)
			}
		}
	}
}

func TestWorkersAreDeletedWhenTheRunIsInterrupted(t *testing.T) {
	c := serve(t)
	for _, at := range []string{"fan-out: 1 event", "order: "} {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		err := Run(ctx, Options{Addr: c.Addr(), Out: &cutAt{text: at, cut: cancel}, Quiet: 50 * time.Millisecond})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("interrupted after %q: the run ended with %v", at, err)
		}
		left(t, c)
	}
}

// A phase that fails says what is wrong, and the workers go all the same.
func TestFailuresAreToldAndCleanedUp(t *testing.T) {
	c := serve(t)
	var out strings.Builder
	o := Options{Addr: c.Addr(), Out: &out, Quiet: 50 * time.Millisecond, Patience: 200 * time.Millisecond}
	p := phase{"broken", func(ctx context.Context, b *bench) (lines, problems []string, err error) {
		// A worker that its config does not suit: it never runs.
		jobs := []job{{label: "no-out", kind: "marker", topic: b.topic("in")}}
		if _, err := b.hire(ctx, jobs...); err != nil {
			return nil, nil, err
		}
		return []string{"broken: 1 event -> 0 marker(s)"}, []string{"no-out did not get the event"}, nil
	}}
	good, err := judge(t.Context(), p, newBench(c, o, p.name), &out)
	if good || err != nil {
		t.Errorf("judged %t, %v", good, err)
	}
	for _, want := range []string{"broken: 1 event -> 0 marker(s)\n", "  broken: no-out did not get the event\n", "no-out is FAILED"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in the output:\n%s", want, out.String())
		}
	}
	left(t, c)
}

func TestNoServerIsToldAtOnce(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	err := Run(ctx, Options{Addr: "127.0.0.1:1"})
	if err == nil || !strings.Contains(err.Error(), "127.0.0.1:1") {
		t.Errorf("the run ended with %v", err)
	}
}

func TestVerdictsAreWorthSomething(t *testing.T) {
	b := &bench{hired: []*worker{{id: "a", group: "g", index: 0}, {id: "b", group: "g", index: 1}}}
	events := onePerSlot(2, func() *event.Event { return newEvent("") })
	good := []mark{{WorkerID: "a", Group: "g", EventID: events[0].ID}, {WorkerID: "b", Group: "g", GroupIndex: 1, EventID: events[1].ID}}
	for _, c := range []struct {
		name  string
		marks []mark
		want  string
	}{
		{"good", good, ""},
		{"none", nil, "has 0 markers"},
		{"twice", append(good[:2:2], good[0]), "has 2 markers"},
		{"the wrong member", []mark{good[0], {WorkerID: "a", Group: "g", EventID: events[1].ID}}, "is of slot 1 of 2 of group g, and member 0 got it"},
		{"an unknown worker", append(good[:2:2], mark{WorkerID: "c", EventID: events[0].ID}), "unknown worker c"},
		{"an unknown event", append(good[:2:2], mark{WorkerID: "a", EventID: "e"}), "unknown event e"},
	} {
		got := strings.Join(append(b.onceEach(c.marks, events, "g", 2), b.strangers(c.marks, events)...), "\n")
		if (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
	if problem := differs([]mark{{EventID: events[1].ID}, {EventID: events[0].ID}}, events); problem == "" {
		t.Error("the wrong order is not seen")
	}
	if problem := differs(good[:1], events); problem == "" {
		t.Error("a lost event is not seen")
	}
	if problem := differs([]mark{{EventID: events[0].ID, Outcome: "failed"}}, events[:1]); problem == "" {
		t.Error("a failed attempt is not seen")
	}
}

// cutAt calls cut when a text is written.
type cutAt struct {
	text string
	cut  func()
}

func (w *cutAt) Write(p []byte) (int, error) {
	if strings.Contains(string(p), w.text) {
		w.cut()
	}
	return len(p), nil
}

// serve runs a server until the test ends, and returns a client of it.
func serve(t *testing.T) *client.Client {
	t.Helper()
	srv, err := turnlane.NewServer(turnlane.Config{GRPCAddr: "127.0.0.1:0", HTTPAddr: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	serving, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- srv.Run(serving) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Errorf("the server ended with %v", err)
		}
	})
	select {
	case <-srv.Ready():
	case <-time.After(30 * time.Second):
		t.Fatal("the server is not ready")
	}
	c, err := client.Dial(srv.GRPCAddr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// left checks that no worker is left.
func left(t *testing.T, c *client.Client) {
	t.Helper()
	resp, err := c.Workers.ListWorkers(t.Context(), &turnlanev1.ListWorkersRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range resp.GetWorkers() {
		t.Errorf("worker %s (%s) is left", w.GetName(), w.GetId())
	}
}
