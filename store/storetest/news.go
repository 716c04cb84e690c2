package storetest

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/store"
)

func openNews(t *testing.T, s store.Store, topics ...string) store.News {
	t.Helper()
	n, err := s.OpenNews(t.Context())
	check(t, "open news", err)
	t.Cleanup(func() { n.Close() })
	for _, topic := range topics {
		check(t, "watch", n.Watch(t.Context(), topic))
	}
	return n
}

// ended is a context in which a Wait returns what there is, or nothing.
func ended(t *testing.T) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

var newsStories = []story{
	{"an append to a watched topic is told, of another not", func(t *testing.T, h *Harness) {
		n := openNews(t, h.Store, "a")
		publish(t, h.Store, "b", records("x")...)
		publish(t, h.Store, "a", records("x")...)
		names, err := n.Wait(t.Context())
		check(t, "wait", err)
		equal(t, "names", names, []string{"a"})
	}},
	{"many appends before a wait are told once", func(t *testing.T, h *Harness) {
		n := openNews(t, h.Store, "a", "b")
		for range 5 {
			publish(t, h.Store, "a", records("x")...)
			publish(t, h.Store, "b", records("x")...)
		}
		told := map[string]int{}
		for len(told) < 2 {
			names, err := n.Wait(t.Context())
			check(t, "wait", err)
			for _, name := range names {
				told[name]++
			}
		}
	}},
	{"after unwatch nothing is told", func(t *testing.T, h *Harness) {
		n := openNews(t, h.Store, "a", "b")
		n.Unwatch("a")
		n.Unwatch("never watched")
		publish(t, h.Store, "a", records("x")...)
		publish(t, h.Store, "b", records("x")...)
		names, err := n.Wait(t.Context())
		check(t, "wait", err)
		equal(t, "names", names, []string{"b"})
	}},
	{"a wait ends with its context, and with the bell", func(t *testing.T, h *Harness) {
		n := openNews(t, h.Store, "a")
		_, err := n.Wait(ended(t))
		wantErr(t, "wait", err, context.Canceled)
		done := make(chan error)
		go func() {
			_, err := n.Wait(context.WithoutCancel(t.Context()))
			done <- err
		}()
		check(t, "close", n.Close())
		wantErr(t, "wait", <-done, store.ErrClosed)
	}},
	{"what is told can be read; nothing is missed by a reader that reads when told", func(t *testing.T, h *Harness) {
		s := h.Store
		ctx := t.Context()
		const topics, each = 8, 60
		n := openNews(t, s)
		var writers sync.WaitGroup
		for i := range topics {
			topic := fmt.Sprint("t", i)
			writers.Go(func() {
				for j := range each {
					if _, err := s.Append(ctx, topic, []store.Batch{{Records: records(fmt.Sprint(j))}}); err != nil {
						t.Errorf("append: %v", err)
						return
					}
				}
			})
		}
		// Topics are hung up while they are being written to. What came before the bell is read once
		// at its hanging; the rest only when it rings.
		at, count, missing := map[string]event.Position{}, map[string]int{}, topics
		take := func(topic string) {
			entries := read(t, s, topic, at[topic])
			for _, e := range entries {
				equal(t, "entry of "+topic, body(e.Record), fmt.Sprint(count[topic]))
				count[topic]++
				at[topic] = e.Pos
			}
			if len(entries) > 0 && count[topic] == each {
				missing--
			}
		}
		for i := range topics {
			topic := fmt.Sprint("t", i)
			check(t, "watch", n.Watch(ctx, topic))
			take(topic)
		}
		for missing > 0 {
			names, err := n.Wait(ctx)
			check(t, "wait", err)
			for _, topic := range names {
				take(topic)
			}
		}
		writers.Wait()
	}},
	{"a bell hung between two appends tells the second", func(t *testing.T, h *Harness) {
		s := h.Store
		n := openNews(t, s)
		for i := range 200 {
			topic := fmt.Sprint("t", i%7)
			first := make(chan struct{})
			go func() {
				defer close(first)
				s.Append(t.Context(), topic, []store.Batch{{Records: records("first")}})
			}()
			check(t, "watch", n.Watch(t.Context(), topic))
			p := publish(t, s, topic, records("second")...)[0]
			for told := false; !told; {
				names, err := n.Wait(t.Context())
				check(t, "wait", err)
				for _, name := range names {
					told = told || name == topic && !bounds(t, s, topic).Last.Less(p)
				}
			}
			<-first
			n.Unwatch(topic)
		}
	}},
	{"closing the store ends its bells", func(t *testing.T, h *Harness) {
		need(t, "reopen", h.Reopen != nil)
		n := openNews(t, h.Store, "a")
		w, err := h.Store.WatchKeys(t.Context(), "k")
		check(t, "watch keys", err)
		h.Reopen()
		_, err = n.Wait(t.Context())
		wantErr(t, "wait for news", err, store.ErrClosed)
		_, err = w.Wait(t.Context())
		wantErr(t, "wait for keys", err, store.ErrClosed)
	}},
}
