package e2e

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/turnlane/turnlane/examples/flights/data"
	turnlanev1 "github.com/turnlane/turnlane/proto/turnlane/v1"
	"github.com/turnlane/turnlane/store/pebblestore"
)

// Given four members that add up 20,000 real flights in their state and replay from their cursors, when the
// server is killed with SIGKILL ten times at random moments, then their books are the known answer, figure by
// figure and in the order of the flights, without anybody taking out repeats.
func TestFlightsInStateSurviveKills(t *testing.T) {
	const kills = 10
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	want, err := data.Expected()
	if err != nil {
		t.Fatal(err)
	}

	dir := t.TempDir()
	serve := func() *server { return start(t, flightsBinary, "serve", "--data", dir) }
	s := serve()
	type worker struct {
		ID         string
		GroupIndex int `json:"group_index"`
	}
	members := lines[worker](t, s.turnlane("worker", "create", "--type", "flights", "--topic", "flights", "--name", "books",
		"--group", "airports", "--group-size", "4", "--count", "4", "--replay", "cursor", "-o", "json"))
	events := flights(t, 20000)
	// The members begin before the first flight, and find all of them there, so that the kills fall into turns.
	for _, w := range members {
		s.turnlane("worker", "start", w.ID)
		s.turnlane("worker", "stop", w.ID)
	}
	acks := make(map[string]string)
	if n := acknowledged(t, s, "flights", events, acks); n != len(events) {
		t.Fatalf("the server took %d of %d flights\n%s", n, len(events), s.stderr)
	}
	for _, w := range members {
		s.turnlane("worker", "start", w.ID)
	}
	for range kills {
		time.Sleep(time.Duration(random.IntN(200)) * time.Millisecond)
		s.kill()
		s = serve()
	}
	_, manager := s.clients()
	eventually(t, "all members run", func() error {
		list, err := manager.ListWorkers(t.Context(), &turnlanev1.ListWorkersRequest{State: turnlanev1.WorkerState_WORKER_STATE_RUNNING, PageSize: 1000})
		if err == nil && len(list.GetWorkers()) != len(members) {
			err = fmt.Errorf("%d of %d run", len(list.GetWorkers()), len(members))
		}
		return err
	})
	caughtUp(t, s)
	s.signal(syscall.SIGTERM)
	if code := s.exitCode(); code != 0 {
		t.Fatalf("the server ended with %d\n%s", code, s.stderr)
	}

	db, err := pebblestore.Open(pebblestore.Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	perSlot := make([]int, 4)
	got := map[string]data.Airport{}
	for _, w := range members {
		stored, err := db.Load(t.Context(), w.ID)
		if err != nil {
			t.Fatal(err)
		}
		for key, text := range stored.State {
			var a data.Airport
			if err := json.Unmarshal(text, &a); err != nil {
				t.Fatal(err)
			}
			name := strings.TrimPrefix(key, "airport/")
			if _, twice := got[name]; twice {
				t.Errorf("%s is in the books of two members", name)
			}
			got[name] = a
			perSlot[w.GroupIndex] += a.Flights
		}
	}
	for name, a := range want.Airports {
		if got[name] != a {
			t.Errorf("%s: %+v, want %+v", name, got[name], a)
		}
	}
	if len(got) != len(want.Airports) || !slices.Equal(perSlot, want.EventsOfSlot) {
		t.Errorf("%d airports, flights per slot %v; want %d, %v", len(got), perSlot, len(want.Airports), want.EventsOfSlot)
	}
}
