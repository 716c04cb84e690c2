package runtime

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/turnlane/turnlane/actor"
	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/internal/catalog"
	"github.com/turnlane/turnlane/internal/command"
	"github.com/turnlane/turnlane/internal/deadletter"
	"github.com/turnlane/turnlane/internal/lifecycle"
	storev1 "github.com/turnlane/turnlane/proto/turnlane/store/v1"
	turnlanev1 "github.com/turnlane/turnlane/proto/turnlane/v1"
)

// teller is a handler with commands.
type teller struct {
	handle   func(ctx context.Context, turn *actor.Turn) error
	commands actor.Commands
	stopped  func()
}

func (h *teller) Handle(ctx context.Context, turn *actor.Turn) error { return h.handle(ctx, turn) }
func (h *teller) Commands() actor.Commands                           { return h.commands }
func (h *teller) Stop(context.Context) error {
	if h.stopped != nil {
		h.stopped()
	}
	return nil
}

func (g *rig) tell(typ, id string, c command.Command) event.Position {
	g.t.Helper()
	return g.publishEvent(command.Topic(typ, id), command.Request(c, time.Now()))
}

// answers waits for n replies on a topic.
func (g *rig) answers(topic string, n int) map[string]command.Answer {
	g.t.Helper()
	var found []*event.Event
	g.eventually(fmt.Sprintf("%d replies on %s", n, topic), func() bool {
		found = g.read(topic)
		return len(found) >= n
	})
	all := map[string]command.Answer{}
	for _, e := range found {
		a, ok := command.ParseReply(e)
		if _, twice := all[a.ID]; !ok || twice {
			g.t.Errorf("%s is no reply, or the second one", e.ID)
		}
		all[a.ID] = a
	}
	return all
}

