package pebblestore

import (
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/turnlane/turnlane/store"
)

// sessions are the live memberships. One process has the database, so they live and end with it: after
// an end of the process every session is expired. They expire by a clock that never steps.
type sessions struct {
	clock   func() time.Time
	elapsed func() time.Duration

	mu   sync.Mutex
	live map[string]*session
}

type session struct {
	store.Session
	deadline time.Duration // by elapsed
}

func (ss *sessions) init(clock func() time.Time, elapsed func() time.Duration) {
	ss.clock, ss.elapsed, ss.live = clock, elapsed, map[string]*session{}
}

// getLocked returns a live session. One that has expired is removed, so that it never comes back.
func (ss *sessions) getLocked(id string) *session {
	x := ss.live[id]
	if x != nil && ss.elapsed() >= x.deadline {
		delete(ss.live, id)
		return nil
	}
	return x
}

// alive returns what a live session says of itself.
func (ss *sessions) alive(id string) (store.SessionInfo, bool) {
	if id == "" {
		return store.SessionInfo{}, false
	}
	ss.mu.Lock()
	defer ss.mu.Unlock()
	if x := ss.getLocked(id); x != nil {
		return x.SessionInfo, true
	}
	return store.SessionInfo{}, false
}

func (x *session) extend(ss *sessions, info store.SessionInfo, ttl time.Duration) {
	info.Roles, info.Types = slices.Clone(info.Roles), slices.Clone(info.Types)
	x.SessionInfo = info
	x.deadline = ss.elapsed() + ttl
	x.ExpiresAt = ss.clock().Add(ttl)
}

func (s *Store) sessionCall(ctx context.Context) error {
	if s.work.Err() != nil {
		return store.ErrClosed
	}
	if err := s.health.fatal(); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return notWritten(ctx)
	}
	return nil
}

func checkTTL(ttl time.Duration) error {
	if ttl <= 0 {
		return fmt.Errorf("time to live of %s: want more than 0", ttl)
	}
	return nil
}

// OpenSession starts a membership.
func (s *Store) OpenSession(ctx context.Context, info store.SessionInfo, ttl time.Duration) (store.Session, error) {
	if err := s.sessionCall(ctx); err != nil {
		return store.Session{}, fmt.Errorf("open session: %w", err)
	}
	if err := checkTTL(ttl); err != nil {
		return store.Session{}, fmt.Errorf("open session: %w", err)
	}
	ss := &s.sessions
	ss.mu.Lock()
	defer ss.mu.Unlock()
	for id := range ss.live { // whoever died without closing
		ss.getLocked(id)
	}
	x := &session{Session: store.Session{ID: rand.Text(), OpenedAt: ss.clock()}}
	x.extend(ss, info, ttl)
	ss.live[x.ID] = x
	return x.copy(), nil
}

// RenewSession extends a live session.
func (s *Store) RenewSession(ctx context.Context, id string, info store.SessionInfo, ttl time.Duration) error {
	if err := s.sessionCall(ctx); err != nil {
		return fmt.Errorf("renew session: %w", err)
	}
	if err := checkTTL(ttl); err != nil {
		return fmt.Errorf("renew session: %w", err)
	}
	ss := &s.sessions
	ss.mu.Lock()
	defer ss.mu.Unlock()
	x := ss.getLocked(id)
	if x == nil {
		return fmt.Errorf("renew session %s: %w", id, store.ErrSessionExpired)
	}
	x.extend(ss, info, ttl)
	return nil
}

// CloseSession ends a session now.
func (s *Store) CloseSession(ctx context.Context, id string) error {
	if err := s.sessionCall(ctx); err != nil {
		return fmt.Errorf("close session: %w", err)
	}
	s.sessions.mu.Lock()
	defer s.sessions.mu.Unlock()
	delete(s.sessions.live, id)
	return nil
}

// Sessions lists the live sessions, by id.
func (s *Store) Sessions(ctx context.Context) ([]store.Session, error) {
	if err := s.sessionCall(ctx); err != nil {
		return nil, fmt.Errorf("list sessions: %w", err)
	}
	ss := &s.sessions
	ss.mu.Lock()
	defer ss.mu.Unlock()
	var list []store.Session
	for _, id := range slices.Sorted(maps.Keys(ss.live)) {
		if x := ss.getLocked(id); x != nil {
			list = append(list, x.copy())
		}
	}
	return list, nil
}

func (x *session) copy() store.Session {
	c := x.Session
	c.Roles, c.Types = slices.Clone(c.Roles), slices.Clone(c.Types)
	return c
}
