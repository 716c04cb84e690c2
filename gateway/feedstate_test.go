package gateway

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/internal/fanout"
	"github.com/turnlane/turnlane/internal/metrics"
)

// closedSink takes nothing.
type closedSink struct{}

func (closedSink) Offer([]event.Entry) int { return 0 }
func (closedSink) Room() bool              { return false }

// The feeds by state, and how old what the worst of them waits for is.
func TestFeedsAreMeasured(t *testing.T) {
	s := newServer(t)
	hub := runHub(t, s.store)
	m, err := metrics.New()
	if err != nil {
		t.Fatal(err)
	}
	defer m.Shutdown(context.Background())
	meter, err := NewFeedMeter(m.Meter())
	if err != nil {
		t.Fatal(err)
	}
	meter.Watch(hub)
	scrape := func() string {
		w := httptest.NewRecorder()
		m.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
		body, _ := io.ReadAll(w.Body)
		return string(body)
	}
	lag := func(text string) float64 {
		t.Helper()
		found := regexp.MustCompile(`(?m)^turnlane_feed_lag_seconds (\S+)`).FindStringSubmatch(text)
		if found == nil {
			t.Fatalf("no lag in\n%s", text)
		}
		seconds, err := strconv.ParseFloat(found[1], 64)
		if err != nil {
			t.Fatal(err)
		}
		return seconds
	}
	open := func(sink interface {
		Offer([]event.Entry) int
		Room() bool
	}) {
		t.Helper()
		f, err := hub.Open(deadline(t), "t", fanout.Options{Start: fanout.Earliest(), Sink: sink})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(f.Close)
	}
	open(newBuffer(100, 1<<20))
	if text := scrape(); lag(text) != 0 || !strings.Contains(text, `turnlane_feeds{state="live"} 1`) {
		t.Errorf("one live feed:\n%s", text)
	}
	began := time.Now()
	s.publish("t", 0, 1)
	published := time.Now()
	open(closedSink{})
	text := scrape()
	for _, line := range []string{`turnlane_feeds{state="catching_up"} 0`, `turnlane_feeds{state="stalled"} 1`} {
		if !strings.Contains(text, line) {
			t.Errorf("%s is missing in\n%s", line, text)
		}
	}
	for lag(text) == 0 && time.Since(published) < 10*time.Second { // the clock has to move first
		text = scrape()
	}
	if got := lag(text); got <= 0 || got > time.Since(began).Seconds()+1 {
		t.Errorf("lag %v", got)
	}
}
