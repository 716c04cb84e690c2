package workmanager

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/turnlane/turnlane/internal/catalog"
	storev1 "github.com/turnlane/turnlane/proto/turnlane/store/v1"
	"github.com/turnlane/turnlane/store"
)

// resync reads the whole catalog and mends what does not fit: the workers' records are the truth, and
// names, claims and placements are made to follow them. Every step of the service leaves them fitting,
// so there is something to mend only where keys were lost or damaged, or where a placement belongs to
// a runtime that is gone.
func (l *leader) resync(ctx context.Context) error {
	began := time.Now()
	live, err := l.hosts(ctx)
	if err != nil {
		return fmt.Errorf("read the sessions: %w", err)
	}
	l.sessions(live)
	for _, step := range []func(context.Context) error{
		l.readWorkers, l.readOwners, l.readPlaces, l.mendNames, l.mendClaims,
		func(ctx context.Context) error { l.cover(ctx, time.Now()); return nil }, // see cycle
		l.place,
	} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	l.adopting = false
	now := time.Now()
	l.nextPoll, l.nextResync = now.Add(l.cfg.Poll), now.Add(l.cfg.Resync)
	l.changed = true
	l.cover(ctx, now)
	l.measure()
	l.log.Debug("the catalog was read", "workers", len(l.workers), "quarantined", len(l.broken), "took", now.Sub(began))
	return nil
}

