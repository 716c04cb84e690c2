package main

import (
	"strings"
	"testing"
	"time"

	turnlanev1 "github.com/turnlane/turnlane/proto/turnlane/v1"
)

func TestPolicyOfWorkerCreate(t *testing.T) {
	f, addr := start(t)
	cli(t, addr, strings.Fields("worker create --type echo --topic a --max-attempts 5 --max-crashes 2 --on-exhausted pause --dead-letter-topic dlq.ours "+
		"--handler-grace 1s")...).ok(t)
	p := f.created[0].GetPolicy()
	if p.GetMaxAttempts() != 5 || p.GetMaxCrashes() != 2 || p.GetOnExhausted() != turnlanev1.OnExhausted_ON_EXHAUSTED_PAUSE ||
		p.GetDeadLetterTopic() != "dlq.ours" || p.GetHandlerGrace().AsDuration() != time.Second || p.GetBackoff() != nil {
		t.Errorf("asked for %v", p)
	}
	got := decode[workerView](t, cli(t, addr, "worker", "get", "w-0", "-o", "json").ok(t))[0].Policy
	if got.MaxCrashes != 2 || got.OnExhausted != "pause" || got.DeadLetterTopic != "dlq.ours" {
		t.Errorf("shown as %+v", got)
	}
	if text := cli(t, addr, "worker", "get", "w-0").ok(t); !strings.Contains(text, "2 crashes, then pause to dlq.ours\n") {
		t.Error(text)
	}
	cli(t, addr, strings.Fields("worker create --type echo --topic a")...).ok(t)
	if p := f.created[1].GetPolicy(); p != nil {
		t.Errorf("asked for %v", p)
	}
}

func TestWorkerUpdate(t *testing.T) {
	f, addr := start(t)
	cli(t, addr, strings.Fields("worker create --type echo --topic a --id one --tag team=red --tag n=1 --config out=x --config in=y")...).ok(t)
	w := f.workers[0]
	w.Revision = 7

	f.others = 2 // it is changed by others twice
	if got := cli(t, addr, strings.Fields("worker update one --tag team=blue --untag n --config more=z --unset in --max-crashes 1")...).ok(t); got != "one  STOPPED\n" {
		t.Error(got)
	}
	req := f.updates[0]
	if tags := req.GetTags().GetTags(); len(tags) != 1 || tags["team"] != "blue" {
		t.Errorf("tags %v", tags)
	}
	if config := req.GetConfig().GetConfig(); len(config) != 2 || config["out"] != "x" || config["more"] != "z" {
		t.Errorf("config %v", config)
	}
	if p := req.GetPolicy(); p.GetMaxCrashes() != 1 || p.DeadLetterTopic != nil || p.GetMaxAttempts() != 0 {
		t.Errorf("policy %v", p)
	}

	cli(t, addr, strings.Fields("worker update one --dead-letter-topic=")...).ok(t)
	if req := f.updates[1]; req.Tags != nil || req.Config != nil || req.GetPolicy().DeadLetterTopic == nil {
		t.Errorf("asked for %v", req)
	}

	if got := cli(t, addr, strings.Fields("worker update one --tag a=b --revision 1")...); got.code != exitFailed || !strings.Contains(got.stderr, "at revision 11 and not at 1") {
		t.Errorf("%+v", got)
	}
	f.others = 1
	if got := cli(t, addr, strings.Fields("worker update one --tag a=b --revision 11")...); got.code != exitFailed || !strings.Contains(got.stderr, "at revision 12 by now") {
		t.Errorf("%+v", got)
	}
	if got := decode[workerView](t, cli(t, addr, strings.Fields("worker update one --tag a=b --revision 12 -o json")...).ok(t)); got[0].Revision != 13 || got[0].Tags["a"] != "b" {
		t.Errorf("%+v", got)
	}
	if got := cli(t, addr, strings.Fields("worker update two --tag a=b")...); got.code != exitFailed || !strings.Contains(got.stderr, "there is none") {
		t.Errorf("%+v", got)
	}
}

func TestWorkerPauseAndResume(t *testing.T) {
	_, addr := start(t)
	cli(t, addr, strings.Fields("worker create --type echo --topic a --id one --start")...).ok(t)
	if got := cli(t, addr, "worker", "pause", "one", "--reason", "bank is down").ok(t); got != "one  RUNNING  paused\n" {
		t.Error(got)
	}
	if got := cli(t, addr, "worker", "list").ok(t); !strings.Contains(got, "RUNNING  -    paused: bank is down\n") {
		t.Error(got)
	}
	if got := decode[workerView](t, cli(t, addr, "worker", "get", "one", "-o", "json").ok(t)); !got[0].Paused || got[0].PauseReason != "bank is down" {
		t.Errorf("%+v", got)
	}
	if got := cli(t, addr, "worker", "resume", "one").ok(t); got != "one  RUNNING\n" {
		t.Error(got)
	}
	if got := cli(t, addr, "worker", "resume", "nobody"); got.code != exitFailed {
		t.Errorf("%+v", got)
	}
}