func TestEachCommandHasOneAnswer(t *testing.T) {
	g := newRig(t)
	g.types["bank"] = func(*actor.Worker) (actor.Handler, error) {
		return &teller{commands: actor.Commands{
			"add": actor.Command(func(_ context.Context, turn *actor.Turn, req struct{ N int }) (int, error) {
				sum, err := addTo(turn, "sum", req.N)
				if err != nil {
					return 0, err
				}
				if err := turn.Publish("out", &event.Event{Type: "t"}); err != nil {
					return 0, err
				}
				if req.N < 0 {
					return 0, &actor.CommandError{Reason: "NEGATIVE", Err: errors.New("negative")}
				}
				return sum, nil
			}),
			"fail": func(context.Context, *actor.Turn) (actor.Reply, error) {
				return actor.Reply{}, actor.Permanent(errBoom)
			},
			"drop":  func(context.Context, *actor.Turn) (actor.Reply, error) { return actor.Reply{}, actor.Drop("no time") },
			"panic": func(context.Context, *actor.Turn) (actor.Reply, error) { panic("oh") },
			"odd": func(context.Context, *actor.Turn) (actor.Reply, error) {
				return actor.Reply{}, &actor.CommandError{Reason: "not a reason", Err: errBoom}
			},
			"large": func(context.Context, *actor.Turn) (actor.Reply, error) {
				return actor.Reply{Data: make([]byte, 2<<20)}, nil
			},
			"later": func(_ context.Context, turn *actor.Turn) (actor.Reply, error) {
				if turn.Attempt() < 3 {
					return actor.Reply{}, actor.RetryAfter(0)
				}
				return actor.Reply{Data: []byte("at last"), ContentType: "text/plain"}, nil
			},
			"hang": func(ctx context.Context, turn *actor.Turn) (actor.Reply, error) {
				<-ctx.Done() // as one that waits for a reply of its own worker
				return actor.Reply{}, ctx.Err()
			},
		}}, nil
	}
	p := g.run("pod-1")
	p.place(worker{id: "w", typ: "bank", topics: []string{"in"}, attempts: 3, timeout: 300 * time.Millisecond})
	bad := command.Request(command.Command{ID: "bad", Name: "add"}, time.Now())
	bad.SetExtension(command.ExtReplyTo, event.String("sys.x"))
	traced := command.Request(command.Command{ID: "traced", Name: "add", Data: []byte(`{"N":1}`), Correlation: "corr"}, time.Now())
	traced.SetExtension("traceparent", event.String("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"))
	for _, c := range []command.Command{
		{ID: "1", Name: "add", Data: []byte(`{"N":40}`)}, {ID: "2", Name: "add", Data: []byte(`{"N":2}`)},
		{ID: "neg", Name: "add", Data: []byte(`{"N":-5}`)}, {ID: "strict", Name: "add", Data: []byte(`{"M":1}`)},
		{ID: "fail", Name: "fail"}, {ID: "drop", Name: "drop"}, {ID: "panic", Name: "panic"}, {ID: "odd", Name: "odd"},
		{ID: "large", Name: "large"}, {ID: "later", Name: "later"}, {ID: "hang", Name: "hang"},
		{ID: "none", Name: "subtract"}, {ID: "else", Name: "add", Data: []byte(`{"N":0}`), ReplyTo: "elsewhere"},
	} {
		g.tell("bank", "w", c)
	}
	g.publishEvent(command.Topic("bank", "w"), bad)
	g.publishEvent(command.Topic("bank", "w"), traced)

	got := g.answers(command.ReplyTopic("bank", "w"), 14)
	for id, want := range map[string]struct{ data, reason, says string }{
		"1": {"40", "", ""}, "2": {"42", "", ""}, "traced": {"43", "", ""}, "later": {"at last", "", ""},
		"neg": {"", "NEGATIVE", "negative"}, "strict": {"", "INVALID_COMMAND", `unknown field "M"`},
		"fail": {"", "FAILED", "boom"}, "drop": {"", "FAILED", "dropped: no time"}, "panic": {"", "FAILED", "panic: oh"},
		"odd": {"", "FAILED", "boom"}, "large": {"", "FAILED", "the reply cannot be stored"}, "hang": {"", "FAILED", "deadline"},
		"none": {"", "UNKNOWN_COMMAND", "workers of type bank have no command \"subtract\"; they have add, drop, fail,"},
		"bad":  {"", "INVALID_COMMAND", "sys.x"},
	} {
		a, ok := got[id+".reply"]
		if !ok || a.Reason != want.reason || want.reason == "" && string(a.Data) != want.data || !strings.Contains(a.Error, want.says) {
			t.Errorf("%s is answered with %s %q %q, %t", id, a.Data, a.Reason, a.Error, ok)
		}
	}
	if got["traced.reply"].Correlation != "corr" {
		t.Errorf("the correlation is %q", got["traced.reply"].Correlation)
	}
	for _, e := range g.read(command.ReplyTopic("bank", "w")) {
		if v, _ := e.Extension("traceparent"); (e.ID == "traced.reply") != (v.String() != "") {
			t.Errorf("%s has the trace %q", e.ID, v.String())
		}
	}
	if a := g.answers("elsewhere", 1)["else.reply"]; string(a.Data) != "42" {
		t.Errorf("the reply elsewhere is %s", a.Data)
	}
	p.end()
	if n := len(g.read("out")); n != 4 {
		t.Errorf("%d outputs, want those of the four that succeeded", n)
	}
	dead := map[string]bool{}
	for _, e := range g.read(command.DeadLetterTopic("bank")) {
		dead[e.ID] = true
	}
	if len(dead) != 2 || !dead["panic"] || !dead["hang"] {
		t.Errorf("dead letters are %v, want those of the commands that were out of attempts", dead)
	}
	if sum := string(g.load("w").State["sum"]); sum != "43" {
		t.Errorf("the sum is %s", sum)
	}
}

func TestAWorkerWithoutCommandsSaysSo(t *testing.T) {
	g := newRig(t)
	g.handle("dumb", func(context.Context, *actor.Turn) error { return nil })
	p := g.run("pod-1")
	p.place(worker{id: "w", typ: "dumb", topics: []string{"in"}})
	g.running("w", 0)
	g.tell("dumb", "w", command.Command{ID: "1", Name: "ping"})
	a := g.answers(command.ReplyTopic("dumb", "w"), 1)["1.reply"]
	if a.Reason != command.ReasonUnknown || a.Error != "workers of type dumb take no commands" {
		t.Errorf("answered with %q %q", a.Reason, a.Error)
	}
	p.end()
}

