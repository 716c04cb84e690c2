package workmanager

import (
	"cmp"
	"slices"

	"github.com/turnlane/turnlane/grouping"
)

// placer chooses runtimes for workers. It is a value without a clock or a store, only used by the
// leader's loop.
type placer struct {
	hosts  map[string]*host   // live runtimes by session
	byType map[string][]*host // those that take workers of a type, by session id
}

// host is a live runtime.
type host struct {
	session  string
	pod      string
	draining bool
	types    []string
	workers  map[string]*entry // placed here
}

func newPlacer() *placer {
	return &placer{hosts: map[string]*host{}, byType: map[string][]*host{}}
}

// update takes the live sessions over. It returns the hosts that are gone, those that began to drain,
// and the types that found a new home.
func (p *placer) update(live hosts) (gone, draining []*host, types []string) {
	seen := make(map[string]bool, len(live))
	changed := false
	for _, s := range live {
		seen[s.ID] = true
		h := p.hosts[s.ID]
		if h == nil {
			h = &host{session: s.ID, workers: map[string]*entry{}}
			p.hosts[s.ID] = h
		}
		if h.draining != s.Draining || !slices.Equal(h.types, s.Types) {
			changed = true
			if s.Draining && !h.draining {
				draining = append(draining, h)
			}
			if !s.Draining {
				types = append(types, s.Types...)
			}
		}
		h.pod, h.draining, h.types = s.Pod, s.Draining, s.Types
	}
	for id, h := range p.hosts {
		if !seen[id] {
			delete(p.hosts, id)
			gone = append(gone, h)
			changed = true
		}
	}
	if changed {
		clear(p.byType)
		for _, h := range p.hosts {
			if h.draining {
				continue
			}
			for _, typ := range h.types {
				p.byType[typ] = append(p.byType[typ], h)
			}
		}
		for _, list := range p.byType {
			slices.SortFunc(list, func(a, b *host) int { return cmp.Compare(a.session, b.session) })
		}
	}
	return gone, draining, types
}

// pick returns the host for a worker: of those that take its type the one with the fewest workers,
// and among equals the one that rendezvous hashing (Thaler and Ravishankar, 1996) prefers, so that the
// choice is the same whoever makes it. It returns nil if no host takes the type.
func (p *placer) pick(worker, typ string) *host {
	var best *host
	var bestHash uint32
	for _, h := range p.byType[typ] {
		if best != nil && len(h.workers) > len(best.workers) {
			continue
		}
		hash := grouping.Hash(h.session + "/" + worker)
		if best == nil || len(h.workers) < len(best.workers) || hash > bestHash {
			best, bestHash = h, hash
		}
	}
	return best
}

// put places a worker on a host, and takes it from the one where it was.
func (p *placer) put(e *entry, h *host) {
	p.take(e)
	e.host = h
	h.workers[e.id] = e
}

// take ends a worker's placement.
func (p *placer) take(e *entry) {
	if e.host != nil {
		delete(e.host.workers, e.id)
		e.host = nil
	}
}
