package gateway

import (
	"fmt"
	"math"
	"slices"
	"testing"

	cloudevents "github.com/cloudevents/sdk-go/binding/format/protobuf/v2/pb"

	"github.com/turnlane/turnlane/event"
	turnlanev1 "github.com/turnlane/turnlane/proto/turnlane/v1"
	"github.com/turnlane/turnlane/store"
)

func replay(since *turnlanev1.Start) *turnlanev1.SubscribeRequest {
	return &turnlanev1.SubscribeRequest{Topic: "t", ReplaySince: since, Until: tail()}
}

func TestReplayBound(t *testing.T) {
	const bound = 100
	for _, n := range []int{0, 1, bound - 1, bound, bound + 1, bound + 2, 2 * bound, 25 * bound} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			s := newServer(t, func(c *Config) { c.ReplayEvents = bound })
			var p []string
			for len(p) < n {
				p = append(p, s.publish("t", len(p), min(700, n-len(p)))...)
			}
			cut := max(0, n-bound)
			want := ids(cut, n-cut)
			if cut > 0 {
				want = append([]string{fmt.Sprintf("%s:%s:%s", gapReplayBound, p[0], p[cut-1])}, want...)
			}
			sub := s.subscribe(replay(earliest()))
			if sub.rest(); !slices.Equal(sub.log, want) {
				t.Errorf("got %v, want %v", sub.log, want)
			}

			if n > bound { // a start within the bound is not cut
				sub := s.subscribe(replay(at(p[cut])))
				if sub.rest(); !slices.Equal(sub.log, ids(cut, bound)) {
					t.Errorf("from the first within the bound: %v", sub.log)
				}
				sub = s.subscribe(replay(at(p[cut-1])))
				want := append([]string{fmt.Sprintf("%s:%s:%s", gapReplayBound, p[cut-1], p[cut-1])}, ids(cut, bound)...)
				if sub.rest(); !slices.Equal(sub.log, want) {
					t.Errorf("from one before: %v, want %v", sub.log, want)
				}
			}
		})
	}
}

// A replay goes on live, and what comes after the start does not count.
func TestReplayJoinsTheLiveTail(t *testing.T) {
	s := newServer(t, func(c *Config) { c.ReplayEvents = 10 })
	p := s.publish("t", 0, 30)
	sub := s.subscribe(&turnlanev1.SubscribeRequest{Topic: "t", ReplaySince: timeStart(1)})
	s.publish("t", 30, 500)
	sub.take(510)
	want := append([]string{fmt.Sprintf("%s:%s:%s", gapReplayBound, p[0], p[19])}, ids(20, 510)...)
	if !slices.Equal(sub.log, want) {
		t.Errorf("got %v", sub.log)
	}
}

func TestReplayBoundInBytes(t *testing.T) {
	s := newServer(t, func(c *Config) { c.ReplayBytes = 10_000 })
	events := numbered(0, 50)
	for _, e := range events {
		e.Data = &cloudevents.CloudEvent_BinaryData{BinaryData: make([]byte, 1000)}
	}
	resp, err := s.client.PublishEvents(deadline(t), &turnlanev1.PublishEventsRequest{Topic: "t", Events: events})
	if err != nil {
		t.Fatal(err)
	}
	p := resp.GetPositions()
	sub := s.subscribe(replay(earliest()))
	sub.rest()
	const kept = 9 // of a little more than 1,000 bytes each
	want := append([]string{fmt.Sprintf("%s:%s:%s", gapReplayBound, p[0], p[49-kept])}, ids(50-kept, kept)...)
	if !slices.Equal(sub.log, want) {
		t.Errorf("got %v, want %v", sub.log, want)
	}
}

// A large log is searched rather than walked, with the same result.
func TestReplayBoundOfALargeLog(t *testing.T) {
	s := newServer(t, func(c *Config) { c.ReplayEvents = 1000 })
	const n = walkEntries + 5000
	var first, last event.Position
	e := &event.Event{ID: "1", Source: "/s", Type: "t"}
	chunk := make([]*event.Event, 5000)
	for i := range chunk {
		chunk[i] = e
	}
	for done := 0; done < n; done += len(chunk) {
		p, err := s.g.Publish(deadline(t), "t", chunk...)
		if err != nil {
			t.Fatal(err)
		}
		if done == 0 {
			first = p[0]
		}
		last = p[len(p)-1001]
	}
	sub := s.subscribe(replay(earliest()))
	if got := len(sub.rest()); got != 1000 {
		t.Errorf("%d events, want 1000", got)
	}
	if want := fmt.Sprintf("%s:%s:%s", gapReplayBound, first, last); sub.log[0] != want {
		t.Errorf("gap %s, want %s", sub.log[0], want)
	}
}

// What retention took is told besides what the bound cuts off, in the order of the log.
func TestReplayOfATrimmedLog(t *testing.T) {
	s := newServer(t, func(c *Config) { c.ReplayEvents = 5 })
	p := s.publish("t", 0, 20)
	if _, err := s.store.Trim(deadline(t), "t", store.TrimLimit{UpTo: mustPosition(t, p[9])}); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		from *turnlanev1.Start
		want []string
	}{
		"everything that is held": {earliest(), []string{gapReplayBound + ":" + p[10] + ":" + p[14]}},
		"a position that is gone": {at(p[3]), []string{"trimmed:" + p[3] + ":" + p[9], gapReplayBound + ":" + p[10] + ":" + p[14]}},
	} {
		t.Run(name, func(t *testing.T) {
			sub := s.subscribe(replay(c.from))
			if sub.rest(); !slices.Equal(sub.log, append(c.want, ids(15, 5)...)) {
				t.Errorf("got %v, want %v and the rest", sub.log, c.want)
			}
		})
	}
}

func TestBetween(t *testing.T) {
	const top = math.MaxUint64
	for _, c := range []struct{ low, high, want event.Position }{
		{event.Position{}, event.Position{}, event.Position{}},
		{event.Position{}, event.Position{Ms: 2}, event.Position{Ms: 1}},
		{event.Position{Ms: 1}, event.Position{Ms: 2}, event.Position{Ms: 1, Seq: 1 << 63}},
		{event.Position{Ms: 5, Seq: 7}, event.Position{Ms: 5, Seq: 8}, event.Position{Ms: 5, Seq: 7}},
		{event.Position{}, event.MaxPosition, event.Position{Ms: top >> 1, Seq: top}},
		{event.Position{Ms: top, Seq: top - 2}, event.MaxPosition, event.Position{Ms: top, Seq: top - 1}},
		{event.Position{Ms: 3, Seq: top}, event.Position{Ms: 5, Seq: 1}, event.Position{Ms: 4, Seq: 1 << 63}},
	} {
		if got := between(c.low, c.high); c.want != got {
			t.Errorf("between %s and %s: %s, want %s", c.low, c.high, got, c.want)
		} else if got.Less(c.low) || c.high.Less(got) {
			t.Errorf("%s is not between %s and %s", got, c.low, c.high)
		}
	}
}
