package gateway

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/turnlane/turnlane/internal/catalog"
	"github.com/turnlane/turnlane/internal/command"
	storev1 "github.com/turnlane/turnlane/proto/turnlane/store/v1"
	"github.com/turnlane/turnlane/store"
)

const (
	// A topic is looked at early when this much was published since the last look.
	lookAfterBytes = 8 << 20
	// More topics than this are not looked at one by one.
	lookTopics = 4096
	// One trim removes at most about this much, so that it does not hold up writers for long.
	trimStepBytes = 64 << 20
	// Ages are looked at this often at the least.
	ageEvery = 10 * time.Minute
	// Pages of lists.
	listPage = 1000
)

// retention removes what topics need not keep any longer. It walks over all topics, which costs little
// for those that are within their limits, and looks early at those that grew much through this gateway.
// Several gateways may do so at once: a trim that another one made already removes nothing.
type retention struct {
	store    store.Store
	defaults Retention
	clock    func() time.Time
	log      *slog.Logger
	removed  func(store.Trimmed) // must not block
	passed   func(took time.Duration, err error)

	mu    sync.Mutex
	grown map[string]int // bytes published here since the topic was looked at
	total int            // of them
	early chan struct{}  // capacity 1: total reached lookAfterBytes

	// Only used by run:
	settings map[string]*topicSettings
	nextAges time.Time // when to look at the ages of topics without settings of their own
	failing  bool
}

// topicSettings are what somebody set for a topic, with defaults filled in.
type topicSettings struct {
	limits
	nextAge time.Time
}

// limits are how much of a topic is kept.
type limits struct {
	maxBytes uint64
	maxAge   time.Duration
}

func newRetention(cfg Config) *retention {
	return &retention{
		store: cfg.Store, defaults: cfg.Retention, clock: cfg.Clock, log: cfg.Logger,
		removed: func(store.Trimmed) {}, passed: func(time.Duration, error) {},
		grown: make(map[string]int), early: make(chan struct{}, 1),
		settings: make(map[string]*topicSettings),
	}
}

// limitsFor returns the limits of a topic with the given settings, nil for none.
func (r *retention) limitsFor(topic string, set *storev1.TopicRecord) limits {
	l := limits{r.defaults.MaxBytes, r.defaults.MaxAge}
	if strings.HasPrefix(topic, "dlq.") {
		l.maxAge = r.defaults.DeadLetterMaxAge
	} else if _, kind, _, ok := command.ParseTopic(topic); ok && kind == command.Replies {
		l.maxAge = r.defaults.ReplyMaxAge
	}
	if n := set.GetMaxBytes(); n > 0 {
		l.maxBytes = n
	}
	if s := set.GetMaxAgeSeconds(); s > 0 {
		l.maxAge = time.Duration(min(s, maxAgeSeconds)) * time.Second
	}
	return l
}

// grew hears how much was published.
func (r *retention) grew(topic string, bytes int) {
	r.mu.Lock()
	if _, known := r.grown[topic]; known || len(r.grown) < lookTopics {
		r.grown[topic] += bytes
	}
	r.total += bytes
	due := r.total >= lookAfterBytes
	r.mu.Unlock()
	if due {
		select {
		case r.early <- struct{}{}:
		default:
		}
	}
}

// run keeps retention until ctx ends.
func (r *retention) run(ctx context.Context) error {
	changed := make(chan []string)
	var watcher sync.WaitGroup
	defer watcher.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	watcher.Go(func() { r.watch(ctx, changed) })

	timer := time.NewTimer(r.defaults.Every)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case keys := <-changed:
			r.do(ctx, func() error { return r.reload(ctx, keys) })
		case <-r.early:
			r.do(ctx, func() error { return r.lookAtGrown(ctx) })
		case <-timer.C:
			took := r.do(ctx, func() error { return r.lookAtAll(ctx) })
			timer.Reset(max(r.defaults.Every, 100*took))
		}
	}
}

// do runs one pass and reports it: an error ends the pass, and the next one tries again.
func (r *retention) do(ctx context.Context, pass func() error) time.Duration {
	start := time.Now()
	err := pass()
	took := time.Since(start)
	if ctx.Err() != nil {
		return took
	}
	r.passed(took, err)
	switch {
	case err != nil && !r.failing:
		r.log.Warn("retention failed; it will be tried again", "error", err)
	case err == nil && r.failing:
		r.log.Info("retention works again")
	}
	r.failing = err != nil
	return took
}

// watch tells changed settings, after all of them once. The bell hangs before the first look, so no
// change is missed.
func (r *retention) watch(ctx context.Context, changed chan<- []string) {
	send := func(keys []string) bool {
		select {
		case changed <- keys:
			return true
		case <-ctx.Done():
			return false
		}
	}
	for ctx.Err() == nil {
		bell, err := r.store.WatchKeys(ctx, catalog.TopicPrefix)
		if err == nil {
			for ok := send(nil); ok; {
				var keys []string
				if keys, err = bell.Wait(ctx); err != nil {
					break
				}
				ok = len(keys) == 0 || send(keys)
			}
			_ = bell.Close()
		}
		select {
		case <-ctx.Done():
		case <-time.After(r.defaults.Every):
		}
	}
}

