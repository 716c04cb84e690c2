package metrics

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

func scrape(t *testing.T, m *Metrics) string {
	t.Helper()
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if w.Code != 200 {
		t.Fatalf("status %d: %s", w.Code, w.Body)
	}
	return w.Body.String()
}

func wantLine(t *testing.T, page, line string) {
	t.Helper()
	for l := range strings.Lines(page) {
		if strings.HasPrefix(l, line) {
			return
		}
	}
	t.Errorf("no line begins with %q in:\n%s", line, page)
}

func TestScrape(t *testing.T) {
	m, err := New()
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	events, err := m.Meter().Int64Counter(PublishEvents)
	if err != nil {
		t.Fatal(err)
	}
	events.Add(ctx, 3, metric.WithAttributes(attribute.String(Class, "user")))
	duration, err := m.Meter().Float64Histogram(PublishDuration, metric.WithUnit("s"))
	if err != nil {
		t.Fatal(err)
	}
	duration.Record(ctx, 20e-6)

	page := scrape(t, m)
	wantLine(t, page, `turnlane_publish_events_total{class="user"} 3`)
	wantLine(t, page, `turnlane_publish_duration_seconds_bucket{le="1e-05"} 0`)
	wantLine(t, page, `turnlane_publish_duration_seconds_bucket{le="2.5e-05"} 1`)
	wantLine(t, page, "go_goroutines ")
	wantLine(t, page, "process_resident_memory_bytes ")
	if strings.Contains(page, "otel_scope") {
		t.Error("lines carry the name of the meter, which says nothing here")
	}
}

// Two of them in one process, as in tests with two servers, do not collide.
func TestTwo(t *testing.T) {
	for range 2 {
		if _, err := New(); err != nil {
			t.Fatal(err)
		}
	}
}

// A label with too many values is cut off rather than growing for ever.
func TestManyLabels(t *testing.T) {
	m, err := New()
	if err != nil {
		t.Fatal(err)
	}
	c, err := m.Meter().Int64Counter("turnlane.test")
	if err != nil {
		t.Fatal(err)
	}
	for i := range 10 * maxLabelSets {
		c.Add(context.Background(), 1, metric.WithAttributes(attribute.Int("n", i)))
	}
	if n := strings.Count(scrape(t, m), "turnlane_test_total{"); n > maxLabelSets {
		t.Errorf("%d label sets, want at most %d", n, maxLabelSets)
	}
}
