package storetest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/store"
)

// session draws one of the model's live sessions, or one that is none.
func (m *model) session(draw int) string {
	ids := slices.Sorted(maps.Keys(m.live))
	if draw %= len(ids) + 1; draw < len(ids) {
		return ids[draw]
	}
	return "nobody"
}

func (g *steps) openSession() step {
	pod := g.pick("pod", 3)
	return step{"open session", func(ctx context.Context, s store.Store, m *model) (*model, error) {
		x, err := s.OpenSession(ctx, store.SessionInfo{Pod: pod}, ttl)
		if err != nil {
			return m, err
		}
		if m.live[x.ID] {
			return m, fmt.Errorf("session %s is there twice", x.ID)
		}
		m = m.clone()
		m.live[x.ID] = true
		return m, nil
	}}
}

func (g *steps) closeSession() step {
	draw := g.rng.IntN(10)
	return step{"close session", func(ctx context.Context, s store.Store, m *model) (*model, error) {
		id := m.session(draw)
		if err := s.CloseSession(ctx, id); err != nil {
			return m, err
		}
		m = m.clone()
		delete(m.live, id)
		return m, nil
	}}
}

func (g *steps) acquire() step {
	worker, draw := g.pick("w", 3), g.rng.IntN(10)
	return step{"acquire " + worker, func(ctx context.Context, s store.Store, m *model) (*model, error) {
		id, was := m.session(draw), m.owners[worker]
		got, err := s.Acquire(ctx, worker, id)
		switch {
		case !m.live[id]:
			return m, wantKind(err, store.ErrSessionExpired)
		case was.Session != id && m.live[was.Session]:
			if got.Session != was.Session || got.Token != was.Token {
				return m, fmt.Errorf("the present owner is %+v, want %+v", got, was)
			}
			return m, wantKind(err, store.ErrOwned)
		case err != nil:
			return m, err
		case got.Token <= was.Token || got.Session != id || !got.Live || got.State != was.State || got.Reason != was.Reason:
			return m, fmt.Errorf("owner %+v after %+v", got, was)
		}
		m = m.clone()
		got.Live = false
		m.owners[worker] = got
		return m, nil
	}}
}

func wantKind(err, want error) error {
	if errors.Is(err, want) {
		return nil
	}
	return fmt.Errorf("answered %w, want %w", errOr(err), want)
}

func (g *steps) release() step {
	worker, wrong := g.pick("w", 3), g.rng.IntN(4) == 0
	return step{"release " + worker, func(ctx context.Context, s store.Store, m *model) (*model, error) {
		o := m.owners[worker]
		o.Worker = worker
		stale := wrong || o.Session == ""
		if wrong {
			o.Token++
		}
		err := s.Release(ctx, o)
		if stale {
			return m, wantKind(err, store.ErrStaleToken)
		}
		if err != nil {
			return m, err
		}
		m = m.clone()
		o.Session = ""
		m.owners[worker] = o
		return m, nil
	}}
}

func (g *steps) commit() step {
	var commits []store.Commit
	for range 1 + g.rng.IntN(2) {
		commits = append(commits, g.oneCommit())
	}
	wrong := g.rng.IntN(8) == 0
	return step{"commit", func(ctx context.Context, s store.Store, m *model) (*model, error) {
		calls := slices.Clone(commits)
		for i := range calls {
			o := m.owners[calls[i].Owner.Worker]
			o.Worker, o.State, o.Reason = calls[i].Owner.Worker, calls[i].Owner.State, calls[i].Owner.Reason
			if wrong {
				o.Token++
			}
			calls[i].Owner = o
		}
		errs, err := s.Commit(ctx, calls)
		if err != nil {
			return m, err
		}
		m = m.clone()
		for i := range calls {
			want := m.commit(calls[i])
			if want == nil && errs[i] != nil || want != nil && !errors.Is(errs[i], want) {
				return m, fmt.Errorf("commit %d answered %w, want %w", i, errOr(errs[i]), errOr(want))
			}
		}
		return m, nil
	}}
}

func (g *steps) oneCommit() store.Commit {
	g.count++
	c := store.Commit{
		Owner:    store.Owner{Worker: g.pick("w", 3)},
		Start:    store.Start{Run: uint64(1 + g.count/300), Generation: uint64(g.count/50 + g.rng.IntN(2))},
		Handover: g.rng.IntN(6) == 0,
	}
	if g.rng.IntN(3) == 0 {
		c.Owner.State, c.Owner.Reason = g.pick("S", 3), g.pick("r", 3)
	}
	for range g.rng.IntN(3) {
		c.Cursors = append(c.Cursors, store.Cursor{Topic: g.pick("t", 4), Incarnation: g.pick("i", 2), Position: event.Position{Ms: uint64(g.count)}})
	}
	for range g.rng.IntN(3) {
		c.Attempts = append(c.Attempts, store.Attempt{
			Topic: g.pick("t", 2), Position: event.Position{Ms: uint64(g.rng.IntN(3))},
			Attempts: uint32(g.rng.IntN(2)), Started: g.rng.IntN(3) == 0, Error: g.pick("e", 3),
		})
	}
	for range g.rng.IntN(3) {
		c.State = append(c.State, store.StateChange{Key: g.pick("k", 4), Value: []byte(fmt.Sprint(g.count)), Delete: g.rng.IntN(4) == 0})
	}
	return c
}

func (g *steps) forget() step {
	worker := g.pick("w", 3)
	return step{"forget " + worker, func(ctx context.Context, s store.Store, m *model) (*model, error) {
		if err := s.Forget(ctx, worker); err != nil {
			return m, err
		}
		m = m.clone()
		delete(m.workers, worker)
		return m, nil
	}}
}

func (g *steps) lead() step {
	name, draw := g.pick("l", 2), g.rng.IntN(10)
	return step{"lead " + name, func(ctx context.Context, s store.Store, m *model) (*model, error) {
		id, was := m.session(draw), m.leaders[name]
		got, err := s.Lead(ctx, name, id)
		switch {
		case !m.live[id]:
			return m, wantKind(err, store.ErrSessionExpired)
		case err != nil:
			return m, err
		case m.live[was.Session] && got != was, !m.live[was.Session] && (got.Session != id || got.Token <= was.Token):
			return m, fmt.Errorf("leader %+v after %+v, asked by %s", got, was, id)
		}
		m = m.clone()
		m.leaders[name] = got
		return m, nil
	}}
}
