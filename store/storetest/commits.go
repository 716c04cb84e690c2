package storetest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/store"
)

func at(ms uint64) event.Position { return event.Position{Ms: ms} }

func cursor(topic string, ms uint64) store.Cursor {
	return store.Cursor{Topic: topic, Incarnation: "i", Position: at(ms)}
}

func commit(t *testing.T, s store.Store, c store.Commit) error {
	t.Helper()
	errs, err := s.Commit(t.Context(), []store.Commit{c})
	check(t, "commit", err)
	equal(t, "answers", len(errs), 1)
	return errs[0]
}

func load(t *testing.T, s store.Store, worker string) store.WorkerData {
	t.Helper()
	d, err := s.Load(t.Context(), worker)
	check(t, "load", err)
	return d
}

var commitStories = []story{
	{"what is committed is loaded, also after a restart", func(t *testing.T, h *Harness) {
		s := h.Store
		equal(t, "nothing", load(t, s, "w"), store.WorkerData{})
		o := acquire(t, s, "w", join(t, s, "p"))
		attempt := store.Attempt{
			Topic: "in", Position: at(7), Attempts: 2, Crashes: 1, Started: true, GivenUp: "failed",
			FirstFailed: noon, LastFailed: noon.Add(time.Second + 5), Error: "no luck",
		}
		check(t, "commit", commit(t, s, store.Commit{
			Owner: o, Start: store.Start{Run: 1, Generation: 2},
			Cursors:  []store.Cursor{cursor("in", 5), cursor("in2", 9)},
			Attempts: []store.Attempt{attempt},
			State:    []store.StateChange{{Key: "k", Value: []byte("v")}, {Key: "empty"}},
		}))
		want := store.WorkerData{
			Start:    store.Start{Run: 1, Generation: 2},
			Cursors:  []store.Cursor{cursor("in", 5), cursor("in2", 9)},
			Attempts: []store.Attempt{attempt},
			State:    map[string][]byte{"k": []byte("v"), "empty": {}},
		}
		equal(t, "data", load(t, s, "w"), want)
		equal(t, "another worker", load(t, s, "w2"), store.WorkerData{})
		if h.Reopen != nil {
			equal(t, "data after reopening", load(t, h.Reopen(), "w"), want)
		}
		if h.Crash != nil {
			equal(t, "data after a crash", load(t, h.Crash(), "w"), want)
		}
	}},
	{"cursors and state are replaced one by one", func(t *testing.T, h *Harness) {
		s := h.Store
		o := acquire(t, s, "w", join(t, s, "p"))
		check(t, "commit", commit(t, s, store.Commit{Owner: o, Cursors: []store.Cursor{cursor("a", 1), cursor("b", 1)},
			State: []store.StateChange{{Key: "x", Value: []byte("1")}, {Key: "y", Value: []byte("1")}}}))
		check(t, "commit", commit(t, s, store.Commit{Owner: o, Cursors: []store.Cursor{cursor("b", 2)},
			State: []store.StateChange{{Key: "x", Delete: true}, {Key: "z", Value: []byte("2")}, {Key: "never", Delete: true}}}))
		d := load(t, s, "w")
		equal(t, "cursors", d.Cursors, []store.Cursor{cursor("a", 1), cursor("b", 2)})
		equal(t, "state", d.State, map[string][]byte{"y": []byte("1"), "z": []byte("2")})
	}},
	{"an attempt's record is replaced, and removed when nothing is known any more", func(t *testing.T, h *Harness) {
		s := h.Store
		o := acquire(t, s, "w", join(t, s, "p"))
		one := store.Attempt{Topic: "in", Position: at(1), Attempts: 1, FirstFailed: noon, LastFailed: noon, Error: "x"}
		mark := store.Attempt{Topic: "in", Position: at(2), Started: true}
		check(t, "commit", commit(t, s, store.Commit{Owner: o, Attempts: []store.Attempt{one, mark}}))
		two := one
		two.Attempts, two.Error = 2, "y"
		check(t, "commit", commit(t, s, store.Commit{Owner: o, Attempts: []store.Attempt{two, {Topic: "in", Position: at(2)}, {Topic: "in", Position: at(3)}}}))
		equal(t, "attempts", load(t, s, "w").Attempts, []store.Attempt{two})
	}},
	{"a commit is fenced by session and token", func(t *testing.T, h *Harness) {
		s := h.Store
		a, b := join(t, s, "a"), join(t, s, "b")
		o := acquire(t, s, "w", a)
		c := store.Commit{Owner: o, Cursors: []store.Cursor{cursor("in", 1)}}
		check(t, "commit", commit(t, s, c))

		bad := c
		bad.Cursors = []store.Cursor{cursor("in", 99)}
		bad.Owner.Token--
		wantErr(t, "another token", commit(t, s, bad), store.ErrStaleToken)
		bad.Owner = o
		bad.Owner.Session = b
		wantErr(t, "another session", commit(t, s, bad), store.ErrStaleToken)
		bad.Owner = o
		bad.Owner.Worker = "never owned"
		wantErr(t, "a worker never owned", commit(t, s, bad), store.ErrStaleToken)

		newer := acquire(t, s, "w", a)
		bad.Owner = o
		wantErr(t, "the token before", commit(t, s, bad), store.ErrStaleToken)
		check(t, "release", s.Release(t.Context(), newer))
		bad.Owner = newer
		wantErr(t, "after the release", commit(t, s, bad), store.ErrStaleToken)
		taken := acquire(t, s, "w", b)
		wantErr(t, "after another took over", commit(t, s, bad), store.ErrStaleToken)
		check(t, "close", s.CloseSession(t.Context(), b))
		bad.Owner = taken
		wantErr(t, "after the session's end", commit(t, s, bad), store.ErrSessionExpired)
		equal(t, "cursors", load(t, s, "w").Cursors, []store.Cursor{cursor("in", 1)})
	}},
	{"a session that has expired commits nothing", func(t *testing.T, h *Harness) {
		need(t, "advance its clock", h.Advance != nil)
		s := h.Store
		o := acquire(t, s, "w", join(t, s, "a"))
		h.Advance(ttl + time.Second)
		wantErr(t, "commit", commit(t, s, store.Commit{Owner: o, Cursors: []store.Cursor{cursor("in", 1)}}), store.ErrSessionExpired)
		equal(t, "data", load(t, s, "w"), store.WorkerData{})
	}},
	{"a newer start drops the old cursors and attempts, keeps the state", func(t *testing.T, h *Harness) {
		s := h.Store
		o := acquire(t, s, "w", join(t, s, "p"))
		start := store.Start{Run: 1, Generation: 1}
		full := store.Commit{Owner: o, Start: start,
			Cursors:  []store.Cursor{cursor("a", 5), cursor("b", 5)},
			Attempts: []store.Attempt{{Topic: "a", Position: at(6), Attempts: 1}},
			State:    []store.StateChange{{Key: "k", Value: []byte("v")}},
		}
		check(t, "commit", commit(t, s, full))
		for _, next := range []store.Start{{Run: 1, Generation: 2}, {Run: 2, Generation: 1}, {Run: 2, Generation: 3}} {
			check(t, "commit", commit(t, s, store.Commit{Owner: o, Start: next, Cursors: []store.Cursor{cursor("a", next.Run)}}))
			equal(t, "data", load(t, s, "w"), store.WorkerData{
				Start: next, Cursors: []store.Cursor{cursor("a", next.Run)}, State: map[string][]byte{"k": []byte("v")},
			})
			wantErr(t, "an older start", commit(t, s, full), store.ErrStaleToken)
			full.Start = next
			check(t, "commit", commit(t, s, full))
			full.Start = start
		}
		if h.Reopen != nil {
			s = h.Reopen()
			o = acquire(t, s, "w", join(t, s, "p"))
			wantErr(t, "an older start after reopening", commit(t, s, store.Commit{Owner: o, Start: start}), store.ErrStaleToken)
		}
	}},
	{"a newer start drops any number of cursors and attempts, of earlier calls and of its own", func(t *testing.T, h *Harness) {
		s := h.Store
		o := acquire(t, s, "w", join(t, s, "p"))
		neighbour := acquire(t, s, "w2", join(t, s, "p"))
		check(t, "commit", commit(t, s, store.Commit{Owner: neighbour, Cursors: []store.Cursor{cursor("a", 1)}}))
		full := func(start store.Start, n int) store.Commit {
			c := store.Commit{Owner: o, Start: start, State: []store.StateChange{{Key: "k", Value: []byte("v")}}}
			for i := range n {
				c.Cursors = append(c.Cursors, cursor(fmt.Sprint("t", i), 5))
				c.Attempts = append(c.Attempts, store.Attempt{Topic: "t", Position: at(uint64(i)), Attempts: 1})
			}
			return c
		}
		for generation, n := range []int{0, 1, 10, 1000, 0, 3} {
			old := full(store.Start{Generation: uint64(2 * generation)}, n)
			check(t, "commit", commit(t, s, old))
			equal(t, "old cursors", len(load(t, s, "w").Cursors), n)
			next := store.Commit{Owner: o, Start: store.Start{Generation: uint64(2*generation + 1)}, Cursors: []store.Cursor{cursor("a", 6)}}
			want := store.WorkerData{Start: next.Start, Cursors: next.Cursors, State: map[string][]byte{"k": []byte("v")}}
			var commits []store.Commit
			if generation%2 == 1 {
				between := full(old.Start, 2)
				between.Cursors[0].Topic = "between"
				commits = append(commits, between)
			}
			errs, err := s.Commit(t.Context(), append(commits, next))
			check(t, "commit", errors.Join(append(errs, err)...))
			equal(t, "data", load(t, s, "w"), want)
		}
		for _, n := range []int{0, 1, 1000} {
			check(t, "commit", commit(t, s, full(store.Start{Generation: 100}, n)))
			check(t, "forget", s.Forget(t.Context(), "w"))
			equal(t, "data", load(t, s, "w"), store.WorkerData{})
		}
		equal(t, "the neighbour's cursors", load(t, s, "w2").Cursors, []store.Cursor{cursor("a", 1)})
	}},
	{"a hand-over mark lasts until the next commit", func(t *testing.T, h *Harness) {
		s := h.Store
		o := acquire(t, s, "w", join(t, s, "p"))
		c := store.Commit{Owner: o, Start: store.Start{Run: 1}, Handover: true, Cursors: []store.Cursor{cursor("a", 5)}}
		check(t, "commit", commit(t, s, c))
		equal(t, "handover", load(t, s, "w").Handover, true)
		check(t, "commit", commit(t, s, c))
		equal(t, "set again", load(t, s, "w").Handover, true)
		check(t, "commit", commit(t, s, store.Commit{Owner: o, Start: store.Start{Run: 1}}))
		d := load(t, s, "w")
		equal(t, "cleared", d.Handover, false)
		equal(t, "cursors", d.Cursors, c.Cursors)
	}},
	{"state and reason of the owner are stored with a commit", func(t *testing.T, h *Harness) {
		s := h.Store
		o := acquire(t, s, "w", join(t, s, "p"))
		say := func(state, reason string) error {
			x := o
			x.State, x.Reason = state, reason
			return commit(t, s, store.Commit{Owner: x})
		}
		check(t, "commit", say("FAILED", "why"))
		check(t, "commit without a state", say("", ""))
		r := ownerOf(t, s, "w")
		equal(t, "state and reason", [2]string{r.State, r.Reason}, [2]string{"FAILED", "why"})
		check(t, "commit", say("RUNNING", ""))
		check(t, "release", s.Release(t.Context(), o))
		r = ownerOf(t, s, "w")
		equal(t, "after the release", [2]string{r.State, r.Reason}, [2]string{"RUNNING", ""})
		o.Token--
		wantErr(t, "a stale one", say("STOPPED", ""), store.ErrStaleToken)
		equal(t, "state", ownerOf(t, s, "w").State, "RUNNING")
	}},
	{"each commit of a call has a fate of its own", func(t *testing.T, h *Harness) {
		s := h.Store
		x := join(t, s, "p")
		var commits []store.Commit
		for i := range 20 {
			c := store.Commit{Owner: acquire(t, s, fmt.Sprint("w", i), x), Cursors: []store.Cursor{cursor("in", uint64(i))}}
			if i%3 == 0 {
				c.Owner.Token += 5
			}
			commits = append(commits, c)
		}
		twice := commits[1]
		twice.Cursors = []store.Cursor{cursor("in", 77)}
		commits = append(commits, twice)
		errs, err := s.Commit(t.Context(), commits)
		check(t, "commit", err)
		for i := range 20 {
			var want []store.Cursor
			switch {
			case i == 1:
				want = twice.Cursors
			case i%3 != 0:
				want = commits[i].Cursors
			}
			equal(t, "refused", errors.Is(errs[i], store.ErrStaleToken), i%3 == 0)
			equal(t, "cursors", load(t, s, fmt.Sprint("w", i)).Cursors, want)
		}
	}},
	{"forget takes a worker's data and leaves its owner", func(t *testing.T, h *Harness) {
		s := h.Store
		x := join(t, s, "p")
		o, other := acquire(t, s, "w", x), acquire(t, s, "w2", x)
		c := store.Commit{Owner: o, Start: store.Start{Run: 3}, Handover: true, Cursors: []store.Cursor{cursor("a", 5)},
			Attempts: []store.Attempt{{Topic: "a", Position: at(6), Attempts: 1}}, State: []store.StateChange{{Key: "k", Value: []byte("v")}}}
		check(t, "commit", commit(t, s, c))
		c.Owner = other
		check(t, "commit", commit(t, s, c))
		check(t, "forget", s.Forget(t.Context(), "w"))
		check(t, "forget an unknown one", s.Forget(t.Context(), "nobody"))
		equal(t, "data", load(t, s, "w"), store.WorkerData{})
		equal(t, "owner", ownerOf(t, s, "w").Token, o.Token)
		equal(t, "the other's cursors", load(t, s, "w2").Cursors, c.Cursors)
		check(t, "a new beginning", commit(t, s, store.Commit{Owner: o, Start: store.Start{Run: 1}}))
	}},
}

