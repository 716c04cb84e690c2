package fanout

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"sort"
	"sync"
	"testing"
	"time"

	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/feed"
	"github.com/turnlane/turnlane/grouping"
	"github.com/turnlane/turnlane/store"
)

// fakeLog is an upstream in memory whose calls can be made to fail or to take time.
type fakeLog struct {
	mu      sync.Mutex
	topics  map[string]*fakeTopic
	news    map[*fakeNews]bool
	made    int
	reads   int
	latency time.Duration // of a read
	fail    func(call, topic string) error

	afterBounds func(topic string) // called between an answer of Bounds and its use
}

type fakeTopic struct {
	incarnation   string
	entries       []event.Entry
	last, removed event.Position
}

func newFakeLog() *fakeLog {
	return &fakeLog{topics: map[string]*fakeTopic{}, news: map[*fakeNews]bool{}}
}

// failing makes the next calls fail as f says; nil heals.
func (l *fakeLog) failing(f func(call, topic string) error) {
	l.mu.Lock()
	l.fail = f
	l.mu.Unlock()
}

func (l *fakeLog) fault(ctx context.Context, call, topic string) error {
	l.mu.Lock()
	fail, latency := l.fail, l.latency
	l.mu.Unlock()
	if latency > 0 && call == "Read" {
		select {
		case <-time.After(latency):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if fail != nil {
		return fail(call, topic)
	}
	return nil
}

const broken = "broken"

// append stores events with these keys and rings. The record of the key broken can't be read.
func (l *fakeLog) append(topic string, keys ...string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.topics[topic]
	if t == nil {
		l.made++
		t = &fakeTopic{incarnation: fmt.Sprintf("i%d", l.made)}
		l.topics[topic] = t
	}
	for _, key := range keys {
		t.last = event.Position{Ms: t.last.Ms, Seq: t.last.Seq + 2}
		e := event.Entry{Pos: t.last, Record: record(key)}
		if key == broken {
			e.Record[0] = 99
		}
		t.entries = append(t.entries, e)
	}
	for n := range l.news {
		n.tell(topic)
	}
}

func (l *fakeLog) trim(topic string, upTo event.Position) {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.topics[topic]
	t.removed = upTo
	t.entries = slices.DeleteFunc(slices.Clone(t.entries), func(e event.Entry) bool { return !upTo.Less(e.Pos) })
}

// cut loses the newest entries of a topic, as a failover can.
func (l *fakeLog) cut(topic string, after event.Position) {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.topics[topic]
	t.last = after
	t.entries = slices.DeleteFunc(slices.Clone(t.entries), func(e event.Entry) bool { return after.Less(e.Pos) })
	for n := range l.news {
		n.tell(topic)
	}
}

func (l *fakeLog) remove(topic string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.topics, topic)
	for n := range l.news {
		n.tell(topic)
	}
}

// breakNews ends all news, silently losing what they had not told.
func (l *fakeLog) breakNews() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for n := range l.news {
		n.shut()
	}
}

