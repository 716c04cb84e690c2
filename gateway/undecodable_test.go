package gateway

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/internal/deadletter"
	"github.com/turnlane/turnlane/store"
)

// failing is a store of which the first appends to the topic of undecodable records fail.
type failing struct {
	store.Store
	left atomic.Int64
}

func (f *failing) Append(ctx context.Context, topic string, batches []store.Batch) ([]store.Appended, error) {
	if topic == deadletter.Pubsub && f.left.Add(-1) >= 0 {
		return nil, store.ErrUnavailable
	}
	return f.Store.Append(ctx, topic, batches)
}

// However many gateways find a record that cannot be read, and however often, it is one dead letter;
// that the store is away for a while changes nothing.
func TestUndecodableRecordsAreDeadLettersOnce(t *testing.T) {
	var log store.Store
	var gateways []*Gateway
	one := newServer(t, func(c *Config) {
		f := &failing{Store: c.Store}
		f.left.Store(3)
		log, c.Store = c.Store, f
	})
	two := newServer(t, func(c *Config) { c.Store = log })
	gateways = append(gateways, one.g, two.g)
	cause := errors.New("checksum differs")
	for n := range 3 {
		for _, g := range gateways {
			g.Undecodable("in", event.Entry{Pos: event.Position{Ms: 5, Seq: uint64(n % 2)}, Record: event.Record("garbage")}, cause)
			g.Undecodable("dlq.in", event.Entry{Pos: event.Position{Ms: 5}, Record: event.Record("garbage")}, cause)
		}
	}
	var page store.Page
	for began := time.Now(); len(page.Entries) < 2; {
		if time.Since(began) > time.Minute {
			t.Fatal("the dead letters never came")
		}
		var err error
		if page, err = log.Read(t.Context(), deadletter.Pubsub, event.Position{}, store.ReadLimit{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Millisecond)
	}
	one.stop() // what still waited is stored, or was there
	two.stop()
	<-one.done
	<-two.done
	page, err := log.Read(t.Context(), deadletter.Pubsub, event.Position{}, store.ReadLimit{})
	if err != nil || len(page.Entries) != 2 {
		t.Fatalf("%d dead letters, %v; want 2", len(page.Entries), err)
	}
	for _, entry := range page.Entries {
		e, err := event.DecodeRecord(entry.Record)
		if err != nil {
			t.Fatal(err)
		}
		original, f, err := deadletter.Unwrap(e)
		if err != nil || string(original.Data) != "garbage" || f.Topic != "in" || f.Reason != deadletter.Undecodable || !strings.Contains(f.Error, "checksum") {
			t.Errorf("the dead letter is %+v, %+v, %v", original, f, err)
		}
	}
}