var wholeStories = []story{
	{"an open store is well", func(t *testing.T, h *Harness) {
		check(t, "check", h.Store.Check(t.Context()))
	}},
	{"a closed store refuses every call", func(t *testing.T, h *Harness) {
		s := h.Store
		n := openNews(t, s)
		check(t, "close", s.Close())
		ctx := t.Context()
		calls := map[string]func() error{
			"Append": func() error { _, err := s.Append(ctx, "a", []store.Batch{{Records: records("x")}}); return err },
			"Read":   func() error { _, err := s.Read(ctx, "a", event.Position{}, store.ReadLimit{}); return err },
			"Bounds": func() error { _, err := s.Bounds(ctx, "a"); return err },
			"Before": func() error { _, err := s.Before(ctx, "a", noon); return err },
			"Topics": func() error { _, err := s.Topics(ctx, "", "", 1); return err },
			"Trim":   func() error { _, err := s.Trim(ctx, "a", store.TrimLimit{MaxBytes: 1}); return err },
			"Remove": func() error { _, err := s.Remove(ctx, "a", at(1)); return err },
			"Delete": func() error { return s.DeleteTopic(ctx, "a") },
			"News":   func() error { _, err := s.OpenNews(ctx); return err },
			"Watch":  func() error { return n.Watch(ctx, "a") },
			"Get":    func() error { _, err := s.Get(ctx, "k"); return err },
			"List":   func() error { _, err := s.List(ctx, "", "", 1); return err },
			"Txn":    func() error { _, err := s.Txn(ctx, put("k", "v", store.Any)); return err },
			"Keys":   func() error { _, err := s.WatchKeys(ctx, ""); return err },
			"Open":   func() error { _, err := s.OpenSession(ctx, store.SessionInfo{}, ttl); return err },
			"Lead":   func() error { _, err := s.Lead(ctx, "l", "s"); return err },
			"Owner":  func() error { _, err := s.Owner(ctx, "w"); return err },
			"Commit": func() error { _, err := s.Commit(ctx, []store.Commit{{Owner: store.Owner{Worker: "w"}}}); return err },
			"Load":   func() error { _, err := s.Load(ctx, "w"); return err },
			"Check":  func() error { return s.Check(ctx) },
		}
		for name, call := range calls {
			wantErr(t, name, call(), store.ErrClosed)
		}
		_, err := n.Wait(context.WithoutCancel(ctx))
		wantErr(t, "wait", err, store.ErrClosed)
		check(t, "close again", s.Close())
	}},
}
