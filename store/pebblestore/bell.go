package pebblestore

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/turnlane/turnlane/store"
)

// bell collects the names that changed until somebody takes them. It holds each at most once.
type bell struct {
	mu      sync.Mutex
	names   []string
	has     map[string]struct{}
	rung    chan struct{} // one token: names changed
	ended   chan struct{}
	endOnce sync.Once
}

func newBell() *bell {
	return &bell{has: map[string]struct{}{}, rung: make(chan struct{}, 1), ended: make(chan struct{})}
}

func (b *bell) ring(name string) {
	b.mu.Lock()
	if _, ok := b.has[name]; ok {
		b.mu.Unlock()
		return
	}
	b.has[name] = struct{}{}
	b.names = append(b.names, name)
	b.mu.Unlock()
	select {
	case b.rung <- struct{}{}:
	default:
	}
}

func (b *bell) Wait(ctx context.Context) ([]string, error) {
	for {
		select {
		case <-b.ended:
			return nil, store.ErrClosed
		default:
		}
		b.mu.Lock()
		if names := b.names; len(names) > 0 {
			b.names = nil
			clear(b.has)
			b.mu.Unlock()
			return names, nil
		}
		b.mu.Unlock()
		select {
		case <-b.rung:
		case <-b.ended:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

func (b *bell) end() { b.endOnce.Do(func() { close(b.ended) }) }

// newsHub knows which news watch which topic.
type newsHub struct {
	watched atomic.Int64 // pairs of topic and news
	mu      sync.RWMutex
	topics  map[string][]*news
	open    map[*news]struct{}
	closed  bool
}

func (h *newsHub) init() {
	h.topics = map[string][]*news{}
	h.open = map[*news]struct{}{}
}

// ring tells of a topic. It runs after readers can see what it tells of; Watch puts its news into the
// map before it returns: so a change that starts afterwards finds it there.
func (h *newsHub) ring(topic string) {
	if h.watched.Load() == 0 {
		return
	}
	h.mu.RLock()
	defer h.mu.RUnlock()
	for _, n := range h.topics[topic] {
		n.ring(topic)
	}
}

func (h *newsHub) closeAll() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	for n := range h.open {
		n.end()
	}
}

// news is a bell hung on topics.
type news struct {
	*bell
	hub     *newsHub
	watched map[string]struct{} // guarded by hub.mu
}

// OpenNews opens a source of news about topics.
func (s *Store) OpenNews(context.Context) (store.News, error) {
	h := &s.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil, store.ErrClosed
	}
	n := &news{bell: newBell(), hub: h, watched: map[string]struct{}{}}
	h.open[n] = struct{}{}
	return n, nil
}

func (n *news) Watch(_ context.Context, topic string) error {
	h := n.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, open := h.open[n]; !open || h.closed {
		return store.ErrClosed
	}
	if _, ok := n.watched[topic]; !ok {
		n.watched[topic] = struct{}{}
		h.topics[topic] = append(h.topics[topic], n)
		h.watched.Add(1)
	}
	return nil
}

func (n *news) Unwatch(topic string) {
	n.hub.mu.Lock()
	defer n.hub.mu.Unlock()
	n.unwatchLocked(topic)
}

func (n *news) unwatchLocked(topic string) {
	h := n.hub
	if _, ok := n.watched[topic]; !ok {
		return
	}
	delete(n.watched, topic)
	h.watched.Add(-1)
	all := h.topics[topic]
	for i, other := range all {
		if other == n {
			all[i] = all[len(all)-1]
			all[len(all)-1] = nil
			all = all[:len(all)-1]
			break
		}
	}
	if len(all) == 0 {
		delete(h.topics, topic)
	} else {
		h.topics[topic] = all
	}
}

func (n *news) Close() error {
	n.end()
	n.hub.mu.Lock()
	defer n.hub.mu.Unlock()
	delete(n.hub.open, n)
	for topic := range n.watched {
		n.unwatchLocked(topic)
	}
	return nil
}

// keyWatches are the bells hung on prefixes of registry keys.
type keyWatches struct {
	mu     sync.RWMutex
	bells  map[*keyWatch]struct{}
	closed bool
}

type keyWatch struct {
	*bell
	prefix string
	all    *keyWatches
}

// WatchKeys hangs a bell that tells changed keys under the prefix.
func (s *Store) WatchKeys(_ context.Context, prefix string) (store.Bell, error) {
	k := &s.watches
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		return nil, fmt.Errorf("watch keys %q: %w", prefix, store.ErrClosed)
	}
	if k.bells == nil {
		k.bells = map[*keyWatch]struct{}{}
	}
	w := &keyWatch{bell: newBell(), prefix: prefix, all: k}
	k.bells[w] = struct{}{}
	return w, nil
}

func (k *keyWatches) ring(key string) {
	k.mu.RLock()
	defer k.mu.RUnlock()
	for w := range k.bells {
		if strings.HasPrefix(key, w.prefix) {
			w.bell.ring(key)
		}
	}
}

func (k *keyWatches) closeAll() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.closed = true
	for w := range k.bells {
		w.end()
	}
}

func (w *keyWatch) Close() error {
	w.end()
	w.all.mu.Lock()
	defer w.all.mu.Unlock()
	delete(w.all.bells, w)
	return nil
}
