package command

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/turnlane/turnlane/event"
)

var noon = time.Date(2026, 3, 4, 12, 0, 0, 5, time.UTC)

func TestTopicsOfAWorker(t *testing.T) {
	for _, typ := range []string{"settler", "command", "reply", "a-_9"} {
		for _, id := range []string{"w1", "command", strings.Repeat("x", 64)} {
			for i, topic := range Topics(typ, id) {
				gotType, kind, gotID, ok := ParseTopic(topic)
				if !ok || gotType != typ || gotID != id || kind != []Kind{Commands, Replies, Redrives}[i] || !Reserved(topic) {
					t.Errorf("%s: %s %d %s %t", topic, gotType, kind, gotID, ok)
				}
			}
		}
	}
	for _, topic := range []string{
		"", "wrk", "wrk.", "wrk.a", "wrk.a.command", "wrk.a.command.", "wrk..command.w", "wrk.a.commands.w",
		"wrk.a.command.w.x", "wrk.a.Command.w", "wrkx.a.command.w", "orders", "dlq.wrk.a", "wrk.a.b.command.w",
	} {
		if _, _, _, ok := ParseTopic(topic); ok {
			t.Errorf("%q was taken for a worker's own topic", topic)
		}
	}
}

// A command comes out as it went in, also through a record.
func TestACommandIsReadAsItWasSent(t *testing.T) {
	for _, c := range []struct {
		name string
		in   Command
		kind event.DataKind
	}{
		{"all of it", Command{ID: "c1", Name: "rebuild", Data: []byte(`{"a":1}`), ContentType: "application/json",
			Correlation: "k", ReplyTo: "answers", Deadline: noon}, event.JSONData},
		{"without data", Command{ID: "c1", Name: "ping"}, event.NoData},
		{"JSON by default", Command{ID: "c1", Name: "ping", Data: []byte(`7`)}, event.JSONData},
		{"bytes", Command{ID: "c1", Name: "ping", Data: []byte("\xff\x00")}, event.BinaryData},
		{"JSON that is none", Command{ID: "c1", Name: "ping", Data: []byte("{"), ContentType: "application/json"}, event.BinaryData},
		{"text", Command{ID: "c1", Name: "ping", Data: []byte("hello"), ContentType: "text/plain"}, event.TextData},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := Request(c.in, noon)
			if err := e.Validate(); err != nil {
				t.Fatal(err)
			}
			if e.DataKind != c.kind || e.Source != Source {
				t.Errorf("kind %d, source %s", e.DataKind, e.Source)
			}
			e, err := event.DecodeRecord(event.AppendRecord(nil, e, 0, noon))
			if err != nil {
				t.Fatal(err)
			}
			got, err := Parse(e, "settler", "w1")
			if err != nil {
				t.Fatal(err)
			}
			want := c.in
			if want.Correlation == "" {
				want.Correlation = want.ID
			}
			if want.ReplyTo == "" {
				want.ReplyTo = "wrk.settler.reply.w1"
			}
			if got.ID != want.ID || got.Name != want.Name || !bytes.Equal(got.Data, want.Data) || got.Correlation != want.Correlation ||
				got.ReplyTo != want.ReplyTo || !got.Deadline.Equal(want.Deadline) {
				t.Errorf("got %+v, want %+v", got, want)
			}

			r := Reply(got, "settler", "w1", []byte(`{"b":2}`), "", noon)
			if err := r.Validate(); err != nil {
				t.Fatal(err)
			}
			a, ok := ParseReply(r)
			if !ok || a.ID != "c1.reply" || a.Correlation != want.Correlation || string(a.Data) != `{"b":2}` ||
				a.ContentType != "application/json" || a.Reason != "" || r.Type != c.in.Name+".reply" {
				t.Errorf("reply %+v, %t", a, ok)
			}
			r = ErrorReply(got, "settler", "w1", ReasonFailed, "no \"such\" table\xff", noon)
			if err := r.Validate(); err != nil {
				t.Fatal(err)
			}
			a, ok = ParseReply(r)
			if !ok || a.ID != "c1.reply" || a.Reason != ReasonFailed || a.Error != "no \"such\" table�" {
				t.Errorf("error reply %+v, %t", a, ok)
			}
		})
	}
}

// Where a reply may not go, the sender is told on the worker's own topic.
func TestBadCommandsCanStillBeAnswered(t *testing.T) {
	for field, set := range map[string][]string{
		ExtReplyTo:  {"sys.x", "dlq.x", "wrk.settler.command.w1", "wrk.settler.reply.other", "a b", strings.Repeat("t", 201)},
		ExtDeadline: {"tomorrow"},
	} {
		for _, value := range set {
			e := &event.Event{ID: "1", Source: "/s", Type: "ping"}
			e.SetExtension(field, event.String(value))
			c, err := Parse(e, "settler", "w1")
			problem, ok := errors.AsType[*event.Error](err)
			if !ok || problem.Field != field || c.ReplyTo != "wrk.settler.reply.w1" || c.Correlation != "1" {
				t.Errorf("%s=%q: %+v, %v", field, value, c, err)
			}
		}
	}
}

func TestNamesOfCommands(t *testing.T) {
	for name, ok := range map[string]bool{
		"ping": true, "a.b-C_9": true, strings.Repeat("n", 128): true,
		"": false, strings.Repeat("n", 129): false, "a b": false, "a/b": false, "é": false, "a\n": false,
	} {
		if err := CheckName(name); (err == nil) != ok {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func TestOtherEventsAreNoReplies(t *testing.T) {
	plain := &event.Event{ID: "1", Source: "/s", Type: "ping.reply"}
	other := &event.Event{ID: "1", Source: "/s", Type: "ping"}
	other.SetExtension(ExtCorrelation, event.String("1"))
	for _, e := range []*event.Event{plain, other} {
		if a, ok := ParseReply(e); ok {
			t.Errorf("%+v became %+v", e, a)
		}
	}
}