func TestWorkerSend(t *testing.T) {
	f, addr := start(t)
	cli(t, addr, strings.Fields("worker create --type echo --topic a --id one")...).ok(t)
	for _, c := range []struct {
		name   string
		args   []string
		code   int
		stdout string
		stderr string // a part of it
	}{
		{"stored", []string{"ping"}, exitDone, "17-0\n", ""},
		{"answered", []string{"ping", `{"n": 1}`, "--wait", "5s"}, exitDone, `{"n": 1}` + "\n", ""},
		{"answered with lines", []string{"ping", "a\n", "--wait", "5s"}, exitDone, "a\n", ""},
		{"answered with nothing", []string{"ping", "--wait", "5s"}, exitDone, "", ""},
		{"failed", []string{"fail", "--wait", "5s"}, exitFailed, "", "command fail failed: there is none (NO_SEAT)"},
		{"lost", []string{"lose", "--wait", "5s"}, exitFailed, "", "no reply came; it may still run"},
		{"as JSON", []string{"ping", `{"n":1}`, "--wait", "5s", "--id", "x", "-o", "json"}, exitDone,
			`{"id":"x","topic":"wrk.echo.command.one","position":"17-0","reply":{"id":"x.reply","datacontenttype":"application/json","data":{"n":1},"error_reason":"","error":""}}` + "\n", ""},
		{"text as JSON", []string{"ping", "é", "--wait", "5s", "-o", "json"}, exitDone,
			`{"id":"c1","topic":"wrk.echo.command.one","position":"17-0","reply":{"id":"c1.reply","datacontenttype":"text/plain","data":"é","error_reason":"","error":""}}` + "\n", ""},
		{"stored, as JSON", []string{"ping", "-o", "json"}, exitDone, `{"id":"c1","topic":"wrk.echo.command.one","position":"17-0"}` + "\n", ""},
		{"failed, as JSON", []string{"fail", "--wait", "5s", "-o", "json"}, exitFailed,
			`{"id":"c1","topic":"wrk.echo.command.one","position":"17-0","reply":{"id":"c1.reply","datacontenttype":"","error_reason":"NO_SEAT","error":"there is none\n"}}` + "\n", "NO_SEAT"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := cli(t, addr, append([]string{"worker", "send", "one"}, c.args...)...)
			if got.code != c.code || got.stdout != c.stdout || !strings.Contains(got.stderr, c.stderr) {
				t.Errorf("exit code %d\n%s%s\nwant %d\n%s%s", got.code, got.stdout, got.stderr, c.code, c.stdout, c.stderr)
			}
		})
	}
	f.commands = nil
	cli(t, addr, strings.Fields("worker send one ping text --fail-if-stopped --reply-to answers")...).ok(t)
	if req := f.commands[0]; !req.GetFailIfStopped() || req.GetReplyTo() != "answers" || req.GetDatacontenttype() != "text/plain" || string(req.GetData()) != "text" {
		t.Errorf("asked for %v", req)
	}
}

func TestWorkerState(t *testing.T) {
	_, addr := start(t)
	if got, want := cli(t, addr, "worker", "state", "one", "-o", "json").ok(t), ""+
		`{"key":"bytes","value_base64":"/wA="}`+"\n"+
		`{"key":"empty","value_base64":""}`+"\n"+
		`{"key":"sum/JFK","value":{"n": 7}}`+"\n"+
		`{"key":"sum/LAX","value_base64":"cGxhaW4="}`+"\n"; got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	if got, want := cli(t, addr, "worker", "state", "one", "sum/").ok(t), "KEY      VALUE\nsum/JFK  {\"n\": 7}\nsum/LAX  plain\n"; got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

func TestEvent(t *testing.T) {
	_, addr := start(t)
	got := cli(t, addr, "event", "t", "17-0")
	if want := "" +
		"WORKER  NAME    FATE      ATTEMPT  RETRY AT              DEAD LETTER  ERROR    HELD UP\n" +
		"w0      -       DONE      -        -                     -            -        -\n" +
		"w1      second  RETRYING  2        2023-11-14T22:13:20Z  -            no seat  -\n" +
		"w2      -       DEAD      -        -                     dlq.t 18-0   -        -\n"; got.ok(t) != want || !strings.Contains(got.stderr, "may be DEAD") {
		t.Errorf("got\n%swant\n%s%s", got.stdout, want, got.stderr)
	}
	views := decode[fateView](t, cli(t, addr, "event", "t", "17-0", "-o", "json").ok(t))
	if len(views) != 3 || views[2].Fate != "DEAD" || views[2].DeadLetterPosition != "18-0" || !views[1].Held || views[1].Position != "17-0" {
		t.Errorf("%+v", views)
	}
	if got := cli(t, addr, "event", "quiet", "17-0"); got.ok(t) != "" || !strings.Contains(got.stderr, "no worker reads topic quiet") {
		t.Errorf("%+v", got)
	}
}
