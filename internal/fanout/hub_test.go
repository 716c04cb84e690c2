package fanout

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/feed"
	"github.com/turnlane/turnlane/grouping"
	"github.com/turnlane/turnlane/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bubble runs a story with a running hub on a fake clock. The hub is stopped at the end, and the bubble
// fails if any of its goroutines stays.
func bubble(t *testing.T, cfg Config, story func(t *testing.T, h *Hub, log *fakeLog)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		log := newFakeLog()
		cfg.Upstream = log
		h := New(cfg)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- h.Run(ctx) }()
		defer func() {
			cancel()
			if err := <-ended; !errors.Is(err, context.Canceled) {
				t.Errorf("Run returned %v", err)
			}
		}()
		story(t, h, log)
	})
}

// open opens a feed into a lane of that size.
func open(t *testing.T, h *Hub, topic string, size int, opts Options) (*Feed, *lane) {
	t.Helper()
	l := &lane{size: size}
	opts.Sink, opts.OnGap = l, l.gap
	f, err := h.Open(t.Context(), topic, opts)
	if err != nil {
		t.Fatal(err)
	}
	return f, l
}

func wantSeen(t *testing.T, l *lane, want ...string) {
	t.Helper()
	synctest.Wait()
	if got := l.seen(t); !slices.Equal(got, want) {
		t.Errorf("offered %v, want %v", got, want)
	}
}

func TestATailFeedGetsWhatIsAppendedAfterOpen(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, h *Hub, log *fakeLog) {
		log.append("trades", "old")
		f, l := open(t, h, "trades", 10, Options{})
		log.append("trades", "a", "b")
		log.append("other", "x")
		log.append("trades", "c")
		wantSeen(t, l, "a", "b", "c")
		s := f.Status()
		if s.State != Live || s.Position != pos(8) || s.Head != pos(8) || s.Incarnation != "i1" || s.Examined != 3 || s.Owned != 3 || s.Filtered != 0 {
			t.Errorf("status %+v", s)
		}
	})
}

func TestStarts(t *testing.T) {
	bubble(t, Config{PageEntries: 2}, func(t *testing.T, h *Hub, log *fakeLog) {
		log.append("t", "a", "b", "c", "d", "e") // 2, 4, 6, 8, 10
		log.trim("t", pos(2))
		for _, c := range []struct {
			name  string
			start Start
			want  string
			gaps  string
		}{
			{"tail", Tail(), "f", ""},
			{"earliest", Earliest(), "b c d e f", ""},
			{"after", After(pos(4), "i1"), "c d e f", ""},
			{"after, between entries", After(pos(5), "i1"), "c d e f", ""},
			{"after, incarnation unknown", After(pos(6), ""), "d e f", ""},
			{"from what was trimmed", After(pos(0), "i1"), "b c d e f", "trimmed gap from 0-1 to 0-2"},
			{"beyond the end", After(pos(99), "i1"), "f", "regressed gap from 0-11 to 0-99"},
			{"another log", After(pos(6), "i0"), "b c d e f",
				"incarnation gap from 0-7 to 18446744073709551615-18446744073709551615, trimmed gap from 0-1 to 0-2"},
		} {
			f, l := open(t, h, "t", 100, Options{Start: c.start})
			defer func() {
				synctest.Wait()
				if got := strings.Join(l.seen(t), " "); got != c.want {
					t.Errorf("%s: offered %q, want %q", c.name, got, c.want)
				}
				var gaps []string
				for _, g := range l.gapsSeen() {
					gaps = append(gaps, g.String())
				}
				if got := strings.Join(gaps, ", "); got != c.gaps {
					t.Errorf("%s: gaps %q, want %q", c.name, got, c.gaps)
				}
				if s := f.Status(); s.State != Live || s.Position != pos(12) || s.Gaps != uint64(len(gaps)) {
					t.Errorf("%s: %+v", c.name, s)
				}
			}()
		}
		synctest.Wait()
		log.append("t", "f")
	})
}

