package catalog

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/turnlane/turnlane/store"
)

const (
	existsFor  = time.Second
	maxExisted = 4096
)

// Directory tells whether workers exist. What it knows of one that does is believed for a second; of
// one that does not, nothing is kept. It is safe for concurrent use.
type Directory struct {
	registry store.Registry
	now      func() time.Time

	mu    sync.Mutex
	known map[string]existed // by id; at most maxExisted
}

type existed struct {
	typ   string
	until time.Time
}

// NewDirectory makes a Directory of the workers in a registry.
func NewDirectory(r store.Registry) *Directory {
	return &Directory{registry: r, now: time.Now, known: map[string]existed{}}
}

// Exists reports whether there is a worker of that type and id. Errors are those of the store.
func (d *Directory) Exists(ctx context.Context, typ, id string) (bool, error) {
	now := d.now()
	d.mu.Lock()
	k, ok := d.known[id]
	d.mu.Unlock()
	if ok && k.typ == typ && now.Before(k.until) {
		return true, nil
	}
	item, err := d.registry.Get(ctx, WorkerKey(id))
	if errors.Is(err, store.ErrNotFound) {
		return false, nil
	} else if err != nil {
		return false, err
	}
	w, err := DecodeWorker(item)
	if err != nil {
		return false, err
	}
	if w.GetDeleted() || w.GetType() != typ {
		return false, nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.known) >= maxExisted {
		clear(d.known)
	}
	d.known[id] = existed{typ, now.Add(existsFor)}
	return true, nil
}
