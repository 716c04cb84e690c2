package workmanager

import (
	"sync"

	"github.com/turnlane/turnlane/store"
)

// sighting is what a call saw of a worker while it waited for it.
type sighting struct {
	worker string
	begin  store.Start
	wanted bool
	seen   observation
}

// sightings pass on what the calls of this process see to its leader, if it leads. The leader would
// see most of it by itself, but not what lasts shorter than it takes to look again: without them a
// worker that is stopped as soon as it runs would never be told to have run.
type sightings struct {
	ready chan struct{} // holds one when there may be something

	mu      sync.Mutex
	leading bool
	queue   []sighting
}

func (s *sightings) add(x sighting) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.leading {
		return
	}
	s.queue = append(s.queue, x)
	select {
	case s.ready <- struct{}{}:
	default:
	}
}

func (s *sightings) take() []sighting {
	s.mu.Lock()
	defer s.mu.Unlock()
	queue := s.queue
	s.queue = nil
	return queue
}

func (s *sightings) open() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leading = true
}

func (s *sightings) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leading, s.queue = false, nil
}

// recall takes over what calls saw. It comes before the records that changed are read: what was seen
// happened before those changes, or is seen again.
func (l *leader) recall() {
	for _, s := range l.sightings.take() {
		e := l.workers[s.worker]
		if e == nil || e.begin != s.begin || e.seen.token > s.seen.token || s.wanted && !e.wanted {
			continue // seen of another start
		}
		if e.wanted && !s.wanted {
			e.wanted = false
			l.stops(e)
			l.reconcile[e.id] = e
		}
		l.see(e, s.seen, false)
	}
}