func TestATopicMayComeLater(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, h *Hub, log *fakeLog) {
		f, l := open(t, h, "new", 10, Options{})
		if s := f.Status(); s.State != Live || s.Incarnation != "" {
			t.Errorf("status %+v", s)
		}
		log.append("new", "first")
		wantSeen(t, l, "first")
		if s := f.Status(); s.Incarnation != "i1" || len(l.gapsSeen()) > 0 {
			t.Errorf("status %+v, gaps %v", s, l.gapsSeen())
		}
	})
}

// Between the reading of a start and the first feed's going live, news have no feed to go to.
func TestTheFirstFeedMissesNothingWhileItOpens(t *testing.T) {
	for name, start := range map[string]Start{"tail": Tail(), "earliest": Earliest()} {
		t.Run(name, func(t *testing.T) {
			bubble(t, Config{}, func(t *testing.T, h *Hub, log *fakeLog) {
				log.afterBounds = func(topic string) {
					log.append(topic, "meanwhile")
					synctest.Wait() // the hub was told, and went back to waiting
				}
				f, l := open(t, h, "t", 10, Options{Start: start})
				wantSeen(t, l, "meanwhile")
				if s := f.Status(); s.State != Live || s.Position != pos(2) {
					t.Errorf("status %+v", s)
				}
			})
		})
	}
}

func TestOpenFailsWhenTheStartCannotBeRead(t *testing.T) {
	for _, call := range []string{"Bounds", "Watch", "OpenNews"} {
		t.Run(call, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				log := newFakeLog()
				log.append("t", "a")
				broken := errors.New("the disk is on fire")
				log.failing(func(c, _ string) error {
					if c == call {
						return broken
					}
					return nil
				})
				h := New(Config{Upstream: log})
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan struct{})
				go func() { h.Run(ctx); close(ended) }()
				l := &lane{size: 4}
				_, err := h.Open(ctx, "t", Options{Sink: l})
				if !errors.Is(err, store.ErrUnavailable) || !errors.Is(err, broken) || !strings.Contains(err.Error(), "topic t") {
					t.Errorf("Open: %v", err)
				}
				log.failing(nil)
				time.Sleep(10 * time.Second)
				f, err := h.Open(ctx, "t", Options{Sink: l})
				if err != nil {
					t.Fatal(err)
				}
				log.append("t", "b")
				wantSeen(t, l, "b")
				f.Close()
				time.Sleep(time.Minute)
				if n := log.watchedTopics(); n != 0 {
					t.Errorf("%d topics are still watched", n)
				}
				cancel()
				<-ended
			})
		})
	}
}

func TestOpenOnAHubThatDoesNotRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := New(Config{Upstream: newFakeLog()})
		if _, err := h.Open(t.Context(), "t", Options{Sink: &lane{}}); !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("before Run: %v", err)
		}
		if h.Ready() == nil {
			t.Error("ready before Run")
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		h.Run(ctx)
		if _, err := h.Open(t.Context(), "t", Options{Sink: &lane{}}); !errors.Is(err, store.ErrClosed) {
			t.Errorf("after Run: %v", err)
		}
		if err := h.Run(t.Context()); err == nil {
			t.Error("ran twice")
		}
		if _, err := h.Open(t.Context(), "t", Options{}); err == nil {
			t.Error("no sink, no error")
		}
	})
}

// One slow sink among quick ones: it misses nothing, and they do not wait.
func TestASlowSinkIsLeftBehindAndCatchesUp(t *testing.T) {
	bubble(t, Config{PageEntries: 4, ReadEntries: 8}, func(t *testing.T, h *Hub, log *fakeLog) {
		slow, sl := open(t, h, "t", 4, Options{})
		_, ql := open(t, h, "t", 10_000, Options{})
		var want []string
		for i := range 100 {
			ks := keys("k", 10*i, 10*i+10)
			want = append(want, ks...)
			log.append("t", ks...)
		}
		wantSeen(t, ql, want...)
		if s := slow.Status(); s.State != Stalled || s.StalledSince.IsZero() || s.Position != pos(8) || s.Head != pos(2000) {
			t.Errorf("status %+v", s)
		}
		for len(sl.seen(t)) < len(want) {
			if sl.take(slow, 3) == 0 {
				t.Fatalf("nothing in the lane after %d entries", len(sl.seen(t)))
			}
			synctest.Wait()
		}
		wantSeen(t, sl, want...)
		sl.take(slow, 4)
		synctest.Wait()
		if s := slow.Status(); s.State != Live || s.Examined != 1000 || s.Owned != 1000 {
			t.Errorf("status %+v", s)
		}
		if s := h.Stats(); s.RecentBytes != 0 {
			t.Errorf("%d bytes of recent spans are kept for nobody", s.RecentBytes)
		}
	})
}

