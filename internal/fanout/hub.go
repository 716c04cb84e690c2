// Package fanout is a process's one reader of each topic: a Hub reads every topic that rang once, and
// serves all the feeds that are open on it.
//
// A live feed costs no goroutine and nothing while its topic is quiet; feeds that are catching up share
// a small pool, one page at a time in turn. A full sink is left alone until its owner calls
// Feed.Drained; it holds up nobody else, and what it has not taken stays in the log. The rules are those
// of package feed; here are the loops, the retries and the lock.
//
// Locks are taken in this order: a topic's lock, then whatever lock a sink has of its own. Sinks and
// OnGap are called under the topic's lock, and so is the function given to Feed.Observe; none of them
// may call a method of Feed or Hub but Feed.Drained.
package fanout

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/feed"
	"github.com/turnlane/turnlane/store"
)

// Upstream is where topics are read from. A store.Log is one.
type Upstream interface {
	Read(ctx context.Context, topic string, after event.Position, limit store.ReadLimit) (store.Page, error)
	Bounds(ctx context.Context, topic string) (store.Bounds, error)
	OpenNews(ctx context.Context) (store.News, error)
}

// Config is what a Hub is made of. Zero limits mean the defaults.
type Config struct {
	Upstream Upstream
	Logger   *slog.Logger // nil discards
	Hooks    Hooks

	// Readers is the number of goroutines that read for live feeds, and of those that read pages for
	// feeds catching up. Default GOMAXPROCS, at least 2.
	Readers int
	// ReadEntries and ReadBytes bound one read for live feeds. Default 1,000 and 1 MiB.
	ReadEntries, ReadBytes int
	// PageEntries and PageBytes bound one page of a feed catching up that owns everything: about half a
	// lane, since more would be read in vain. Default 512 and 512 KiB.
	PageEntries, PageBytes int
	// RecentBytes bounds the recent spans kept for feeds about to catch up, in all. Default 64 MiB.
	RecentBytes int64
	// Linger is how long a topic without feeds stays watched. Default 10 s.
	Linger time.Duration
	// OpenTimeout bounds the wait for news of a topic in Open. Default 5 s.
	OpenTimeout time.Duration
	// StallAfter is how long a topic may fail to be read before Ready says so. Default 10 s.
	StallAfter time.Duration
}

// Hooks are told what happens. Each may be nil.
type Hooks struct {
	// Bad gets an entry whose record can't be read, once per topic and position as long as the topic
	// has feeds (and no more than a thousand such entries). No lock is held; the topic waits meanwhile.
	Bad func(topic string, entry event.Entry, err error)
	// Gap is told of every gap of every feed, before the feed's own OnGap, under the topic's lock.
	Gap func(topic string, gap feed.Gap)
	// CatchUp is told whenever a feed leaves live, under the topic's lock.
	CatchUp func(topic string)
}

// Hub is the fan-out of one process. New makes one, Run runs it.
type Hub struct {
	cfg    Config
	log    *slog.Logger
	faults faultLog
	broken faultLog // entries that can't be read
	recent *feed.Budget
	reads  *queue[*topic] // topics to read for their live feeds
	pages  *queue[*Feed]  // feeds to read a page for
	delays *delays

	mu      sync.Mutex // taken after no other lock
	running bool
	ended   bool
	topics  map[string]*topic
	idle    map[*topic]time.Time // topics without feeds, and since when
	session *session             // nil while there is no news
	down    error                // why it can't be opened
	fault   error                // why the last session ended
	changed chan struct{}        // closed when session or down changes
}

