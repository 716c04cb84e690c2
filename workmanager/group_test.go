package workmanager_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/grouping"
	"github.com/turnlane/turnlane/internal/catalog"
	"github.com/turnlane/turnlane/internal/lifecycle"
	"github.com/turnlane/turnlane/internal/rpcerr"
	v1 "github.com/turnlane/turnlane/proto/turnlane/v1"
	"github.com/turnlane/turnlane/workmanager"
)

func TestCoverageIsToldWhereverItChanges(t *testing.T) {
	w := newWorld(t)
	m := w.manager()
	r := w.runtime("pod-1", "echo")
	for i := range uint32(3) {
		m.create(t, member(fmt.Sprint("m", i), "pairs", 3, i, "trades", "quotes"))
	}
	for i, want := range []string{
		"group pairs on [trades, quotes] has 1 of 3 members running",
		"group pairs on [trades, quotes] has 2 of 3 members running",
		"",
	} {
		resp := m.start(t, fmt.Sprint("m", i))
		if got := strings.Join(resp.GetWarnings(), "; "); got != want {
			t.Errorf("start of m%d: warnings %q, want %q", i, got, want)
		}
	}
	resp := m.stopWorker(t, "m1")
	if got := strings.Join(resp.GetWarnings(), "; "); got != "group pairs on [trades, quotes] has 2 of 3 members running" {
		t.Errorf("stop: warnings %q", got)
	}
	group, err := m.GetGroup(t.Context(), &v1.GetGroupRequest{Group: "pairs"})
	if err != nil {
		t.Fatal(err)
	}
	if len(group.GetTopics()) != 2 || group.GetTopics()[0].GetTopic() != "quotes" {
		t.Fatalf("%v", group)
	}
	c := group.GetTopics()[1]
	if c.GetRunning() != 2 || c.GetWarning() != "group pairs on [trades] has 2 of 3 members running" ||
		c.GetSlots()[1].GetState() != stopped || c.GetSlots()[1].GetWorkerId() != "m1" ||
		c.GetSlots()[2].GetState() != running || c.GetSlots()[2].GetPod() != "pod-1" {
		t.Errorf("%v", c)
	}
	told := func() string {
		var counts []string
		for _, e := range w.events.all() {
			if e.Type == lifecycle.TypeCoverage && e.Group == "pairs" && e.GroupSize == 3 && slices.Equal(e.Topics, []string{"quotes", "trades"}) {
				counts = append(counts, fmt.Sprint(*e.Running))
			}
		}
		return strings.Join(counts, " ")
	}
	eventually(t, "each change is told", func() bool { return told() == "1 2 3 2" })
	r.kill()
	eventually(t, "a death is told", func() bool { return strings.HasSuffix(told(), " 0") })
	m.delete(t, "m0")
	if warnings := m.delete(t, "m2"); len(warnings) != 1 || !strings.Contains(warnings[0], "has 0 of 3 members running") {
		t.Errorf("delete of the last member: %q", warnings)
	}
}

func TestOneSlotHasOneMember(t *testing.T) {
	w := newWorld(t)
	m := w.manager()
	w.runtime("pod-1", "echo")
	first := member("a", "g", 3, 1, "x", "y")
	first.Name = "Alice"
	m.create(t, first)
	m.create(t, member("same-slot", "g", 3, 1, "y", "z"))
	m.create(t, member("other-size", "g", 2, 0, "y"))
	m.create(t, member("other-slot", "g", 3, 0, "y"))
	m.create(t, member("other-topic", "g", 2, 1, "z"))
	m.create(t, member("other-group", "g-v2", 2, 1, "y"))
	start := func(id string) error {
		_, err := m.StartWorker(t.Context(), &v1.StartWorkerRequest{Worker: id})
		return err
	}
	for _, id := range []string{"a", "other-slot", "other-topic", "other-group"} {
		if err := start(id); err != nil {
			t.Errorf("%s: %v", id, err)
		}
	}
	err := start("same-slot")
	wantError(t, err, codes.FailedPrecondition, rpcerr.SlotTaken, "worker a", `"Alice"`, "slot 1", "on y")
	if rpcerr.Info(err).GetMetadata()["worker"] != "a" {
		t.Errorf("facts %v", rpcerr.Info(err))
	}
	wantError(t, start("other-size"), codes.FailedPrecondition, rpcerr.GroupSizeConflict, "group g on y")
	if w.record("same-slot").GetGeneration() != 0 {
		t.Error("a refused start changed the worker")
	}

	// Stopped members are in nobody's way.
	for _, id := range []string{"a", "other-slot"} {
		m.stopWorker(t, id)
	}
	if err := start("other-size"); err != nil {
		t.Error(err)
	}
	m.delete(t, "other-size")
	m.delete(t, "other-topic")
	if err := start("same-slot"); err != nil {
		t.Error(err)
	}
	m.delete(t, "same-slot")
	m.delete(t, "other-group")
	if claims := w.keys(catalog.GroupPrefix); len(claims) != 0 {
		t.Errorf("claims without members: %v", claims)
	}
}

