package deadletter

import (
	"errors"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/turnlane/turnlane/event"
)

func original() *event.Event {
	e := &event.Event{ID: "1", Source: "/s", Type: "t", Subject: "JFK", Time: "2018-04-05T17:31:00.5+02:00",
		DataContentType: "application/json", DataSchema: "https://e.example/s", Data: []byte(`{ "a": 1.0}`), DataKind: event.JSONData}
	e.SetExtension("traceparent", event.String("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"))
	e.SetExtension("n", event.Integer(-7))
	e.SetExtension("z", event.Binary([]byte{0, 1, 0xff}))
	e.SetExtension("when", event.Timestamp("2018-04-05t17:31:00z"))
	return e
}

func allFacts() Facts {
	first := time.Date(2026, 1, 2, 3, 4, 5, 678901234, time.UTC)
	return Facts{Reason: Failed, Error: "no such seat", Attempts: 3, Crashes: 2, WorkerID: "w1", WorkerName: "settler eins",
		WorkerType: "settler", Version: "v1.2.3", Run: 1 << 60, Topic: "orders", Position: event.Position{Ms: 17, Seq: 4},
		Key: "JFK", Group: "g", Slot: 0, FirstFailed: first, LastFailed: first.Add(time.Minute), Permanent: true, Redrives: 2}
}

// stored takes an event through the store's form.
func stored(t *testing.T, e *event.Event) *event.Event {
	t.Helper()
	if err := e.Validate(); err != nil {
		t.Fatalf("not a valid event: %v", err)
	}
	back, err := event.DecodeRecord(event.AppendRecord(nil, e, 1, time.Unix(1, 0)))
	if err != nil {
		t.Fatal(err)
	}
	return back
}

func TestADeadLetterGivesBackItsEventAndFacts(t *testing.T) {
	newer, err := event.DecodeRecord(append(event.AppendRecord(nil, original(), 1, time.Unix(1, 0)), 0xfa, 0x3f, 1, 'x'))
	if err != nil {
		t.Fatal(err)
	}
	for name, e := range map[string]*event.Event{
		"everything":               original(),
		"the least":                {ID: "1", Source: "/s", Type: "t"},
		"empty data":               {ID: "1", Source: "/s", Type: "t", Data: []byte{}, DataKind: event.TextData},
		"fields of a newer record": newer,
	} {
		for _, f := range []Facts{allFacts(), {Reason: Permanent, Topic: "t", Position: event.Position{Ms: 1}}} {
			dead := stored(t, Wrap(e, f))
			back, facts, err := Unwrap(dead)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if !back.Equal(e) {
				t.Errorf("%s: came back as %+v, was %+v", name, back, e)
			}
			if facts != f {
				t.Errorf("%s: facts %+v, were %+v", name, facts, f)
			}
			if added := len(event.AppendRecord(nil, Wrap(e, f), 0, time.Time{})) - len(event.AppendRecord(nil, e, 0, time.Time{})); added > MaxFacts {
				t.Errorf("%s: the facts take %d bytes", name, added)
			}
		}
	}
}

func TestHostileTextsMakeValidDeadLetters(t *testing.T) {
	for _, s := range []string{"\x00\x1b[2J\n", "\xff\xfe", "\ufdd0\uffff\U0010ffff", strings.Repeat("é", 4000), strings.Repeat("\n", 4000),
		strings.Repeat("x", MaxError), strings.Repeat("x", MaxError+1), strings.Repeat("x", MaxError-1) + "é", "\u2028"} {
		f := allFacts()
		f.Error, f.Key, f.WorkerName, f.Version, f.Group, f.Topic = s, s, s, s, s, s
		_, got, err := Unwrap(stored(t, Wrap(original(), f)))
		if err != nil {
			t.Fatalf("%.20q: %v", s, err)
		}
		if len(got.Error) > MaxError || !utf8.ValidString(got.Error) || strings.ContainsAny(got.Error, "\n\x00\x1b\u2028") {
			t.Errorf("%.20q: error %.40q of %d bytes", s, got.Error, len(got.Error))
		}
		if s == strings.Repeat("x", MaxError) && got.Error != s || len(s) > MaxError && !strings.HasSuffix(got.Error, "…") {
			t.Errorf("%.20q: cut to …%q", s, got.Error[len(got.Error)-4:])
		}
	}
}

