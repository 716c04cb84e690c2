package storetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/turnlane/turnlane/store"
)

func put(key, value string, cond uint64) store.Change {
	return store.Change{Key: key, Value: []byte(value), If: cond}
}

func txn(t *testing.T, s store.Store, changes ...store.Change) []uint64 {
	t.Helper()
	revs, err := s.Txn(t.Context(), changes...)
	check(t, "txn", err)
	equal(t, "revisions", len(revs), len(changes))
	return revs
}

func keys(items []store.Item) []string {
	var ks []string
	for _, i := range items {
		ks = append(ks, i.Key)
	}
	return ks
}

var registryStories = []story{
	{"a record is put, read, changed and deleted", func(t *testing.T, h *Harness) {
		s := h.Store
		_, err := s.Get(t.Context(), "k")
		wantErr(t, "get", err, store.ErrNotFound)
		r1 := txn(t, s, put("k", "one", store.Absent))[0]
		if r1 == 0 {
			t.Fatal("revision 0")
		}
		item, err := s.Get(t.Context(), "k")
		check(t, "get", err)
		equal(t, "item", item, store.Item{Key: "k", Value: []byte("one"), Revision: r1})
		r2 := txn(t, s, put("k", "", r1))[0]
		if r2 <= r1 {
			t.Fatalf("revision %d after %d", r2, r1)
		}
		equal(t, "deletion", txn(t, s, store.Change{Key: "k", Delete: true, If: r2}), []uint64{0})
		_, err = s.Get(t.Context(), "k")
		wantErr(t, "get", err, store.ErrNotFound)
		if h.Reopen != nil {
			s = h.Reopen()
		}
		r3 := txn(t, s, put("k", "three", store.Absent))[0]
		if r3 <= r2 {
			t.Fatalf("revision %d after %d and a deletion", r3, r2)
		}
	}},
	{"a condition that does not hold stops the whole transaction and is named", func(t *testing.T, h *Harness) {
		s := h.Store
		r := txn(t, s, put("a", "1", store.Any), put("b", "1", store.Any))
		for _, c := range []struct {
			bad store.Change
			rev uint64
		}{
			{put("a", "x", store.Absent), r[0]},
			{put("b", "x", r[0]), r[1]},
			{store.Change{Key: "c", Delete: true, If: 7}, store.Absent},
			{store.Change{Key: "b", Check: true, If: store.Absent}, r[1]},
		} {
			_, err := s.Txn(t.Context(), put("a", "2", r[0]), c.bad, put("new", "2", store.Absent))
			wantErr(t, "txn", err, store.ErrConflict)
			var conflict *store.ConflictError
			if !errors.As(err, &conflict) || *conflict != (store.ConflictError{Index: 1, Key: c.bad.Key, Revision: c.rev}) {
				t.Fatalf("conflict %+v", conflict)
			}
			items, err := s.List(t.Context(), "", "", 10)
			check(t, "list", err)
			equal(t, "keys", keys(items), []string{"a", "b"})
			equal(t, "value", string(items[0].Value), "1")
		}
	}},
	{"a check writes nothing", func(t *testing.T, h *Harness) {
		s := h.Store
		r := txn(t, s, put("a", "1", store.Any))[0]
		got := txn(t, s, store.Change{Key: "a", Check: true, If: r}, store.Change{Key: "b", Check: true, If: store.Absent}, put("c", "1", store.Any))
		equal(t, "revisions of checks", got[:2], []uint64{0, 0})
		item, err := s.Get(t.Context(), "a")
		check(t, "get", err)
		equal(t, "revision", item.Revision, r)
		_, err = s.Get(t.Context(), "b")
		wantErr(t, "get", err, store.ErrNotFound)
	}},
	{"records are listed by prefix, in order, page by page", func(t *testing.T, h *Harness) {
		s := h.Store
		var want []string
		for i := range 120 {
			key := fmt.Sprintf("w/%03d", i)
			want = append(want, key)
			txn(t, s, put(key, key, store.Absent))
		}
		txn(t, s, put("w", "x", store.Any), put("w0", "x", store.Any), put("a", "x", store.Any), put("w/\xff", "x", store.Any))
		want = append(want, "w/\xff")
		var got []string
		for after := ""; ; {
			items, err := s.List(t.Context(), "w/", after, 50)
			check(t, "list", err)
			if len(items) == 0 {
				break
			}
			got = append(got, keys(items)...)
			after = items[len(items)-1].Key
		}
		equal(t, "keys", got, want)
	}},
	{"of racing transactions on one revision one wins", func(t *testing.T, h *Harness) {
		s := h.Store
		rev := txn(t, s, put("k", "0", store.Absent))[0]
		for round := range 20 {
			var wg sync.WaitGroup
			won := make(chan uint64, 8)
			for i := range 8 {
				wg.Go(func() {
					revs, err := s.Txn(t.Context(), put("k", fmt.Sprint(round, i), rev), put(fmt.Sprint("by", round, i), "", store.Absent))
					if err == nil {
						won <- revs[0]
					} else if !errors.Is(err, store.ErrConflict) {
						t.Errorf("txn: %v", err)
					}
				})
			}
			wg.Wait()
			equal(t, "winners", len(won), 1)
			rev = <-won
		}
		items, err := s.List(t.Context(), "by", "", 100)
		check(t, "list", err)
		equal(t, "traces of winners", len(items), 20)
	}},
	{"changed keys are told by prefix", func(t *testing.T, h *Harness) {
		s := h.Store
		w, err := s.WatchKeys(t.Context(), "w/")
		check(t, "watch keys", err)
		defer w.Close()
		txn(t, s, put("x/1", "", store.Any))
		txn(t, s, put("w/1", "", store.Any), put("w/2", "", store.Any), store.Change{Key: "w/3", Check: true, If: store.Absent})
		told := map[string]bool{}
		for len(told) < 2 {
			names, err := w.Wait(t.Context())
			check(t, "wait", err)
			for _, k := range names {
				told[k] = true
			}
		}
		equal(t, "told", told, map[string]bool{"w/1": true, "w/2": true})
		txn(t, s, store.Change{Key: "w/1", Delete: true, If: store.Any})
		names, err := w.Wait(t.Context())
		check(t, "wait", err)
		equal(t, "told", names, []string{"w/1"})
		check(t, "close", w.Close())
		_, err = w.Wait(t.Context())
		wantErr(t, "wait", err, store.ErrClosed)
	}},
	{"a bell for keys is never late: who reads when told sees every change", func(t *testing.T, h *Harness) {
		s := h.Store
		w, err := s.WatchKeys(t.Context(), "")
		check(t, "watch keys", err)
		defer w.Close()
		go func() {
			for i := range 300 {
				if _, err := s.Txn(context.WithoutCancel(t.Context()), put("k", fmt.Sprint(i), store.Any)); err != nil {
					t.Errorf("txn: %v", err)
				}
			}
		}()
		for last := ""; last != "299"; {
			_, err := w.Wait(t.Context())
			check(t, "wait", err)
			item, err := s.Get(t.Context(), "k")
			check(t, "get", err)
			last = string(item.Value)
		}
	}},
	{"a broken record is told by name and can be put right", func(t *testing.T, h *Harness) {
		need(t, "be damaged", h.Break != nil)
		s := h.Store
		r := txn(t, s, put("a", "1", store.Any), put("b", "1", store.Any), put("c", "1", store.Any))
		h.Break("b")
		s = h.Store
		_, err := s.Get(t.Context(), "b")
		wantErr(t, "get", err, store.ErrCorrupt)
		items, err := s.List(t.Context(), "", "", 10)
		check(t, "list", err)
		equal(t, "keys", keys(items), []string{"a", "b", "c"})
		wantErr(t, "broken item", items[1].Err, store.ErrCorrupt)
		check(t, "neighbours", errors.Join(items[0].Err, items[2].Err))
		_, err = s.Txn(t.Context(), put("b", "2", r[1]))
		wantErr(t, "change by revision", err, store.ErrCorrupt)
		txn(t, s, put("b", "2", store.Any))
		item, err := s.Get(t.Context(), "b")
		check(t, "get", err)
		equal(t, "value", string(item.Value), "2")
	}},
}
