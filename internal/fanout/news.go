package fanout

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/turnlane/turnlane/store"
)

// session is one opening of the upstream's news. Topics are watched by one session; when it breaks, the
// next one watches them all again.
type session struct {
	news store.News
}

// rewatchers is how many topics are watched anew at once, since each may be a round trip.
const rewatchers = 8

// listen keeps a session of news open and rings topics, until the context ends.
func (h *Hub) listen(ctx context.Context) {
	for failures := 0; ctx.Err() == nil; {
		began := time.Now()
		err := h.listenOnce(ctx)
		if ctx.Err() != nil {
			return
		}
		h.faults.report(ctx, "wait for news", "", err)
		h.mu.Lock()
		h.fault = err
		h.mu.Unlock()
		if failures++; time.Since(began) > maxBackoff {
			failures = 1
		}
		select {
		case <-ctx.Done():
		case <-time.After(backoff(failures)):
		}
	}
}

// listenOnce opens news and rings topics until that fails.
func (h *Hub) listenOnce(ctx context.Context) error {
	news, err := h.cfg.Upstream.OpenNews(ctx)
	if err != nil {
		h.mu.Lock()
		h.down = err
		h.announce()
		h.mu.Unlock()
		return err
	}
	s := &session{news}
	h.mu.Lock()
	h.session, h.down = s, nil
	h.announce()
	topics := make([]*topic, 0, len(h.topics))
	for _, t := range h.topics {
		t.refs++ // so that it is not closed before it is watched
		delete(h.idle, t)
		topics = append(topics, t)
	}
	h.mu.Unlock()

	sweepCtx, stopSweep := context.WithCancel(ctx)
	var sweep sync.WaitGroup
	var sweepErr error
	sweep.Go(func() {
		if sweepErr = h.sweep(sweepCtx, topics); sweepErr != nil && ctx.Err() == nil {
			_ = news.Close() // and Wait fails
		}
		for _, t := range topics {
			h.release(t)
		}
	})
	err = h.wait(ctx, s)

	// Until opening it again fails, an Open waits rather than fails.
	h.mu.Lock()
	h.session = nil
	h.announce()
	h.mu.Unlock()
	stopSweep()
	sweep.Wait()
	_ = news.Close()
	if errors.Is(err, store.ErrClosed) && sweepErr != nil {
		return sweepErr
	}
	return err
}

// wait rings the topics that the session tells of.
func (h *Hub) wait(ctx context.Context, s *session) error {
	var rung []*topic
	for {
		names, err := s.news.Wait(ctx)
		if err != nil {
			return err
		}
		rung = rung[:0]
		h.mu.Lock()
		for _, name := range names {
			if t := h.topics[name]; t != nil {
				rung = append(rung, t)
			}
		}
		h.mu.Unlock()
		for _, t := range rung {
			t.ring()
		}
		clear(rung)
	}
}

// sweep watches topics with the present session and reads each once, since nothing told of what was
// appended between the sessions.
func (h *Hub) sweep(ctx context.Context, topics []*topic) error {
	if len(topics) == 0 {
		return nil
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	next := make(chan *topic)
	var wg sync.WaitGroup
	for range min(rewatchers, len(topics)) {
		wg.Go(func() {
			for t := range next {
				if err := h.watch(ctx, t); err != nil {
					cancel(err)
					return
				}
				t.ring()
			}
		})
	}
feeding:
	for _, t := range topics {
		select {
		case next <- t:
		case <-ctx.Done():
			break feeding
		}
	}
	close(next)
	wg.Wait()
	return context.Cause(ctx)
}

// watch returns once the present session tells of the topic. It waits a while for a session.
func (h *Hub) watch(ctx context.Context, t *topic) error {
	var timeout <-chan time.Time
	for {
		h.mu.Lock()
		s, down, changed, fault := h.session, h.down, h.changed, h.fault
		done := s != nil && t.watched == s
		h.mu.Unlock()
		switch {
		case done:
			return nil
		case s == nil && down != nil:
			return down
		case s == nil:
			if timeout == nil {
				timer := time.NewTimer(h.cfg.OpenTimeout)
				defer timer.Stop()
				timeout = timer.C
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return ctx.Err()
			case <-timeout:
				if fault != nil {
					return fmt.Errorf("no news of topics: %w", fault)
				}
				return errors.New("no news of topics: the fan-out is not running")
			}
			continue
		}
		err := s.news.Watch(ctx, t.name)
		h.mu.Lock()
		if h.session == s {
			if err == nil {
				t.watched = s
			}
			h.mu.Unlock()
			return err
		}
		h.mu.Unlock() // the session broke meanwhile; the next one, or its absence, decides
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

// announce wakes those who wait for session or down to change. h.mu is held.
func (h *Hub) announce() {
	close(h.changed)
	h.changed = make(chan struct{})
}
