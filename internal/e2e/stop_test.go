package e2e

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/turnlane/turnlane/event"
)

// Given turns under way, when the server gets SIGTERM, then they finish, their outputs are stored, and
// it exits 0.
func TestTermDrains(t *testing.T) {
	dir := t.TempDir()
	s := startDev(t, "--data", dir)
	for i := range 10 {
		s.turnlane("worker", "create", "--type", "probe", "--topic", "jobs", "--name", fmt.Sprint("w", i), "--start")
	}
	s.turnlane("pub", "jobs", `{"do":[{"publish":{"topic":"started","data":1}},{"sleep_ms":2000},{"publish":{"topic":"finished","data":1}}]}`)
	_, workers := s.clients()
	eventually(t, "the turns are under way", func() error { return inTurn(t, workers, 10) })
	s.signal(syscall.SIGTERM)
	if code := s.exitCode(); code != 0 {
		t.Fatalf("exit code %d\n%s", code, s.stderr)
	}

	s = startDev(t, "--data", dir)
	if n := len(held(t, s, "finished")); n != 10 {
		t.Errorf("%d of 10 outputs were stored", n)
	}
	s.turnlane("verify", "jobs", "--from", "earliest")
}

// Given a handler that never ends, when the server gets a second SIGTERM, then it exits at once.
func TestSecondTermExitsAtOnce(t *testing.T) {
	s := startDev(t)
	s.turnlane("worker", "create", "--type", "probe", "--topic", "jobs", "--name", "hang", "--start")
	s.turnlane("pub", "jobs", `{"do":[{"hang_ms":600000}]}`)
	_, workers := s.clients()
	eventually(t, "the turn is under way", func() error { return inTurn(t, workers, 1) })
	s.signal(syscall.SIGTERM)
	eventually(t, "the first signal was taken", func() error {
		if !strings.Contains(s.stderr.String(), "drain") {
			return fmt.Errorf("stderr: %s", s.stderr.String())
		}
		return nil
	})
	s.signal(syscall.SIGTERM)
	if code := s.exitCode(); code == 0 {
		t.Error("exit code 0 although a turn was cut off")
	}
}

// Given a server whose topics are read by a subscriber that is stopped, when far more is published than
// memory may hold, then its memory stays bounded, and the subscriber goes on with an explicit gap.
func TestMemoryIsBounded(t *testing.T) {
	const events = 300_000
	s := startDev(t)
	file := filepath.Join(t.TempDir(), "flood.jsonl")
	writeFlood(t, file, 0, 1)
	s.turnlane("pub", "flood", "--file", file)
	tail := s.command("tail", "flood", "--from", "earliest", "-o", "json")
	var told buffer
	tail.Stderr = &told
	out, err := tail.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := tail.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = tail.Process.Kill()
		_ = tail.Wait()
	})
	lines := bufio.NewReaderSize(out, 1<<20)
	next := func() (pos event.Position, number int) {
		t.Helper()
		var e struct {
			Position event.Position
			Event    struct{ ID string }
		}
		line, err := lines.ReadBytes('\n')
		if err == nil {
			err = json.Unmarshal(line, &e)
		}
		if err == nil {
			_, err = fmt.Sscanf(e.Event.ID, "flood-%d", &number)
		}
		if err != nil {
			t.Fatalf("the tail says %q: %v\n%s", line, err, told.String())
		}
		return e.Position, number
	}
	last, number := next() // it has begun
	if err := tail.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	writeFlood(t, file, 1, events)
	s.turnlane("pub", "flood", "--file", file)
	if peak := s.rssPeak(); peak > 512<<20 {
		t.Errorf("the server took %d MiB", peak>>20)
	} else {
		t.Logf("the server took %d MiB", peak>>20)
	}

	if err := tail.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	type hole struct{ after, before event.Position } // its ends, or the events around it
	var holes []hole
	for number < events-1 {
		pos, n := next()
		switch {
		case n <= number, !last.Less(pos):
			t.Fatalf("event %d at %s came after %d at %s", n, pos, number, last)
		case n != number+1:
			holes = append(holes, hole{last, pos})
		}
		last, number = pos, n
	}
	_ = tail.Process.Kill()
	_ = tail.Wait()
	var gaps []hole
	for line := range strings.Lines(told.String()) {
		var g struct {
			Gap struct {
				First, Last event.Position
				Kind        string
			}
		}
		if json.Unmarshal([]byte(line), &g) != nil || g.Gap.Kind == "" {
			continue // something else that it tells
		}
		if g.Gap.Kind != "trimmed" {
			t.Errorf("gap %s", line)
		}
		gaps = append(gaps, hole{g.Gap.First, g.Gap.Last})
	}
	if len(holes) == 0 || len(gaps) != len(holes) {
		t.Fatalf("%d stretches did not come, and %d gaps were told\n%s", len(holes), len(gaps), told.String())
	}
	for i, h := range holes {
		// It begins right after what came before it. Its end is where retention had come to, which lies
		// before what came next, and that is the oldest event left: nothing of the log is between them.
		if g := gaps[i]; g.after != h.after.Next() || !g.before.Less(h.before) {
			t.Errorf("a gap from %s to %s for what lies between %s and %s", g.after, g.before, h.after, h.before)
		}
	}
}

// writeFlood writes numbered events of a good 1 KiB that do not compress.
func writeFlood(t *testing.T, file string, from, to int) {
	t.Helper()
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	random := rand.NewChaCha8([32]byte{1})
	w := bufio.NewWriter(f)
	data := make([]byte, 1024)
	for n := from; n < to; n++ {
		_, _ = random.Read(data)
		fmt.Fprintf(w, `{"specversion":"1.0","id":"flood-%d","type":"flood","source":"/e2e","data_base64":%q}`+"\n", n, base64.StdEncoding.EncodeToString(data))
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
}
