package e2e

import (
	"bufio"
	"encoding/base64"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
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
	tail := s.command("tail", "flood", "-o", "json", "-n", fmt.Sprint(events))
	if err := tail.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = tail.Process.Kill()
		_ = tail.Wait()
	})
	s.turnlane("pub", "flood", "first")
	if err := tail.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "flood.jsonl")
	writeFlood(t, file, events)
	s.turnlane("pub", "flood", "--file", file)
	if peak := s.rssPeak(); peak > 512<<20 {
		t.Errorf("the server took %d MiB", peak>>20)
	} else {
		t.Logf("the server took %d MiB", peak>>20)
	}
}

// writeFlood writes events of a good 1 KiB that do not compress.
func writeFlood(t *testing.T, file string, events int) {
	t.Helper()
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	random := rand.NewChaCha8([32]byte{1})
	w := bufio.NewWriter(f)
	data := make([]byte, 1024)
	for range events {
		_, _ = random.Read(data)
		fmt.Fprintf(w, `{"specversion":"1.0","type":"flood","source":"/e2e","data_base64":%q}`+"\n", base64.StdEncoding.EncodeToString(data))
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
}
