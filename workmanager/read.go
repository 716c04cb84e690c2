package workmanager

import (
	"context"
	"errors"

	"golang.org/x/sync/errgroup"

	"github.com/turnlane/turnlane/internal/catalog"
	"github.com/turnlane/turnlane/internal/rpcerr"
	"github.com/turnlane/turnlane/store"
)

// pageSize is how many records are read at once.
const pageSize = 500

// scan visits the workers that exist, in the order of their ids, after the given one, until visit
// returns false. Records that cannot be read are passed over: the leader reports them.
func (m *Manager) scan(ctx context.Context, after string, visit func(record) bool) error {
	return m.pages(ctx, catalog.WorkerPrefix, after, func(items []store.Item) error {
		for _, item := range items {
			w, err := catalog.DecodeWorker(item)
			if err != nil || w.GetDeleted() {
				continue
			}
			if !visit(record{w, item.Revision}) {
				return errEnough
			}
		}
		return nil
	})
}

// errEnough ends pages early.
var errEnough = errors.New("enough")

// pages visits the records under a prefix, after <prefix><after>, page by page.
func (m *Manager) pages(ctx context.Context, prefix, after string, visit func([]store.Item) error) error {
	after = prefix + after
	for {
		items, err := m.store.List(ctx, prefix, after, pageSize)
		if err != nil {
			return rpcerr.From(err)
		}
		if len(items) == 0 {
			return nil
		}
		after = items[len(items)-1].Key
		if err := visit(items); err != nil {
			if errors.Is(err, errEnough) {
				return nil
			}
			return err
		}
	}
}

// items reads the records that there are of some keys, in their order. One that cannot be read has
// its Err set.
func (m *Manager) items(ctx context.Context, keys []string) ([]store.Item, error) {
	all := make([]store.Item, len(keys))
	read := func(i int) error {
		item, err := m.store.Get(ctx, keys[i])
		if errors.Is(err, store.ErrCorrupt) {
			item, err = store.Item{Revision: item.Revision, Err: err}, nil
		} else if errors.Is(err, store.ErrNotFound) {
			return nil
		}
		if err == nil {
			item.Key = keys[i]
			all[i] = item
		}
		return err
	}
	var g errgroup.Group
	g.SetLimit(parallelReads)
	const few = 4
	for i := range keys {
		if len(keys) > few {
			g.Go(func() error { return read(i) })
		} else if err := read(i); err != nil {
			return nil, err
		}
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	found := all[:0]
	for _, item := range all {
		if item.Key != "" {
			found = append(found, item)
		}
	}
	return found, nil
}
