package deadletter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/internal/metrics"
	"github.com/turnlane/turnlane/store"
)

const (
	// maxSeries bounds what the gauges show: the largest, and the rest together.
	maxSeries = 100
	// recountAfter is the least time between two readings of a whole topic. Additions are read as they
	// come; what was removed is only found by reading again.
	recountAfter = time.Minute
	// countPause after each page keeps the count from being in anybody's way.
	countPause = 10 * time.Millisecond
	otherTopic = "other"
)

// series is the dead letters of one topic and reason.
type series struct {
	topic, reason string
	n             uint64
	oldest        time.Time
}

// tally is what was counted in a topic.
type tally struct {
	incarnation string
	upTo        event.Position
	entries     uint64
	counted     time.Time // when it was begun
	reasons     map[string]*series
}

// count counts dead letters until ctx ends.
func (s *Service) count(ctx context.Context) {
	tallies := map[string]*tally{}
	for {
		if err := s.countAll(ctx, tallies); err == nil {
			var all []series
			for _, t := range tallies {
				for _, r := range t.reasons {
					all = append(all, *r)
				}
			}
			s.meter.show(top(all))
		} else if ctx.Err() == nil {
			s.log.Warn("dead letters cannot be counted", "error", err)
		}
		if !sleep(ctx, s.cfg.CountEvery) {
			return
		}
	}
}

func (s *Service) countAll(ctx context.Context, tallies map[string]*tally) error {
	seen := map[string]bool{}
	err := s.eachTopic(ctx, filter{}, func(info store.TopicInfo) (bool, error) {
		if info.Entries == 0 {
			return true, nil
		}
		seen[info.Topic] = true
		t := tallies[info.Topic]
		now := time.Now()
		if t == nil || t.incarnation != info.Incarnation {
			t = nil
		} else if err := s.countTopic(ctx, info.Topic, info.Last, t); err != nil {
			return false, err
		} else if t.entries != info.Entries && now.Sub(t.counted) >= recountAfter {
			t = nil
		}
		if t == nil {
			t = &tally{incarnation: info.Incarnation, counted: now, reasons: map[string]*series{}}
			if err := s.countTopic(ctx, info.Topic, info.Last, t); err != nil {
				return false, err
			}
			tallies[info.Topic] = t
		}
		return true, nil
	})
	if err != nil {
		return err
	}
	for topic := range tallies {
		if !seen[topic] {
			delete(tallies, topic)
		}
	}
	return nil
}

// countTopic adds what lies after the tally, up to a position.
func (s *Service) countTopic(ctx context.Context, topic string, last event.Position, t *tally) error {
	var r reader
	for t.upTo.Less(last) {
		page, err := s.store.Read(ctx, topic, t.upTo, pageLimit)
		if err != nil {
			return err
		}
		for _, e := range page.Entries {
			l := r.read(topic, e)
			of := t.reasons[l.facts.Reason]
			if of == nil {
				of = &series{topic: topic, reason: strings.Clone(l.facts.Reason), oldest: l.at}
				t.reasons[of.reason] = of
			}
			of.n++
			t.entries++
			if l.at.Before(of.oldest) {
				of.oldest = l.at
			}
		}
		t.upTo = page.To
		if len(page.Entries) > 0 && !sleep(ctx, countPause) {
			return context.Cause(ctx)
		}
	}
	return nil
}

// top keeps the largest series and adds the others up.
func top(all []series) []series {
	slices.SortFunc(all, func(a, b series) int {
		return cmp.Or(cmp.Compare(b.n, a.n), cmp.Compare(a.topic, b.topic), cmp.Compare(a.reason, b.reason))
	})
	if len(all) <= maxSeries {
		return all
	}
	rest := series{topic: otherTopic, oldest: all[maxSeries].oldest}
	for _, x := range all[maxSeries:] {
		rest.n += x.n
		if x.oldest.Before(rest.oldest) {
			rest.oldest = x.oldest
		}
	}
	return append(all[:maxSeries], rest)
}

// meter is what the package tells in numbers.
type meter struct {
	redriven, purged metric.Int64Counter
	registration     metric.Registration

	mu    sync.Mutex
	shown []series
}

func newMeter(m metric.Meter) (*meter, error) {
	out := &meter{}
	var problems [4]error
	out.redriven, problems[0] = m.Int64Counter(metrics.DeadLettersRedriven, metric.WithUnit("{event}"),
		metric.WithDescription("Dead letters whose events were brought back."))
	out.purged, problems[1] = m.Int64Counter(metrics.DeadLettersPurged, metric.WithUnit("{event}"),
		metric.WithDescription("Dead letters that were removed by hand."))
	depth, err := m.Int64ObservableGauge(metrics.DeadLetters, metric.WithUnit("{event}"),
		metric.WithDescription("Dead letters by topic and reason, as of the last count."))
	problems[2] = err
	age, err := m.Float64ObservableGauge(metrics.DeadLetterAge, metric.WithUnit("s"),
		metric.WithDescription("Age of the oldest dead letter by topic and reason."))
	problems[3] = err
	if err := errors.Join(problems[:]...); err != nil {
		return nil, fmt.Errorf("make the instruments of dead letters: %w", err)
	}
	out.registration, err = m.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		out.mu.Lock()
		shown := out.shown
		out.mu.Unlock()
		for _, x := range shown {
			by := metric.WithAttributes(attribute.String(metrics.Topic, x.topic), attribute.String(metrics.Reason, x.reason))
			o.ObserveInt64(depth, int64(x.n), by)
			o.ObserveFloat64(age, max(0, time.Since(x.oldest).Seconds()), by)
		}
		return nil
	}, depth, age)
	if err != nil {
		return nil, fmt.Errorf("register the gauges of dead letters: %w", err)
	}
	return out, nil
}

func (m *meter) show(s []series) {
	m.mu.Lock()
	m.shown = s
	m.mu.Unlock()
}

func (m *meter) close() {
	if m.registration != nil {
		_ = m.registration.Unregister()
	}
}
