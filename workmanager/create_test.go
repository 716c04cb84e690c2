package workmanager_test

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/turnlane/turnlane/internal/catalog"
	"github.com/turnlane/turnlane/internal/rpcerr"
	v1 "github.com/turnlane/turnlane/proto/turnlane/v1"
)

func TestTheSameDefinitionIsTheSameWorker(t *testing.T) {
	m := newWorld(t).manager()
	req := &v1.CreateWorkerRequest{Id: "a", Name: "n", Type: "echo", Topics: []string{"x", "y"},
		Config: map[string]string{"out": "o"}, Tags: map[string]string{"team": "red"}}
	first := m.create(t, req)
	same := proto.CloneOf(req)
	same.Topics = []string{"y", "x"}
	same.Replay = &v1.Replay{Mode: v1.ReplayMode_REPLAY_MODE_CURSOR} // what it was by default
	if second := m.create(t, same); second.GetCreatedAt().AsTime() != first.GetCreatedAt().AsTime() {
		t.Errorf("created twice: %v, %v", first, second)
	}
	for field, change := range map[string]func(*v1.CreateWorkerRequest){
		"name":        func(r *v1.CreateWorkerRequest) { r.Name = "m" },
		"type":        func(r *v1.CreateWorkerRequest) { r.Type = "marker" },
		"topics":      func(r *v1.CreateWorkerRequest) { r.Topics = []string{"x"} },
		"group":       func(r *v1.CreateWorkerRequest) { r.Group, r.GroupSize = "g", 2 },
		"config":      func(r *v1.CreateWorkerRequest) { r.Config = nil },
		"tags":        func(r *v1.CreateWorkerRequest) { r.Tags["team"] = "blue" },
		"policy":      func(r *v1.CreateWorkerRequest) { r.Policy = &v1.Policy{MaxAttempts: 5} },
		"replay":      func(r *v1.CreateWorkerRequest) { r.Replay = &v1.Replay{Mode: v1.ReplayMode_REPLAY_MODE_OFF} },
		"config,tags": func(r *v1.CreateWorkerRequest) { r.Config, r.Tags = nil, nil },
	} {
		other := proto.CloneOf(req)
		change(other)
		_, err := m.CreateWorker(t.Context(), other)
		wantError(t, err, codes.AlreadyExists, rpcerr.AlreadyExists)
		if got := rpcerr.Info(err).GetMetadata()["fields"]; field != "group" && got != field {
			t.Errorf("%v: differing fields %q, want %q", err, got, field)
		}
	}
}

func TestNamesAreUnique(t *testing.T) {
	w := newWorld(t)
	m := w.manager()
	named := func(id, name string) *v1.CreateWorkerRequest {
		r := dedicated(id)
		r.Name = name
		return r
	}
	m.create(t, named("a", "n/1"))
	_, err := m.CreateWorker(t.Context(), named("b", "n/1"))
	wantError(t, err, codes.AlreadyExists, rpcerr.NameTaken, `"n/1"`, "worker a")
	if got := m.get(t, "n/1").GetId(); got != "a" {
		t.Errorf("n/1 is %s", got)
	}
	_, err = m.CreateWorker(t.Context(), named("c", "a"))
	wantError(t, err, codes.AlreadyExists, rpcerr.NameTaken, `"a" is the id of worker a`)
	m.delete(t, "a")
	m.create(t, named("c", "a"))
	if got := m.get(t, "a").GetId(); got != "c" {
		t.Errorf("a is %s after the worker of that id is gone", got)
	}
	m.create(t, named("b", "n/1"))
	if got := m.get(t, "n/1").GetId(); got != "b" {
		t.Errorf("n/1 is %s", got)
	}
}

func TestParallelCreates(t *testing.T) {
	w := newWorld(t)
	ms := []*process{w.manager(), w.manager()}
	var wg sync.WaitGroup
	var created, refused atomic.Int64
	for i := range 40 {
		wg.Go(func() {
			req := dedicated("a") // the same one
			if i%4 == 1 {
				req = dedicated(fmt.Sprint("b", i)) // many that want one name
				req.Name = "b"
			}
			_, err := ms[i%2].CreateWorker(t.Context(), req)
			switch {
			case err == nil:
				created.Add(1)
			case status.Code(err) == codes.AlreadyExists && rpcerr.Reason(err) == rpcerr.NameTaken && i%4 == 1:
				refused.Add(1)
			default:
				t.Errorf("create: %v", err)
			}
		})
	}
	wg.Wait()
	if created.Load() != 31 || refused.Load() != 9 {
		t.Errorf("created %d, refused %d", created.Load(), refused.Load())
	}
	if n := len(w.keys(catalog.WorkerPrefix)); n != 2 {
		t.Errorf("%d workers", n)
	}
}

func TestParallelLives(t *testing.T) {
	w := newWorld(t)
	ms := []*process{w.manager(), w.manager()}
	w.runtime("pod-1", "echo")
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			m := ms[i%2]
			for range 6 {
				_, err := m.CreateWorker(t.Context(), dedicated("a"))
				tolerate(t, err)
				_, err = m.StartWorker(t.Context(), &v1.StartWorkerRequest{Worker: "a"})
				tolerate(t, err, codes.NotFound)
				_, err = m.SeekWorker(t.Context(), &v1.SeekWorkerRequest{Worker: "a", To: &v1.Start{At: &v1.Start_Tail{Tail: true}}})
				tolerate(t, err, codes.NotFound)
				_, err = m.DeleteWorker(t.Context(), &v1.DeleteWorkerRequest{Worker: "a"})
				tolerate(t, err, codes.NotFound)
			}
		})
	}
	wg.Wait()
	eventually(t, "nothing is left", func() bool {
		rec := w.record("a")
		return rec.GetDeleted() && rec.GetUpdatedAt() == nil && len(w.keys(catalog.PlacePrefix)) == 0
	})
}