// New returns a Hub that does nothing before Run.
func New(cfg Config) *Hub {
	if cfg.Upstream == nil {
		panic("fanout: no upstream")
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	orDefault(&cfg.Readers, max(2, runtime.GOMAXPROCS(0)))
	orDefault(&cfg.ReadEntries, 1000)
	orDefault(&cfg.ReadBytes, 1<<20)
	orDefault(&cfg.PageEntries, 512)
	orDefault(&cfg.PageBytes, 512<<10)
	orDefault(&cfg.RecentBytes, 64<<20)
	orDefault(&cfg.Linger, 10*time.Second)
	orDefault(&cfg.OpenTimeout, 5*time.Second)
	orDefault(&cfg.StallAfter, 10*time.Second)
	return &Hub{
		cfg:     cfg,
		log:     cfg.Logger,
		faults:  faultLog{log: cfg.Logger},
		recent:  feed.NewBudget(cfg.RecentBytes),
		reads:   newQueue[*topic](),
		pages:   newQueue[*Feed](),
		delays:  newDelays(),
		topics:  map[string]*topic{},
		idle:    map[*topic]time.Time{},
		changed: make(chan struct{}),
	}
}

func orDefault[T int | int64 | time.Duration](field *T, value T) {
	if *field <= 0 {
		*field = value
	}
}

// Run serves feeds until the context ends, and returns after its last goroutine has. Feeds still open
// then get nothing more; they are closed as before. A Hub runs once.
func (h *Hub) Run(ctx context.Context) error {
	h.mu.Lock()
	if h.running || h.ended {
		h.mu.Unlock()
		return errors.New("fanout: a hub runs once")
	}
	h.running = true
	h.mu.Unlock()

	var wg sync.WaitGroup
	for range h.cfg.Readers {
		wg.Go(func() {
			for t, ok := h.reads.pop(); ok; t, ok = h.reads.pop() {
				t.read(ctx)
			}
		})
		wg.Go(func() {
			for f, ok := h.pages.pop(); ok; f, ok = h.pages.pop() {
				f.step(ctx)
			}
		})
	}
	wg.Go(func() { h.delays.run(ctx) })
	wg.Go(func() { h.closeIdle(ctx) })
	h.listen(ctx)

	h.mu.Lock()
	h.running, h.ended = false, true
	h.down = store.ErrClosed
	h.announce()
	h.mu.Unlock()
	h.reads.close()
	h.pages.close()
	wg.Wait()
	return ctx.Err()
}

// Ready returns nil when the hub can see news and no topic is stalled, and else what is wrong.
func (h *Hub) Ready() error {
	h.mu.Lock()
	running, session, down := h.running, h.session, h.down
	h.mu.Unlock()
	switch {
	case !running:
		return errors.New("fan-out is not running")
	case session == nil && down != nil:
		return fmt.Errorf("fan-out has no news of topics: %w", down)
	case session == nil:
		return errors.New("fan-out is opening the news of topics")
	}
	if stalled := h.Stalled(); len(stalled) > 0 {
		return fmt.Errorf("fan-out cannot read %d topics, such as %s, since %s or longer",
			len(stalled), stalled[0], h.cfg.StallAfter)
	}
	return nil
}

// Stalled returns the topics, sorted, that have had something to read for StallAfter and could not be
// read since.
func (h *Hub) Stalled() []string {
	before := time.Now().Add(-h.cfg.StallAfter).UnixNano()
	var stalled []string
	h.mu.Lock()
	for name, t := range h.topics {
		if t.readDue.before(before) || t.pageDue.before(before) {
			stalled = append(stalled, name)
		}
	}
	h.mu.Unlock()
	slices.Sort(stalled)
	return stalled
}

// Stats are counts of the present moment.
type Stats struct {
	Topics      int // watched
	RecentBytes int64
}

// Stats returns what the hub holds now.
func (h *Hub) Stats() Stats {
	h.mu.Lock()
	defer h.mu.Unlock()
	return Stats{Topics: len(h.topics), RecentBytes: h.recent.Used()}
}

// acquire returns the topic of that name and keeps it from being closed until release.
func (h *Hub) acquire(name string) (*topic, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ended {
		return nil, store.ErrClosed
	}
	t := h.topics[name]
	if t == nil {
		t = &topic{hub: h, name: name}
		h.topics[name] = t
	}
	t.refs++
	delete(h.idle, t)
	return t, nil
}

// release undoes one acquire. A topic that nobody needs lingers, so that a worker that moves or a
// reader that comes back does not make the hub forget and learn again.
func (h *Hub) release(t *topic) {
	h.mu.Lock()
	defer h.mu.Unlock()
	t.refs--
	if t.refs == 0 {
		h.idle[t] = time.Now()
	}
}

// closeIdle unwatches topics that have had no feed for the linger time.
func (h *Hub) closeIdle(ctx context.Context) {
	tick := time.NewTicker(h.cfg.Linger)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		h.mu.Lock()
		for t, since := range h.idle {
			if time.Since(since) >= h.cfg.Linger {
				delete(h.idle, t)
				delete(h.topics, t.name)
				if h.session != nil {
					// Under the lock: an Open of the same name finds either the watched topic, or none
					// and hangs a watch after this one is down.
					h.session.news.Unwatch(t.name)
				}
			}
		}
		h.mu.Unlock()
	}
}

// unavailable makes an error of the upstream one of kind store.ErrUnavailable.
func unavailable(doing string, err error) error {
	if errors.Is(err, store.ErrUnavailable) {
		return fmt.Errorf("%s: %w", doing, err)
	}
	return fmt.Errorf("%s: %w: %w", doing, store.ErrUnavailable, err)
}