// reload reads settings again, all of them if keys is nil, and applies those that are new.
func (r *retention) reload(ctx context.Context, keys []string) error {
	if keys == nil {
		for after := ""; ; {
			items, err := r.store.List(ctx, catalog.TopicPrefix, after, listPage)
			if err != nil {
				return err
			}
			for _, item := range items {
				r.set(item)
				after = item.Key
			}
			if len(items) < listPage {
				return nil
			}
		}
	}
	for _, key := range keys {
		topic := strings.TrimPrefix(key, catalog.TopicPrefix)
		item, err := r.store.Get(ctx, key)
		switch {
		case errors.Is(err, store.ErrNotFound):
			delete(r.settings, topic)
		case err != nil:
			return err
		default:
			r.set(item)
		}
		b, err := r.store.Bounds(ctx, topic)
		if err != nil {
			return err
		}
		if err := r.look(ctx, store.TopicInfo{Topic: topic, Bounds: b}); err != nil {
			return err
		}
	}
	return nil
}

func (r *retention) set(item store.Item) {
	topic := strings.TrimPrefix(item.Key, catalog.TopicPrefix)
	record, err := catalog.Decode(item, &storev1.TopicRecord{})
	if err != nil {
		r.log.Error("a topic's settings cannot be read; the defaults hold", "topic", topic, "error", err)
		delete(r.settings, topic)
		return
	}
	r.settings[topic] = &topicSettings{limits: r.limitsFor(topic, record)}
}

// lookAtGrown looks at the topics that grew here.
func (r *retention) lookAtGrown(ctx context.Context) error {
	r.mu.Lock()
	grown := r.grown
	r.grown, r.total = make(map[string]int), 0
	r.mu.Unlock()
	if len(grown) == lookTopics {
		return r.lookAtAll(ctx)
	}
	for topic := range grown {
		b, err := r.store.Bounds(ctx, topic)
		if err != nil {
			return err
		}
		if err := r.trimBytes(ctx, topic, b, r.limits(topic).maxBytes); err != nil {
			return err
		}
	}
	return nil
}

// lookAtAll looks at every topic.
func (r *retention) lookAtAll(ctx context.Context) error {
	r.mu.Lock()
	clear(r.grown)
	r.total = 0
	r.mu.Unlock()
	start := time.Now()
	for after := ""; ; {
		page, err := r.store.Topics(ctx, "", after, listPage)
		if err != nil {
			return err
		}
		for _, info := range page {
			after = info.Topic
			if err := r.look(ctx, info); err != nil {
				return err
			}
		}
		if len(page) < listPage {
			break
		}
	}
	if now := r.clock(); !now.Before(r.nextAges) {
		wait := min(r.agePeriod(r.defaults.MaxAge), r.agePeriod(r.defaults.DeadLetterMaxAge), r.agePeriod(r.defaults.ReplyMaxAge))
		r.nextAges = now.Add(max(wait, 100*time.Since(start)))
	}
	return nil
}

func (r *retention) limits(topic string) limits {
	if s, ok := r.settings[topic]; ok {
		return s.limits
	}
	return r.limitsFor(topic, nil)
}

// agePeriod is how often a limit of age is looked at.
func (r *retention) agePeriod(maxAge time.Duration) time.Duration {
	return max(r.defaults.Every, min(maxAge/20, ageEvery))
}

// look trims one topic if it is over its limits. Ages are looked at when that is due only, since it
// takes a read.
func (r *retention) look(ctx context.Context, info store.TopicInfo) error {
	if info.First.IsZero() {
		return nil
	}
	var due bool
	now := r.clock()
	l := r.limits(info.Topic)
	if s, ok := r.settings[info.Topic]; ok {
		if due = !now.Before(s.nextAge); due {
			s.nextAge = now.Add(r.agePeriod(s.maxAge))
		}
	} else {
		due = !now.Before(r.nextAges)
	}
	if due {
		if err := r.trimAge(ctx, info.Topic, info.Bounds, now.Add(-l.maxAge)); err != nil {
			return err
		}
	}
	return r.trimBytes(ctx, info.Topic, info.Bounds, l.maxBytes)
}

func (r *retention) trimBytes(ctx context.Context, topic string, b store.Bounds, limit uint64) error {
	for bytes := b.Bytes; bytes > limit; {
		bytes = max(limit, bytes-min(bytes, trimStepBytes))
		trimmed, err := r.store.Trim(ctx, topic, store.TrimLimit{MaxBytes: bytes})
		if err != nil {
			return err
		}
		r.removed(trimmed)
	}
	return nil
}

// trimAge trims if the oldest entry is older than the limit. A trim that removes nothing would still
// hold up writers, so the entry is read first.
func (r *retention) trimAge(ctx context.Context, topic string, b store.Bounds, limit time.Time) error {
	page, err := r.store.Read(ctx, topic, b.First.Prev(), store.ReadLimit{Entries: 1})
	if err != nil {
		return err
	}
	if len(page.Entries) > 0 {
		if oldest := page.Entries[0].Record; oldest.Check() == nil && !oldest.StoredAt().Before(limit) {
			return nil
		}
	}
	trimmed, err := r.store.Trim(ctx, topic, store.TrimLimit{StoredBefore: limit})
	if err == nil {
		r.removed(trimmed)
	}
	return err
}
