package lifecycle

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/store"
)

// topic is the lifecycle topic: it refuses batches that are too large, and what a test says.
type topic struct {
	mu       sync.Mutex
	subjects []string
	refuse   func(e *event.Event) error
	calls    int
}

const topicBatchBytes = 16 << 20

func (p *topic) Publish(_ context.Context, name string, events ...*event.Event) ([]event.Position, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls++
	bytes := 0
	for _, e := range events {
		if p.refuse != nil {
			if err := p.refuse(e); err != nil {
				return nil, err
			}
		}
		if bytes += len(e.Data); bytes > topicBatchBytes {
			return nil, &event.Error{Field: "events", Rule: "are too much"}
		}
	}
	for _, e := range events {
		p.subjects = append(p.subjects, e.Subject)
	}
	return make([]event.Position, len(events)), nil
}

// heal ends refusals, and returns how many calls there were.
func (p *topic) heal() (calls int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuse = nil
	return p.calls
}

// bubble runs a story with a running outbox on a fake clock, and returns what was logged.
func bubble(t *testing.T, p *topic, maxEvents int, story func(o *Outbox)) (logged string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		var text strings.Builder
		o := NewOutbox(p, slog.New(slog.NewTextHandler(&text, nil)), maxEvents)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- o.Run(ctx, 2*time.Second) }()
		story(o)
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		logged = text.String()
	})
	return logged
}

func subjects(from, to int) (ids []string) {
	for i := from; i < to; i++ {
		ids = append(ids, fmt.Sprintf("w%d", i))
	}
	return ids
}

// manyTopics is as much as a worker can have.
func manyTopics() []string {
	topics := make([]string, 1024)
	for i := range topics {
		topics[i] = fmt.Sprintf("%s%04d", strings.Repeat("t", 196), i)
	}
	return topics
}

func TestWorkersWithManyTopicsAreTold(t *testing.T) {
	p := &topic{}
	logged := bubble(t, p, 1000, func(o *Outbox) {
		for _, id := range subjects(0, 200) { // 40 MiB
			o.Add(TypeState, Data{WorkerID: id, Topics: manyTopics()})
		}
	})
	if !slices.Equal(p.subjects, subjects(0, 200)) || logged != "" {
		t.Errorf("%d of 200 events were published, or not in order; logged %q", len(p.subjects), logged)
	}
}

func TestWhatCanNeverBeStoredHoldsNothingUp(t *testing.T) {
	p := &topic{refuse: func(e *event.Event) error {
		if e.Subject == "w37" || e.Subject == "w38" {
			return &event.Error{Field: "data", Rule: "is not liked"}
		}
		return nil
	}}
	logged := bubble(t, p, 1000, func(o *Outbox) {
		for _, id := range subjects(0, 100) {
			o.Add(TypeState, Data{WorkerID: id})
		}
	})
	want := slices.Concat(subjects(0, 37), subjects(39, 100))
	if !slices.Equal(p.subjects, want) {
		t.Errorf("published %v", p.subjects)
	}
	if strings.Count(logged, "dropped=1") != 2 || !strings.Contains(logged, "subject=w37") {
		t.Errorf("logged %q", logged)
	}
}

func TestAStoreThatIsAwayLosesNothingButWhatHasNoRoom(t *testing.T) {
	away := func(*event.Event) error { return store.ErrUnavailable }
	for _, c := range []struct {
		name             string
		topics           []string
		added, max, kept int
	}{
		{"few", nil, 50, 1000, 50},
		{"too many", nil, 60, 50, 50},
		{"too large", manyTopics(), 400, 1000, maxWaitingBytes / (size(New("", time.Now(), Data{WorkerID: "w100", Topics: manyTopics()})))},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := &topic{refuse: away}
			logged := bubble(t, p, c.max, func(o *Outbox) {
				for _, id := range subjects(100, 100+c.added) {
					o.Add(TypeState, Data{WorkerID: id, Topics: c.topics})
				}
				time.Sleep(time.Hour)
				if calls := p.heal(); calls > 800 {
					t.Errorf("%d calls in an hour", calls)
				}
				time.Sleep(5 * time.Second)
				o.Add(TypeState, Data{WorkerID: "last"})
			})
			if !slices.Equal(p.subjects, append(subjects(100, 100+c.kept), "last")) {
				t.Errorf("%d events were published, or not in order, want %d", len(p.subjects), c.kept+1)
			}
			told := 0 // perhaps in parts
			for line := range strings.Lines(logged) {
				if _, count, ok := strings.Cut(line, " dropped="); ok {
					n, err := strconv.Atoi(strings.TrimSpace(count))
					if err != nil {
						t.Error(err)
					}
					told += n
				}
			}
			if lost := c.added - c.kept; told != lost {
				t.Errorf("%d were dropped, and the log tells of %d", lost, told)
			}
		})
	}
}

func TestAStoreThatStaysAwayEndsTheRunAfterItsGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &topic{refuse: func(*event.Event) error { return store.ErrOutcomeUnknown }}
		o := NewOutbox(p, slog.New(slog.DiscardHandler), 1000)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		began := time.Now()
		o.Add(TypeState, Data{WorkerID: "w"})
		if err := o.Run(ctx, 2*time.Second); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took != time.Minute+2*time.Second {
			t.Errorf("it took %s, want a minute and two seconds", took)
		}
	})
}
