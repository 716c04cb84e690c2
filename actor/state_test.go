package actor_test

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/turnlane/turnlane/actor"
	"github.com/turnlane/turnlane/event"
)

// The model is a map, and a copy of it for each turn.
func TestStateModel(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	values := actor.NewValues(map[string][]byte{"a0": []byte("x"), "b0": nil})
	model := map[string]string{"a0": "x", "b0": ""}
	for range 500 {
		in := given()
		in.State = values
		turn := actor.NewTurn(in)
		mine := maps.Clone(model)
		for range random.IntN(12) {
			key := fmt.Sprintf("%c%d", 'a'+rune(random.IntN(3)), random.IntN(4))
			switch random.IntN(4) {
			case 0:
				if err := turn.State().Delete(key); err != nil {
					t.Fatal(err)
				}
				delete(mine, key)
			case 1, 2:
				value := []byte(strings.Repeat("v", random.IntN(20)))
				want := string(value)
				if err := turn.State().Set(key, value); err != nil {
					t.Fatal(err)
				}
				for i := range value {
					value[i] = 'z' // the state has a copy
				}
				mine[key] = want
			default:
				got, ok := turn.State().Get(key)
				if want, there := mine[key]; ok != there || string(got) != want {
					t.Fatalf("%s is %q, %t; want %q, %t", key, got, ok, want, there)
				}
				for i := range got {
					got[i] = 'z'
				}
			}
			prefix := string('a' + rune(random.IntN(4)))
			var want []string
			for key := range mine {
				if strings.HasPrefix(key, prefix) {
					want = append(want, key)
				}
			}
			slices.Sort(want)
			if got := turn.State().Keys(prefix); !slices.Equal(got, want) {
				t.Fatalf("keys with %s are %v, want %v", prefix, got, want)
			}
		}
		if turn.Changes() != nil {
			t.Fatal("an open turn has changes to be made")
		}
		if _, err := turn.Close(); err != nil {
			t.Fatal(err)
		}
		if random.IntN(3) > 0 { // else the attempt has failed
			values.Apply(turn.Changes())
			model = mine
		}
		size := 0
		for key, value := range model {
			size += len(key) + len(value)
		}
		if values.Size() != size || len(values.All()) != len(model) {
			t.Fatalf("%d keys of %d bytes, want %d of %d", len(values.All()), values.Size(), len(model), size)
		}
	}
}

