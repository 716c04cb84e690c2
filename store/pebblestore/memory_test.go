package pebblestore_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/store"
	"github.com/turnlane/turnlane/store/pebblestore"
)

// rss returns the resident and the highest resident memory of this process, in MiB.
func rss() (now, high int) {
	text, _ := os.ReadFile("/proc/self/status")
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) < 2 {
			continue
		}
		n, _ := strconv.Atoi(f[1])
		switch f[0] {
		case "VmRSS:":
			now = n >> 10
		case "VmHWM:":
			high = n >> 10
		}
	}
	return now, high
}

// flood publishes events of 1 KiB that do not compress, as fast as it can.
func flood(s *pebblestore.Store, topics, events int) error {
	body := make([]byte, 64<<20)
	for i := range body {
		body[i] = byte(rand.Uint32())
	}
	const perBatch = 100
	for i := 0; i < events; i += perBatch {
		batch := store.Batch{Records: make([]event.Record, perBatch)}
		for j := range batch.Records {
			at := rand.IntN(len(body) - 1024)
			r := record(time.Now(), "")
			batch.Records[j] = append(r, body[at:at+1011]...)
		}
		if _, err := s.Append(ctxBackground, fmt.Sprint("t", i/perBatch%topics), []store.Batch{batch}); err != nil {
			return err
		}
	}
	return nil
}

// TestMemoryStaysBounded floods stores in memory in processes of their own and looks at their memory.
func TestMemoryStaysBounded(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("needs /proc")
	}
	events := 400_000
	if n, err := strconv.Atoi(os.Getenv("PEBBLESTORE_FLOOD")); err == nil {
		events = n
	}
	for _, topics := range []int{1, 50} {
		t.Run(fmt.Sprint(topics, " topics"), func(t *testing.T) {
			cmd := exec.Command(os.Args[0], "-test.run=^TestChildFloods$", "-test.v")
			cmd.Env = append(os.Environ(), fmt.Sprintf("PEBBLESTORE_CHILD_FLOODS=%d,%d", topics, events))
			out, err := cmd.CombinedOutput()
			t.Logf("%s", out)
			if err != nil || !bytes.Contains(out, []byte("PASS")) {
				t.Fatal(err)
			}
		})
	}
}

// TestManyTopics: a hundred thousand topics cost little memory, and each is still itself.
func TestManyTopics(t *testing.T) {
	topics := 100_000
	if testing.Short() || underRace {
		topics = 20_000
	}
	s := mustOpen(t, pebblestore.Options{Dir: t.TempDir(), Fsync: pebblestore.Never})
	var wg sync.WaitGroup
	for w := range 16 {
		wg.Go(func() {
			for i := w; i < topics; i += 16 {
				if _, err := appendOne(s, fmt.Sprintf("t%06d", i), fmt.Sprint(i)); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	after := ""
	for n := 0; n < topics; {
		list, err := s.Topics(t.Context(), "t", after, 5000)
		if err != nil || len(list) == 0 {
			t.Fatal(n, err)
		}
		for _, row := range list {
			if row.Topic != fmt.Sprintf("t%06d", n) || row.Entries != 1 {
				t.Fatalf("row %d: %+v", n, row)
			}
			n++
		}
		after = list[len(list)-1].Topic
	}
	for i := 0; i < topics; i += 997 {
		p, err := s.Read(t.Context(), fmt.Sprintf("t%06d", i), event.Position{}, store.ReadLimit{})
		if err != nil || len(p.Entries) != 1 || string(p.Entries[0].Record[13:]) != fmt.Sprint(i) {
			t.Fatal(i, p, err)
		}
	}
	if n := s.CachedTopics(); n > 20_000 {
		t.Errorf("%d topics are in memory", n)
	}
}

func TestChildFloods(t *testing.T) {
	var topics, events int
	if _, err := fmt.Sscanf(os.Getenv("PEBBLESTORE_CHILD_FLOODS"), "%d,%d", &topics, &events); err != nil {
		t.Skip("only as a child")
	}
	s, err := pebblestore.Open(pebblestore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	idle, _ := rss()
	start := time.Now()
	if err := flood(s, topics, events); err != nil {
		t.Fatal(err)
	}
	took := time.Since(start)
	now, high := rss()
	if testing.Verbose() && os.Getenv("PEBBLESTORE_FLOOD") != "" {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		t.Logf("heap in use %d MiB, idle %d MiB, released %d MiB; %s", m.HeapInuse>>20, m.HeapIdle>>20, m.HeapReleased>>20, s.Describe())
	}
	var held uint64
	list, err := s.Topics(t.Context(), "", "", 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range list {
		held += row.Bytes
		if row.Removed.IsZero() {
			t.Errorf("topic %s was not trimmed", row.Topic)
		}
	}
	t.Logf("%d events/s; idle %d MiB, now %d MiB, highest %d MiB (64 of them the test's own), log %d MiB", int(float64(events)/took.Seconds()), idle, now, high, held>>20)
	if held > 256<<20 {
		t.Errorf("%d MiB of log", held>>20)
	}
	if high > 512 && !underRace {
		t.Errorf("resident memory reached %d MiB", high)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}