// tolerate fails the test for errors of other kinds than those that callers meet for being slower than
// others.
func tolerate(t *testing.T, err error, others ...codes.Code) {
	t.Helper()
	if code := status.Code(err); err != nil && code != codes.Aborted && code != codes.Unavailable && !slices.Contains(others, code) {
		t.Error(err)
	}
}

func TestListing(t *testing.T) {
	w := newWorld(t)
	m := w.manager()
	w.runtime("pod-1", "echo")
	for i := range 1200 {
		req := dedicated(fmt.Sprintf("w%04d", i))
		req.Tags = map[string]string{"third": fmt.Sprint(i % 3), "n": fmt.Sprint(i)}
		if i%10 == 0 {
			req.Topics = []string{"in", "tenth"}
		}
		if i%100 == 0 {
			req.Group, req.GroupSize, req.GroupIndex = "g", 12, uint32(i/100)
		}
		if i == 700 {
			req.Type = "rare"
		}
		m.create(t, req)
	}
	for _, id := range []string{"w0007", "w0900", "w1150"} {
		m.start(t, id)
	}
	m.delete(t, "w0600")
	all := func(req *v1.ListWorkersRequest) (ids []string, pages int) {
		for {
			resp, err := m.ListWorkers(t.Context(), req)
			if err != nil {
				t.Fatal(err)
			}
			pages++
			for _, x := range resp.GetWorkers() {
				ids = append(ids, x.GetId())
			}
			if req.PageToken = resp.GetNextPageToken(); req.PageToken == "" {
				return ids, pages
			}
		}
	}
	for name, c := range map[string]struct {
		req   *v1.ListWorkersRequest
		want  int
		pages int
	}{
		"all":             {&v1.ListWorkersRequest{}, 1199, 12},
		"in large pages":  {&v1.ListWorkersRequest{PageSize: 1000}, 1199, 2},
		"running":         {&v1.ListWorkersRequest{State: running}, 3, 1},
		"running, by one": {&v1.ListWorkersRequest{State: running, PageSize: 1}, 3, 3},
		"by type":         {&v1.ListWorkersRequest{Type: "rare"}, 1, 1},
		"by group":        {&v1.ListWorkersRequest{Group: "g"}, 11, 1},
		"by topic":        {&v1.ListWorkersRequest{Topic: "tenth"}, 119, 2},
		"by tag":          {&v1.ListWorkersRequest{Tags: map[string]string{"third": "1"}}, 400, 4},
		"by two tags":     {&v1.ListWorkersRequest{Tags: map[string]string{"third": "1", "n": "4"}}, 1, 1},
		"by no such tag":  {&v1.ListWorkersRequest{Tags: map[string]string{"third": "7"}}, 0, 1},
		"by everything":   {&v1.ListWorkersRequest{State: running, Type: "echo", Topic: "tenth", Group: "g"}, 1, 1},
		"exactly a page":  {&v1.ListWorkersRequest{Tags: map[string]string{"third": "1"}, PageSize: 400}, 400, 1},
	} {
		ids, pages := all(c.req)
		if len(ids) != c.want || pages != c.pages || !slices.IsSorted(ids) || len(slices.Compact(ids)) != c.want {
			t.Errorf("%s: %d workers in %d pages, want %d in %d", name, len(ids), pages, c.want, c.pages)
		}
	}

	// Workers that come and go between two pages move no others.
	resp, err := m.ListWorkers(t.Context(), &v1.ListWorkersRequest{PageSize: 10})
	if err != nil {
		t.Fatal(err)
	}
	m.delete(t, "w0009") // the last one of the page
	m.create(t, dedicated("w0000a"))
	next, err := m.ListWorkers(t.Context(), &v1.ListWorkersRequest{PageSize: 1, PageToken: resp.GetNextPageToken()})
	if err != nil || next.GetWorkers()[0].GetId() != "w0010" {
		t.Errorf("next page: %v, %v", next, err)
	}
}

// An id or a name means one worker, so nobody is named like another's id.
func TestNamesAndIDsAreApart(t *testing.T) {
	w := newWorld(t)
	m := w.manager()
	create := func(id, name string) error {
		req := dedicated(id)
		req.Name = name
		_, err := m.CreateWorker(t.Context(), req)
		return err
	}
	for _, c := range []struct{ id, name, other string }{
		{id: "a", name: "alice"},
		{id: "b", name: "a", other: "a"},
		{id: "alice", other: "a"},
		{id: "c", name: "c"},
		{id: "c2", name: "c", other: "c"},
		{id: "d", name: "not an id"},
	} {
		err := create(c.id, c.name)
		if c.other == "" {
			if err != nil {
				t.Errorf("%s named %q: %v", c.id, c.name, err)
			}
			continue
		}
		wantError(t, err, codes.AlreadyExists, rpcerr.NameTaken, "worker "+c.other)
		if got := rpcerr.Info(err).GetMetadata()["worker"]; got != c.other {
			t.Errorf("%s named %q: the other is %q", c.id, c.name, got)
		}
	}
	m.delete(t, "a")
	for _, c := range [][2]string{{"b", "a"}, {"alice", ""}} {
		if err := create(c[0], c[1]); err != nil {
			t.Errorf("once the other is deleted: %s named %q: %v", c[0], c[1], err)
		}
	}
	wantError(t, create("a", ""), codes.AlreadyExists, rpcerr.NameTaken, "worker b")
}
