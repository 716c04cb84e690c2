package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/internal/builtin"
	"github.com/turnlane/turnlane/internal/deadletter"
	turnlanev1 "github.com/turnlane/turnlane/proto/turnlane/v1"
)

// topicEvents returns all that a topic holds, in order. A topic that is not there holds nothing.
func topicEvents(t *testing.T, s *server, topic string) (all []*event.Event) {
	t.Helper()
	gateway, _ := s.clients()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	stream, err := gateway.Subscribe(ctx, &turnlanev1.SubscribeRequest{
		Topic: topic,
		From:  &turnlanev1.Start{At: &turnlanev1.Start_Earliest{Earliest: true}},
		Until: &turnlanev1.Start{At: &turnlanev1.Start_Tail{Tail: true}},
	})
	if err != nil {
		t.Fatal(err)
	}
	for {
		resp, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range resp.GetBatch().GetEvents() {
			e, err := event.FromProto(p.GetEvent())
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, e)
		}
	}
}

// Given 200 events of which every tenth is poisoned, in six ways, one of which ends the process, when
// the server is started again each time, then each event is handled or a dead letter, and not both; the
// good ones in their order; and the attempts that dead letters tell are those that the handler had.
func TestPoisonedEventsAreDeadLettersAndNothingElseIs(t *testing.T) {
	ways := []struct{ do, reason string }{
		{`{"fail":"no"}`, deadletter.Failed},
		{`{"permanent":"never"}`, deadletter.Permanent},
		{`{"panic":"ouch"}`, deadletter.Panic},
		{`{"goexit":true}`, deadletter.Goexit},
		{`{"hang_ms":600000}`, deadletter.Timeout},
		{`{"exit":3}`, deadletter.Crashed},
	}
	const events, maxAttempts, maxCrashes = 200, 2, 3
	dir := t.TempDir()
	s := startDev(t, "--data", dir)
	reason := map[string]string{} // by id of a poisoned event
	var list []*event.Event
	for i := range events {
		e := &event.Event{ID: fmt.Sprintf("e%d", i), Source: "/test", Type: "t", Subject: fmt.Sprint(i % 7),
			DataContentType: "application/json", Data: []byte(`{}`), DataKind: event.JSONData}
		if i%10 == 9 {
			way := ways[i/10%len(ways)]
			reason[e.ID] = way.reason
			e.Data = []byte(`{"do":[` + way.do + `]}`)
		}
		list = append(list, e)
	}
	acks := map[string]string{}
	if n := acknowledged(t, s, "in", list, acks); n != events {
		t.Fatalf("%d of %d events are acknowledged", n, events)
	}
	cmd := s.command("worker", "create", "--type", "probe", "--topic", "in", "--name", "w", "--replay", "earliest", "--max-attempts", "2",
		"--backoff", "10ms", "--handler-timeout", "500ms", "--handler-grace", "200ms", "--start")
	_ = cmd.Run() // the server may end meanwhile
	kills := 0
	for {
		ended := false
		select {
		case <-s.exited:
			kills++
			s = tryDev(t, "--data", dir)
			continue
		default:
		}
		_, workers := s.clients()
		eventually(t, "the end of the server, or of the work", func() error {
			select {
			case <-s.exited:
				ended = true
				return nil
			default:
			}
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			got, err := workers.GetWorker(ctx, &turnlanev1.GetWorkerRequest{Worker: "w"})
			if err != nil {
				return err
			}
			if st := got.GetWorker().GetTopicStatus()[0]; st.GetCursor() != st.GetHead() {
				return fmt.Errorf("at %s of %s", st.GetCursor(), st.GetHead())
			}
			return nil
		})
		if !ended {
			break
		}
		kills++
		s = tryDev(t, "--data", dir)
	}

	dead := map[string]deadletter.Facts{}
	for _, e := range topicEvents(t, s, "dlq.in") {
		original, f, err := deadletter.Unwrap(e)
		if err != nil {
			t.Fatal(err)
		}
		if _, twice := dead[original.ID]; twice {
			t.Errorf("%s has two dead letters", original.ID)
		}
		dead[original.ID] = f
	}
	starts, done := map[string]int{}, map[string]bool{}
	var order []string
	for _, e := range topicEvents(t, s, builtin.DefaultReports) {
		var r builtin.Report
		if err := json.Unmarshal(e.Data, &r); err != nil {
			t.Fatal(err)
		}
		starts[r.EventID]++
		if r.Outcome == "done" && !done[r.EventID] {
			done[r.EventID] = true
			order = append(order, r.EventID)
		}
	}
	killers := 0
	for i, at := 0, 0; i < events; i++ {
		id := fmt.Sprintf("e%d", i)
		f, isDead := dead[id]
		if why, poisoned := reason[id]; !poisoned {
			if isDead || !done[id] {
				t.Errorf("%s: a dead letter: %t, handled: %t", id, isDead, done[id])
			} else if order[at] != id {
				t.Errorf("%s was handled after %s", id, order[at])
			}
			at++
			continue
		} else if !isDead || done[id] || f.Reason != why {
			t.Errorf("%s: want a dead letter for %q, got %+v, handled: %t", id, why, f, done[id])
		}
		want := maxAttempts
		switch f.Reason {
		case deadletter.Permanent:
			want = 1
		case deadletter.Crashed:
			killers++
			if want = 0; f.Crashes != maxCrashes {
				t.Errorf("%s ended the process %d times, and is known for %d", id, maxCrashes, f.Crashes)
			}
		}
		if int(f.Attempts) != want || starts[id] != want {
			t.Errorf("%s (%s): %d attempts counted, %d starts reported, want %d", id, f.Reason, f.Attempts, starts[id], want)
		}
	}
	if kills < killers*maxCrashes || kills > killers*(maxCrashes+1) {
		t.Errorf("%d ends of the process for %d events that end it, want %d each and one more that nobody saw at most", kills, killers, maxCrashes)
	}
	t.Logf("%d ends of the process", kills)
}
