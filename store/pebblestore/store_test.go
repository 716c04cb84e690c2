package pebblestore_test

import (
	"context"
	"encoding/binary"
	"testing"
	"time"

	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/store"
	"github.com/turnlane/turnlane/store/pebblestore"
)

var ctxBackground = context.Background()

func record(at time.Time, body string) event.Record {
	r := make([]byte, 13, 13+len(body))
	r[0] = 1
	binary.BigEndian.PutUint64(r[5:], uint64(at.UnixNano()))
	return append(r, body...)
}

// TestSmoke: what is appended to a store on disk is read back, also after reopening it.
func TestSmoke(t *testing.T) {
	dir := t.TempDir()
	ctx := context.Background()
	s, err := pebblestore.Open(pebblestore.Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	n, _ := s.OpenNews(ctx)
	n.Watch(ctx, "a")
	out, err := s.Append(ctx, "a", []store.Batch{{Records: []event.Record{record(time.Now(), "x"), record(time.Now(), "y")}}})
	if err != nil {
		t.Fatal(err)
	}
	names, err := n.Wait(ctx)
	t.Log(out, names, err)
	for range 2 {
		p, err := s.Read(ctx, "a", event.Position{}, store.ReadLimit{})
		if err != nil || len(p.Entries) != 2 || p.To != out[0].Positions[1] {
			t.Fatal(p, err)
		}
		t.Log(p)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if s, err = pebblestore.Open(pebblestore.Options{Dir: dir}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Check(ctx); err != nil {
		t.Fatal(err)
	}
	s.Close()
}
