package gateway

import (
	"context"
	"log/slog"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/store"
)

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }

func codeOf(err error) codes.Code { return status.Code(err) }

// fakeTopics is as much of a store as retention needs: topics that have a size.
type fakeTopics struct {
	store.Store
	settings map[string][]byte

	mu    sync.Mutex
	bytes map[string]uint64
	err   error
}

func (f *fakeTopics) grow(topic string, n uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.bytes[topic] += n
}

func (f *fakeTopics) held(topic string) uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.bytes[topic]
}

func (f *fakeTopics) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = err
}

func (f *fakeTopics) Bounds(_ context.Context, topic string) (store.Bounds, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	b := store.Bounds{Bytes: f.bytes[topic]}
	if b.Bytes > 0 {
		b.First, b.Entries = event.Position{Seq: 1}, 1
	}
	return b, f.err
}

func (f *fakeTopics) Topics(ctx context.Context, _, after string, _ int) ([]store.TopicInfo, error) {
	if after != "" {
		return nil, nil
	}
	b, err := f.Bounds(ctx, "a")
	return []store.TopicInfo{{Topic: "a", Bounds: b}}, err
}

func (f *fakeTopics) Read(context.Context, string, event.Position, store.ReadLimit) (store.Page, error) {
	return store.Page{}, nil
}

func (f *fakeTopics) Trim(_ context.Context, topic string, limit store.TrimLimit) (store.Trimmed, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if limit.MaxBytes > 0 {
		f.bytes[topic] = min(f.bytes[topic], limit.MaxBytes)
	}
	return store.Trimmed{}, f.err
}

func (f *fakeTopics) List(context.Context, string, string, int) ([]store.Item, error) {
	return nil, nil
}

func (f *fakeTopics) WatchKeys(context.Context, string) (store.Bell, error) { return silentBell{}, nil }

// silentBell never rings.
type silentBell struct{}

func (silentBell) Wait(ctx context.Context) ([]string, error) { <-ctx.Done(); return nil, ctx.Err() }
func (silentBell) Close() error                               { return nil }