func TestATopicIsNotReadWhileNoFeedIsLive(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, h *Hub, log *fakeLog) {
		f, l := open(t, h, "t", 2, Options{})
		log.append("t", "a", "b", "c")
		wantSeen(t, l, "a", "b")
		log.mu.Lock()
		before := log.reads
		log.mu.Unlock()
		for range 50 {
			log.append("t", "d")
			synctest.Wait()
		}
		log.mu.Lock()
		after := log.reads
		log.mu.Unlock()
		if after != before {
			t.Errorf("%d reads for a feed that is full", after-before)
		}
		for l.take(f, 2) > 0 {
			synctest.Wait()
		}
		if n := len(l.seen(t)); n != 53 {
			t.Errorf("offered %d entries, want 53", n)
		}
	})
}

func TestATrimUnderASlowFeedIsAnExactGap(t *testing.T) {
	var hooked []string
	cfg := Config{Hooks: Hooks{Gap: func(topic string, g feed.Gap) { hooked = append(hooked, topic+": "+g.String()) }}}
	bubble(t, cfg, func(t *testing.T, h *Hub, log *fakeLog) {
		f, l := open(t, h, "t", 2, Options{})
		log.append("t", "a", "b", "c", "d", "e", "f") // 2 to 12
		wantSeen(t, l, "a", "b")
		// What the recent spans hold needs no log; but they are only kept while the process reads on.
		f.Close()
		f, l = open(t, h, "t", 2, Options{Start: After(pos(4), "i1")})
		wantSeen(t, l, "c", "d")
		log.trim("t", pos(10))
		l.take(f, 2)
		wantSeen(t, l, "c", "d", "f")
		want := []feed.Gap{{Kind: feed.Trimmed, First: pos(9), Last: pos(10), Incarnation: "i1", After: pos(10), Next: "i1"}}
		if got := l.gapsSeen(); !slices.Equal(got, want) {
			t.Errorf("gaps %v, want %v", got, want)
		}
		if !slices.Equal(hooked, []string{"t: trimmed gap from 0-9 to 0-10"}) {
			t.Errorf("hooked %v", hooked)
		}
	})
}

func TestATopicThatIsDeletedAndMadeAgainIsAGap(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, h *Hub, log *fakeLog) {
		f, l := open(t, h, "t", 10, Options{})
		log.append("t", "a", "b")
		wantSeen(t, l, "a", "b")
		log.remove("t")
		synctest.Wait()
		want := []feed.Gap{{Kind: feed.Incarnation, First: pos(5), Last: event.MaxPosition, Incarnation: "i1"}}
		if got := l.gapsSeen(); !slices.Equal(got, want) {
			t.Errorf("gaps %v, want %v", got, want)
		}
		log.append("t", "c")
		synctest.Wait()
		if s := f.Status(); !slices.Equal(l.keys, []string{"a", "b", "c"}) || s.Incarnation != "i2" || s.State != Live || s.Gaps != 1 {
			t.Errorf("offered %v, %+v", l.keys, s)
		}
	})
}

