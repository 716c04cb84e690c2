package workmanager_test

import (
	"context"
	"sync/atomic"

	"github.com/turnlane/turnlane/store"
)

// faulty is a store seen by a process that dies at a chosen write: from then on every call fails.
type faulty struct {
	store.Store
	bounds atomic.Bool // Bounds fails

	dieAt  int64 // the write to die at; 0 for never
	lost   bool  // the last write happens, and its answer is lost
	writes atomic.Int64
	dead   atomic.Bool
}

func (f *faulty) Bounds(ctx context.Context, topic string) (store.Bounds, error) {
	if f.bounds.Load() || f.dead.Load() {
		return store.Bounds{}, store.ErrUnavailable
	}
	return f.Store.Bounds(ctx, topic)
}

// write runs a write unless the process is dead, or dies before it.
func (f *faulty) write(do func() error) error {
	if f.dead.Load() {
		return store.ErrUnavailable
	}
	if f.writes.Add(1) == f.dieAt {
		f.dead.Store(true)
		if f.lost {
			_ = do()
		}
		return store.ErrOutcomeUnknown
	}
	return do()
}

func (f *faulty) Txn(ctx context.Context, changes ...store.Change) (revisions []uint64, err error) {
	err = f.write(func() error {
		revisions, err = f.Store.Txn(ctx, changes...)
		return err
	})
	return revisions, err
}

func (f *faulty) Acquire(ctx context.Context, worker, session string) (o store.Owner, err error) {
	err = f.write(func() error {
		o, err = f.Store.Acquire(ctx, worker, session)
		return err
	})
	return o, err
}

func (f *faulty) DeleteTopic(ctx context.Context, topic string) error {
	return f.write(func() error { return f.Store.DeleteTopic(ctx, topic) })
}

func (f *faulty) Release(ctx context.Context, o store.Owner) error {
	return f.write(func() error { return f.Store.Release(ctx, o) })
}

func (f *faulty) Forget(ctx context.Context, worker string) error {
	return f.write(func() error { return f.Store.Forget(ctx, worker) })
}

func (f *faulty) Get(ctx context.Context, key string) (store.Item, error) {
	if f.dead.Load() {
		return store.Item{}, store.ErrUnavailable
	}
	return f.Store.Get(ctx, key)
}

func (f *faulty) Lead(ctx context.Context, name, session string) (store.Leader, error) {
	if f.dead.Load() {
		return store.Leader{}, store.ErrUnavailable
	}
	return f.Store.Lead(ctx, name, session)
}
