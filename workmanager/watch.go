package workmanager

import (
	"context"
	"fmt"
	"time"

	"github.com/turnlane/turnlane/store"
)

const (
	maxLooks   = 1000                   // owners in motion looked at in one cycle
	looksEvery = 100 * time.Microsecond // on average, so that many in motion do not keep the leader busy
	sweepChunk = 500                    // settled owners looked at in one sweep
	sweepEvery = time.Second            // a failure that nobody expected is seen after a round of sweeps
	ownerBatch = 1000
)

// observe looks at the owners of workers in motion, and at a few of those that are settled.
func (l *leader) observe(ctx context.Context, now time.Time) error {
	var due []*entry
	if !now.Before(l.nextLook) {
		for _, e := range l.agenda.due(now, maxLooks) {
			if l.workers[e.id] == e && !e.settled() {
				due = append(due, e)
			}
		}
		l.nextLook = now.Add(time.Duration(len(due)) * looksEvery)
	}
	if !now.Before(l.nextSweep) {
		l.nextSweep = now.Add(sweepEvery)
		due = append(due, l.sweep()...)
	}
	return l.look(ctx, due)
}

// sweep returns the next settled workers that may have an owner, round by round.
func (l *leader) sweep() []*entry {
	if len(l.ring) == 0 {
		for _, e := range l.workers {
			if e.wanted {
				l.ring = append(l.ring, e)
			}
		}
	}
	n := min(len(l.ring), sweepChunk)
	chunk := l.ring[:n]
	l.ring = l.ring[n:]
	var due []*entry
	for _, e := range chunk {
		if l.workers[e.id] == e && e.wanted && e.settled() {
			due = append(due, e)
		}
	}
	if len(l.ring) == 0 {
		l.ring = nil
	}
	return due
}

// look reads the owners of workers and takes over what they say.
func (l *leader) look(ctx context.Context, due []*entry) error {
	for len(due) > 0 {
		batch := due[:min(len(due), ownerBatch)]
		due = due[len(batch):]
		ids := make([]string, len(batch))
		for i, e := range batch {
			ids[i] = e.id
		}
		owners, err := l.store.Owners(ctx, ids)
		if err != nil {
			return fmt.Errorf("read the owners of workers: %w", err)
		}
		now := time.Now()
		for i, e := range batch {
			if err := l.judge(ctx, e, owners[i]); err != nil {
				return err
			}
			if e.settled() {
				l.agenda.remove(e)
			} else {
				l.agenda.later(e, now)
			}
		}
	}
	return nil
}

// judge takes over what the owner record of a worker says.
func (l *leader) judge(ctx context.Context, e *entry, o store.Owner) error {
	reported := e.begin
	dated := e.seen.token == o.Token && (e.seen.state == failed && o.State == ownerFailed || e.seen.state == running && o.State == ownerRunning)
	if e.wanted && telling(o) && !dated && (o.State == ownerFailed || o.Token <= e.fence) {
		data, err := l.store.Load(ctx, e.id)
		if err != nil {
			return fmt.Errorf("read what worker %s committed: %w", e.id, err)
		}
		reported = data.Start
	}
	seen := observe(e.wanted, e.begin, o, reported)
	if seen.state == starting && !o.Live {
		switch {
		case e.host != nil:
			seen.reason = "waiting for runtime " + e.host.pod + " to take it"
		case len(l.placer.byType[e.typ]) == 0:
			seen.reason = noRuntime(e.typ)
		default:
			seen.reason = waitingForPlace
		}
	}
	l.see(e, seen, false)
	return nil
}
