package workmanager

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/turnlane/turnlane/internal/rpcerr"
	turnlanev1 "github.com/turnlane/turnlane/proto/turnlane/v1"
	"github.com/turnlane/turnlane/store"
)

// Short names for states, which stand in nearly every line about workers.
const (
	unknown  = turnlanev1.WorkerState_WORKER_STATE_UNSPECIFIED
	starting = turnlanev1.WorkerState_WORKER_STATE_STARTING
	running  = turnlanev1.WorkerState_WORKER_STATE_RUNNING
	stopping = turnlanev1.WorkerState_WORKER_STATE_STOPPING
	stopped  = turnlanev1.WorkerState_WORKER_STATE_STOPPED
	failed   = turnlanev1.WorkerState_WORKER_STATE_FAILED
)

// States as a runtime reports them in the owner record.
const (
	ownerRunning = "RUNNING"
	ownerFailed  = "FAILED"
)

// observation is what a worker is seen to be.
type observation struct {
	state  turnlanev1.WorkerState
	reason string
	pod    string // of the live owner
	owner  string // the live owner's session
	token  uint64
}

// observe tells what a worker is from what was asked of it and from its owner record.
//
//	            desired RUNNING                      desired STOPPED
//	live        RUNNING or FAILED if the report is   STOPPING
//	            of the present (run, generation),
//	            else STARTING
//	not live    FAILED likewise, else STARTING       STOPPED
//
// The owner record does not say which run and generation its state is of; the last commit does, since
// states are reported by commits. reported is the start of the last commit.
func observe(wanted bool, begin store.Start, o store.Owner, reported store.Start) observation {
	seen := observation{token: o.Token}
	if o.Live {
		seen.pod, seen.owner = o.Pod, o.Session
	}
	current := reported == begin
	switch {
	case !wanted && o.Live:
		seen.state, seen.reason = stopping, o.Reason
	case !wanted:
		seen.state = stopped
	case current && o.State == ownerFailed:
		seen.state, seen.reason = failed, o.Reason
	case o.Live && current && o.State == ownerRunning:
		seen.state = running
	case o.Live && current:
		seen.state, seen.reason = starting, o.Reason
	case o.Live && reported.Run > 0 && (o.State == ownerRunning || o.State == ownerFailed):
		seen.state, seen.reason = starting, "its former activation on "+o.Pod+" is ending"
	default:
		seen.state = starting
	}
	return seen
}

// telling reports whether an owner record has a state that observe must date.
func telling(o store.Owner) bool { return o.State == ownerFailed || o.Live && o.State == ownerRunning }

// hosts are the live sessions of runtimes.
type hosts []store.Session

func (m *Manager) hosts(ctx context.Context) (hosts, error) {
	sessions, err := m.store.Sessions(ctx)
	return slices.DeleteFunc(sessions, func(s store.Session) bool { return !slices.Contains(s.Roles, "runtime") }), err
}

// have tells whether a runtime takes workers of the type.
func (h hosts) have(typ string) bool {
	return slices.ContainsFunc(h, func(s store.Session) bool { return takes(s, typ) })
}

func takes(s store.Session, typ string) bool { return !s.Draining && slices.Contains(s.Types, typ) }

// noRuntime is the reason of a worker that cannot be placed.
func noRuntime(typ string) string { return fmt.Sprintf("no live runtime has type %q", typ) }

const waitingForPlace = "waiting to be placed"