// Commands go before events, bypass the worker's slot, and their cursor holds in every replay mode: over a
// crash, a start anew and a seek no command is lost, and each has one answer.
func TestCommandsSurviveRestartsAndSeeks(t *testing.T) {
	for _, mode := range []turnlanev1.ReplayMode{turnlanev1.ReplayMode_REPLAY_MODE_CURSOR, turnlanev1.ReplayMode_REPLAY_MODE_OFF} {
		t.Run(mode.String(), func(t *testing.T) {
			g := newRig(t)
			var did seen
			hold := make(chan struct{})
			g.types["c"] = func(*actor.Worker) (actor.Handler, error) {
				return &teller{
					handle: func(_ context.Context, turn *actor.Turn) error { <-hold; did.add(turn.Event().ID); return nil },
					commands: actor.Commands{"do": func(_ context.Context, turn *actor.Turn) (actor.Reply, error) {
						did.add(turn.Event().ID)
						return actor.Reply{}, nil
					}}}, nil
			}
			w := worker{id: "w", typ: "c", topics: []string{"in"}, group: "g", size: 1, replay: mode}
			sent := 0
			send := func(n int) {
				for range n {
					g.tell("c", "w", command.Command{ID: fmt.Sprintf("c%d", sent), Name: "do"})
					sent++
				}
			}
			send(2) // before it ever ran
			p := g.run("pod-1")
			p.place(w)
			g.answers(command.ReplyTopic("c", "w"), 2)
			g.publish("in", 3)
			g.eventually("a turn", func() bool { return p.r.Stats().Turns == 1 })
			send(2)
			g.eventually("commands in the lane", func() bool {
				a := p.r.activationOf("w")
				a.mu.Lock()
				defer a.mu.Unlock()
				return a.box.Len(1) == 2
			})
			close(hold)
			g.answers(command.ReplyTopic("c", "w"), 4)
			g.eventually("all", func() bool { return did.len() == 7 })
			if mode == turnlanev1.ReplayMode_REPLAY_MODE_CURSOR && did.text() != "c0 c1 e0 c2 c3 e1 e2" {
				t.Errorf("the order was %s", did.text())
			}
			token := g.owner("w").Token
			p.die() // perhaps before the cursors were stored
			p.stop()
			<-p.ended
			send(3)
			p = g.run("pod-2")
			p.place(w)
			g.running("w", token)
			g.answers(command.ReplyTopic("c", "w"), 7)
			p.unplace("w")
			g.eventually("stopped", func() bool { return p.r.Workers() == 0 })
			send(3)
			w.run, w.gen = 2, 2
			p.place(w)
			g.answers(command.ReplyTopic("c", "w"), 10)
			p.end()
			if n := len(g.read(command.ReplyTopic("c", "w"))); n != sent {
				t.Errorf("%d replies to %d commands", n, sent)
			}
			for _, c := range g.load("w").Cursors {
				log, _ := g.store.Bounds(t.Context(), c.Topic)
				if c.Topic == command.Topic("c", "w") && c.Position != log.Last {
					t.Errorf("the cursor of the commands is at %s of %s", c.Position, log.Last)
				}
			}
		})
	}
}

// An event that was given up and is brought back comes to the handler as it was.
func TestARedrivenEventIsTheOriginal(t *testing.T) {
	g := newRig(t)
	var did seen
	g.handle("r", func(_ context.Context, turn *actor.Turn) error {
		e := turn.Event()
		did.add(fmt.Sprintf("%s %s %s %t %d %s", e.ID, turn.Topic(), turn.Position(), turn.Replayed(), len(e.Extensions), turn.EffectKey(0)))
		return turn.Publish("out", &event.Event{Type: "t"})
	})
	p := g.run("pod-1")
	p.place(worker{id: "w", typ: "r", topics: []string{"in"}, group: "g", size: 4, index: 1, run: 3})
	g.running("w", 0)
	from := event.Position{Ms: 7, Seq: 1}
	original := &event.Event{ID: "lost", Source: "/s", Type: "t", Subject: "any"}
	g.publishEvent(command.RedriveTopic("r", "w"), deadletter.Redrive(original, deadletter.Facts{Topic: "in", Position: from, Run: 2}))
	g.publishEvent(command.RedriveTopic("r", "w"), original) // by somebody else
	g.eventually("the output", func() bool { return len(g.read("out")) == 1 })
	if want := "lost in 7-1 true 0 w.2.in.7-1.effect.0"; did.text() != want {
		t.Errorf("the handler saw %s, want %s", did.text(), want)
	}
	g.eventually("what is not ours is given up", func() bool { return len(g.reported(lifecycle.TypeExhausted)) == 1 })
	p.end()
	if id := g.read("out")[0].ID; !strings.HasPrefix(id, "w.1.wrk.r.redrive.w.") {
		t.Errorf("the output is %s", id)
	}
}

