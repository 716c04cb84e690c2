package gateway

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/internal/fanout"
	"github.com/turnlane/turnlane/internal/rpcerr"
	turnlanev1 "github.com/turnlane/turnlane/proto/turnlane/v1"
	"github.com/turnlane/turnlane/store"
	"github.com/turnlane/turnlane/store/pebblestore"
)

// keeper is a gateway whose retention runs on a clock that the test moves, over a store that is not
// part of the bubble of fake time.
type keeper struct {
	t     *testing.T
	g     *Gateway
	store store.Store
	now   time.Time
}

func newKeeper(t *testing.T, r Retention) *keeper {
	log, err := pebblestore.Open(pebblestore.Options{MemoryLimit: 1 << 30})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = log.Close() })
	k := &keeper{t: t, store: log, now: time.Unix(1_800_000_000, 0)}
	k.g, err = New(Config{Store: log, Hub: fanout.New(fanout.Config{Upstream: log}), Retention: r, Clock: func() time.Time { return k.now }})
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func (k *keeper) publish(topic string, n, size int) []event.Position {
	k.t.Helper()
	events := make([]*event.Event, n)
	for i := range events {
		events[i] = &event.Event{ID: fmt.Sprint(i), Source: "/s", Type: "t", Data: make([]byte, size), DataKind: event.BinaryData}
	}
	p, err := k.g.Publish(k.t.Context(), topic, events...)
	if err != nil {
		k.t.Fatal(err)
	}
	return p
}

func (k *keeper) look() {
	k.t.Helper()
	if err := k.g.retention.lookAtAll(k.t.Context()); err != nil {
		k.t.Fatal(err)
	}
}

func (k *keeper) bounds(topic string) store.Bounds {
	k.t.Helper()
	b, err := k.store.Bounds(k.t.Context(), topic)
	if err != nil {
		k.t.Fatal(err)
	}
	return b
}

func (k *keeper) set(topic string, bytes uint64, age time.Duration) {
	k.t.Helper()
	r := &turnlanev1.Retention{MaxBytes: bytes}
	if age > 0 {
		r.MaxAge = durationpb.New(age)
	}
	if _, err := k.g.SetTopic(k.t.Context(), &turnlanev1.SetTopicRequest{Topic: topic, Retention: r}); err != nil {
		k.t.Fatal(err)
	}
	if err := k.g.retention.reload(k.t.Context(), nil); err != nil {
		k.t.Fatal(err)
	}
}

func TestRetentionByBytes(t *testing.T) {
	k := newKeeper(t, Retention{MaxBytes: 100_000})
	k.set("small", 10_000, 0)
	for _, topic := range []string{"small", "default", "little"} {
		n := 300
		if topic == "little" {
			n = 3
		}
		k.publish(topic, n, 1000)
	}
	k.look()
	for topic, limit := range map[string]uint64{"small": 10_000, "default": 100_000} {
		b := k.bounds(topic)
		if b.Bytes > limit || b.Bytes < limit-2000 {
			t.Errorf("%s holds %d bytes, want a little less than %d", topic, b.Bytes, limit)
		}
		if b.Removed.IsZero() || !b.Removed.Less(b.First) {
			t.Errorf("%s: removed up to %s, first %s", topic, b.Removed, b.First)
		}
	}
	if b := k.bounds("little"); b.Entries != 3 {
		t.Errorf("little has %d of 3 entries", b.Entries)
	}
	if n := k.g.instruments.removedEntries.Load(); n < 400 {
		t.Errorf("%d removals are counted", n)
	}
}

func TestRetentionByAge(t *testing.T) {
	k := newKeeper(t, Retention{MaxAge: 24 * time.Hour, DeadLetterMaxAge: 48 * time.Hour})
	k.set("short", 0, time.Minute)
	old := map[string]event.Position{}
	for _, topic := range []string{"short", "default", "dlq.default", "wrk.a.reply.w", "wrk.a.command.w", "reply.w"} {
		old[topic] = k.publish(topic, 5, 10)[4]
	}
	want := func(when string, entries map[string]uint64) {
		t.Helper()
		k.look()
		for topic, n := range entries {
			if b := k.bounds(topic); b.Entries != n {
				t.Errorf("%s: %s has %d entries, want %d", when, topic, b.Entries, n)
			} else if n < 10 && n > 0 && b.Removed != old[topic] && b.Entries == 5 && !b.Removed.IsZero() {
				t.Errorf("%s: %s: removed up to %s, want %s", when, topic, b.Removed, old[topic])
			}
		}
	}
	want("at once", map[string]uint64{"short": 5, "default": 5, "dlq.default": 5})
	k.now = k.now.Add(50 * time.Second)
	k.publish("short", 5, 10)
	want("before the minute", map[string]uint64{"short": 10})
	k.now = k.now.Add(15 * time.Second)
	want("after the minute", map[string]uint64{"short": 5, "default": 5})
	k.now = k.now.Add(59 * time.Minute)
	want("after an hour", map[string]uint64{"wrk.a.reply.w": 0, "wrk.a.command.w": 5, "reply.w": 5})
	k.now = k.now.Add(25 * time.Hour)
	want("after a day", map[string]uint64{"short": 0, "default": 0, "dlq.default": 5})
	k.now = k.now.Add(25 * time.Hour)
	want("after two days", map[string]uint64{"dlq.default": 0})
}

