package gateway

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/internal/admission"
	"github.com/turnlane/turnlane/internal/deadletter"
	"github.com/turnlane/turnlane/store"
)

// Bounds of what waits to become a dead letter; above them an entry is left out, and the log says so.
const (
	maxUndecodable      = 1024
	maxUndecodableBytes = 16 << 20
)

// undecodables is the entries that no reader can read, on their way to the topic of such dead letters.
// Each is stored under a mark of its own: once, however many processes find it, and however often.
type undecodables struct {
	cfg   Config
	ready chan struct{} // of size 1: there may be something in queue

	mu    sync.Mutex
	queue []badEntry
	bytes int
}

type badEntry struct {
	topic string
	entry event.Entry
	cause error
}

func newUndecodables(cfg Config) *undecodables {
	return &undecodables{cfg: cfg, ready: make(chan struct{}, 1)}
}

// Undecodable takes an entry whose record can't be read, as the Bad hook of the hub gives it or a
// subscription finds it, and puts it into the topic of undecodable records in the background, while Run runs. It does not block. Those
// of topics of dead letters stay where they are.
func (g *Gateway) Undecodable(topic string, entry event.Entry, cause error) {
	g.undecodables.add(topic, entry, cause)
}

func (u *undecodables) add(topic string, entry event.Entry, cause error) {
	if strings.HasPrefix(topic, deadletter.Prefix) {
		return
	}
	entry.Record = append(event.Record(nil), entry.Record...) // it may be part of a large buffer
	u.mu.Lock()
	full := len(u.queue) >= maxUndecodable || u.bytes+len(entry.Record) > maxUndecodableBytes
	if !full {
		u.queue = append(u.queue, badEntry{topic, entry, cause})
		u.bytes += len(entry.Record)
	}
	u.mu.Unlock()
	if full {
		u.cfg.Logger.Error("too many undecodable records wait to become dead letters: one stays in its topic only",
			"topic", topic, "position", entry.Pos)
		return
	}
	select {
	case u.ready <- struct{}{}:
	default:
	}
}

// run stores what comes until ctx ends.
func (u *undecodables) run(ctx context.Context) error {
	for {
		select {
		case <-u.ready:
		case <-ctx.Done():
			return nil
		}
		for pause := 20 * time.Millisecond; ; {
			batch := u.waiting()
			if len(batch) == 0 {
				break
			}
			err := u.store(ctx, batch)
			if err == nil {
				u.remove(len(batch))
				pause = 20 * time.Millisecond
				continue
			}
			u.cfg.Logger.Warn("dead letters of undecodable records cannot be stored; trying again", "records", len(batch), "error", err)
			select {
			case <-time.After(pause):
				pause = min(2*pause, 2*time.Second)
			case <-ctx.Done():
				return nil
			}
		}
	}
}

func (u *undecodables) waiting() []badEntry {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.Clip(u.queue)
}

func (u *undecodables) remove(n int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, b := range u.queue[:n] {
		u.bytes -= len(b.entry.Record)
	}
	clear(u.queue[:n])
	if u.queue = u.queue[n:]; len(u.queue) == 0 {
		u.queue = nil
	}
}

func (u *undecodables) store(ctx context.Context, batch []badEntry) error {
	now := u.cfg.Clock()
	batches := make([]store.Batch, len(batch))
	for i, b := range batch {
		dead := deadletter.WrapUndecodable(b.topic, b.entry.Pos, b.entry.Record, b.cause, now)
		batches[i] = store.Batch{Records: []event.Record{admission.Encode(dead, now)},
			Turn: deadletter.UndecodableMark(b.topic, b.entry.Pos)}
	}
	fates, err := u.cfg.Store.Append(ctx, deadletter.Pubsub, batches)
	if err != nil {
		return err
	}
	for i, fate := range fates {
		if b := batch[i]; fate.Err != nil {
			u.cfg.Logger.Error("an undecodable record stays in its topic only: its dead letter was refused",
				"topic", b.topic, "position", b.entry.Pos, "error", fate.Err)
		} else if !fate.Repeat {
			u.cfg.Logger.Error("record cannot be decoded: it is a dead letter now", "topic", b.topic, "position", b.entry.Pos,
				"dead_letter_topic", deadletter.Pubsub, "dead_letter_position", fate.Positions[0], "error", b.cause)
		}
	}
	return nil
}
