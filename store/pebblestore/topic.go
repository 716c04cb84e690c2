package pebblestore

import (
	"crypto/rand"
	"encoding/hex"
	"sync"
	"sync/atomic"

	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/store"
)

// topic is what memory has of one topic. It is there twice: as the committer has decided it, and as
// readers see it. The second follows the first when a write is durable; but what a trim or a deletion
// takes away goes from the second first, so that a reader that misses entries in the database finds
// the reason in the bounds that it looks at afterwards.
type topic struct {
	name string

	// Only used by the committer.
	c     meta
	dirty bool

	// holds counts the groups under way that changed it; it stays in the cache meanwhile, because the
	// database already has what readers may not see yet.
	holds atomic.Int64
	used  atomic.Bool // since the last sweep of the cache

	mu   sync.Mutex
	v    view
	tail tail

	// Guarded by tailBudget.mu.
	newer, older *topic
	listed       bool
}

// view is what readers see of a topic.
type view struct {
	id     uint64 // 0 when it does not exist
	gone   uint64 // incarnations up to here are deleted
	bounds store.Bounds
}

// see returns the readers' view.
func (t *topic) see() view {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.v
}

// create begins an incarnation, whose positions go on above the last one's.
func (c *committer) create(t *topic) {
	c.counters.topic++
	c.counted = true
	var id [8]byte
	rand.Read(id[:])
	t.c = meta{
		exists:      true,
		id:          c.counters.topic,
		incarnation: hex.EncodeToString(id[:]),
		last:        t.c.last,
		newest:      noTime,
	}
}

// topicCache holds the topics in use. What it does not hold is in the database, durable and published.
type topicCache struct {
	mu    sync.RWMutex
	m     map[string]*topic
	bound int
}

// maxTopics is how many topics the cache holds, about 500 bytes each.
const maxTopics = 16 << 10

func (tc *topicCache) init() { tc.m, tc.bound = map[string]*topic{}, maxTopics }

// topic returns a topic, also one that does not exist. The caller is the committer or holds life.
func (s *Store) topic(name string) (*topic, error) {
	tc := &s.topics
	tc.mu.RLock()
	t := tc.m[name]
	tc.mu.RUnlock()
	if t != nil {
		if !t.used.Load() {
			t.used.Store(true)
		}
		return t, nil
	}
	// The lock is held while loading: otherwise a slow loader could put facts into the cache that are
	// older than what the committer loaded, changed and dropped meanwhile.
	tc.mu.Lock()
	defer tc.mu.Unlock()
	if t := tc.m[name]; t != nil {
		return t, nil
	}
	value, err := s.get(named(spaceTopic, name))
	if err != nil {
		return nil, err
	}
	t = &topic{name: name}
	t.used.Store(true)
	if value != nil {
		if t.c, err = decodeMeta(value); err != nil {
			return nil, corrupt(err, "the facts of topic %q", name)
		}
		if t.c.exists {
			t.v = view{id: t.c.id, bounds: t.c.bounds()}
			t.tail.floor = t.c.last
		}
	}
	tc.m[name] = t
	return t, nil
}

// cached returns the topic if it is in the cache.
func (s *Store) cached(name string) *topic {
	s.topics.mu.RLock()
	defer s.topics.mu.RUnlock()
	return s.topics.m[name]
}

// shrink drops topics that nobody used since the last time, until the bound holds or all were looked
// at. Only the committer calls it, so no topic gets a hold meanwhile.
func (tc *topicCache) shrink(s *Store) {
	tc.mu.RLock()
	over := len(tc.m) - tc.bound
	tc.mu.RUnlock()
	if over <= 0 {
		return
	}
	var dropped []*topic
	tc.mu.Lock()
	for name, t := range tc.m {
		if len(tc.m) <= tc.bound*3/4 {
			break
		}
		if t.holds.Load() == 0 && !t.used.Swap(false) {
			delete(tc.m, name)
			dropped = append(dropped, t)
		}
	}
	tc.mu.Unlock()
	for _, t := range dropped {
		s.tails.forget(t)
	}
}

// appended shows entries to readers.
func (v *view) appended(entries, bytes uint64, first, last event.Position) {
	if entries == 0 {
		return
	}
	if v.bounds.First.IsZero() {
		v.bounds.First = first
	}
	v.bounds.Last = last
	v.bounds.Entries += entries
	v.bounds.Bytes += bytes
}