func TestParallelStartsOfAGroup(t *testing.T) {
	w := newWorld(t)
	ms := []*process{w.manager(), w.manager(), w.manager()}
	r := w.runtime("pod-1", "echo")
	const size = 8
	for i := range uint32(size) {
		for _, name := range []string{"x", "y"} {
			ms[0].create(t, member(fmt.Sprint(name, i), "g", size, i))
		}
		ms[0].create(t, member(fmt.Sprint("z", i), "g", size+1, i))
	}
	for round := range 4 {
		var wg sync.WaitGroup
		var won [3]atomic.Int64
		for i := range size {
			for c, name := range []string{"x", "y", "z"} {
				wg.Go(func() {
					id := fmt.Sprint(name, i)
					_, err := ms[(i+c)%3].StartWorker(t.Context(), &v1.StartWorkerRequest{Worker: id})
					switch {
					case err == nil:
						won[c].Add(1)
					case status.Code(err) != codes.FailedPrecondition:
						t.Errorf("start of %s: %v", id, err)
					}
				})
			}
		}
		wg.Wait()
		if x := won[0].Load() + won[1].Load(); !(x == size && won[2].Load() == 0 || x == 0 && won[2].Load() == size) {
			t.Errorf("round %d: %d and %d members of size %d, %d of size %d", round, won[0].Load(), won[1].Load(), size, won[2].Load(), size+1)
		}
		if r.count() != size {
			t.Errorf("round %d: %d run", round, r.count())
		}
		for i := range size {
			for c, name := range []string{"x", "y", "z"} {
				wg.Go(func() { ms[(i+c)%3].stopWorker(t, fmt.Sprint(name, i)) })
			}
		}
		wg.Wait()
		if claims := w.keys(catalog.GroupPrefix); len(claims) != 0 || r.count() != 0 {
			t.Errorf("round %d: after the stop claims %v, %d run", round, claims, r.count())
		}
	}
}

func TestAGroupGetsAnotherSize(t *testing.T) {
	w := newWorld(t)
	m := w.manager()
	w.runtime("pod-1", "echo")
	for i := range uint32(3) {
		m.create(t, member(fmt.Sprint("old", i), "g", 3, i))
		m.start(t, fmt.Sprint("old", i))
	}
	for i := range uint32(3) {
		m.stopWorker(t, fmt.Sprint("old", i))
	}
	var last *v1.StartWorkerResponse
	for i := range uint32(5) {
		m.create(t, member(fmt.Sprint("new", i), "g", 5, i))
		last = m.start(t, fmt.Sprint("new", i))
	}
	if len(last.GetWarnings()) != 0 {
		t.Errorf("warnings %v", last.GetWarnings())
	}
	group, err := m.GetGroup(t.Context(), &v1.GetGroupRequest{Group: "g"})
	if err != nil || group.GetTopics()[0].GetGroupSize() != 5 || group.GetTopics()[0].GetRunning() != 5 {
		t.Errorf("%v, %v", group, err)
	}
	_, err = m.StartWorker(t.Context(), &v1.StartWorkerRequest{Worker: "old0"})
	wantError(t, err, codes.FailedPrecondition, rpcerr.GroupSizeConflict, "worker new0")
}

// slotCounter records what is counted, and from where.
type slotCounter struct {
	mu    sync.Mutex
	open  map[string]workmanager.Place
	stood event.Position // where a count is that ends
}

func (c *slotCounter) CountSlots(topic string, after workmanager.Place, slots grouping.Set, _ func(int)) (func() workmanager.Place, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := topic + " " + slots.String()
	c.open[key] = after
	return func() workmanager.Place {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.open, key)
		return workmanager.Place{Position: c.stood, Incarnation: after.Incarnation}
	}, nil
}