// Given a worker that runs, when its record is updated, then the turn that runs ends as it began, and the next
// one has what is new: tags as they are, the config by another handler.
func TestAnUpdateIsTakenOverBetweenTwoTurns(t *testing.T) {
	g := newRig(t)
	var did seen
	step := make(chan struct{})
	var made atomic.Int32
	g.types["u"] = func(w *actor.Worker) (actor.Handler, error) {
		if w.Config["v"] == "bad" {
			return nil, errors.New("v is bad")
		}
		n := made.Add(1)
		return &teller{
			stopped: func() { did.add(fmt.Sprintf("stop%d", n)) },
			handle: func(_ context.Context, turn *actor.Turn) error {
				<-step
				did.add(fmt.Sprintf("%s:%d:%s:%s", turn.Event().ID, n, w.Config["v"], turn.Worker().Tags["t"]))
				return nil
			}}, nil
	}
	p := g.run("pod-1")
	w := worker{id: "w", typ: "u", topics: []string{"in"}, config: map[string]string{"v": "1"}}
	edit := func(edition uint64, config, tag string) {
		changes := g.changes(w, p.session)
		item, err := g.store.Get(t.Context(), catalog.WorkerKey("w"))
		if err != nil {
			t.Fatal(err)
		}
		rec, err := catalog.DecodeWorker(item)
		if err != nil {
			t.Fatal(err)
		}
		rec.Edition, rec.Config, rec.Tags = edition, map[string]string{"v": config}, map[string]string{"t": tag}
		changes[0] = g.putChange(catalog.WorkerKey("w"), rec)
		changes[1] = g.putChange(catalog.PlaceKey(p.session, "w"), &storev1.Placement{WorkerId: "w", Run: 1, Generation: 1, Edition: edition})
		g.txn(changes...)
	}
	p.place(w)
	g.publish("in", 5)
	g.eventually("a turn", func() bool { return p.r.Stats().Turns == 1 })
	token := g.running("w", 0).Token
	edit(1, "1", "blue")
	time.Sleep(20 * time.Millisecond)
	step <- struct{}{}
	step <- struct{}{}
	g.eventually("the next turn", func() bool { return did.len() == 2 && p.r.Stats().Turns == 1 })
	edit(2, "2", "green")
	time.Sleep(20 * time.Millisecond)
	step <- struct{}{}
	step <- struct{}{}
	g.eventually("the fourth turn", func() bool { return did.len() == 5 })
	if o := g.owner("w"); o.Token != token || o.State != stateRunning {
		t.Errorf("the activation is another one: %+v", o)
	}
	g.eventually("the last turn", func() bool { return p.r.Stats().Turns == 1 })
	edit(3, "bad", "red")
	time.Sleep(20 * time.Millisecond)
	step <- struct{}{}
	g.eventually("FAILED, and owned by nobody", func() bool { o := g.owner("w"); return o.State == stateFailed && o.Session == "" })
	if o := g.owner("w"); !strings.Contains(o.Reason, "v is bad") {
		t.Errorf("the owner is %+v", o)
	}
	// Tags came into force between two turns, perhaps one late: a turn that was given out has the former ones.
	if got := did.text(); got != "e0:1:1: e1:1:1:blue e2:1:1:blue stop1 e3:2:2:green e4:2:2:green stop2" {
		t.Errorf("it went %s", got)
	}
	p.end()
}
