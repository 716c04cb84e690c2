// Package metrics is the measuring of a process: an OpenTelemetry meter whose instruments are served
// in the format of Prometheus.
//
// Every name is in names.go. Numbers per topic or per worker are not metrics, since there may be
// hundreds of thousands of either: the services tell them (GetTopic, GetWorker). A label has few
// values, such as the class of a topic or the outcome of a turn, and the SDK's limit on the number of
// label sets per instrument guards what slips through.
package metrics

import (
	"context"
	"fmt"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	exporter "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/metric"
	sdk "go.opentelemetry.io/otel/sdk/metric"
)

// maxLabelSets bounds the label sets of one instrument; what is above is counted together.
const maxLabelSets = 200

// Metrics is a registry of its own: two in one process do not see each other.
type Metrics struct {
	provider *sdk.MeterProvider
	handler  http.Handler
}

// New makes an empty Metrics, which has the numbers of the process itself: goroutines, memory, garbage
// collection, CPU time and open files. It starts no goroutine.
func New() (*Metrics, error) {
	registry := prometheus.NewRegistry()
	for _, c := range []prometheus.Collector{
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	} {
		if err := registry.Register(c); err != nil {
			return nil, fmt.Errorf("register process metrics: %w", err)
		}
	}
	reader, err := exporter.New(exporter.WithRegisterer(registry), exporter.WithoutScopeInfo(), exporter.WithoutTargetInfo())
	if err != nil {
		return nil, fmt.Errorf("make the Prometheus exporter: %w", err)
	}
	return &Metrics{
		provider: sdk.NewMeterProvider(
			sdk.WithReader(reader),
			sdk.WithCardinalityLimit(maxLabelSets),
			sdk.WithView(buckets("s", secondBuckets), buckets("{event}", countBuckets)),
		),
		handler: promhttp.HandlerFor(registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4}),
	}, nil
}

// Meter returns the meter that instruments are made from.
func (m *Metrics) Meter() metric.Meter { return m.provider.Meter("turnlane") }

// Handler serves GET /metrics.
func (m *Metrics) Handler() http.Handler { return m.handler }

// Shutdown ends the meter. What is recorded afterwards is lost.
func (m *Metrics) Shutdown(ctx context.Context) error { return m.provider.Shutdown(ctx) }

// buckets gives all histograms of a unit their boundaries: those of the SDK begin at 5 ms, and most of
// what is timed here takes microseconds.
func buckets(unit string, boundaries []float64) sdk.View {
	return sdk.NewView(
		sdk.Instrument{Kind: sdk.InstrumentKindHistogram, Unit: unit},
		sdk.Stream{Aggregation: sdk.AggregationExplicitBucketHistogram{Boundaries: boundaries, NoMinMax: true}},
	)
}

var (
	secondBuckets = []float64{
		10e-6, 25e-6, 50e-6, 100e-6, 250e-6, 500e-6,
		1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3, 100e-3, 250e-3, 500e-3,
		1, 2.5, 5, 10, 30, 60, 300, 3600,
	}
	countBuckets = []float64{1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096, 16384}
)