// observeAll observes workers. Without exactly, an owner that reports RUNNING is believed without
// reading which generation it means: right but for an instant around a restart.
func (m *Manager) observeAll(ctx context.Context, workers []record, exactly bool) ([]observation, error) {
	if len(workers) == 0 {
		return nil, nil
	}
	ids := make([]string, len(workers))
	for i, w := range workers {
		ids[i] = w.GetId()
	}
	owners, err := m.store.Owners(ctx, ids)
	if err != nil {
		return nil, rpcerr.From(fmt.Errorf("read the owners of workers: %w", err))
	}
	var live hosts
	var asked bool
	seen := make([]observation, len(workers))
	for i, w := range workers {
		reported := w.begin()
		if w.wanted() && telling(owners[i]) && (exactly || owners[i].State == ownerFailed) {
			data, err := m.store.Load(ctx, w.GetId())
			if err != nil {
				return nil, rpcerr.From(fmt.Errorf("read what worker %s committed: %w", w.GetId(), err))
			}
			reported = data.Start
		}
		seen[i] = observe(w.wanted(), w.begin(), owners[i], reported)
		if seen[i].state == starting && !owners[i].Live {
			if !asked {
				if live, err = m.hosts(ctx); err != nil {
					return nil, rpcerr.From(fmt.Errorf("read the sessions: %w", err))
				}
				asked = true
			}
			seen[i].reason = waitingForPlace
			if !live.have(w.GetType()) {
				seen[i].reason = noRuntime(w.GetType())
			}
		}
	}
	return seen, nil
}

func (m *Manager) observeOne(ctx context.Context, w record) (observation, error) {
	seen, err := m.observeAll(ctx, []record{w}, true)
	if err != nil {
		return observation{}, err
	}
	return seen[0], nil
}

// await observes a worker until done says so, or somebody else wants something else of it, or the limit
// has passed: none of it is an error.
func (m *Manager) await(ctx context.Context, w record, limit time.Duration, done func(observation) bool) (observation, error) {
	deadline := time.Now().Add(limit)
	for pause := time.Millisecond; ; pause = min(2*pause, 25*time.Millisecond) {
		seen, err := m.observeOne(ctx, w)
		if err != nil {
			return seen, err
		}
		if done(seen) {
			m.sightings.add(sighting{w.GetId(), w.begin(), w.wanted(), seen})
			return seen, nil
		}
		if !time.Now().Before(deadline) {
			return seen, nil
		}
		if pause > 5*time.Millisecond { // not in the ordinary case
			now, err := m.get(ctx, w.GetId())
			if err == nil && (now.begin() != w.begin() || now.wanted() != w.wanted()) || errors.Is(err, store.ErrNotFound) {
				return seen, nil
			}
		}
		if err := sleep(ctx, min(pause, time.Until(deadline))); err != nil {
			return seen, rpcerr.From(err)
		}
	}
}

// awaitRunning waits for a worker that was started. It does not wait where nothing can run it.
func (m *Manager) awaitRunning(ctx context.Context, w record) (observation, error) {
	return m.await(ctx, w, m.cfg.StartWait, func(seen observation) bool {
		return seen.state == running || seen.state == failed || seen.reason == noRuntime(w.GetType())
	})
}

// awaitReleased waits until nobody owns a worker that was stopped.
func (m *Manager) awaitReleased(ctx context.Context, w record) (observation, error) {
	return m.await(ctx, w, m.cfg.DrainLimit, func(seen observation) bool { return seen.state == stopped })
}

// view is a worker as the service shows it.
func (m *Manager) view(ctx context.Context, w record) (*turnlanev1.Worker, error) {
	if w.GetGeneration() == 0 { // it was never started, so nobody ever owned it
		return show(w, observation{state: stopped}), nil
	}
	seen, err := m.observeOne(ctx, w)
	if err != nil {
		return nil, err
	}
	return show(w, seen), nil
}

func show(w record, seen observation) *turnlanev1.Worker {
	return &turnlanev1.Worker{
		Id:         w.GetId(),
		Name:       w.GetName(),
		Type:       w.GetType(),
		Topics:     w.GetTopics(),
		Group:      w.GetGroup(),
		GroupSize:  w.GetGroupSize(),
		GroupIndex: w.GetGroupIndex(),
		Config:     w.GetConfig(),
		Tags:       w.GetTags(),
		Policy:     completePolicy(w.GetPolicy()),
		Replay:     w.GetReplay(),
		Desired:    w.GetDesired(),
		State:      seen.state,
		Reason:     seen.reason,
		Pod:        seen.pod,
		Token:      seen.token,
		Run:        w.GetRun(),
		CreatedAt:  w.GetCreatedAt(),
		UpdatedAt:  w.GetUpdatedAt(),

		Revision:    w.revision,
		Paused:      w.GetPaused(),
		PauseReason: w.GetPauseReason(),
	}
}
