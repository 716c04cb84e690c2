package pebblestore_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/store"
	"github.com/turnlane/turnlane/store/pebblestore"
)

// TestKilled: a process that writes is killed again and again. All that it had acknowledged is there
// afterwards, and every batch whole.
func TestKilled(t *testing.T) {
	dir := t.TempDir()
	acked := map[string]event.Position{} // batch name → position of its first record
	incarnation := ""
	for round := range 5 {
		killChild(t, dir, round, 200*(round+1), acked)
		s, err := pebblestore.Open(pebblestore.Options{Dir: dir})
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		found := map[string]int{}
		var first = map[string]event.Position{}
		var after event.Position
		for {
			p, err := s.Read(t.Context(), "a", after, store.ReadLimit{})
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range p.Entries {
				name, n, _ := strings.Cut(string(e.Record[13:]), "/")
				if n != fmt.Sprint(found[name]) {
					t.Fatalf("round %d: batch %s has record %s as its number %d", round, name, n, found[name])
				}
				if found[name] == 0 {
					first[name] = e.Pos
				}
				found[name]++
			}
			if after = p.To; !after.Less(p.Bounds.Last) {
				break
			}
		}
		for name, n := range found {
			if n != perKilledBatch {
				t.Errorf("round %d: batch %s has %d records of %d", round, name, n, perKilledBatch)
			}
		}
		for name, pos := range acked {
			if first[name] != pos {
				t.Errorf("round %d: acknowledged batch %s is at %s, not %s", round, name, first[name], pos)
			}
		}
		b, err := s.Bounds(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		if incarnation == "" {
			incarnation = b.Incarnation
		}
		if b.Incarnation != incarnation {
			t.Errorf("round %d: incarnation %s was %s", round, b.Incarnation, incarnation)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		t.Logf("round %d: %d acknowledged, %d found", round, len(acked), len(found))
	}
	if len(acked) == 0 {
		t.Fatal("nothing was ever acknowledged")
	}
}

const perKilledBatch = 7

// killChild starts a writer, notes what it acknowledges, and kills it after so many acknowledgements.
func killChild(t *testing.T, dir string, round, after int, acked map[string]event.Position) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestChildWrites$")
	cmd.Env = append(os.Environ(), "PEBBLESTORE_CHILD_WRITES="+dir, fmt.Sprintf("PEBBLESTORE_ROUND=%d", round))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	n := 0
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		var name string
		var pos event.Position
		if _, err := fmt.Sscanf(lines.Text(), "ack %s %d-%d", &name, &pos.Ms, &pos.Seq); err != nil {
			t.Errorf("child: %s", lines.Text())
			continue
		}
		acked[name] = pos
		if n++; n == after {
			cmd.Process.Kill() // by its id; lines on the way are read to the end
		}
	}
	cmd.Wait()
	if n < after {
		t.Fatalf("the child ended after %d acknowledgements", n)
	}
}

func TestChildWrites(t *testing.T) {
	dir := os.Getenv("PEBBLESTORE_CHILD_WRITES")
	if dir == "" {
		t.Skip("only as a child")
	}
	s, err := pebblestore.Open(pebblestore.Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var writers sync.WaitGroup
	for w := range 8 {
		writers.Go(func() {
			for i := 0; ; i++ {
				name := fmt.Sprintf("%s.%d.%d", os.Getenv("PEBBLESTORE_ROUND"), w, i)
				batch := store.Batch{}
				for j := range perKilledBatch {
					batch.Records = append(batch.Records, record(time.Now(), fmt.Sprintf("%s/%d", name, j)))
				}
				out, err := s.Append(context.Background(), "a", []store.Batch{batch})
				if err != nil {
					fmt.Println("append:", err)
					return
				}
				mu.Lock()
				_, err = io.WriteString(os.Stdout, fmt.Sprintf("ack %s %s\n", name, out[0].Positions[0]))
				mu.Unlock()
				if err != nil {
					return
				}
			}
		})
	}
	writers.Wait()
}
