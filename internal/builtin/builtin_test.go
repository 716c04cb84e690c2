package builtin

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/turnlane/turnlane/actor"
	"github.com/turnlane/turnlane/actor/actortest"
	"github.com/turnlane/turnlane/event"
)

func member(kind, out string) actor.Worker {
	w := actor.Worker{ID: "w-7", Name: "pairs-1", Type: kind, Topics: []string{"trades"},
		Group: "pairs", GroupSize: 3, GroupIndex: 0, Token: 9}
	if out != "" {
		w.Config = map[string]string{"out": out}
	}
	return w
}

func TestEchoChangesTheIdAlone(t *testing.T) {
	in := actortest.JSON("ACME", `{ "price" : 12.50 }`)
	in.Time, in.DataSchema = "2026-01-02T03:04:05.600+01:00", "https://example.com/trade"
	in.SetExtension("region", event.String("eu"))
	in.SetExtension("level", event.Integer(7))
	a := actortest.Activate(t, Types(nil)[Echo], member(Echo, "copies"))
	r := a.Handle("trades", in)
	if r.Outcome != actor.OutcomeDone || len(r.Outputs) != 1 || r.Outputs[0].Topic != "copies" {
		t.Fatalf("%+v", r)
	}
	got := r.Outputs[0].Event
	if want := "w-7.1.trades." + r.Position.String() + ".0"; got.ID != want {
		t.Errorf("id %q, want %q", got.ID, want)
	}
	want := in.Clone()
	want.ID = got.ID
	if !got.Equal(want) {
		t.Errorf("echo made %+v of %+v", got, in)
	}
}

func TestMarkerSaysWhoGotTheEvent(t *testing.T) {
	in := actortest.JSON("ACME", `1`)
	r := actortest.Activate(t, Types(nil)[Marker], member(Marker, "marks")).Handle("trades", in)
	if r.Outcome != actor.OutcomeDone || len(r.Outputs) != 1 || r.Outputs[0].Topic != "marks" {
		t.Fatalf("%+v", r)
	}
	e := r.Outputs[0].Event
	if e.Type != "marker" || e.Subject != "ACME" || e.DataContentType != "application/json" {
		t.Errorf("the marker is %+v", e)
	}
	want := `{"worker_id":"w-7","worker_name":"pairs-1","group":"pairs","group_index":0,"topic":"trades","position":"` +
		r.Position.String() + `","event_id":"` + in.ID + `"}`
	if string(e.Data) != want {
		t.Errorf("its data is %s, want %s", e.Data, want)
	}
}

func TestFactoriesRefuseAConfigThatCannotWork(t *testing.T) {
	for _, c := range []struct{ kind, out, want string }{
		{Echo, "", `config "out" is missing`},
		{Marker, "", `config "out" is missing`},
		{Echo, "sys.x", `config "out": invalid event: topic`},
		{Marker, "a b", `config "out": invalid event: topic`},
		{Probe, "dlq.x", `config "out": invalid event: topic`},
	} {
		w := member(c.kind, c.out)
		h, err := Types(nil)[c.kind](&w)
		if h != nil || err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s with out %q: %v, want %s", c.kind, c.out, err, c.want)
		}
	}
}

func TestDedicatedWorkersHaveNoGroup(t *testing.T) {
	w := actor.Worker{ID: "w-1", Config: map[string]string{"out": "marks"}}
	r := actortest.Activate(t, Types(nil)[Marker], w).Handle("trades", actortest.JSON("", "1"))
	var m map[string]any
	if err := json.Unmarshal(r.Outputs[0].Event.Data, &m); err != nil {
		t.Fatal(err)
	}
	if m["group"] != "" || m["group_index"] != 0.0 {
		t.Errorf("group %v, index %v", m["group"], m["group_index"])
	}
}