// Topics that grow fast are looked at before their turn, and settings hold as soon as they are made.
func TestRetentionRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &fakeTopics{Store: nil, bytes: map[string]uint64{"a": 0}, settings: map[string][]byte{}}
		r := newRetention(Config{Store: log, Clock: time.Now, Logger: discard(),
			Retention: Retention{MaxBytes: 1000, MaxAge: time.Hour, DeadLetterMaxAge: time.Hour, Every: time.Minute}})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- r.run(ctx) }()
		synctest.Wait()

		log.grow("a", 5000)
		r.grew("a", 5000) // little: its turn comes
		synctest.Wait()
		if got := log.held("a"); got != 5000 {
			t.Errorf("%d bytes are held before any look", got)
		}
		log.grow("a", lookAfterBytes)
		r.grew("a", lookAfterBytes)
		synctest.Wait()
		if got := log.held("a"); got != 1000 {
			t.Errorf("after much growth %d bytes are held, want 1000", got)
		}
		log.grow("a", 5000) // by another gateway
		time.Sleep(time.Minute + time.Second)
		synctest.Wait()
		if got := log.held("a"); got != 1000 {
			t.Errorf("after its turn %d bytes are held, want 1000", got)
		}
		log.fail(store.ErrUnavailable)
		time.Sleep(2 * time.Minute)
		log.fail(nil)
		log.grow("a", 5000)
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if got := log.held("a"); got != 1000 {
			t.Errorf("after the store was away %d bytes are held, want 1000", got)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestTopicSettings(t *testing.T) {
	s := newServer(t)
	ctx := deadline(t)
	set := func(topic string, bytes uint64, age *durationpb.Duration) (*turnlanev1.Topic, error) {
		resp, err := s.client.SetTopic(ctx, &turnlanev1.SetTopicRequest{Topic: topic, Retention: &turnlanev1.Retention{MaxBytes: bytes, MaxAge: age}})
		return resp.GetTopic(), err
	}
	for field, try := range map[string]func() error{
		"topic":             func() error { _, err := set("a/b", 1, nil); return err },
		"retention.max_age": func() error { _, err := set("t", 1, durationpb.New(-time.Second)); return err },
	} {
		wantRefused(t, try(), codes.InvalidArgument, rpcerr.InvalidField, field)
	}
	for name, d := range map[string]*durationpb.Duration{
		"a fraction": durationpb.New(1500 * time.Millisecond), "too long": {Seconds: 1 << 40}, "invalid": {Seconds: 1, Nanos: -1},
	} {
		if _, err := set("t", 0, d); codeOf(err) != codes.InvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
	}
	topic, err := set("unborn", 5000, durationpb.New(time.Hour))
	if err != nil || topic.GetRetention().GetMaxBytes() != 5000 || topic.GetRetention().GetMaxAge().AsDuration() != time.Hour || topic.GetEntries() != 0 {
		t.Errorf("%v, %v", topic, err)
	}
	if topic, err = set("unborn", 0, nil); err != nil || topic.GetRetention().GetMaxBytes() != 1<<30 || topic.GetRetention().GetMaxAge().AsDuration() != 7*24*time.Hour {
		t.Errorf("back to the defaults: %v, %v", topic, err)
	}
	if _, err := s.client.GetTopic(ctx, &turnlanev1.GetTopicRequest{Topic: "none"}); codeOf(err) != codes.NotFound {
		t.Errorf("a topic that there is not: %v", err)
	}

	s.publish("b", 0, 3)
	p := s.publish("a", 0, 2)
	if _, err := set("a", 77777, nil); err != nil {
		t.Fatal(err)
	}
	list, err := s.client.ListTopics(ctx, &turnlanev1.ListTopicsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, topic := range list.GetTopics() {
		names = append(names, fmt.Sprintf("%s:%d:%d", topic.GetTopic(), topic.GetEntries(), topic.GetRetention().GetMaxBytes()))
	}
	if got := strings.Join(names, " "); got != "a:2:77777 b:3:1073741824" {
		t.Errorf("got %s", got)
	}
	if a := list.GetTopics()[0]; a.GetFirst() != p[0] || a.GetLast() != p[1] || a.GetIncarnation() == "" || a.GetRemoved() != "" {
		t.Errorf("got %v", a)
	}
	if page, err := s.client.ListTopics(ctx, &turnlanev1.ListTopicsRequest{Prefix: "b"}); err != nil || len(page.GetTopics()) != 1 {
		t.Errorf("by prefix: %v, %v", page, err)
	}

	// The running retention applies a setting at once.
	s.publish("c", 0, 100)
	if _, err := set("c", 1000, nil); err != nil {
		t.Fatal(err)
	}
	for {
		if b, err := s.store.Bounds(ctx, "c"); err != nil {
			t.Fatal(err)
		} else if b.Bytes <= 1000 {
			break
		}
	}
}
