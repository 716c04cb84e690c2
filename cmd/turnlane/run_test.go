package main

import (
	"strings"
	"testing"
)

// Every kind of bad input exits with 2, says what is wrong, and how to find out more.
func TestUsageErrors(t *testing.T) {
	for _, c := range []struct {
		line string
		want string // in the first line of standard error
	}{
		{"frobnicate", `there is no verb "frobnicate"`},
		{"tial x", `did you mean tail?`},
		{"--frobnicate", "unknown flag: --frobnicate"},
		{"worker", "a verb is missing: one of create,"},
		{"worker mak", `there is no verb "mak"`},
		{"topic", "a verb is missing: one of set"},
		{"pub", "TOPIC is missing"},
		{"pub t a b", `"b" is one argument too many`},
		{"pub t --id=", "--id is empty"},
		{"pub t --subject=", "--subject is empty"},
		{"pub t --ext foo", `--ext "foo": want key=value`},
		{"pub t --ext Foo=1", `"Foo" is not an attribute name`},
		{"pub t --ext dlqreason=x", "dlqreason begins with dlq"},
		{"pub t --ext a=1 --ext a=2", "a is given twice"},
		{"pub t --time noon", `time "noon" is not a timestamp`},
		{"pub t --source a|b", "source"},
		{"pub t nojson --datacontenttype application/json", "data"},
		{"pub t --rate 5", "--rate goes with --file"},
		{"pub t x --file f", "DATA and --file exclude each other"},
		{"pub t --file f --id 5", "--id is for one event"},
		{"pub t --file f --rate 0", `--rate "0": want events per second`},
		{"pub t -o yaml", `--output "yaml": want text or json`},
		{"tail", "TOPIC is missing"},
		{"tail t --from head", `--from "head": "head" is no place in a topic: want tail, earliest, a time`},
		{"tail t --until 5", `--until "5"`},
		{"tail t -n 0", `--count "0": want a whole number from 1`},
		{"tail t -n", "--count has no value"},
		{"tail t --timeout soon", `--timeout "soon": want a duration`},
		{"worker create", "--type is missing"},
		{"worker create --type echo", "--topic is missing"},
		{"worker create --type echo --topic t --group-size 3", "--group is missing"},
		{"worker create --type echo --topic t --group-index 0", "--group is missing"},
		{"worker create --type echo --topic t --group g", "--group-size is missing"},
		{"worker create --type echo --topic t --group g --group-size 3", "--group-index is missing"},
		{"worker create --type echo --topic t --group g --group-size 0", `--group-size "0": want a whole number from 1 to 1024`},
		{"worker create --type echo --topic t --group g --group-size 3 --group-index -1", `--group-index "-1"`},
		{"worker create --type echo --topic t --group g --group-size 2 --count 3", "--count 3 is more than --group-size 2"},
		{"worker create --type echo --topic t --group g --count 2000", "a group has at most 1024 slots"},
		{"worker create --type echo --topic t --group g --count 2 --group-index 1", "--group-index is for one member"},
		{"worker create --type echo --topic t --count 2 --id x", "--id names one worker"},
		{"worker create --type echo --topic t --max-attempts 0", `--max-attempts "0"`},
		{"worker create --type echo --topic t --max-attempts -1", `--max-attempts "-1"`},
		{"worker create --type echo --topic t --handler-timeout 0", `--handler-timeout "0": want at least 1ms`},
		{"worker create --type echo --topic t --replay tail", `--replay "tail": want off`},
		{"worker create --type echo --topic t --config x", `--config "x": want key=value`},
		{"worker create --type echo --topic t --wait 5s", "--wait goes with --start"},
		{"worker create extra --type echo --topic t", `"extra" is one argument too many`},
		{"worker create --type echo --topic t --on-exhausted nothing", `--on-exhausted "nothing": want dead_letter or drop or pause`},
		{"worker create --type echo --topic t --max-crashes 0", `--max-crashes "0": want a whole number from 1`},
		{"worker update", "WORKER is missing"},
		{"worker update w", "nothing to change"},
		{"worker update w --revision 5", "nothing to change"},
		{"worker update w --tag a=b --revision 0", `--revision "0"`},
		{"worker update w --type other", `--type "other": the type, topics, group, name and replay of a worker never change: create another worker`},
		{"worker update w --topic t", "never change"},
		{"worker update w --group g", "never change"},
		{"worker update w --group-size 4", "never change"},
		{"worker update w --group-index 4", "never change"},
		{"worker update w --replay off", "never change"},
		{"worker pause", "WORKER is missing"},
		{"worker resume", "WORKER is missing"},
		{"worker send", "WORKER is missing"},
		{"worker send w", "NAME is missing"},
		{"worker send w n d e", `"e" is one argument too many`},
		{"worker send w n --wait 2h", `--wait "2h": want at most 1h`},
		{"worker send w n --wait -5s", `--wait "-5s"`},
		{"worker send w n --wait 5s --reply-to t", "--wait and --reply-to exclude each other"},
		{"worker state", "WORKER is missing"},
		{"event", "TOPIC is missing"},
		{"event t", "POSITION is missing"},
		{"worker list --state ASLEEP", `--state "ASLEEP": want STARTING or RUNNING`},
		{"worker get", "WORKER is missing"},
		{"worker start", "WORKER is missing"},
		{"worker stop", "WORKER is missing"},
		{"worker delete", "WORKER is missing"},
		{"worker seek", "WORKER is missing"},
		{"worker seek w", "--to is missing"},
		{"worker seek w --to nowhere", `--to "nowhere"`},
		{"worker seek w tail --to tail", "one place too many"},
		{"group", "NAME is missing"},
		{"route a", "--group-size is missing"},
		{"route --group-size 1025 a", `--group-size "1025": want a whole number from 1 to 1024`},
		{"route --group-size 3", "KEY is missing"},
		{"topic set t", "nothing to set"},
		{"topic set t --max-bytes lots", `--max-bytes "lots": want a number of bytes`},
		{"topic set t --max-age -5s", `--max-age "-5s": want a duration`},
		{"topics t --prefix p", "exclude each other"},
		{"verify", "TOPIC is missing"},
		{"--addr nowhere topics", `address "nowhere": want host:port`},
		{"--addr http://127.0.0.1:7401 topics", "leave out http://"},
		{"--addr :7400 topics", "the host is missing"},
		{"--addr localhost:99999 topics", "is not a port"},
	} {
		t.Run(c.line, func(t *testing.T) {
			got := cli(t, "127.0.0.1:1", strings.Fields(c.line)...)
			first, rest, _ := strings.Cut(got.stderr, "\n")
			if got.code != exitUsage || !strings.Contains(first, c.want) {
				t.Errorf("exit code %d: %s\nwant %d: %s", got.code, first, exitUsage, c.want)
			}
			if got.stdout != "" || !strings.Contains(rest, "--help") {
				t.Errorf("stdout %q, rest of stderr %q", got.stdout, rest)
			}
		})
	}
}