func TestWhatIsNoDeadLetterIsToldApart(t *testing.T) {
	broken := func(name string, v event.Value) *event.Event {
		e := Wrap(original(), allFacts())
		e.SetExtension(name, v)
		return e
	}
	for name, e := range map[string]*event.Event{
		"a plain event":    original(),
		"without a reason": broken("dlqreason", event.Value{}),
		"without a topic":  broken("dlqtopic", event.Value{}),
		"no position":      broken("dlqposition", event.String("7")),
		"no number":        broken("dlqrun", event.String("-1")),
		"a large count":    broken("dlqattempts", event.String("4294967296")),
		"no time":          broken("dlqlast", event.String("yesterday\n")),
	} {
		if _, _, err := Unwrap(e); !errors.Is(err, ErrNotOne) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, _, err := Redriven(Wrap(original(), Facts{Reason: Failed, Topic: "t", Position: event.Position{Ms: 1}})); !errors.Is(err, ErrNotOne) {
		t.Errorf("a dead letter as a redriven event: %v", err)
	}
}

func TestARedrivenEventIsTheOriginalAndCountsItsReturns(t *testing.T) {
	e, f := original(), allFacts()
	f.Redrives = 0
	for n := uint32(1); n <= 3; n++ {
		dead, facts, err := Unwrap(stored(t, Wrap(e, f)))
		if err != nil {
			t.Fatal(err)
		}
		back := stored(t, Redrive(dead, facts))
		got, known, err := Redriven(back)
		if err != nil {
			t.Fatal(err)
		}
		if !got.Equal(e) {
			t.Errorf("return %d: the handler gets %+v", n, got)
		}
		want := Facts{Run: f.Run, Topic: f.Topic, Position: f.Position, FirstFailed: f.FirstFailed, Redrives: n}
		if known != want {
			t.Errorf("return %d: %+v, want %+v", n, known, want)
		}
		f.Redrives = known.Redrives
	}
}

func TestExtensionsOfOthersStay(t *testing.T) {
	e := original()
	e.SetExtension("dlqfoo", event.String("mine"))
	e.SetExtension("dlqreason", event.String("foreign"))
	back, f, err := Unwrap(Wrap(e, allFacts()))
	if err != nil || f.Reason != Failed {
		t.Fatal(f, err)
	}
	if v, _ := back.Extension("dlqfoo"); v != event.String("mine") {
		t.Errorf("dlqfoo is %v", v)
	}
	if len(e.Extensions) != 6 {
		t.Error("Wrap wrote to the original")
	}
}

func TestTopics(t *testing.T) {
	long := strings.Repeat("l", 255)
	for _, c := range []struct{ topic, typ, override, want string }{
		{"orders", "settler", "", "dlq.orders"},
		{"orders", "settler", "dlq.mine", "dlq.mine"},
		{"sys.workmanager.worker.lifecycle", "settler", "", "dlq.sys.workmanager.worker.lifecycle"},
		{"wrk.settler.command.w1", "settler", "", "dlq.wrk.settler"},
		{"wrk.settler.redrive.w1", "settler", "", "dlq.wrk.settler"},
		{"wrk.other.command.w1", "settler", "", "dlq.wrk.other"},
		{"wrk.settler.command.w1", "settler", "dlq.mine", "dlq.mine"},
		{"wrk.", "settler", "", "dlq.wrk.settler"},
		{"dlq.orders", "settler", "", ""},
		{"dlq.orders", "settler", "dlq.mine", ""},
		{"dlq.dlq.orders", "settler", "", ""},
		{"dlq", "settler", "", "dlq.dlq"},
		{strings.Repeat("l", 251), "settler", "", "dlq." + strings.Repeat("l", 251)},
	} {
		got := Topic(c.topic, c.typ, c.override)
		if got != c.want {
			t.Errorf("Topic(%q, %q, %q) = %q, want %q", c.topic, c.typ, c.override, got, c.want)
		}
		if strings.HasPrefix(got, "dlq.dlq.") {
			t.Errorf("%q exists", got)
		}
	}
	if a, b := Topic(long, "t", ""), Topic(long[1:]+"m", "t", ""); len(a) != 255 || len(b) != 255 || a == b {
		t.Errorf("long names: %q, %q", a, b)
	}
	if !IsRedriveTopic(RedriveTopic("a_b", "c-d")) || IsCommandTopic(RedriveTopic("a", "c")) ||
		!IsCommandTopic("wrk.a.command.b") || IsCommandTopic("wrk.a.command.") || IsCommandTopic("wrk.a.command.b.c") || IsRedriveTopic("orders") {
		t.Error("topics of workers are told apart wrongly")
	}
}

func TestFingerprintsOfOneKindAreEqual(t *testing.T) {
	for _, kind := range [][]string{
		{"seat 14 of flight AA123 is taken", "seat 2 of flight AA99 is taken", "seat  2.5 of flight AA9\tis taken"},
		{`no user "ada"`, `no user "bob \"the\" builder"`, "no user `x`", `no user ''`},
		{"order 550e8400-e29b-41d4-a716-446655440000 is unknown", "order 6BA7B810-9DAD-11D1-80B4-00C04FD430C8 is unknown"},
		{"hash deadbeefcafe differs", "hash 0123456789abcdef differs", "hash 0xff differs"},
		{"can't open 'a'", "can't open 'it's'"},
		{`cut off: "never`, `cut off: "ends he`},
	} {
		for _, s := range kind {
			if Fingerprint(Failed, s) != Fingerprint(Failed, kind[0]) {
				t.Errorf("%q (%q) and %q (%q) differ", s, normal(s), kind[0], normal(kind[0]))
			}
		}
	}
	different := []string{"", "a", "b", "a decade", "a facade", "no user", "no order 1", "no seat 1", "can't open", "can not open"}
	seen := map[string]string{}
	for _, s := range different {
		f := Fingerprint(Failed, s)
		if other, ok := seen[f]; ok {
			t.Errorf("%q and %q are equal", s, other)
		}
		if seen[f] = s; len(f) != 12 {
			t.Errorf("%q", f)
		}
	}
	if Fingerprint(Failed, "x") == Fingerprint(Panic, "x") {
		t.Error("the reason does not count")
	}
	if got := Fingerprint(Failed, "seat 14 is taken"); got != "ac82e42954af" {
		t.Errorf("a fingerprint that somebody noted has changed to %s", got)
	}
}

func TestUndecodableRecords(t *testing.T) {
	at := time.Unix(5, 0).UTC()
	e := stored(t, WrapUndecodable("orders", event.Position{Ms: 3}, []byte{1, 0xff}, errors.New("broken\n"), at))
	back, f, err := Unwrap(e)
	if err != nil || f.Reason != Undecodable || f.Topic != "orders" || f.WorkerID != "" || string(back.Data) != "\x01\xff" {
		t.Fatalf("%+v %+v %v", back, f, err)
	}
	if a, b := UndecodableMark("t", event.Position{Ms: 3}), UndecodableMark("t", event.Position{Ms: 2}); a.Topic == b.Topic {
		t.Error("the first mark would hide the second")
	}
}

func FuzzFingerprint(f *testing.F) {
	f.Add(`a 'b' "c" 0x1`)
	f.Fuzz(func(t *testing.T, s string) {
		if len(Fingerprint(Failed, s)) != 12 || len(clean(s)) > MaxError || !utf8.ValidString(clean(s)) {
			t.Error(s)
		}
	})
}
