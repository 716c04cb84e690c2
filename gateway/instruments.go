package gateway

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/turnlane/turnlane/internal/metrics"
	"github.com/turnlane/turnlane/internal/rpcerr"
	"github.com/turnlane/turnlane/store"
)

// instruments measures a gateway. What happens per event is counted in plain numbers, which the meter
// reads when it is asked.
type instruments struct {
	classes     [len(classNames)]struct{ events, bytes atomic.Int64 }
	subscribers atomic.Int64
	stalled     atomic.Int64
	sent        atomic.Int64

	removedEntries, removedBytes, retentionFailed atomic.Int64

	duration  metric.Float64Histogram
	flush     metric.Int64Histogram
	refused   metric.Int64Counter
	retention metric.Float64Histogram

	registrations []metric.Registration
}

var classNames = [...]string{"user", "sys", "dlq", "wrk"}

// class is what a topic is for, by its name.
func class(topic string) int {
	if len(topic) > 4 && topic[3] == '.' {
		switch topic[:3] {
		case "sys":
			return 1
		case "dlq":
			return 2
		case "wrk":
			return 3
		}
	}
	return 0
}

func newInstruments(meter metric.Meter, g *Gateway) (*instruments, error) {
	i := &instruments{}
	m := maker{meter: meter}
	i.duration = m.histogram(metrics.PublishDuration, "From admission to the store's answer, for a batch.")
	i.retention = m.histogram(metrics.RetentionDuration, "One look at all topics, or at those that grew.")
	i.flush, m.err = orErr(m.err, func() (metric.Int64Histogram, error) {
		return meter.Int64Histogram(metrics.PublishFlush, metric.WithUnit("{event}"), metric.WithDescription("Events appended to the store at once."))
	})
	i.refused, m.err = orErr(m.err, func() (metric.Int64Counter, error) {
		return meter.Int64Counter(metrics.PublishRefused, metric.WithDescription("Batches that were not stored, or not surely."))
	})
	for c, name := range classNames {
		with := metric.WithAttributeSet(attribute.NewSet(attribute.String(metrics.Class, name)))
		m.counter(metrics.PublishEvents, "Events stored.", &i.classes[c].events, with)
		m.counter(metrics.PublishBytes, "Bytes stored.", &i.classes[c].bytes, with)
	}
	m.gauge(metrics.Subscribers, "Subscriptions open.", i.subscribers.Load)
	m.counter(metrics.SubscribersStalled, "Subscriptions closed for taking nothing.", &i.stalled)
	m.counter(metrics.SubscriberEvents, "Events sent to subscribers.", &i.sent)
	m.counter(metrics.RetentionEntries, "Entries removed by retention.", &i.removedEntries)
	m.counter(metrics.RetentionBytes, "Bytes removed by retention.", &i.removedBytes)
	m.counter(metrics.RetentionFailed, "Looks at retention cut short by an error.", &i.retentionFailed)
	m.gauge(metrics.PublishInFlight, "Bytes on their way to the store.", g.appender.inFlight.Load)
	i.registrations = m.registrations
	if m.err != nil {
		i.close()
		return nil, fmt.Errorf("gateway: make instruments: %w", m.err)
	}

	g.retention.removed = func(t store.Trimmed) {
		i.removedEntries.Add(int64(t.Entries))
		i.removedBytes.Add(int64(t.Bytes))
	}
	g.retention.passed = func(took time.Duration, err error) {
		i.retention.Record(context.Background(), took.Seconds())
		if err != nil {
			i.retentionFailed.Add(1)
		}
	}
	return i, nil
}

// appended counts one append to the store.
func (i *instruments) appended(topic string, events, bytes int) {
	c := &i.classes[class(topic)]
	c.events.Add(int64(events))
	c.bytes.Add(int64(bytes))
	i.flush.Record(context.Background(), int64(events))
}

// published counts one batch that was stored.
func (i *instruments) published(took time.Duration) {
	i.duration.Record(context.Background(), took.Seconds())
}

// refuse counts one batch that was not.
func (i *instruments) refuse(err error) {
	reason := rpcerr.Reason(rpcerr.From(err))
	if reason == "" {
		reason = "CANCELLED" // the caller went away, or ran out of time
	}
	i.refused.Add(context.Background(), 1, metric.WithAttributes(attribute.String(metrics.Reason, strings.ToUpper(reason))))
}

// close takes the callbacks down.
func (i *instruments) close() {
	for _, r := range i.registrations {
		_ = r.Unregister()
	}
}

// maker makes instruments and keeps the first error.
type maker struct {
	meter         metric.Meter
	registrations []metric.Registration
	err           error
}

func orErr[T any](err error, f func() (T, error)) (T, error) {
	if err != nil {
		var zero T
		return zero, err
	}
	return f()
}

func (m *maker) histogram(name, description string) (h metric.Float64Histogram) {
	h, m.err = orErr(m.err, func() (metric.Float64Histogram, error) {
		return m.meter.Float64Histogram(name, metric.WithUnit("s"), metric.WithDescription(description))
	})
	return h
}

func (m *maker) counter(name, description string, value *atomic.Int64, with ...metric.ObserveOption) {
	m.observe(func() (metric.Int64Observable, error) {
		return m.meter.Int64ObservableCounter(name, metric.WithDescription(description))
	}, value.Load, with)
}

func (m *maker) gauge(name, description string, value func() int64, with ...metric.ObserveOption) {
	m.observe(func() (metric.Int64Observable, error) {
		return m.meter.Int64ObservableGauge(name, metric.WithDescription(description))
	}, value, with)
}

func (m *maker) observe(instrument func() (metric.Int64Observable, error), value func() int64, with []metric.ObserveOption) {
	if m.err != nil {
		return
	}
	o, err := instrument()
	if err != nil {
		m.err = err
		return
	}
	r, err := m.meter.RegisterCallback(func(_ context.Context, observer metric.Observer) error {
		observer.ObserveInt64(o, value(), with...)
		return nil
	}, o)
	if err != nil {
		m.err = err
		return
	}
	m.registrations = append(m.registrations, r)
}