func (l *fakeLog) Read(ctx context.Context, topic string, after event.Position, limit store.ReadLimit) (store.Page, error) {
	if err := l.fault(ctx, "Read", topic); err != nil {
		return store.Page{}, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reads++
	page := store.Page{Span: event.Span{From: after, To: after}, Bounds: l.boundsLocked(topic)}
	t := l.topics[topic]
	if t == nil {
		return page, nil
	}
	i := sort.Search(len(t.entries), func(i int) bool { return after.Less(t.entries[i].Pos) })
	j, bytes := i, 0
	for ; j < len(t.entries) && j-i < limit.Entries && (j == i || bytes < limit.Bytes); j++ {
		bytes += len(t.entries[j].Record)
	}
	page.Entries = t.entries[i:j:j]
	page.Examined = j - i
	if j == len(t.entries) {
		if after.Less(t.last) {
			page.To = t.last
		}
	} else {
		page.To = t.entries[j-1].Pos
	}
	return page, nil
}

func (l *fakeLog) Bounds(ctx context.Context, topic string) (store.Bounds, error) {
	if err := l.fault(ctx, "Bounds", topic); err != nil {
		return store.Bounds{}, err
	}
	l.mu.Lock()
	b, after := l.boundsLocked(topic), l.afterBounds
	l.mu.Unlock()
	if after != nil {
		after(topic)
	}
	return b, nil
}

func (l *fakeLog) boundsLocked(topic string) store.Bounds {
	t := l.topics[topic]
	if t == nil {
		return store.Bounds{}
	}
	b := store.Bounds{Incarnation: t.incarnation, Last: t.last, Removed: t.removed, Entries: uint64(len(t.entries))}
	if len(t.entries) > 0 {
		b.First = t.entries[0].Pos
	}
	return b
}

func (l *fakeLog) OpenNews(ctx context.Context) (store.News, error) {
	if err := l.fault(ctx, "OpenNews", ""); err != nil {
		return nil, err
	}
	n := &fakeNews{log: l, watched: map[string]bool{}, told: map[string]bool{}, rung: make(chan struct{}, 1)}
	l.mu.Lock()
	l.news[n] = true
	l.mu.Unlock()
	return n, nil
}

type fakeNews struct {
	log     *fakeLog
	watched map[string]bool // guarded by log.mu, as all below
	told    map[string]bool
	closed  bool
	rung    chan struct{}
}

func (n *fakeNews) tell(topic string) {
	if n.watched[topic] && !n.closed {
		n.told[topic] = true
		n.ring()
	}
}

func (n *fakeNews) ring() {
	select {
	case n.rung <- struct{}{}:
	default:
	}
}

func (n *fakeNews) shut() {
	n.closed = true
	clear(n.told)
	delete(n.log.news, n)
	n.ring()
}

func (n *fakeNews) Wait(ctx context.Context) ([]string, error) {
	for {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-n.rung:
		}
		n.log.mu.Lock()
		closed := n.closed
		var names []string
		for name := range n.told {
			names = append(names, name)
		}
		clear(n.told)
		n.log.mu.Unlock()
		switch {
		case closed:
			return nil, store.ErrClosed
		case len(names) > 0:
			return names, nil
		}
	}
}

func (n *fakeNews) Watch(ctx context.Context, topic string) error {
	if err := n.log.fault(ctx, "Watch", topic); err != nil {
		return err
	}
	n.log.mu.Lock()
	defer n.log.mu.Unlock()
	if n.closed {
		return store.ErrClosed
	}
	n.watched[topic] = true
	return nil
}

func (n *fakeNews) Unwatch(topic string) {
	n.log.mu.Lock()
	delete(n.watched, topic)
	n.log.mu.Unlock()
}

func (n *fakeNews) Close() error {
	n.log.mu.Lock()
	n.shut()
	n.log.mu.Unlock()
	return nil
}

func (l *fakeLog) watchedTopics() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for news := range l.news {
		n += len(news.watched)
	}
	return n
}

// lane is a bounded sink that remembers all it was offered, and takes entries out when asked.
type lane struct {
	size int

	mu      sync.Mutex
	waiting int
	got     []event.Position
	keys    []string
	gaps    []feed.Gap
}

func (l *lane) Offer(entries []event.Entry) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	taken := min(len(entries), l.size-l.waiting)
	for _, e := range entries[:taken] {
		l.got = append(l.got, e.Pos)
		l.keys = append(l.keys, string(e.Record[13:]))
	}
	l.waiting += taken
	return taken
}

func (l *lane) Room() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.waiting <= l.size/2
}

// take empties the lane by up to n entries, tells the feed if that makes room, and returns how many.
func (l *lane) take(f *Feed, n int) int {
	l.mu.Lock()
	had := l.waiting <= l.size/2
	n = min(n, l.waiting)
	l.waiting -= n
	room := l.waiting <= l.size/2
	l.mu.Unlock()
	if room && !had {
		f.Drained()
	}
	return n
}

func (l *lane) gap(g feed.Gap) {
	l.mu.Lock()
	l.gaps = append(l.gaps, g)
	l.mu.Unlock()
}

// seen returns what was offered so far, and checks that it rises.
func (l *lane) seen(t testing.TB) []string {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := 1; i < len(l.got); i++ {
		if !l.got[i-1].Less(l.got[i]) {
			t.Fatalf("%s was offered after %s", l.got[i], l.got[i-1])
		}
	}
	return slices.Clone(l.keys)
}

func (l *lane) gapsSeen() []feed.Gap {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.gaps)
}

func record(key string) event.Record {
	b := make([]byte, 13, 13+len(key))
	b[0] = 1
	binary.BigEndian.PutUint32(b[1:], grouping.Hash(key))
	return append(b, key...)
}

func pos(seq uint64) event.Position { return event.Position{Seq: seq} }

func keys(prefix string, from, to int) []string {
	var ks []string
	for i := from; i < to; i++ {
		ks = append(ks, fmt.Sprintf("%s%d", prefix, i))
	}
	return ks
}
