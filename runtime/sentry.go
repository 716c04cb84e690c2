package runtime

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/turnlane/turnlane/store"
)

// sentry watches the topics of workers' own that do not exist yet: most workers never get a command, and
// nothing of theirs is ever brought back. Their lanes have no feed until the topic's first event; meanwhile
// each costs an entry here and one in the store's news, which all share.
type sentry struct {
	r *Runtime

	mu    sync.Mutex
	news  store.News // nil while there is none
	lanes map[string]*lane
}

func newSentry(r *Runtime) *sentry { return &sentry{r: r, lanes: map[string]*lane{}} }

// add has the lane's feed opened as soon as its topic exists.
func (s *sentry) add(ctx context.Context, l *lane) error {
	s.mu.Lock()
	s.lanes[l.topic] = l
	news := s.news
	s.mu.Unlock()
	if news == nil {
		return nil // run looks at all lanes once it has news
	}
	return s.look(ctx, news, l.topic)
}

// look watches a topic and then looks whether it exists: what is appended comes before the one or the other.
func (s *sentry) look(ctx context.Context, news store.News, topic string) error {
	if err := news.Watch(ctx, topic); err != nil {
		if errors.Is(err, store.ErrClosed) {
			return nil // run looks again with other news
		}
		return err
	}
	log, err := s.r.cfg.Store.Bounds(ctx, topic)
	if err != nil {
		return err
	}
	if log.Incarnation != "" {
		s.wake(topic)
	}
	return nil
}

// drop forgets a lane.
func (s *sentry) drop(l *lane) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lanes[l.topic] != l {
		return
	}
	delete(s.lanes, l.topic)
	if s.news != nil {
		s.news.Unwatch(l.topic)
	}
}

// wake opens the feed of a lane whose topic exists now.
func (s *sentry) wake(topic string) {
	s.mu.Lock()
	l := s.lanes[topic]
	s.mu.Unlock()
	if l == nil {
		return
	}
	s.drop(l)
	s.r.work.Go(func() {
		for n := 0; s.r.open(s.r.ctx, l.a, l.index, begin{}) != nil; n++ {
			if l.a.isEnding() || !sleep(s.r.ctx, backoff(n, 10*time.Millisecond, 2*time.Second)) {
				return
			}
		}
	})
}

// run watches until ctx ends.
func (s *sentry) run(ctx context.Context) {
	for n := 0; ctx.Err() == nil; n++ {
		err := s.listen(ctx, func() { n = 0 })
		if ctx.Err() != nil {
			return
		}
		s.r.log.Warn("topics of workers' own cannot be watched; trying again", "error", err)
		sleep(ctx, backoff(n, 50*time.Millisecond, 2*time.Second))
	}
}

func (s *sentry) listen(ctx context.Context, listening func()) error {
	news, err := s.r.cfg.Store.OpenNews(ctx)
	if err != nil {
		return err
	}
	defer func() {
		s.mu.Lock()
		s.news = nil
		s.mu.Unlock()
		news.Close()
	}()
	s.mu.Lock()
	s.news = news
	topics := make([]string, 0, len(s.lanes))
	for topic := range s.lanes {
		topics = append(topics, topic)
	}
	s.mu.Unlock()
	for _, topic := range topics {
		if err := s.look(ctx, news, topic); err != nil {
			return err
		}
	}
	for {
		names, err := news.Wait(ctx)
		if err != nil {
			return err
		}
		listening()
		for _, topic := range names {
			s.wake(topic)
		}
	}
}

func (a *activation) isEnding() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.frozen || a.closing
}
