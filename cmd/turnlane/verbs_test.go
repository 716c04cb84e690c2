package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	cepb "github.com/cloudevents/sdk-go/binding/format/protobuf/v2/pb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/internal/builtin"
	"github.com/turnlane/turnlane/internal/lifecycle"
	turnlanev1 "github.com/turnlane/turnlane/proto/turnlane/v1"
)

// stored returns what a topic of the fake holds.
func (f *fake) stored(t *testing.T, topic string) []*event.Event {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	var events []*event.Event
	for _, s := range f.topics[topic] {
		e, err := event.FromProto(s.GetEvent())
		if err != nil {
			t.Fatal(err)
		}
		events = append(events, e)
	}
	return events
}

func decode[T any](t *testing.T, text string) []T {
	t.Helper()
	var all []T
	for line := range strings.Lines(text) {
		var v T
		if err := json.Unmarshal([]byte(line), &v); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		all = append(all, v)
	}
	return all
}

func TestPubFillsInWhatIsMissing(t *testing.T) {
	f, addr := start(t)
	for _, c := range []struct {
		name string
		args []string
		want string // the event as JSON, without its id
	}{
		{"JSON", []string{`{"a": 1}`}, `{"specversion":"1.0","source":"turnlane-cli","type":"turnlane.pub","datacontenttype":"application/json","data":{"a": 1}}`},
		{"a number is JSON", []string{"5"}, `{"specversion":"1.0","source":"turnlane-cli","type":"turnlane.pub","datacontenttype":"application/json","data":5}`},
		{"text", []string{"hello"}, `{"specversion":"1.0","source":"turnlane-cli","type":"turnlane.pub","datacontenttype":"text/plain","data":"hello"}`},
		{"empty text", []string{""}, `{"specversion":"1.0","source":"turnlane-cli","type":"turnlane.pub","datacontenttype":"text/plain","data":""}`},
		{"bytes", []string{"\xff\x00"}, `{"specversion":"1.0","source":"turnlane-cli","type":"turnlane.pub","datacontenttype":"application/octet-stream","data_base64":"/wA="}`},
		{"no data", nil, `{"specversion":"1.0","source":"turnlane-cli","type":"turnlane.pub"}`},
		{"all attributes", []string{"x", "--source", "/s", "--type", "t", "--subject", "s", "--time", "2026-01-31T12:00:00.50+01:00",
			"--ext", "b=2", "--ext", "a=", "--datacontenttype", "text/csv", "--dataschema", "https://example.com/s"},
			`{"specversion":"1.0","source":"/s","type":"t","subject":"s","time":"2026-01-31T12:00:00.50+01:00","datacontenttype":"text/csv","dataschema":"https://example.com/s","a":"","b":"2","data":"x"}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			topic := strings.ReplaceAll(c.name, " ", "-")
			got := decode[published](t, cli(t, addr, append([]string{"pub", topic, "-o", "json"}, c.args...)...).ok(t))[0]
			e := f.stored(t, topic)[0]
			if got.Topic != topic || got.ID != e.ID || got.Position != "1700000000000-0" || len(e.ID) != 36 || e.ID[14] != '7' {
				t.Errorf("told %+v of event %s", got, e.ID)
			}
			text, err := event.AppendJSON(nil, e)
			if err != nil {
				t.Fatal(err)
			}
			same(t, strings.Replace(string(text), `"id":"`+e.ID+`",`, "", 1), c.want)
		})
	}
}

// same compares JSON objects by their members.
func same(t *testing.T, got, want string) {
	t.Helper()
	var g, w map[string]json.RawMessage
	if err := errors.Join(json.Unmarshal([]byte(got), &g), json.Unmarshal([]byte(want), &w)); err != nil {
		t.Fatal(err)
	}
	for name := range w {
		if string(g[name]) != string(w[name]) {
			t.Errorf("%s is %s, want %s", name, g[name], w[name])
		}
	}
	if len(g) != len(w) {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestPubPrintsThePosition(t *testing.T) {
	_, addr := start(t)
	cli(t, addr, "pub", "t", "x", "--id", "given").ok(t)
	if got := cli(t, addr, "pub", "t", "x").ok(t); got != "1700000000000-1\n" {
		t.Error(got)
	}
	got := cli(t, addr, "pub", "sys.x", "x")
	if got.code != exitFailed || got.stderr != "turnlane pub: topic: \"sys.x\" is written by Turnlane itself; choose another\n" {
		t.Errorf("%+v", got)
	}
}

const line = `{"specversion":"1.0","id":"%d","source":"/s","type":"t","data":%d}` + "\n"

func manyLines(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, line, i, i)
	}
	return b.String()
}

func compressed(text string) string {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	io.WriteString(z, text)
	z.Close()
	return b.String()
}

func TestPubReadsFiles(t *testing.T) {
	const n = 3000
	text := manyLines(n)
	for _, c := range []struct{ name, content string }{
		{"plain.jsonl", text}, {"zipped.jsonl.gz", compressed(text)}, {"zipped-by-magic", compressed(text)},
		{"windows.jsonl", strings.ReplaceAll(text, "\n", "\r\n")}, {"blank-lines.jsonl", "\n\n" + strings.ReplaceAll(text, "\n", "\n \n")},
		{"no-last-newline", strings.TrimSuffix(text, "\n")},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, addr := start(t)
			path := filepath.Join(t.TempDir(), c.name)
			if err := os.WriteFile(path, []byte(c.content), 0o600); err != nil {
				t.Fatal(err)
			}
			if got := cli(t, addr, "pub", "t", "--file", path).ok(t); !strings.HasPrefix(got, "published 3000 events to t, positions 1700000000000-0 to 1700000000000-2999, in ") {
				t.Error(got)
			}
			told := decode[published](t, cliInput(t, addr, c.content, "pub", "in", "--file", "-", "-o", "json").ok(t))
			for _, topic := range []string{"t", "in"} {
				for i, e := range f.stored(t, topic) {
					if e.ID != fmt.Sprint(i) || told[i].ID != e.ID {
						t.Fatalf("%s: event %d has id %s and was told as %+v", topic, i, e.ID, told[i])
					}
				}
			}
			if len(told) != n || len(f.stored(t, "t")) != n {
				t.Errorf("told %d, stored %d", len(told), len(f.stored(t, "t")))
			}
		})
	}
}

func TestPubFillsInLines(t *testing.T) {
	f, addr := start(t)
	in := `{"specversion":"1.0"}` + "\n" + ` { "specversion" : "1.0" , "type":"mine"}` + "\n" + `{"specversion":"1.0","id":"x","source":"/y"}`
	cliInput(t, addr, in, "pub", "t", "--file", "-", "--source", "/f").ok(t)
	events := f.stored(t, "t")
	for i, want := range []struct{ source, typ string }{{"/f", "turnlane.pub"}, {"/f", "mine"}, {"/y", "turnlane.pub"}} {
		if e := events[i]; e.Source != want.source || e.Type != want.typ || e.ID == "" {
			t.Errorf("line %d became %+v", i+1, e)
		}
	}
}

func TestPubStopsAtABadLine(t *testing.T) {
	long := strings.Repeat("x", 2<<20)
	for _, c := range []struct{ name, bad, want string }{
		{"no JSON", "nonsense", "JSON"},
		{"an array", "[]", ""},
		{"no specversion", `{"id":"1","source":"/s","type":"t"}`, "specversion"},
		{"an empty id", `{"specversion":"1.0","id":"","source":"/s","type":"t"}`, "id"},
		{"a null id", `{"specversion":"1.0","id":null,"source":"/s","type":"t"}`, "id"},
		{"an id that is no string", `{"specversion":"1.0","id":7,"source":"/s","type":"t"}`, "id"},
		{"two ids", `{"specversion":"1.0","id":"1","id":"2","source":"/s","type":"t"}`, "id"},
		{"an extension of ours", `{"specversion":"1.0","dlqreason":"1"}`, "dlqreason begins with dlq"},
		{"too large", `{"specversion":"1.0","data":"` + long + `"}`, "bytes"},
		{"far too long", `{"specversion":"1.0","data":"` + strings.Repeat(long, 9) + `"}`, "longer than 16777216 bytes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, addr := start(t)
			got := cliInput(t, addr, manyLines(700)+c.bad+"\n"+manyLines(5), "pub", "t", "--file", "-")
			if got.code != exitFailed || !strings.HasPrefix(got.stderr, "turnlane pub: standard input:701: ") || !strings.Contains(got.stderr, c.want) {
				t.Errorf("exit code %d: %.300s", got.code, got.stderr)
			}
			if !strings.HasPrefix(got.stdout, "published 700 events to t, ") || !strings.HasSuffix(got.stdout, "stored are lines 1-700\n") {
				t.Errorf("%.300s", got.stdout)
			}
			if n := len(f.stored(t, "t")); n != 700 {
				t.Errorf("%d are stored", n)
			}
		})
	}
}

func TestPubNamesTheLineThatTheServerRefuses(t *testing.T) {
	f, addr := start(t)
	f.refuse = func(e *cepb.CloudEvent) error {
		if e.GetId() == "300" {
			return errors.New("is not wanted")
		}
		return nil
	}
	got := cliInput(t, addr, manyLines(400), "pub", "t", "--file", "-")
	if got.code != exitFailed || !strings.Contains(got.stderr, "standard input: line 301: events[") || !strings.Contains(got.stderr, "none of the lines ") {
		t.Errorf("exit code %d: %s", got.code, got.stderr)
	}
	if !strings.Contains(got.stdout, "; stored are lines 1-") {
		t.Error(got.stdout)
	}
}

func TestPubOfFilesThatCannotBeRead(t *testing.T) {
	_, addr := start(t)
	dir := t.TempDir()
	broken := filepath.Join(dir, "broken.jsonl.gz")
	whole := compressed(manyLines(50000))
	if err := errors.Join(
		os.WriteFile(filepath.Join(dir, "plain.gz"), []byte("{}"), 0o600),
		os.WriteFile(broken, []byte(whole[:len(whole)/2]), 0o600),
	); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ path, want string }{
		{filepath.Join(dir, "missing"), "no such file"}, {dir, "is a directory"},
		{filepath.Join(dir, "plain.gz"), "is named .gz but is not compressed"}, {broken, "cannot read on: unexpected EOF"},
	} {
		got := cli(t, addr, "pub", "t", "--file", c.path)
		if got.code != exitFailed || !strings.Contains(got.stderr, c.want) {
			t.Errorf("%s: exit code %d: %s", c.path, got.code, got.stderr)
		}
	}
	if got := cliInput(t, addr, "", "pub", "t", "--file", "-").ok(t); got != "published 0 events to t\n" {
		t.Error(got)
	}
}

func TestTailPrints(t *testing.T) {
	_, addr := start(t)
	cli(t, addr, "pub", "t", `{"a":"<b>"}`, "--id", "1", "--subject", "s").ok(t)
	cli(t, addr, "pub", "t", "two\nlines\x1b[31m", "--id", "2").ok(t)
	cli(t, addr, "pub", "t", "--id", "3").ok(t)
	if got, want := cli(t, addr, "tail", "t", "--from", "earliest", "--until", "tail").ok(t), ""+
		"1700000000000-0  1  turnlane.pub  s  {\"a\":\"<b>\"}\n"+
		"1700000000000-1  2  turnlane.pub  -  two lines\\x1b[31m\n"+
		"1700000000000-2  3  turnlane.pub  -  \n"; got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	got := cli(t, addr, "tail", "t", "--from", "1700000000000-0", "-n", "1", "-o", "json").ok(t)
	if want := `{"topic":"t","position":"1700000000000-0","event":{"specversion":"1.0","id":"1","source":"turnlane-cli","type":"turnlane.pub","subject":"s","datacontenttype":"application/json","data":{"a":"<b>"}}}` + "\n"; got != want {
		t.Errorf("got  %swant %s", got, want)
	}
}

// Whatever blanks, escapes and signs JSON data has, tail -o json tells it as it was sent, on one line.
func TestTailTellsJSONDataAsItIs(t *testing.T) {
	_, addr := start(t)
	for i, data := range []string{
		`{"a": 0, "b": [1, 2]}`, `{"a":"<>&"}`, ` { } `, `"\u003c\/\u2028"`, "\"<&>\u2028\u2029\"", "1.0E+2", "[1,\t2]", "{\r\n  \"a\": 1,\n  \"b\": \"\\n\"\n}", "null", `"plain"`,
	} {
		topic := fmt.Sprint("t", i)
		cli(t, addr, "pub", topic, data, "--datacontenttype", "application/json").ok(t)
		got := cli(t, addr, "tail", topic, "--from", "earliest", "--until", "tail", "-o", "json").ok(t)
		want := `"data":` + strings.NewReplacer("\r", " ", "\n", " ").Replace(data) + "}}\n"
		if !strings.HasSuffix(got, want) || strings.Count(got, "\n") != 1 {
			t.Errorf("%q is told as %q", data, got)
		}
		if !json.Valid([]byte(got)) {
			t.Errorf("%q is no JSON", got)
		}
	}
}

func TestTailEnds(t *testing.T) {
	_, addr := start(t)
	cli(t, addr, "pub", "t", "x").ok(t)
	t.Run("by time before enough events", func(t *testing.T) {
		got := cli(t, addr, "tail", "t", "--from", "earliest", "-n", "2", "--timeout", "100ms")
		if got.code != exitFailed || !strings.Contains(got.stderr, "t: 1 event within 100ms; 2 were asked for") || got.stdout == "" {
			t.Errorf("%+v", got)
		}
	})
	t.Run("by time alone", func(t *testing.T) {
		cli(t, addr, "tail", "t", "--from", "earliest", "--timeout", "100ms").ok(t)
	})
	t.Run("when the end comes before enough events", func(t *testing.T) {
		cli(t, addr, "tail", "t", "--from", "earliest", "--until", "tail", "-n", "5").ok(t)
	})
	t.Run("by Ctrl-C", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		out := &watched{seen: cancel}
		code := run(ctx, []string{"tail", "t", "--from", "earliest", "-n", "9", "--addr", addr}, nil, out, io.Discard, func(string) string { return "" })
		if code != exitDone {
			t.Errorf("exit code %d", code)
		}
	})
}

// watched is a writer that tells when something was written.
type watched struct {
	mu   sync.Mutex
	b    bytes.Buffer
	seen func()
}

func (w *watched) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	defer w.seen()
	return w.b.Write(p)
}

func (w *watched) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.b.String()
}

// Given a tail, when its server goes and comes back, it says so and goes on where it was.
func TestTailGoesOnAfterARestart(t *testing.T) {
	f := newFake()
	addr, stop := f.serve(t, "")
	told := make(chan struct{}, 100)
	out, errs := &watched{seen: func() { told <- struct{}{} }}, &watched{seen: func() { told <- struct{}{} }}
	cli(t, addr, "pub", "t", "--id", "before").ok(t)
	done := make(chan int)
	go func() {
		done <- run(t.Context(), []string{"tail", "t", "--from", "earliest", "-n", "2", "--addr", addr}, nil, out, errs, func(string) string { return "" })
	}()
	<-told // "before"
	stop()
	<-told // that the server is lost
	f.serve(t, addr)
	cli(t, addr, "pub", "t", "--id", "after").ok(t)
	if code := <-done; code != exitDone {
		t.Errorf("exit code %d: %s", code, errs)
	}
	if got := strings.Fields(out.String()); len(got) < 6 || got[1] != "before" || got[5] != "after" {
		t.Errorf("%q", got)
	}
	if !strings.Contains(errs.String(), "waiting for it to come back") {
		t.Error(errs)
	}
}

func TestTailTellsGaps(t *testing.T) {
	f, addr := start(t)
	f.gap = &turnlanev1.Gap{First: "5-0", Last: "9-0", Kind: "trimmed"}
	got := cli(t, addr, "tail", "t", "--from", "earliest", "--until", "tail")
	if got.ok(t) != "" || got.stderr != "gap: t lacks 5-0 to 9-0 (trimmed)\n" {
		t.Errorf("%+v", got)
	}
	got = cli(t, addr, "tail", "t", "--from", "earliest", "--until", "tail", "-o", "json")
	if got.ok(t) != "" || got.stderr != `{"topic":"t","gap":{"first":"5-0","last":"9-0","kind":"trimmed"}}`+"\n" {
		t.Errorf("%+v", got)
	}
}

func TestWorkerCreate(t *testing.T) {
	f, addr := start(t)
	got := cli(t, addr, strings.Fields("worker create --type echo --topic a --topic b --id one --name n --config out=x --tag k=v "+
		"--replay -1h --handler-timeout 5s --max-attempts 7 --backoff 1s --max-backoff 2m -o json")...).ok(t)
	var v map[string]any
	if err := json.Unmarshal([]byte(got), &v); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"id", "name", "type", "topics", "group", "group_size", "group_index", "config", "tags", "desired",
		"state", "reason", "pod", "token", "created_at"} {
		if _, found := v[name]; !found {
			t.Errorf("%s is missing in %s", name, got)
		}
	}
	if v["state"] != "STOPPED" || v["desired"] != "STOPPED" {
		t.Error(got)
	}
	req := f.created[0]
	if req.GetReplay().GetMode() != turnlanev1.ReplayMode_REPLAY_MODE_FIRST || req.GetPolicy().GetMaxAttempts() != 7 ||
		req.GetPolicy().GetHandlerTimeout().AsDuration() != 5*time.Second || req.GetConfig()["out"] != "x" || len(req.GetTopics()) != 2 {
		t.Errorf("asked for %v", req)
	}
	got = cli(t, addr, strings.Fields("worker create --type echo --topic a --name m")...).ok(t)
	if got != "w-1  m  STOPPED\n" {
		t.Error(got)
	}
	if r := cli(t, addr, strings.Fields("worker create --type echo --topic a --name m")...); r.code != exitFailed || !strings.Contains(r.stderr, "name: m is taken; choose another") {
		t.Errorf("%+v", r)
	}
}

func TestWorkerCreateMany(t *testing.T) {
	f, addr := start(t)
	got := cli(t, addr, strings.Fields("worker create --type echo --topic a --name m --group g --count 100 --start -o json")...)
	workers := decode[workerView](t, got.ok(t))
	for i, w := range workers {
		if w.Name != fmt.Sprintf("m-%d", i) || w.GroupIndex != uint32(i) || w.GroupSize != 100 || w.State != "RUNNING" {
			t.Errorf("worker %d is %+v", i, w)
		}
	}
	if len(workers) != 100 || got.stderr != "" {
		t.Errorf("%d workers; %s", len(workers), got.stderr)
	}
	got = cli(t, addr, strings.Fields("worker create --type echo --topic a --group h --group-size 3 --count 2 --start")...)
	if got.ok(t); got.stderr != "warning: group h on [a] has 2 of 3 members running\n" {
		t.Error(got.stderr)
	}
	f.workers = f.workers[:0]
	cli(t, addr, strings.Fields("worker create --type echo --topic a --name k-2")...).ok(t)
	got = cli(t, addr, strings.Fields("worker create --type echo --topic a --name k --count 4")...)
	if got.code != exitFailed || !strings.Contains(got.stderr, "of 4 workers: name: k-2 is taken") {
		t.Errorf("%+v", got)
	}
}

func TestWorkerStart(t *testing.T) {
	f, addr := start(t)
	for i := range 3 {
		cli(t, addr, "worker", "create", "--type", "echo", "--topic", "a", "--group", "g", "--group-size", "3", "--group-index", fmt.Sprint(i), "--id", fmt.Sprint("w", i)).ok(t)
	}
	got := cli(t, addr, "worker", "start", "w0")
	if got.ok(t) != "w0  RUNNING\n" || got.stderr != "warning: group g on [a] has 1 of 3 members running\n" {
		t.Errorf("%+v", got)
	}
	f.starting = 3 // the next is seen STARTING at first
	if got = cli(t, addr, "worker", "start", "w1"); got.ok(t) != "w1  RUNNING\n" {
		t.Errorf("%+v", got)
	}
	got = cli(t, addr, "worker", "start", "w2", "nobody", "w0")
	if got.code != exitFailed || got.stdout != "w2  RUNNING\nw0  RUNNING\n" || !strings.HasPrefix(got.stderr, "turnlane worker start: nobody: worker: there is none") {
		t.Errorf("%+v", got)
	}
	f.starting = -1 // for ever
	if got = cli(t, addr, "worker", "start", "w1", "--wait", "50ms"); got.code != exitFailed ||
		!strings.Contains(got.stderr, "w1: it is still STARTING after 50ms (no live runtime has the type)") {
		t.Errorf("%+v", got)
	}
	if got = cli(t, addr, "worker", "start", "w1", "--wait", "0"); got.ok(t) != "w1  STARTING\n" {
		t.Errorf("%+v", got)
	}
	f.fail = true
	if got = cli(t, addr, "worker", "start", "w1"); got.code != exitFailed || !strings.Contains(got.stderr, "w1: it failed: config: out is missing") {
		t.Errorf("%+v", got)
	}
}

func TestWorkerVerbs(t *testing.T) {
	f, addr := start(t)
	cli(t, addr, strings.Fields("worker create --type echo --topic a --topic b --topic c --topic d --id one --name first --start")...).ok(t)
	cli(t, addr, strings.Fields("worker create --type probe --topic a --id two --group g --group-size 2 --group-index 1")...).ok(t)
	f.workers[0].Policy = &turnlanev1.Policy{HandlerTimeout: durationpb.New(30 * time.Second), MaxAttempts: 3}

	if got, want := cli(t, addr, "worker", "list").ok(t), ""+
		"ID   NAME   TYPE   TOPICS       SLOT      STATE    POD  REASON\n"+
		"one  first  echo   a,b,c,… (4)  -         RUNNING  -    -\n"+
		"two  -      probe  a            g/1 of 2  STOPPED  -    -\n"; got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	if got := decode[workerView](t, cli(t, addr, "worker", "list", "--state", "running", "-o", "json").ok(t)); len(got) != 1 || got[0].ID != "one" {
		t.Errorf("%+v", got)
	}
	got := cli(t, addr, "worker", "get", "first").ok(t)
	for _, want := range []string{"state     RUNNING\n", "timeout 30s", "TOPIC  FEED", "a      LIVE"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not in\n%s", want, got)
		}
	}
	if got := decode[workerView](t, cli(t, addr, "worker", "get", "first", "two", "-o", "json").ok(t)); len(got) != 2 || got[0].TopicStatus[0].LagEntries != 7 {
		t.Errorf("%+v", got)
	}
	if got := cli(t, addr, "worker", "stop", "first").ok(t); got != "one  first  STOPPED\n" {
		t.Error(got)
	}
	for _, args := range [][]string{{"--to", "earliest"}, {"-o", "json", "earliest"}} {
		cli(t, addr, append([]string{"worker", "seek", "two"}, args...)...).ok(t)
	}
	if w := f.workers[1]; w.GetRun() != 2 || !strings.Contains(w.GetReason(), "earliest:true") {
		t.Errorf("%v", w)
	}
	if got := cli(t, addr, "worker", "delete", "first", "two", "-o", "json").ok(t); got != `{"worker":"first","deleted":true}`+"\n"+`{"worker":"two","deleted":true}`+"\n" {
		t.Error(got)
	}
	if got := cli(t, addr, "worker", "get", "first", "two"); got.code != exitFailed || strings.Count(got.stderr, "there is none") != 2 {
		t.Errorf("%+v", got)
	}
	if got := cli(t, addr, "worker", "list").ok(t); got != "ID  NAME  TYPE  TOPICS  SLOT  STATE  POD  REASON\n" {
		t.Error(got)
	}
}

func TestGroup(t *testing.T) {
	_, addr := start(t)
	cli(t, addr, strings.Fields("worker create --type echo --topic a --group g --group-size 2 --group-index 1 --id w --start")...).ok(t)
	if got, want := cli(t, addr, "group", "g").ok(t), ""+
		"group g on a: 1 of 2 members running\n"+
		"SLOT  WORKER  NAME  POD  STATE\n"+
		"0     -       -     -    -\n"+
		"1     w       -     -    RUNNING\n"+
		"warning: group g on [a] has 1 of 2 members running\n"; got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	if got, want := cli(t, addr, "group", "g", "-o", "json").ok(t), `{"group":"g","topic":"a","group_size":2,"running":1,"slots":[`+
		`{"slot":0,"worker_id":"","worker_name":"","pod":"","state":""},{"slot":1,"worker_id":"w","worker_name":"","pod":"","state":"RUNNING"}],`+
		`"warning":"group g on [a] has 1 of 2 members running"}`+"\n"; got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	if got := cli(t, addr, "group", "h"); got.code != exitFailed || !strings.Contains(got.stderr, `no worker is a member of group "h"`) {
		t.Errorf("%+v", got)
	}
}

func TestTopics(t *testing.T) {
	_, addr := start(t)
	for _, topic := range []string{"a.x", "a.y", "b"} {
		cli(t, addr, "pub", topic, "x").ok(t)
	}
	if got, want := cli(t, addr, "topics").ok(t), ""+
		"TOPIC  ENTRIES  BYTES  FIRST            LAST\n"+
		"a.x    1        100    1700000000000-0  1700000000000-0\n"+
		"a.y    1        100    1700000000000-0  1700000000000-0\n"+
		"b      1        100    1700000000000-0  1700000000000-0\n"; got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	got := decode[topicView](t, cli(t, addr, "topics", "--prefix", "a.", "-o", "json").ok(t))
	if len(got) != 2 || got[1].Topic != "a.y" || got[1].Entries != 1 {
		t.Errorf("%+v", got)
	}
	if got := cli(t, addr, "topics", "nothing"); got.code != exitFailed || !strings.Contains(got.stderr, "topic: there is no nothing") {
		t.Errorf("%+v", got)
	}
}

func TestTopicSetKeepsWhatIsLeftOut(t *testing.T) {
	_, addr := start(t)
	for _, step := range []struct{ args, want string }{
		{"--max-bytes 1KiB", "t keeps 1024 bytes and the default age\n"},
		{"--max-age 7d", "t keeps 1024 bytes and 168h\n"},
		{"--max-bytes 0", "t keeps the default bytes and 168h\n"},
		{"--max-age 0 --max-bytes 5", "t keeps 5 bytes and the default age\n"},
	} {
		if got := cli(t, addr, append([]string{"topic", "set", "t"}, strings.Fields(step.args)...)...).ok(t); got != step.want {
			t.Errorf("%s: %s", step.args, got)
		}
	}
	if got := decode[topicView](t, cli(t, addr, "topic", "set", "t", "--max-age", "1h", "-o", "json").ok(t))[0]; got.MaxBytes != 5 || got.MaxAge != "1h" {
		t.Errorf("%+v", got)
	}
}

func TestVerify(t *testing.T) {
	f, addr := start(t)
	for i := range 3 {
		cli(t, addr, "pub", "t", "--id", fmt.Sprint("e", i)).ok(t)
	}
	got := cli(t, addr, "verify", "t", "-o", "json")
	if got.code != exitFailed || got.stderr != "" || !strings.HasPrefix(got.stdout,
		`{"topic":"t","events":3,"turns":0,"workers":0,"lost":3,"repeated_marked":0,"repeated_unmarked":0,"out_of_order":0,"overlapping":0,"given_up":0,"malformed":0,"ok":false,`) {
		t.Errorf("%+v", got)
	}
	tell := func(i int, outcome string) {
		report := builtin.Report{WorkerID: "w", Topic: "t", Position: f.topics["t"][i].GetPosition(), Attempt: 1, Outcome: outcome,
			Started: int64(10 * i), Finished: int64(10*i + 5)}
		data, err := json.Marshal(report)
		if err != nil {
			t.Fatal(err)
		}
		cli(t, addr, "pub", "probe.out", string(data), "--type", builtin.ReportType).ok(t)
	}
	cli(t, addr, "pub", "probe.out", "something else").ok(t)
	tell(0, "done")
	tell(1, "failed")
	got = cli(t, addr, "verify", "t")
	want := "t: 3 events, 2 turns by 1 worker reported on probe.out\n" +
		"lost                2\n" +
		"  e1 at 1700000000000-1: worker w did not finish it\n" +
		"  e2 at 1700000000000-2: worker w did not finish it\n" +
		"repeated, unmarked  0\nout of order        0\noverlapping turns   0\nrepeated, marked    0\ngiven up            0\nFAIL\n"
	if got.code != exitFailed || got.stdout != want {
		t.Errorf("exit code %d, got\n%swant\n%s", got.code, got.stdout, want)
	}
	gaveUp := lifecycle.New(lifecycle.TypeExhausted, time.Now(), lifecycle.Data{WorkerID: "w", Topic: "t", Position: f.topics["t"][1].GetPosition()})
	cli(t, addr, "pub", lifecycle.Topic, string(gaveUp.Data), "--type", gaveUp.Type).ok(t)
	tell(2, "done")
	if out := cli(t, addr, "verify", "t", "--wait", "1m").ok(t); !strings.HasSuffix(out, "given up            1\nPASS\n") {
		t.Error(out)
	}
	if out := cli(t, addr, "verify", "t", "--from", "1700000000000-2").ok(t); !strings.HasPrefix(out, "t: 1 event, 1 turn by 1 worker ") {
		t.Error(out)
	}
	cli(t, addr, "pub", "probe.out", "{}", "--type", builtin.ReportType).ok(t)
	cli(t, addr, "pub", "probe.out", `{"worker_id":"w","topic":"t","position":"here"}`, "--type", builtin.ReportType).ok(t)
	got = cli(t, addr, "verify", "t")
	if got.code != exitFailed || got.stderr != "" || !strings.Contains(got.stdout, "lost                0\n") || !strings.HasSuffix(got.stdout, ""+
		"malformed reports   2\n"+
		"  probe.out at 1700000000000-4: worker_id, topic or position is missing\n"+
		"  probe.out at 1700000000000-5: position \"here\" is not one\n"+
		"FAIL\n") {
		t.Errorf("%+v", got)
	}
	if v := decode[verdict](t, cli(t, addr, "verify", "t", "-o", "json").stdout)[0]; v.Malformed != 2 || v.OK || v.Turns != 3 {
		t.Errorf("%+v", v)
	}
}

func TestVerifyOfNoTopic(t *testing.T) {
	_, addr := start(t)
	for _, args := range [][]string{{"verify", "none"}, {"verify", "none", "-o", "json", "--wait", "1h"}} {
		got := cli(t, addr, args...)
		if got.code != exitFailed || got.stdout != "" || got.stderr != "turnlane verify: there is no topic none\n" {
			t.Errorf("%s: %+v", args, got)
		}
	}
}

// What retention removed is in no count; verify says so, and from where it looked.
func TestVerifyAfterRetention(t *testing.T) {
	f, addr := start(t)
	f.removed = "1699999999999-7"
	cli(t, addr, "pub", "t").ok(t)
	const note = "note: t has events only from 1700000000000-0 on; retention removed what came before, up to 1699999999999-7, and how many entries that was is not known\n"
	for _, from := range []string{"earliest", "2020-01-01", "1600000000000-0"} {
		if got := cli(t, addr, "verify", "t", "--from", from); !strings.Contains(got.stdout, note) {
			t.Errorf("from %s: %+v", from, got)
		}
		if v := decode[verdict](t, cli(t, addr, "verify", "t", "--from", from, "-o", "json").stdout)[0]; v.First != "1700000000000-0" {
			t.Errorf("from %s: %+v", from, v)
		}
	}
	if got := cli(t, addr, "verify", "t", "--from", "1700000000000-0"); strings.Contains(got.stdout, "note:") {
		t.Errorf("%+v", got)
	}
}
