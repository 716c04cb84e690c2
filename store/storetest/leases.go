package storetest

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/turnlane/turnlane/store"
)

const ttl = 10 * time.Second

func join(t *testing.T, s store.Store, pod string) string {
	t.Helper()
	x, err := s.OpenSession(t.Context(), store.SessionInfo{Pod: pod}, ttl)
	check(t, "open session", err)
	return x.ID
}

func acquire(t *testing.T, s store.Store, worker, session string) store.Owner {
	t.Helper()
	o, err := s.Acquire(t.Context(), worker, session)
	check(t, "acquire "+worker, err)
	return o
}

func ownerOf(t *testing.T, s store.Store, worker string) store.Owner {
	t.Helper()
	o, err := s.Owner(t.Context(), worker)
	check(t, "owner of "+worker, err)
	return o
}

func live(t *testing.T, s store.Store) map[string]bool {
	t.Helper()
	list, err := s.Sessions(t.Context())
	check(t, "sessions", err)
	ids := map[string]bool{}
	for i, x := range list {
		if i > 0 && x.ID <= list[i-1].ID {
			t.Fatalf("sessions are not in order: %s, %s", list[i-1].ID, x.ID)
		}
		ids[x.ID] = true
	}
	return ids
}

var leaseStories = []story{
	{"a session says what it was opened with, and then renewed with", func(t *testing.T, h *Harness) {
		s := h.Store
		info := store.SessionInfo{Pod: "p", Addr: "a:1", Roles: []string{"runtime"}, Types: []string{"echo"}, Version: "1"}
		x, err := s.OpenSession(t.Context(), info, ttl)
		check(t, "open", err)
		equal(t, "time to live", x.ExpiresAt.Sub(x.OpenedAt).Round(time.Second), ttl)
		info.Draining = true
		check(t, "renew", s.RenewSession(t.Context(), x.ID, info, ttl))
		list, err := s.Sessions(t.Context())
		check(t, "sessions", err)
		equal(t, "sessions", len(list), 1)
		equal(t, "info", list[0].SessionInfo, info)
		check(t, "close", s.CloseSession(t.Context(), x.ID))
		check(t, "close again", s.CloseSession(t.Context(), x.ID))
		equal(t, "live", live(t, s), map[string]bool{})
		wantErr(t, "renew", s.RenewSession(t.Context(), x.ID, info, ttl), store.ErrSessionExpired)
	}},
	{"a session that is not renewed expires, for good", func(t *testing.T, h *Harness) {
		need(t, "advance its clock", h.Advance != nil)
		s := h.Store
		a, b := join(t, s, "a"), join(t, s, "b")
		h.Advance(ttl * 3 / 4)
		check(t, "renew", s.RenewSession(t.Context(), b, store.SessionInfo{Pod: "b"}, ttl))
		equal(t, "live", live(t, s), map[string]bool{a: true, b: true})
		h.Advance(ttl / 2)
		equal(t, "live", live(t, s), map[string]bool{b: true})
		wantErr(t, "renew", s.RenewSession(t.Context(), a, store.SessionInfo{}, ttl), store.ErrSessionExpired)
		_, err := s.Acquire(t.Context(), "w", a)
		wantErr(t, "acquire", err, store.ErrSessionExpired)
		_, err = s.Lead(t.Context(), "l", a)
		wantErr(t, "lead", err, store.ErrSessionExpired)
		wantErr(t, "renew again", s.RenewSession(t.Context(), a, store.SessionInfo{}, ttl), store.ErrSessionExpired)
	}},
	{"a step of the wall clock ends no session and keeps none", func(t *testing.T, h *Harness) {
		need(t, "step its clock", h.StepClock != nil && h.Advance != nil)
		s := h.Store
		a := join(t, s, "a")
		h.StepClock(24 * time.Hour)
		equal(t, "live after a step forward", live(t, s), map[string]bool{a: true})
		h.StepClock(-48 * time.Hour)
		h.Advance(ttl + time.Second)
		equal(t, "live after a step back and its time", live(t, s), map[string]bool{})
	}},
	{"a worker has one owner; tokens grow", func(t *testing.T, h *Harness) {
		s := h.Store
		equal(t, "never owned", ownerOf(t, s, "w"), store.Owner{})
		a, b := join(t, s, "pod-a"), join(t, s, "pod-b")
		o := acquire(t, s, "w", a)
		equal(t, "owner", o, store.Owner{Worker: "w", Session: a, Pod: "pod-a", Token: o.Token, Live: true})
		if o.Token == 0 {
			t.Fatal("token 0")
		}
		equal(t, "record", ownerOf(t, s, "w"), o)
		present, err := s.Acquire(t.Context(), "w", b)
		wantErr(t, "acquire", err, store.ErrOwned)
		equal(t, "present owner", present, o)
		again := acquire(t, s, "w", a)
		if again.Token <= o.Token {
			t.Fatalf("token %d after %d", again.Token, o.Token)
		}
		wantErr(t, "release with the old token", s.Release(t.Context(), o), store.ErrStaleToken)
		check(t, "release", s.Release(t.Context(), again))
		wantErr(t, "release again", s.Release(t.Context(), again), store.ErrStaleToken)
		r := ownerOf(t, s, "w")
		if r.Session != "" || r.Token != again.Token || r.Live {
			t.Fatalf("released record %+v", r)
		}
		if next := acquire(t, s, "w", b); next.Token <= again.Token || next.Pod != "pod-b" {
			t.Fatalf("next owner %+v", next)
		}
	}},
	{"only the end of its session frees a worker that was not released", func(t *testing.T, h *Harness) {
		s := h.Store
		a, b := join(t, s, "a"), join(t, s, "b")
		o := acquire(t, s, "w", a)
		check(t, "close", s.CloseSession(t.Context(), a))
		r := ownerOf(t, s, "w")
		if r.Session != a || r.Live {
			t.Fatalf("record %+v", r)
		}
		if next := acquire(t, s, "w", b); next.Token <= o.Token {
			t.Fatalf("token %d after %d", next.Token, o.Token)
		}
		wantErr(t, "release by the former", s.Release(t.Context(), o), store.ErrStaleToken)
	}},
	{"tokens go on growing after a restart, in which sessions end", func(t *testing.T, h *Harness) {
		need(t, "reopen", h.Reopen != nil)
		a := join(t, h.Store, "a")
		o := acquire(t, h.Store, "w", a)
		l, err := h.Store.Lead(t.Context(), "chief", a)
		check(t, "lead", err)
		for _, reopen := range []func() store.Store{h.Reopen, h.Crash} {
			if reopen == nil {
				continue
			}
			s := reopen()
			if !h.KeepsSessions {
				equal(t, "live", live(t, s), map[string]bool{})
				wantErr(t, "renew", s.RenewSession(t.Context(), a, store.SessionInfo{}, ttl), store.ErrSessionExpired)
				r := ownerOf(t, s, "w")
				if r.Session != o.Session || r.Token != o.Token || r.Live {
					t.Fatalf("record %+v, was %+v", r, o)
				}
			} else {
				check(t, "close", s.CloseSession(t.Context(), a))
			}
			a = join(t, s, "a")
			next := acquire(t, s, "w", a)
			if next.Token <= o.Token || next.Session == o.Session {
				t.Fatalf("owner %+v after %+v", next, o)
			}
			o = next
			chief, err := s.Lead(t.Context(), "chief", a)
			check(t, "lead", err)
			if chief.Token <= l.Token || chief.Session != a {
				t.Fatalf("leader %+v after %+v", chief, l)
			}
			l = chief
		}
	}},
	{"of many that acquire at once one succeeds", func(t *testing.T, h *Harness) {
		s := h.Store
		for i := range 10 {
			var wg sync.WaitGroup
			won := make(chan store.Owner, 8)
			for range 8 {
				x := join(t, s, "p")
				wg.Go(func() {
					if o, err := s.Acquire(t.Context(), fmt.Sprint("w", i), x); err == nil {
						won <- o
					}
				})
			}
			wg.Wait()
			equal(t, "winners", len(won), 1)
			o := <-won
			equal(t, "record", ownerOf(t, s, o.Worker), o)
		}
	}},
	{"owners of many are returned in the order asked", func(t *testing.T, h *Harness) {
		s := h.Store
		a := join(t, s, "a")
		w1, w3 := acquire(t, s, "w1", a), acquire(t, s, "w3", a)
		list, err := s.Owners(t.Context(), []string{"w3", "w2", "w1", "w3"})
		check(t, "owners", err)
		equal(t, "owners", list, []store.Owner{w3, {}, w1, w3})
	}},
	{"there is one leader until its session ends", func(t *testing.T, h *Harness) {
		s := h.Store
		a, b := join(t, s, "a"), join(t, s, "b")
		l, err := s.Lead(t.Context(), "chief", a)
		check(t, "lead", err)
		equal(t, "leader", l.Session, a)
		for _, x := range []string{b, a} {
			again, err := s.Lead(t.Context(), "chief", x)
			check(t, "lead", err)
			equal(t, "leader", again, l)
		}
		other, err := s.Lead(t.Context(), "other", b)
		check(t, "lead", err)
		equal(t, "leader of another lease", other.Session, b)
		check(t, "close", s.CloseSession(t.Context(), a))
		next, err := s.Lead(t.Context(), "chief", b)
		check(t, "lead", err)
		if next.Session != b || next.Token <= l.Token {
			t.Fatalf("leader %+v after %+v", next, l)
		}
	}},
}