// A log that went back tells so, and what is put in the place of what it lost is delivered.
func TestALogThatGoesBackIsAGap(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, h *Hub, log *fakeLog) {
		f, l := open(t, h, "t", 10, Options{})
		log.append("t", "a", "b", "c") // 2, 4, 6
		wantSeen(t, l, "a", "b", "c")
		log.cut("t", pos(2))
		synctest.Wait()
		want := []feed.Gap{{Kind: feed.Regressed, First: pos(3), Last: pos(6), Incarnation: "i1", After: pos(2), Next: "i1"}}
		if got := l.gapsSeen(); !slices.Equal(got, want) {
			t.Errorf("gaps %v, want %v", got, want)
		}
		log.append("t", "d")
		synctest.Wait()
		if got := l.keys; !slices.Equal(got, []string{"a", "b", "c", "d"}) || f.Position() != pos(4) {
			t.Errorf("offered %v, at %v", got, f.Position())
		}
	})
}

func TestNewsThatBreakLoseNothing(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, h *Hub, log *fakeLog) {
		_, l := open(t, h, "t", 10, Options{})
		log.append("t", "a")
		wantSeen(t, l, "a")
		log.failing(func(call, _ string) error {
			if call == "OpenNews" {
				return store.ErrUnavailable
			}
			return nil
		})
		log.breakNews()
		time.Sleep(time.Second)
		log.append("t", "b", "c") // nobody tells
		wantSeen(t, l, "a")
		if err := h.Ready(); !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("ready: %v", err)
		}
		if _, err := h.Open(t.Context(), "t", Options{Sink: l}); !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("open: %v", err)
		}
		log.failing(nil)
		time.Sleep(2 * maxBackoff)
		wantSeen(t, l, "a", "b", "c")
		if err := h.Ready(); err != nil {
			t.Errorf("ready: %v", err)
		}
		log.append("t", "d")
		wantSeen(t, l, "a", "b", "c", "d")
	})
}

func TestATopicThatCannotBeReadIsStalledAndComesBack(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, h *Hub, log *fakeLog) {
		_, bad := open(t, h, "bad", 10, Options{})
		_, good := open(t, h, "good", 10, Options{})
		old, _ := open(t, h, "old", 10, Options{Start: After(pos(0), "")})
		log.append("old", "x")
		log.failing(func(call, topic string) error {
			if call == "Read" && topic != "good" {
				return store.ErrUnavailable
			}
			return nil
		})
		log.append("bad", "a")
		log.append("good", "b")
		wantSeen(t, good, "b")
		time.Sleep(5 * time.Second)
		if err := h.Ready(); err != nil {
			t.Errorf("not ready after 5 s: %v", err)
		}
		time.Sleep(6 * time.Second)
		if err := h.Ready(); err == nil || !slices.Equal(h.Stalled(), []string{"bad", "old"}) {
			t.Errorf("ready: %v, stalled: %v", err, h.Stalled())
		}
		log.failing(nil)
		time.Sleep(2 * maxBackoff)
		wantSeen(t, bad, "a")
		if err := h.Ready(); err != nil || old.Status().Position != pos(2) {
			t.Errorf("ready: %v, old at %v", err, old.Position())
		}
	})
}

