package admission

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/grouping"
)

func TestTopic(t *testing.T) {
	for _, c := range []struct {
		name                   string
		user, system, readable bool
	}{
		{"orders", true, true, true},
		{"A-Z_a.z09", true, true, true},
		{".", true, true, true},
		{"..", true, true, true},
		{"-", true, true, true},
		{"system.log", true, true, true},
		{"sys", true, true, true},
		{"dlqs.x", true, true, true},
		{strings.Repeat("t", 200), true, true, true},
		{strings.Repeat("t", 201), false, true, true},
		{strings.Repeat("t", 255), false, true, true},
		{strings.Repeat("t", 256), false, false, false},
		{"sys.workmanager.worker.lifecycle", false, true, true},
		{"dlq.orders", false, true, true},
		{"wrk.echo.command.w1", false, true, true},
		{"", false, false, false},
		{"a b", false, false, false},
		{"a/b", false, false, false},
		{"{a}", false, false, false},
		{"a:b", false, false, false},
		{"a*", false, false, false},
		{"a\n", false, false, false},
		{"a\x00", false, false, false},
		{"å", false, false, false},
		{"\U0001F600", false, false, false},
		{"\xff", false, false, false},
		{strings.Repeat("é", 512), false, false, false},
	} {
		for _, is := range []struct {
			what string
			err  error
			want bool
		}{
			{"Topic as a user", Topic(c.name, User), c.user},
			{"Topic as the system", Topic(c.name, System), c.system},
			{"Readable", Readable(c.name), c.readable},
		} {
			if (is.err == nil) != is.want {
				t.Errorf("%s: %q: %v, want allowed %v", is.what, c.name, is.err, is.want)
			}
			checkError(t, is.err, "topic")
		}
	}
}

func TestEvent(t *testing.T) {
	good := func() *event.Event { return &event.Event{ID: "1", Source: "/s", Type: "t"} }
	for _, c := range []struct {
		name  string
		edit  func(*event.Event)
		field string // "" means admitted
	}{
		{"plain", func(e *event.Event) {}, ""},
		{"no id", func(e *event.Event) { e.ID = "" }, "id"},
		{"a source that is no URI", func(e *event.Event) { e.Source = "a b" }, "source"},
		{"a control character", func(e *event.Event) { e.Subject = "a\tb" }, "subject"},
		{"an extension", func(e *event.Event) { e.SetExtension("traceparent", event.String("00-ab")) }, ""},
		{"an extension of ours", func(e *event.Event) { e.SetExtension("dlqreason", event.String("x")) }, "dlqreason"},
		{"the bare prefix", func(e *event.Event) { e.SetExtension("dlq", event.Integer(1)) }, "dlq"},
		{"a similar one", func(e *event.Event) { e.SetExtension("dl", event.Integer(1)) }, ""},
		{"text that is not", func(e *event.Event) { e.Data, e.DataKind = []byte("\xff"), event.TextData }, "data"},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := good()
			c.edit(e)
			err := Event(e, 0)
			if (err == nil) != (c.field == "") {
				t.Fatalf("got %v", err)
			}
			checkError(t, err, c.field)
		})
	}
	checkError(t, Event(nil, 0), "event")
}

// The limit is that of the record, to the byte, whatever the size is made of.
func TestEventSize(t *testing.T) {
	grow := map[string]func(*event.Event, int){
		"data":    func(e *event.Event, n int) { e.Data, e.DataKind = make([]byte, n), event.BinaryData },
		"subject": func(e *event.Event, n int) { e.Subject = strings.Repeat("s", n) },
		"text extension": func(e *event.Event, n int) {
			e.SetExtension("x", event.String(strings.Repeat("s", n)))
		},
		"binary extension": func(e *event.Event, n int) { e.SetExtension("x", event.Binary(make([]byte, n))) },
	}
	for name, set := range grow {
		t.Run(name, func(t *testing.T) {
			e := &event.Event{ID: "1", Source: "/s", Type: "t"}
			set(e, 5000)
			size := len(Encode(e, time.Now()))
			if err := Event(e, size); err != nil {
				t.Errorf("of exactly the limit: %v", err)
			}
			err := Event(e, size-1)
			if err == nil {
				t.Errorf("a record of %d bytes passed a limit of %d", size, size-1)
			}
			checkError(t, err, "event")
		})
	}
	e := &event.Event{ID: "1", Source: "/s", Type: "t", Data: make([]byte, DefaultMaxEvent), DataKind: event.BinaryData}
	if Event(e, 0) == nil {
		t.Error("the default limit does not hold")
	}
}

func TestEncode(t *testing.T) {
	now := time.Unix(1_700_000_000, 5).UTC()
	e := &event.Event{ID: "1", Source: "/s", Type: "t", Subject: "JFK", Data: []byte(`{"a": 1}`), DataKind: event.JSONData}
	r := Encode(e, now)
	if err := r.Check(); err != nil {
		t.Fatal(err)
	}
	if r.Hash() != grouping.Hash("JFK") || !r.StoredAt().Equal(now) {
		t.Errorf("hash %d at %s", r.Hash(), r.StoredAt())
	}
	back, err := event.DecodeRecord(r)
	if err != nil || !back.Equal(e) {
		t.Errorf("came back as %+v, %v", back, err)
	}
}

func checkError(t *testing.T, err error, field string) {
	t.Helper()
	if err == nil {
		return
	}
	var e *event.Error
	if !errors.As(err, &e) {
		t.Errorf("%v is no *event.Error", err)
		return
	}
	if e.Field != field || e.Rule == "" {
		t.Errorf("field %q, rule %q; want field %q and a rule", e.Field, e.Rule, field)
	}
	if len(e.Error()) > 500 || strings.ContainsAny(e.Error(), "\n\x00") {
		t.Errorf("unfit for a log: %q", e.Error())
	}
}

func BenchmarkEncode(b *testing.B) {
	e := &event.Event{ID: "0190-1", Source: "/sensors/12", Type: "reading", Subject: "JFK",
		DataContentType: "application/json", Data: []byte(`{"v":` + strings.Repeat("1", 200) + `}`), DataKind: event.JSONData}
	now := time.Now()
	b.ReportAllocs()
	for b.Loop() {
		if err := Decoded(e, 0); err != nil {
			b.Fatal(err)
		}
		Encode(e, now)
	}
}