func (l *leader) readWorkers(ctx context.Context) error {
	seen := make(map[string]bool, len(l.workers))
	err := l.pages(ctx, catalog.WorkerPrefix, "", func(items []store.Item) error {
		for _, item := range items {
			seen[item.Key] = true
			l.take(item)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("read the catalog: %w", err)
	}
	for id := range l.workers {
		if !seen[catalog.WorkerKey(id)] {
			l.forget(id, true)
		}
	}
	for key := range l.broken {
		if !seen[key] {
			l.unquarantine(key)
		}
	}
	return nil
}

func (l *leader) readOwners(ctx context.Context) error {
	all := make([]*entry, 0, len(l.workers))
	for _, id := range slices.Sorted(maps.Keys(l.workers)) {
		e := l.workers[id]
		all = append(all, e)
		l.reconcile[id] = e
	}
	return l.look(ctx, all)
}

// readPlaces adopts the placements there are, and lists those that are nobody's for removal.
func (l *leader) readPlaces(ctx context.Context) error {
	found := make(map[string]bool, len(l.workers))
	err := l.pages(ctx, catalog.PlacePrefix, "", func(items []store.Item) error {
		for _, item := range items {
			session, id, _ := catalog.SplitPlace(item.Key)
			h, e := l.placer.hosts[session], l.workers[id]
			switch {
			case h != nil && e == nil && l.broken[catalog.WorkerKey(id)] != "":
				continue // it may be running: leave it as it is
			case h == nil, e == nil, !e.wanted, e.failed(), e.host != nil && e.host != h:
				l.orphans = append(l.orphans, item.Key)
				continue
			}
			found[id] = true
			if e.host == nil {
				l.placer.put(e, h)
			}
			p, err := catalog.Decode(item, &storev1.Placement{})
			if err == nil && p.GetWorkerId() == id {
				e.placed = placed{store.Start{Run: p.GetRun(), Generation: p.GetGeneration()}, p.GetEdition(), p.GetPaused()}
			} else {
				e.placed = placed{} // written anew
			}
			if !e.settled() {
				l.agenda.soon(e, time.Now())
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("read the placements: %w", err)
	}
	for id, e := range l.workers {
		if e.host != nil && !found[id] {
			e.placed = placed{}
		}
	}
	return nil
}

// mendNames frees names that no worker has, and reserves those that workers have.
func (l *leader) mendNames(ctx context.Context) error {
	reserved := map[string]bool{}
	lost := map[string]bool{} // damaged keys
	err := l.pages(ctx, catalog.NamePrefix, "", func(items []store.Item) error {
		for _, item := range items {
			name := strings.TrimPrefix(item.Key, catalog.NamePrefix)
			if item.Err != nil {
				lost[name] = true
				continue
			}
			if e := l.workers[string(item.Value)]; e != nil && e.name == name {
				reserved[name] = true
				continue
			}
			has, err := l.hasName(ctx, string(item.Value), name)
			if err != nil {
				return err
			}
			if has {
				continue
			}
			err = l.mend(ctx, "a name that no worker has was freed", name, store.Change{Key: item.Key, Delete: true, If: item.Revision})
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("mend the names: %w", err)
	}
	for _, e := range l.workers {
		if e.name == "" || reserved[e.name] {
			continue
		}
		condition := store.Absent
		if lost[e.name] {
			condition = store.Any
		}
		err := l.mend(ctx, "the name of a worker was reserved again", e.name,
			store.Change{Key: catalog.WorkerKey(e.id), Check: true, If: e.revision},
			store.Change{Key: catalog.NameKey(e.name), Value: []byte(e.id), If: condition})
		if err != nil {
			return fmt.Errorf("mend the names: %w", err)
		}
	}
	return nil
}

// mend makes a repair, unless somebody changed what it is about meanwhile.
func (l *leader) mend(ctx context.Context, what, name string, changes ...store.Change) error {
	err := l.write(ctx, changes...)
	if errors.Is(err, store.ErrConflict) {
		return nil
	}
	if err == nil {
		l.log.Warn("mended the catalog", "what", what, "name", name)
	}
	return err
}

// mendClaims drops claims of workers that do not want to run, and makes those that are missing.
func (l *leader) mendClaims(ctx context.Context) error {
	type slot struct {
		key   string
		index uint32
	}
	held := map[slot]string{}
	err := l.pages(ctx, catalog.GroupPrefix, "", func(items []store.Item) error {
		for _, item := range items {
			group, topic, _ := strings.Cut(strings.TrimPrefix(item.Key, catalog.GroupPrefix), "/")
			g, err := catalog.Decode(item, &storev1.GroupRecord{})
			if err != nil {
				continue // made anew below, from the members
			}
			dropped := false
			for index, id := range g.GetMembers() {
				e := l.workers[id]
				ok := e != nil && e.wanted && e.spec.Group == group && e.spec.Index == index && e.on(topic)
				if !ok {
					w, err := l.get(ctx, id)
					switch {
					case errors.Is(err, store.ErrNotFound):
					case errors.Is(err, store.ErrCorrupt):
						ok = true
					case err != nil:
						return err
					default:
						ok = !w.GetDeleted() && w.wanted() && w.GetGroup() == group && w.GetGroupIndex() == index && slices.Contains(w.GetTopics(), topic)
					}
				}
				if ok {
					held[slot{item.Key, index}] = id
					continue
				}
				delete(g.Members, index)
				dropped = true
			}
			if dropped {
				change, err := storeGroup(group, topic, g, item.Revision)
				if err == nil {
					err = l.mend(ctx, "claims of members that are not started were dropped", group+" on "+topic, change)
				}
				if err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("mend the claims: %w", err)
	}
	for _, members := range l.members {
		for _, e := range members {
			if !e.wanted {
				continue
			}
			missing := slices.ContainsFunc(e.topics, func(topic string) bool {
				return held[slot{catalog.GroupKey(e.spec.Group, topic), e.spec.Index}] != e.id
			})
			if missing {
				if err := l.claimAgain(ctx, e); err != nil {
					return fmt.Errorf("mend the claims: %w", err)
				}
			}
		}
	}
	return nil
}

// claimAgain makes the claims of a started member that lost some.
func (l *leader) claimAgain(ctx context.Context, e *entry) error {
	w, err := l.get(ctx, e.id)
	switch {
	case errors.Is(err, store.ErrNotFound), err == nil && w.revision != e.revision:
		return nil // it changed: the service sees to its claims
	case err != nil:
		return fmt.Errorf("read worker %s: %w", e.id, err)
	}
	claims, err := l.claims(ctx, w)
	if err != nil {
		l.log.Error("a started member has lost its claim and cannot have it back", "worker", e.id, "group", e.spec.Group, "error", err)
		return nil
	}
	check := store.Change{Key: catalog.WorkerKey(e.id), Check: true, If: w.revision}
	return l.mend(ctx, "the claims of a started member were made again", e.spec.String(), slices.Concat([]store.Change{check}, claims)...)
}