func TestFailuresAreLoggedOnceASecond(t *testing.T) {
	var text strings.Builder
	cfg := Config{Logger: slog.New(slog.NewTextHandler(&text, nil))}
	bubble(t, cfg, func(t *testing.T, h *Hub, log *fakeLog) {
		log.failing(func(call, _ string) error {
			if call == "Read" {
				return store.ErrUnavailable
			}
			return nil
		})
		for i := range 100 {
			topic := fmt.Sprintf("t%d", i)
			open(t, h, topic, 10, Options{})
			log.append(topic, "a")
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if n := strings.Count(text.String(), "\n"); n == 0 || n > 11 {
			t.Errorf("%d lines of log for 100 topics that fail for ten seconds", n)
		}
	})
}

// An entry whose record cannot be read is a gap to every feed that comes to it, live or not, whatever its
// slots; the hook and the log are told once.
func TestBadRecordsAreGapsToEveryFeed(t *testing.T) {
	var mu sync.Mutex
	var told []string
	var text strings.Builder
	cfg := Config{Logger: slog.New(slog.NewTextHandler(&text, nil)), Hooks: Hooks{Bad: func(topic string, e event.Entry, err error) {
		mu.Lock()
		told = append(told, fmt.Sprintf("%s %s: %v", topic, e.Pos, err))
		mu.Unlock()
	}}}
	bubble(t, cfg, func(t *testing.T, h *Hub, log *fakeLog) {
		log.append("t", "a", broken, "b") // 2, 4, 6
		first, second := pos(4), pos(10)
		starts := map[*lane]*Feed{}
		var lanes []*lane
		for _, opts := range []Options{
			{Start: Earliest()},
			{Start: Earliest()},
			{Start: Earliest(), Slots: grouping.NewSet(2, 0, 1)},
			{Start: Earliest(), Slots: grouping.NewSet(2, 0)},
			{Start: Earliest(), Slots: grouping.NewSet(2, 1)},
			{Start: Tail()},
		} {
			f, l := open(t, h, "t", 4, opts)
			lanes = append(lanes, l)
			starts[l] = f
		}
		synctest.Wait()
		log.append("t", "c", broken, "d", "e", "f") // 8 to 16
		synctest.Wait()
		for i, l := range lanes {
			for l.take(starts[l], 2) > 0 {
				synctest.Wait()
			}
			var want []feed.Gap
			for _, p := range []event.Position{first, second} {
				if i < 5 || p != first {
					want = append(want, feed.Gap{Kind: feed.Undecodable, First: p, Last: p, Incarnation: "i1", After: p, Next: "i1"})
				}
			}
			if got := l.gapsSeen(); !slices.Equal(got, want) {
				t.Errorf("feed %d was told of %v, want %v", i, got, want)
			}
			if s := starts[l].Status(); s.State != Live || s.Position != pos(16) || s.Gaps != uint64(len(want)) {
				t.Errorf("feed %d: %+v", i, s)
			}
		}
		wantSeen(t, lanes[0], "a", "b", "c", "d", "e", "f")
		wantSeen(t, lanes[2], "a", "b", "c", "d", "e", "f")
		wantSeen(t, lanes[5], "c", "d", "e", "f")
		if n := len(lanes[3].seen(t)) + len(lanes[4].seen(t)); n != 6 {
			t.Errorf("the members of a group got %d entries, want 6", n)
		}
		if len(told) != 2 || !strings.HasPrefix(told[0], "t 0-4: record version 99") || !strings.HasPrefix(told[1], "t 0-10: ") {
			t.Errorf("told %q", told)
		}
		if logged := text.String(); strings.Count(logged, "\n") != 1 || !strings.Contains(logged, "topic=t position=0-4") {
			t.Errorf("logged %q, want one line a second", logged)
		}
	})
}

func TestTopicsWithoutFeedsAreClosedAfterALinger(t *testing.T) {
	bubble(t, Config{Linger: time.Minute}, func(t *testing.T, h *Hub, log *fakeLog) {
		f, _ := open(t, h, "t", 10, Options{})
		f.Close()
		f.Close()
		time.Sleep(30 * time.Second)
		g, l := open(t, h, "t", 10, Options{}) // came back in time
		time.Sleep(5 * time.Minute)
		if h.Stats().Topics != 1 || log.watchedTopics() != 1 {
			t.Errorf("%+v, %d watched", h.Stats(), log.watchedTopics())
		}
		log.append("t", "a")
		wantSeen(t, l, "a")
		g.Close()
		time.Sleep(3 * time.Minute)
		if h.Stats().Topics != 0 || log.watchedTopics() != 0 {
			t.Errorf("%+v, %d watched", h.Stats(), log.watchedTopics())
		}
		log.append("t", "b")
		_, l = open(t, h, "t", 10, Options{})
		log.append("t", "c")
		wantSeen(t, l, "c")
	})
}

func TestAClosedFeedStaysWhereItWas(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, h *Hub, log *fakeLog) {
		f, l := open(t, h, "t", 10, Options{Slots: grouping.NewSet(2, 0)})
		log.append("t", keys("k", 0, 10)...)
		synctest.Wait()
		f.Close()
		log.append("t", keys("k", 10, 20)...)
		synctest.Wait()
		s := f.Status()
		if s.State != Closed || s.Position != pos(20) || s.Owned+s.Filtered != 10 || int(s.Owned) != len(l.seen(t)) {
			t.Errorf("status %+v, offered %v", s, l.seen(t))
		}
		f.Drained()
		f.Observe(func(p event.Position, incarnation string) {
			if p != pos(20) || incarnation != "i1" {
				t.Errorf("at %s in %s", p, incarnation)
			}
		})
	})
}

