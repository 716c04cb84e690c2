package gateway

import (
	"context"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/internal/fanout"
	"github.com/turnlane/turnlane/internal/metrics"
	"github.com/turnlane/turnlane/store"
	"github.com/turnlane/turnlane/store/pebblestore"
)

// What happens to feeds shows where the metrics are scraped: a subscriber that fell behind, the stretch
// that retention took from it, and a record that nobody can read.
func TestFeedsAreCounted(t *testing.T) {
	memory, err := pebblestore.Open(pebblestore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = memory.Close() })
	log := newer{memory}
	m, err := metrics.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Shutdown(context.Background()) })
	feeds, err := NewFeedMeter(m.Meter())
	if err != nil {
		t.Fatal(err)
	}
	hub := runHubWith(t, fanout.Config{Upstream: log, Hooks: feeds.Hooks()})
	feeds.Watch(hub)

	put := func(ids ...string) (positions []event.Position) {
		t.Helper()
		var records []event.Record
		for _, id := range ids {
			records = append(records, event.AppendRecord(nil, &event.Event{ID: id, Source: "/s", Type: "t"}, 0, time.Now()))
		}
		out, err := log.Append(deadline(t), "t", []store.Batch{{Records: records}})
		if err != nil {
			t.Fatal(err)
		}
		return out[0].Positions
	}
	positions := put("1", "2", "3", "4", "5", "newer", "7")
	b := newBuffer(2, 1<<20)
	f, err := hub.Open(deadline(t), "t", fanout.Options{Start: fanout.Earliest(), Sink: b, OnGap: b.onGap})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	wait := func(what string, ok func() bool) {
		t.Helper()
		for ctx := deadline(t); !ok(); runtime.Gosched() {
			if ctx.Err() != nil {
				t.Fatalf("never: %s; %+v", what, f.Status())
			}
		}
	}
	stalled := func() bool { return f.Status().State == fanout.Stalled }
	upTo := func(end event.Position) func() bool {
		return func() bool {
			if b.take(nil).drained {
				f.Drained()
			}
			s := f.Status()
			return s.Position == end && s.State == fanout.Live && b.empty()
		}
	}
	wait("the buffer is full", stalled)
	if _, err := log.Trim(deadline(t), "t", store.TrimLimit{UpTo: positions[3]}); err != nil {
		t.Fatal(err)
	}
	wait("live", upTo(positions[6]))
	wait("the record is counted, which is told without a lock", func() bool { return feeds.undecodable.Load() > 0 })
	positions = put("8", "9", "10", "11", "12")
	wait("the buffer is full again", stalled)
	wait("live again", upTo(positions[4]))

	page := httptest.NewRecorder()
	m.Handler().ServeHTTP(page, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	for name, want := range map[string]string{
		`turnlane_feed_gaps_total{kind="trimmed"`:     "1",
		`turnlane_feed_gaps_total{kind="undecodable"`: "1",
		`turnlane_feed_gaps_total{kind="regressed"`:   "0",
		`turnlane_feed_undecodable_total`:             "1",
		`turnlane_feed_catchups_total`:                "1",
		`turnlane_feeds_topics`:                       "1",
	} {
		found := ""
		for line := range strings.Lines(page.Body.String()) {
			if strings.HasPrefix(line, name) {
				found = strings.Fields(line)[len(strings.Fields(line))-1]
			}
		}
		if found != want {
			t.Errorf("%s is %q, want %s", name, found, want)
		}
	}
}
