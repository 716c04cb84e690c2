package workmanager

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/turnlane/turnlane/internal/metrics"
	turnlanev1 "github.com/turnlane/turnlane/proto/turnlane/v1"
)

// gauges are what the leader tells in numbers. Of other processes they show nothing.
type gauges struct {
	uncovered    metric.Int64Counter
	registration metric.Registration

	mu       sync.Mutex
	snapshot snapshot
}

// snapshot is the leader's view at the end of a cycle. It is not changed once it is set.
type snapshot struct {
	workers     map[kind]int
	coverage    []coveredShare // the worst first
	quarantined int
	leading     bool
}

// coveredShare is how much of a group has a running member on a topic.
type coveredShare struct {
	group, topic string
	share        float64
}

type kind struct {
	state turnlanev1.WorkerState
	typ   string
}

func newGauges(meter metric.Meter) (*gauges, error) {
	g := &gauges{}
	var problems []error
	check := func(err error) { problems = append(problems, err) }
	var err error
	g.uncovered, err = meter.Int64Counter(metrics.Uncovered, metric.WithUnit("{event}"),
		metric.WithDescription("Events of slots that have no running member. Policy uncovered: nobody gets them; waiting: the member that is down replays them."))
	check(err)
	workers, err := meter.Int64ObservableGauge(metrics.CatalogWorkers, metric.WithUnit("{worker}"), metric.WithDescription("Workers by state and type."))
	check(err)
	coverage, err := meter.Float64ObservableGauge(metrics.GroupCoverage, metric.WithUnit("1"),
		metric.WithDescription("Share of a group's slots with a running member, on one topic."))
	check(err)
	quarantined, err := meter.Int64ObservableGauge(metrics.Quarantined, metric.WithUnit("{record}"),
		metric.WithDescription("Catalog records that cannot be read and are left out of everything."))
	check(err)
	if err := errors.Join(problems...); err != nil {
		return nil, fmt.Errorf("make the instruments of the workmanager: %w", err)
	}
	g.registration, err = meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		g.mu.Lock()
		s := g.snapshot
		g.mu.Unlock()
		if !s.leading {
			return nil
		}
		for k, n := range s.workers {
			o.ObserveInt64(workers, int64(n), metric.WithAttributes(
				attribute.String(metrics.State, stateName(k.state)), attribute.String(metrics.Type, k.typ)))
		}
		for _, c := range s.coverage {
			o.ObserveFloat64(coverage, c.share, metric.WithAttributes(
				attribute.String(metrics.Group, c.group), attribute.String(metrics.Topic, c.topic)))
		}
		o.ObserveInt64(quarantined, int64(s.quarantined))
		return nil
	}, workers, coverage, quarantined)
	if err != nil {
		return nil, fmt.Errorf("register the gauges of the workmanager: %w", err)
	}
	return g, nil
}

func (g *gauges) set(s snapshot) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.snapshot = s
}

func (g *gauges) close() error {
	if g.registration == nil {
		return nil
	}
	return g.registration.Unregister()
}

// count returns a function that counts events of a group's slots that nobody runs.
func (g *gauges) count(topic, group, policy string) func(int) {
	set := metric.WithAttributeSet(attribute.NewSet(
		attribute.String(metrics.Topic, topic), attribute.String(metrics.Group, group), attribute.String(metrics.Policy, policy)))
	return func(n int) { g.uncovered.Add(context.Background(), int64(n), set) }
}