// A thousand feeds from the same cursor share the pages that they read.
func TestAThousandFeedsOnOneTopic(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, h *Hub, log *fakeLog) {
		log.append("t", keys("old", 0, 5000)...)
		var lanes []*lane
		for range 1000 {
			_, l := open(t, h, "t", 20_000, Options{Start: Earliest()})
			lanes = append(lanes, l)
		}
		log.append("t", keys("new", 0, 1000)...)
		synctest.Wait()
		for _, l := range lanes {
			if n := len(l.seen(t)); n != 6000 {
				t.Fatalf("a feed got %d of 6000 entries", n)
			}
		}
		log.mu.Lock()
		defer log.mu.Unlock()
		if log.reads > 5000 {
			t.Errorf("%d reads", log.reads)
		}
		t.Logf("%d reads", log.reads)
	})
}

func TestAThousandTopics(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, h *Hub, log *fakeLog) {
		perTopic := map[string]*lane{}
		for i := range 1000 {
			topic := fmt.Sprintf("t%d", i)
			_, perTopic[topic] = open(t, h, topic, 100, Options{})
		}
		for range 10 {
			for topic := range perTopic {
				log.append(topic, "k")
			}
		}
		synctest.Wait()
		for topic, l := range perTopic {
			if n := len(l.seen(t)); n != 10 {
				t.Errorf("%s: %d entries", topic, n)
			}
		}
	})
}

// Members of a group split a topic between them, whatever their speed, and the order of each is the
// topic's.
func TestMembersOfAGroupSplitATopic(t *testing.T) {
	bubble(t, Config{PageEntries: 16}, func(t *testing.T, h *Hub, log *fakeLog) {
		const size, events = 8, 2000
		var feeds [size]*Feed
		var lanes [size]*lane
		for i := range feeds {
			feeds[i], lanes[i] = open(t, h, "t", 10+100*i, Options{Slots: grouping.NewSet(size, uint32(i))})
		}
		for i := 0; i < events; i += 10 {
			log.append("t", keys("k", i, i+10)...)
		}
		for idle := false; !idle; {
			idle = true
			synctest.Wait()
			for i, l := range lanes {
				if l.take(feeds[i], 7) > 0 {
					idle = false
				}
			}
			synctest.Wait()
		}
		total := 0
		for i, l := range lanes {
			got := l.seen(t)
			total += len(got)
			var want []string
			for _, k := range keys("k", 0, events) {
				if grouping.Slot(grouping.Hash(k), size) == uint32(i) {
					want = append(want, k)
				}
			}
			if !slices.Equal(got, want) {
				t.Errorf("member %d got %d entries, want %d", i, len(got), len(want))
			}
			if s := feeds[i].Status(); s.Examined != events || s.Filtered != events-uint64(len(want)) {
				t.Errorf("member %d: %+v", i, s)
			}
		}
		if total != events {
			t.Errorf("%d entries for %d events", total, events)
		}
	})
}

