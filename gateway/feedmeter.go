package gateway

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/feed"
	"github.com/turnlane/turnlane/internal/fanout"
	"github.com/turnlane/turnlane/internal/metrics"
)

// FeedMeter counts what happens in a hub. It comes before the hub, whose hooks it is.
type FeedMeter struct {
	gaps        [feed.Undecodable + 1]atomic.Int64 // by feed.Kind
	catchUps    atomic.Int64
	undecodable atomic.Int64
	hub         atomic.Pointer[fanout.Hub]
}

// NewFeedMeter makes the instruments.
func NewFeedMeter(meter metric.Meter) (*FeedMeter, error) {
	f := &FeedMeter{}
	m := maker{meter: meter}
	for _, kind := range []feed.Kind{feed.Trimmed, feed.Incarnation, feed.Regressed, feed.Undecodable} {
		m.counter(metrics.FeedGaps, "Stretches of a topic that will not come, per feed.", &f.gaps[kind],
			metric.WithAttributeSet(attribute.NewSet(attribute.String(metrics.Kind, kind.String()))))
	}
	m.counter(metrics.FeedCatchUps, "Changes of a feed from live to catching up.", &f.catchUps)
	m.counter(metrics.FeedUndecodable, "Entries that no reader can read.", &f.undecodable)
	m.gauge(metrics.FeedTopics, "Topics followed.", func() int64 { return int64(f.stats().Topics) })
	m.gauge(metrics.FeedRecent, "Bytes of recent entries kept for feeds that are a little behind.", func() int64 { return f.stats().RecentBytes })
	if m.err == nil {
		m.err = f.measureFeeds(meter)
	}
	if m.err != nil {
		return nil, fmt.Errorf("make instruments of feeds: %w", m.err)
	}
	return f, nil
}

// Hooks are for the configuration of the hub. They do not block.
func (f *FeedMeter) Hooks() fanout.Hooks {
	return fanout.Hooks{
		Gap: func(_ string, g feed.Gap) {
			if int(g.Kind) < len(f.gaps) {
				f.gaps[g.Kind].Add(1)
			}
		},
		CatchUp: func(string) { f.catchUps.Add(1) },
		Bad:     func(string, event.Entry, error) { f.undecodable.Add(1) },
	}
}

// Watch makes the hub's own numbers visible too.
func (f *FeedMeter) Watch(hub *fanout.Hub) { f.hub.Store(hub) }

func (f *FeedMeter) stats() fanout.Stats {
	if hub := f.hub.Load(); hub != nil {
		return hub.Stats()
	}
	return fanout.Stats{}
}

// lagLimit bounds the reads for one look at the lag.
const lagLimit = time.Second

// measureFeeds makes the instruments that tell of all feeds at one moment.
func (f *FeedMeter) measureFeeds(meter metric.Meter) error {
	feeds, err := meter.Int64ObservableGauge(metrics.Feeds, metric.WithDescription("Feeds open."))
	if err != nil {
		return err
	}
	lag, err := meter.Float64ObservableGauge(metrics.FeedLag, metric.WithUnit("s"),
		metric.WithDescription("Age of the oldest event that a feed still waits for."))
	if err != nil {
		return err
	}
	state := func(s fanout.State) metric.ObserveOption {
		return metric.WithAttributeSet(attribute.NewSet(attribute.String(metrics.State, string(s))))
	}
	live, catchingUp, stalled := state(fanout.Live), state(fanout.CatchingUp), state(fanout.Stalled)
	_, err = meter.RegisterCallback(func(ctx context.Context, o metric.Observer) error {
		hub := f.hub.Load()
		if hub == nil {
			return nil
		}
		n := hub.Feeds()
		o.ObserveInt64(feeds, int64(n.Live), live)
		o.ObserveInt64(feeds, int64(n.CatchingUp), catchingUp)
		o.ObserveInt64(feeds, int64(n.Stalled), stalled)
		ctx, cancel := context.WithTimeout(ctx, lagLimit)
		defer cancel()
		o.ObserveFloat64(lag, hub.Lag(ctx).Seconds())
		return nil
	}, feeds, lag)
	return err
}
