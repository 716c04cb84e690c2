package storetest

import (
	"context"
	"fmt"

	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/store"
)

// checkPage holds what every page must be, whatever the log.
func checkPage(p store.Page, after event.Position, limit store.ReadLimit) error {
	if limit.Entries <= 0 {
		limit.Entries = 1000
	}
	if limit.Bytes <= 0 {
		limit.Bytes = 1 << 20
	}
	bytes, at := 0, p.From
	for _, e := range p.Entries {
		if !at.Less(e.Pos) {
			return fmt.Errorf("entry %s does not follow %s", e.Pos, at)
		}
		at = e.Pos
		bytes += len(e.Record)
	}
	n := len(p.Entries)
	switch {
	case p.From != after:
		return fmt.Errorf("the span is from %s, want %s", p.From, after)
	case p.To.Less(at):
		return fmt.Errorf("the span ends at %s before its last entry %s", p.To, at)
	case n > limit.Entries:
		return fmt.Errorf("%d entries, the limit is %d", n, limit.Entries)
	case n > 1 && bytes > limit.Bytes:
		return fmt.Errorf("%d bytes, the limit is %d", bytes, limit.Bytes)
	case p.Examined != n:
		return fmt.Errorf("%d examined, %d entries", p.Examined, n)
	}
	return nil
}

// readAll reads from after to the end of the log as it is met, page by page.
func readAll(ctx context.Context, s store.Store, topic string, after event.Position, limit store.ReadLimit) ([]event.Entry, error) {
	var all []event.Entry
	for {
		p, err := s.Read(ctx, topic, after, limit)
		if err != nil {
			return nil, fmt.Errorf("read %s after %s: %w", topic, after, err)
		}
		if err := checkPage(p, after, limit); err != nil {
			return nil, fmt.Errorf("read %s after %s: %w", topic, after, err)
		}
		all = append(all, p.Entries...)
		if !p.To.Less(p.Bounds.Last) || len(p.Entries) == 0 && p.To == after {
			return all, nil
		}
		after = p.To
	}
}