// Without a fake clock, on all cores: publishers, sinks of all speeds, restarts at the position seen,
// and a store that fails now and then. Every reader gets everything, once, in order.
func TestReadersOfAllKindsUnderLoad(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	const topics, readers, events = 4, 24, 1000
	log := newFakeLog()
	h := New(Config{Upstream: log, PageEntries: 32, ReadEntries: 64})
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { h.Run(ctx) })
	var calls atomic.Int64
	log.failing(func(call, _ string) error {
		if call == "Read" && calls.Add(1)%101 == 0 {
			return store.ErrUnavailable
		}
		return nil
	})
	var work sync.WaitGroup
	for i := range readers {
		topic := fmt.Sprintf("t%d", i%topics)
		var slots grouping.Set
		if i%3 > 0 {
			slots = grouping.NewSet(3, uint32(i%3))
		}
		var want []string
		for _, k := range keys(topic+"-", 0, events) {
			if slots.Owns(grouping.Hash(k)) {
				want = append(want, k)
			}
		}
		l := &lane{size: 1 + i*7}
		f, err := h.Open(ctx, topic, Options{Sink: l, Slots: slots, OnGap: l.gap})
		if err != nil {
			t.Fatal(err)
		}
		work.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(i)))
			for count := 0; count < len(want); {
				n := l.take(f, 1+r.IntN(l.size))
				count += n
				if r.IntN(200) == 0 {
					// Stop and go on at the position, as a worker does that moves.
					f.Close()
					var at Start
					f.Observe(func(pos event.Position, incarnation string) { at = After(pos, incarnation) })
					if f, err = h.Open(ctx, topic, Options{Start: at, Sink: l, Slots: slots, OnGap: l.gap}); err != nil {
						t.Error(err)
						return
					}
				}
				if n == 0 {
					time.Sleep(100 * time.Microsecond) // lets others run; nothing depends on it
				}
			}
			if got := l.seen(t); !slices.Equal(got, want) || len(l.gapsSeen()) > 0 {
				t.Errorf("reader %d got %d entries, want %d; gaps %v", i, len(got), len(want), l.gapsSeen())
			}
			f.Close()
		})
	}
	for i := range topics {
		topic := fmt.Sprintf("t%d", i)
		work.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(1000+i)))
			for n := 0; n < events; {
				m := min(events, n+1+r.IntN(50))
				log.append(topic, keys(topic+"-", n, m)...)
				n = m
				if i == 0 && r.IntN(20) == 0 {
					log.breakNews()
				}
			}
		})
	}
	work.Wait()
	cancel()
	wg.Wait()
}

// A sink that refuses although it said it had room breaks its promise; its feed still goes on.
func TestASinkThatBreaksItsPromiseIsAskedAgain(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, h *Hub, log *fakeLog) {
		s := &moody{}
		s.moody.Store(true)
		f, err := h.Open(t.Context(), "t", Options{Sink: s})
		if err != nil {
			t.Fatal(err)
		}
		log.append("t", "a", "b")
		time.Sleep(time.Second)
		if st := f.Status(); st.State != CatchingUp || st.Position != pos(0) {
			t.Errorf("status %+v", st)
		}
		s.moody.Store(false)
		time.Sleep(2 * maxBackoff)
		if st := f.Status(); st.State != Live || st.Owned != 2 || s.n.Load() != 2 {
			t.Errorf("status %+v", st)
		}
	})
}

type moody struct {
	tally
	moody atomic.Bool
}

func (s *moody) Offer(entries []event.Entry) int {
	if s.moody.Load() {
		return 0
	}
	return s.tally.Offer(entries)
}

// Position and sink are read together: what Observe shows was offered, all of it and nothing beyond.
func TestObserveIsConsistentWithTheSink(t *testing.T) {
	log := newFakeLog()
	h := runHub(t, Config{Upstream: log, ReadEntries: 7, PageEntries: 5})
	l := &lane{size: 50}
	f, err := h.Open(t.Context(), "t", Options{Sink: l})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var work sync.WaitGroup
	work.Go(func() {
		for i := range 2000 {
			log.append("t", keys("k", 3*i, 3*i+3)...)
		}
	})
	for done := false; !done; {
		l.take(f, 13)
		f.Observe(func(at event.Position, _ string) {
			l.mu.Lock()
			defer l.mu.Unlock()
			var last event.Position
			if len(l.got) > 0 {
				last = l.got[len(l.got)-1]
			}
			if last != at { // nothing is filtered, and every position is an entry's
				t.Errorf("the feed stands at %s, the sink has up to %s", at, last)
				done = true
			}
			done = done || len(l.got) == 6000
		})
	}
	work.Wait()
}