func TestLimitsOfTheState(t *testing.T) {
	in := given()
	in.State = &actor.Values{}
	turn := actor.NewTurn(in)
	s := turn.State()
	for _, c := range []struct {
		name, key string
		size      int
		field     string
		says      string
	}{
		{"an empty key", "", 1, "state key", "is empty"},
		{"a long key", strings.Repeat("k", 513), 1, "state key", "at most 512"},
		{"the longest key", strings.Repeat("k", 512), 1, "", ""},
		{"a key that is not UTF-8", "\xff", 1, "state key", "is not UTF-8"},
		{"a large value", "k", 65537, "state value", "at most 65536"},
		{"the largest value", "k", 65536, "", ""},
	} {
		err := s.Set(c.key, make([]byte, c.size))
		if c.field == "" {
			if err != nil {
				t.Errorf("%s: %v", c.name, err)
			}
			continue
		}
		e, ok := errors.AsType[*event.Error](err)
		if !ok || e.Field != c.field || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	var full error
	n := 0
	for ; full == nil && n < 100; n++ {
		full = s.Set(fmt.Sprintf("n%02d", n), make([]byte, 65536))
	}
	if n != 15 || !strings.Contains(full.Error(), "at most 1048576") || !strings.Contains(full.Error(), "worker w1") {
		t.Errorf("%d values of 64 KiB, %v", n, full)
	}
	if _, ok := s.Get("n14"); ok {
		t.Error("a value that was refused is there")
	}
	if err := errors.Join(s.Set("n13", nil), s.Set("n14", make([]byte, 60000)), s.Delete("n12"), s.Set("n99", nil)); err != nil {
		t.Errorf("with less there is room: %v", err)
	}
	if _, err := turn.Close(); err != nil {
		t.Errorf("refused values fail the turn: %v", err)
	}
	if err := s.Set("k", nil); !errors.Is(err, actor.ErrTurnClosed) {
		t.Errorf("Set on a closed turn: %v", err)
	}
	if err := s.Delete("k"); !errors.Is(err, actor.ErrTurnClosed) {
		t.Errorf("Delete on a closed turn: %v", err)
	}
	if v, ok := s.Get("k"); v != nil || ok || s.Keys("") != nil {
		t.Error("a closed turn shows state")
	}
}

// A worker without state must not pass events as if it had: a Get cannot say so, the turn does.
func TestWithoutStateTheTurnFailsForGood(t *testing.T) {
	why := errors.New("the worker replays nothing")
	for name, use := range map[string]func(actor.State){
		"get":    func(s actor.State) { s.Get("k") },
		"set":    func(s actor.State) { _ = s.Set("k", nil) },
		"delete": func(s actor.State) { _ = s.Delete("k") },
		"keys":   func(s actor.State) { s.Keys("") },
	} {
		in := given()
		in.State = actor.NoState(why)
		turn := actor.NewTurn(in)
		_ = turn.Publish("out", output("a"))
		use(turn.State())
		outputs, err := turn.Close()
		if outputs != nil || !errors.Is(err, why) || actor.OutcomeOf(err) != actor.OutcomePermanent || turn.Changes() != nil {
			t.Errorf("%s: %v, %v", name, outputs, err)
		}
	}
}

func TestEffectKeysAreOfTheEvent(t *testing.T) {
	in := given()
	first := actor.NewTurn(in).EffectKey(0)
	in.Attempt, in.Replayed, in.Worker.Token = 2, true, 9
	again := actor.NewTurn(in)
	if again.EffectKey(0) != first || again.EffectKey(1) == first || first != "w1.2.trades.1700000000000-4.effect.0" {
		t.Errorf("%s, then %s and %s", first, again.EffectKey(0), again.EffectKey(1))
	}
	// The same event, given up and brought back.
	in.Topic, in.Entry.Pos, in.Run = "wrk.settler.redrive.w1", event.Position{Ms: 5}, 1
	back := actor.NewTurn(in)
	back.Redriven(&event.Event{ID: "t-1"}, actor.Origin{Topic: "trades", Position: event.Position{Ms: 1700000000000, Seq: 4}, Run: 2})
	_ = back.Publish("out", output(""))
	outputs, _ := back.Close()
	if back.EffectKey(0) != first || back.Topic() != "trades" || back.Position().Seq != 4 || !back.Replayed() || back.Event().ID != "t-1" {
		t.Errorf("brought back: %s of %s at %s", back.EffectKey(0), back.Topic(), back.Position())
	}
	if id := outputs[0].Event.ID; id != "w1.1.wrk.settler.redrive.w1.5-0.0" {
		t.Errorf("its output is %s", id)
	}
}

type host struct {
	extended time.Duration
	text     string
}

func (h *host) Extend(d time.Duration) error { h.extended = d; return nil }
func (h *host) Progress(text string)         { h.text = text }

func TestExtendAndProgressAreTheHosts(t *testing.T) {
	h := &host{}
	in := given()
	in.Host = h
	turn := actor.NewTurn(in)
	if err := turn.Extend(time.Minute); err != nil || h.extended != time.Minute {
		t.Errorf("%v, %s", err, h.extended)
	}
	for _, d := range []time.Duration{0, -1} {
		if err := turn.Extend(d); !errors.Is(err, event.ErrInvalid) {
			t.Errorf("Extend(%d) gives %v", d, err)
		}
	}
	for text, want := range map[string]string{"3 of 4": "3 of 4", "a\nb\x00": "a b ", strings.Repeat("é", 200): strings.Repeat("é", 128), "x" + strings.Repeat("é", 200): "x" + strings.Repeat("é", 127)} {
		if turn.Progress(text); h.text != want {
			t.Errorf("%q became %q", text, h.text)
		}
	}
	_, _ = turn.Close()
	turn.Progress("late")
	if err := turn.Extend(1); !errors.Is(err, actor.ErrTurnClosed) || h.text == "late" {
		t.Errorf("a closed turn: %v, %q", err, h.text)
	}
	if err := actor.NewTurn(given()).Extend(1); !errors.Is(err, actor.ErrCannotExtend) {
		t.Errorf("without a host: %v", err)
	}
	for timeout, most := range map[time.Duration]time.Duration{time.Second: time.Hour, time.Hour: 10 * time.Hour, 3 * time.Hour: 24 * time.Hour, 48 * time.Hour: 48 * time.Hour} {
		if got := actor.MaxTurn(timeout); got != most {
			t.Errorf("with a timeout of %s a turn may take %s, want %s", timeout, got, most)
		}
	}
}
