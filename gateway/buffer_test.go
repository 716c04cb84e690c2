package gateway

import (
	"runtime"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/internal/fanout"
	"github.com/turnlane/turnlane/store"
	"github.com/turnlane/turnlane/store/pebblestore"
)

// A buffer keeps the promise of a sink, and its order, whatever the sizes of the records; it holds at
// most one record beyond its limits.
func TestBufferModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		maxEvents := rapid.IntRange(1, 8).Draw(t, "events")
		maxBytes := rapid.IntRange(1, 100).Draw(t, "bytes")
		b := newBuffer(maxEvents, maxBytes)
		var model []event.Entry
		promised, seq := false, uint64(0)
		size := func() (n int) {
			for _, e := range model {
				n += len(e.Record)
			}
			return n
		}
		t.Repeat(map[string]func(*rapid.T){
			"room": func(t *rapid.T) {
				want := len(model) <= maxEvents/2 && size() <= maxBytes/2
				if got := b.Room(); got != want {
					t.Fatalf("room %v with %d events and %d bytes, want %v", got, len(model), size(), want)
				}
				promised = want
			},
			"offer": func(t *rapid.T) {
				var entries []event.Entry
				for range rapid.IntRange(1, 4).Draw(t, "entries") {
					seq++
					entries = append(entries, event.Entry{Pos: event.Position{Seq: seq},
						Record: make(event.Record, rapid.IntRange(1, 150).Draw(t, "size"))})
				}
				want := 0
				for _, e := range entries {
					full := len(model) >= maxEvents || size()+len(e.Record) > maxBytes
					if full && len(model) > 0 && !promised {
						break
					}
					promised = false
					model = append(model, e)
					want++
				}
				if got := b.Offer(entries); got != want {
					t.Fatalf("took %d of %d, want %d", got, len(entries), want)
				}
			},
			"take": func(t *rapid.T) {
				got := b.take(nil)
				if len(got.entries) == 0 && len(model) > 0 {
					t.Fatalf("%d events wait and none is taken", len(model))
				}
				for i, e := range got.entries {
					if e.Pos != model[i].Pos {
						t.Fatalf("got %s, want %s", e.Pos, model[i].Pos)
					}
				}
				model = model[len(got.entries):]
			},
			"": func(t *rapid.T) {
				if b.waiting() != len(model) || b.bytes != size() {
					t.Fatalf("%d events, %d bytes; want %d, %d", b.waiting(), b.bytes, len(model), size())
				}
			},
		})
	})
}

// A large record behind a small one that nobody takes: the feed leaves it in the log, or puts it into
// the buffer; it does not read it again and again.
func TestALargeRecordForABufferAtMostHalfFullIsReadOnce(t *testing.T) {
	log, err := pebblestore.Open(pebblestore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = log.Close() })
	record := func(size int) event.Record {
		return event.AppendRecord(nil, &event.Event{ID: "1", Source: "/s", Type: "t",
			Data: make([]byte, size), DataKind: event.BinaryData}, 0, time.Now())
	}
	if _, err := log.Append(deadline(t), "t", []store.Batch{{Records: []event.Record{record(100), record(900), record(900)}}}); err != nil {
		t.Fatal(err)
	}
	hub := runHub(t, log)
	b := newBuffer(16, 900)
	f, err := hub.Open(deadline(t), "t", fanout.Options{Start: fanout.Earliest(), Sink: b})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for ctx := deadline(t); f.Status().State != fanout.Stalled; runtime.Gosched() {
		if ctx.Err() != nil {
			t.Fatalf("the feed is %+v, with %d records in the buffer", f.Status(), b.waiting())
		}
	}
	if n := b.waiting(); n != 2 {
		t.Errorf("%d records in the buffer, want the small one and one large", n)
	}
}
