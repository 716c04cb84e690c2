package e2e

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/turnlane/turnlane/event"
	turnlanev1 "github.com/turnlane/turnlane/proto/turnlane/v1"
)

// flights returns the first n of the real flights.
func flights(t *testing.T, n int) []*event.Event {
	t.Helper()
	f, err := os.Open("../../examples/flights/data/flights.cloudevents.jsonl.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	var all []*event.Event
	for line := range bytes.Lines(text) {
		if len(all) == n {
			break
		}
		e, err := event.ParseJSON(bytes.TrimSpace(line))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, e)
	}
	return all
}

// acknowledged publishes events in batches until all are acknowledged or the server is gone. It
// returns the ids by position of those acknowledged, and how many events that were.
func acknowledged(t *testing.T, s *server, topic string, events []*event.Event, acks map[string]string) int {
	t.Helper()
	gateway, _ := s.clients()
	done := 0
	for done < len(events) {
		n := min(20, len(events)-done)
		req := &turnlanev1.PublishEventsRequest{Topic: topic}
		for _, e := range events[done : done+n] {
			p, err := event.ToProto(e)
			if err != nil {
				t.Fatal(err)
			}
			req.Events = append(req.Events, p)
		}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		resp, err := gateway.PublishEvents(ctx, req)
		cancel()
		if err != nil {
			return done // the server was killed; whether it has this batch is open
		}
		for i, pos := range resp.GetPositions() {
			acks[pos] = events[done+i].ID
		}
		done += n
	}
	return done
}

// held returns the ids by position of all that a topic holds.
func held(t *testing.T, s *server, topic string) map[string]string {
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
	all := make(map[string]string)
	for {
		resp, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		if gap := resp.GetGap(); gap != nil {
			t.Fatalf("a gap in a topic that nothing trims: %v", gap)
		}
		for _, e := range resp.GetBatch().GetEvents() {
			all[e.GetPosition()] = e.GetEvent().GetId()
		}
	}
}

// Given a server on disk with started and stopped workers, when it is killed with SIGKILL at random
// moments while 20,000 real events are published, then every acknowledged event is there, started
// workers run again, stopped ones don't, and the group's members lose nothing, keep the order, and
// mark every repeat.
func TestKilledServerLosesNothingAcknowledged(t *testing.T) {
	const kills = 5
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))

	dir := t.TempDir()
	s := startDev(t, "--data", dir)
	type worker struct{ ID, Name, Desired, State string }
	created := lines[worker](t, s.turnlane("worker", "create", "--type", "probe", "--topic", "flights", "--name", "member",
		"--group", "airports", "--group-size", "4", "--count", "4", "--replay", "cursor", "--start", "-o", "json"))
	if len(created) != 4 {
		t.Fatalf("created %d members, want 4", len(created))
	}
	s.turnlane("worker", "create", "--type", "probe", "--topic", "flights", "--name", "never-started", "--config", "out=never.out", "-o", "json")
	s.turnlane("worker", "create", "--type", "probe", "--topic", "flights", "--name", "stopped", "--config", "out=never.out", "--start")
	s.turnlane("worker", "stop", "stopped")

	events := flights(t, 20000)
	acks := make(map[string]string)
	for kill := range kills {
		killed := make(chan struct{})
		time.AfterFunc(time.Duration(200+random.IntN(1500))*time.Millisecond, func() {
			s.kill()
			close(killed)
		})
		n := acknowledged(t, s, "flights", events, acks)
		<-killed
		events = events[n:]
		t.Logf("kill %d: %d events acknowledged so far, %d to go", kill, len(acks), len(events))
		s = startDev(t, "--data", dir)
	}
	if n := acknowledged(t, s, "flights", events, acks); n != len(events) {
		t.Fatalf("the last server took %d of %d events\n%s", n, len(events), s.stderr)
	}

	there := held(t, s, "flights")
	for pos, id := range acks {
		if there[pos] != id {
			t.Fatalf("event %s was acknowledged at %s; there is %q", id, pos, there[pos])
		}
	}
	for _, w := range lines[worker](t, s.turnlane("worker", "list", "-o", "json")) {
		want := "RUNNING"
		if w.Name == "never-started" || w.Name == "stopped" {
			want = "STOPPED"
		}
		eventually(t, w.Name+" is "+want, func() error {
			got := lines[worker](t, s.turnlane("worker", "get", w.ID, "-o", "json"))[0]
			if got.State != want {
				return fmt.Errorf("%s is %s", got.Name, got.State)
			}
			return nil
		})
	}
	caughtUp(t, s)
	t.Log(s.turnlane("verify", "flights", "--from", "earliest", "-o", "json"))
	if n := len(held(t, s, "never.out")); n != 0 {
		t.Errorf("workers that were not running handled %d events", n)
	}
}

// caughtUp waits until every running worker is done with its topics.
func caughtUp(t *testing.T, s *server) {
	t.Helper()
	_, workers := s.clients()
	eventually(t, "all workers have caught up", func() error {
		list, err := workers.ListWorkers(t.Context(), &turnlanev1.ListWorkersRequest{State: turnlanev1.WorkerState_WORKER_STATE_RUNNING, PageSize: 1000})
		if err != nil {
			return err
		}
		for _, w := range list.GetWorkers() {
			got, err := workers.GetWorker(t.Context(), &turnlanev1.GetWorkerRequest{Worker: w.GetId()})
			if err != nil {
				return err
			}
			for _, topic := range got.GetWorker().GetTopicStatus() {
				if topic.GetCursor() != topic.GetHead() {
					return fmt.Errorf("%s is at %s of %s", w.GetName(), topic.GetCursor(), topic.GetHead())
				}
			}
		}
		return nil
	})
}