// after is from where slots are counted.
func (c *slotCounter) after(t *testing.T, key string) event.Position {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	place, ok := c.open[key]
	if !ok {
		t.Errorf("%s is not counted: %v", key, c.open)
	}
	return place.Position
}

func (c *slotCounter) has(keys ...string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.open) != len(keys) {
		return false
	}
	return !slices.ContainsFunc(keys, func(key string) bool { _, ok := c.open[key]; return !ok })
}

func TestEventsOfMissingSlotsAreCounted(t *testing.T) {
	w := newWorld(t)
	counter := &slotCounter{open: map[string]workmanager.Place{}}
	m := w.manager(func(c *workmanager.Config) { c.Slots = counter })
	r := w.runtime("pod-1", "echo")
	for i := range uint32(4) {
		req := member(fmt.Sprint("m", i), "g", 4, i)
		if i == 2 {
			req.Replay = &v1.Replay{Mode: v1.ReplayMode_REPLAY_MODE_CURSOR}
		}
		if i != 3 {
			m.create(t, req)
		}
	}
	m.start(t, "m0")
	// Slot 1 and 3 are uncovered, slot 2 waits: its member replays.
	eventually(t, "both kinds are counted", func() bool { return counter.has("in 1,3 of 4", "in 2 of 4") })
	m.start(t, "m1")
	eventually(t, "fewer are counted", func() bool { return counter.has("in 3 of 4", "in 2 of 4") })
	m.start(t, "m2")
	m.create(t, member("m3", "g", 4, 3))
	m.start(t, "m3")
	eventually(t, "nothing is counted", func() bool { return counter.has() })
	r.kill()
	eventually(t, "all are counted", func() bool { return counter.has("in 0,1,3 of 4", "in 2 of 4") })
	m.stop()
	if !counter.has() {
		t.Error("counting goes on after the end")
	}
}

// What nobody is to run is counted by the time the start returns that leaves it so, from before the
// member ran; and the count goes on where it was when another member is started.
func TestVacantSlotsAreCountedAtOnce(t *testing.T) {
	w := newWorld(t)
	counter := &slotCounter{open: map[string]workmanager.Place{}}
	m := w.manager(func(c *workmanager.Config) { c.Slots = counter })
	r := w.runtime("pod-1", "echo")
	before := w.append("in", 3)
	for i := range uint32(3) {
		m.create(t, member(fmt.Sprint("m", i), "g", 3, i))
	}
	m.start(t, "m0")
	if got := counter.after(t, "in 1,2 of 3"); got != before[2] {
		t.Errorf("counted after %s, want %s", got, before[2])
	}
	w.append("in", 3)
	counter.mu.Lock()
	counter.stood = before[1] // as if it were a little behind
	counter.mu.Unlock()
	m.start(t, "m1")
	if got := counter.after(t, "in 2 of 3"); got != before[1] {
		t.Errorf("counting went on after %s, want %s", got, before[1])
	}
	m.start(t, "m2")
	eventually(t, "nothing is counted", func() bool { return counter.has() })

	// Members that fell are counted from where they fell, once they are not back for a while.
	fell := w.append("in", 1)[0]
	r.kill()
	eventually(t, "all are down", func() bool { return m.state(t, "m0") != running })
	eventually(t, "they are counted", func() bool { return counter.has("in 0,1,2 of 3") })
	if got := counter.after(t, "in 0,1,2 of 3"); got != fell {
		t.Errorf("counted after %s, want %s", got, fell)
	}
	w.runtime("pod-2", "echo")
	eventually(t, "nothing is counted again", func() bool { return counter.has() })
}

// Coverage says whether it is complete, and whose change made it so.
func TestCoverageNamesTheMember(t *testing.T) {
	w := newWorld(t)
	m := w.manager()
	w.runtime("pod-1", "echo")
	for i := range uint32(2) {
		m.create(t, member(fmt.Sprint("m", i), "g", 2, i))
	}
	m.start(t, "m0")
	m.start(t, "m1")
	m.stopWorker(t, "m0")
	told := func() string {
		var lines []string
		for _, e := range w.events.all() {
			if e.Type == lifecycle.TypeCoverage {
				lines = append(lines, e.State+" "+e.WorkerID)
			}
		}
		return strings.Join(lines, ", ")
	}
	const want = "INCOMPLETE m0, COMPLETE m1, INCOMPLETE m0"
	eventually(t, want, func() bool { return told() == want })
}
