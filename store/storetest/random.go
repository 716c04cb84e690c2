package storetest

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/turnlane/turnlane/store"
)

var (
	seedFlag   = flag.Uint64("storetest.seed", 0, "seed of the random tests; 0 draws one")
	roundsFlag = flag.Int("storetest.rounds", 3, "rounds of each random test")
)

// seeds gives each round a seed, and prints it if the round fails.
func seeds(t *testing.T, round func(t *testing.T, seed uint64)) {
	for i := range *roundsFlag {
		seed := *seedFlag
		if seed == 0 {
			seed = rand.Uint64()
		} else if i > 0 {
			return
		}
		t.Run(fmt.Sprint("round ", i), func(t *testing.T) {
			t.Logf("repeat with -storetest.seed=%d", seed)
			round(t, seed)
		})
	}
}

// runModel makes random calls, some of them over a restart, and holds every answer against the model.
func runModel(t *testing.T, open func(t *testing.T) *Harness) {
	seeds(t, func(t *testing.T, seed uint64) {
		h, g, m := open(t), newSteps(seed), newModel()
		for i := range 500 {
			st := g.next(false)
			var err error
			if m, err = st.run(t.Context(), h.Store, m); err != nil {
				t.Fatalf("step %d, %s: %v", i, st.name, err)
			}
			if i%100 == 99 {
				if err := m.differ(t.Context(), h.Store); err != nil {
					t.Fatalf("after step %d: %v", i, err)
				}
			}
			switch reopen := g.rng.IntN(120); {
			case reopen == 0 && h.Reopen != nil:
				h.Reopen()
			case reopen == 1 && h.Crash != nil:
				h.Crash()
			default:
				continue
			}
			m = m.restarted(h.KeepsSessions)
			if err := m.differ(t.Context(), h.Store); err != nil {
				t.Fatalf("restarted after step %d: %v", i, err)
			}
		}
	})
}

// runEnds ends the process at the n-th write to the disk, for every n of a script. All that was
// answered by then must be there; of the call under way, all or nothing.
func runEnds(t *testing.T, open func(t *testing.T) *Harness) {
	const script, after = 25, 8
	seeds(t, func(t *testing.T, seed uint64) {
		for n := 1; ; n++ {
			h, g, m := open(t), newSteps(seed), newModel()
			need(t, "end at a write", h.CrashAt != nil)
			ctx := t.Context()
			over := h.CrashAt(n)
			var under *step // the call that was under way
			before := m
			for i := range script {
				st := g.next(true)
				next, err := st.run(ctx, h.Store, m)
				if err != nil {
					t.Fatalf("step %d, %s: %v", i, st.name, err)
				}
				before, m = m, next
				if over() {
					under = &st
					break
				}
			}
			if under == nil {
				if n == 1 {
					t.Fatal("the script writes nothing")
				}
				h.Store.Close()
				t.Logf("%d ends", n-1)
				return
			}
			h.Crash()
			before, m = before.restarted(h.KeepsSessions), m.restarted(h.KeepsSessions)
			if no, yes := before.differ(ctx, h.Store), m.differ(ctx, h.Store); no != nil && yes != nil {
				t.Fatalf("ended at write %d in %s:\n if it did not happen: %v\n if it did: %v", n, under.name, no, yes)
			} else if yes != nil {
				m = before
			}
			for range after { // and it goes on
				st := g.next(false)
				var err error
				if m, err = st.run(ctx, h.Store, m); err != nil {
					t.Fatalf("ended at write %d in %s, then %s: %v", n, under.name, st.name, err)
				}
			}
			h.Store.Close()
		}
	})
}

// loser loses the answer of the n-th call that writes: the call is made, the caller is told that its
// outcome is unknown.
type loser struct {
	store.Store
	n int
}

func (l *loser) lost(err error) error {
	if l.n--; l.n == 0 && err == nil {
		return fmt.Errorf("the answer is lost: %w", store.ErrOutcomeUnknown)
	}
	return err
}

func (l *loser) Append(ctx context.Context, topic string, batches []store.Batch) ([]store.Appended, error) {
	out, err := l.Store.Append(ctx, topic, batches)
	if err = l.lost(err); err != nil {
		return nil, err
	}
	return out, nil
}

func (l *loser) Txn(ctx context.Context, changes ...store.Change) ([]uint64, error) {
	revs, err := l.Store.Txn(ctx, changes...)
	if err = l.lost(err); err != nil {
		return nil, err
	}
	return revs, nil
}

func (l *loser) Commit(ctx context.Context, commits []store.Commit) ([]error, error) {
	errs, err := l.Store.Commit(ctx, commits)
	if err = l.lost(err); err != nil {
		return nil, err
	}
	return errs, nil
}

func (l *loser) Release(ctx context.Context, o store.Owner) error {
	return l.lost(l.Store.Release(ctx, o))
}

// runLost tells what a caller can do after a lost answer: repeat a turn, a conditional transaction, a
// commit or a release, and have it once.
func runLost(t *testing.T, open func(t *testing.T) *Harness) {
	const calls = 8
	for n := 1; n <= calls; n++ {
		h := open(t)
		s := &loser{h.Store, n}
		ctx := t.Context()
		again := func(what string, call func() error) {
			t.Helper()
			err := call()
			if errors.Is(err, store.ErrOutcomeUnknown) {
				err = call()
			}
			if err != nil {
				t.Fatalf("answer %d lost, %s: %v", n, what, err)
			}
		}
		o := acquire(t, h.Store, "w", join(t, h.Store, "p"))
		for i := range uint64(2) {
			again("turn", func() error {
				out, err := s.Append(ctx, "out", []store.Batch{turn(o.Token, 1, i+1, fmt.Sprint(i))})
				if err == nil {
					err = out[0].Err
				}
				return err
			})
			again("transaction", func() error {
				_, err := s.Txn(ctx, put(fmt.Sprint("k", i), "v", store.Absent))
				if errors.Is(err, store.ErrConflict) {
					if item, e := s.Get(ctx, fmt.Sprint("k", i)); e == nil && string(item.Value) == "v" {
						return nil // ours
					}
				}
				return err
			})
			again("commit", func() error {
				errs, err := s.Commit(ctx, []store.Commit{{Owner: o, Cursors: []store.Cursor{cursor("in", i+1)}}})
				if err == nil {
					err = errs[0]
				}
				return err
			})
		}
		again("release", func() error {
			err := s.Release(ctx, o)
			if errors.Is(err, store.ErrStaleToken) {
				if now, e := s.Owner(ctx, "w"); e == nil && now.Session == "" && now.Token == o.Token {
					return nil
				}
			}
			return err
		})
		equal(t, "outputs", bodies(read(t, h.Store, "out", at(0))), []string{"0", "1"})
		equal(t, "cursors", load(t, h.Store, "w").Cursors, []store.Cursor{cursor("in", 2)})
		h.Store.Close()
	}
}
