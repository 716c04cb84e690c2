package pebblestore

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"

	"github.com/turnlane/turnlane/store"
)

// health is what is known of the database's condition: whether it can go on at all, whether its
// background work fails, whether damage was found. It is also Pebble's logger and listener.
type health struct {
	onFatal func(error)
	logger  *slog.Logger
	stopped <-chan struct{} // closed when the store is being closed

	once  sync.Once
	death atomic.Pointer[error]

	mu         sync.Mutex
	background error // the last flush or compaction failed so; cleared by one that succeeds
	damage     error // stays
}

// die records that the database can't go on, and calls OnFatal at the first time.
func (h *health) die(err error) {
	h.once.Do(func() {
		err = fmt.Errorf("%w: the database failed: %w", store.ErrUnavailable, err)
		h.death.Store(&err)
		h.logger.Error("the store's database failed", "error", err)
		h.onFatal(err)
	})
}

// fatal returns why the database can't go on, nil if it can.
func (h *health) fatal() error {
	if err := h.death.Load(); err != nil {
		return *err
	}
	return nil
}

func (h *health) check() error {
	if err := h.fatal(); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.damage != nil:
		return fmt.Errorf("%w: %w", store.ErrCorrupt, h.damage)
	case h.background != nil:
		return fmt.Errorf("%w: background work fails: %w", store.ErrUnavailable, h.background)
	}
	return nil
}

func (h *health) corrupted(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.damage == nil {
		h.logger.Error("the store's database is damaged", "error", err)
		h.damage = err
	}
}

// worked records the outcome of background work.
func (h *health) worked(err error) {
	if err != nil {
		select {
		case <-h.stopped:
			return // cancelled by Close
		default:
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if err != nil && h.background == nil {
		h.logger.Error("background work of the store's database fails", "error", err)
	}
	h.background = err
}

func (h *health) listener() *pebble.EventListener {
	return &pebble.EventListener{
		BackgroundError: h.worked,
		DataCorruption:  func(info pebble.DataCorruptionInfo) { h.corrupted(fmt.Errorf("%s", info)) },
		FlushEnd: func(info pebble.FlushInfo) {
			if info.Err == nil {
				h.worked(nil)
			}
		},
	}
}

// Infof, Errorf and Fatalf make health a pebble.Logger.

func (h *health) Infof(format string, args ...any) {
	if h.logger.Enabled(context.Background(), slog.LevelDebug) {
		h.logger.Debug("pebble", "text", fmt.Sprintf(format, args...))
	}
}

func (h *health) Errorf(format string, args ...any) {
	h.logger.Warn("pebble", "text", fmt.Sprintf(format, args...))
}

// Fatalf is called by Pebble when its state in memory and on disk may differ. It must not be used
// afterwards.
func (h *health) Fatalf(format string, args ...any) { h.die(fmt.Errorf(format, args...)) }