func TestHelpOfEveryVerbHasAnExample(t *testing.T) {
	verbs := []string{"pub", "tail", "worker create", "worker list", "worker get", "worker start", "worker stop",
		"worker delete", "worker seek", "group", "route", "topics", "topic set", "verify", "version"}
	for _, verb := range verbs {
		help := cli(t, "", append(strings.Fields(verb), "--help")...).ok(t)
		if !strings.Contains(help, "Examples:") || !strings.Contains(help, "turnlane "+verb) {
			t.Errorf("%s --help:\n%s", verb, help)
		}
	}
	if help := cli(t, "").ok(t); !strings.Contains(help, "Available Commands:") {
		t.Error(help)
	}
}

// Without a server every client verb fails with 1 and one line that says what to do.
func TestWithoutServer(t *testing.T) {
	for _, line := range []string{"pub t x", "pub t --file -", "tail t", "worker create --type a --topic b", "worker list",
		"worker get w v", "worker start w", "worker stop w", "worker delete w", "worker seek w --to tail", "group g", "topics",
		"topic set t --max-age 1h", "verify t"} {
		got := cliInput(t, "127.0.0.1:1", "\n", strings.Fields(line)...)
		if got.code != exitFailed || !strings.Contains(got.stderr, `cannot reach the server at 127.0.0.1:1: connection refused; is "turnlane dev" running?`) {
			t.Errorf("%s: exit code %d: %s", line, got.code, got.stderr)
		}
		if got.stdout != "" || strings.Count(got.stderr, "\n") != 1 {
			t.Errorf("%s: stdout %q, stderr %q", line, got.stdout, got.stderr)
		}
	}
}

func TestRoute(t *testing.T) {
	// Pinned by the vectors of package grouping.
	if got := cli(t, "", "route", "--group-size", "3", "acct-7", "0", "").ok(t); got != "a3aeaaa5  0  acct-7\n64f08f61  1  0\nab3e7c0b  2  \n" {
		t.Error(got)
	}
	if got := cli(t, "", "route", "--group-size", "1024", "0", "-o", "json").ok(t); got != `{"key":"0","hash":"64f08f61","slot":865,"group_size":1024}`+"\n" {
		t.Error(got)
	}
}

func TestVersion(t *testing.T) {
	if got := cli(t, "", "version").ok(t); !strings.HasPrefix(got, "turnlane 0.") {
		t.Error(got)
	}
	if got := cli(t, "", "version", "-o", "json").ok(t); !strings.HasPrefix(got, `{"version":"0.`) {
		t.Error(got)
	}
}
