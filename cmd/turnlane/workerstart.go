package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/turnlane/turnlane/internal/client"
	turnlanev1 "github.com/turnlane/turnlane/proto/turnlane/v1"
)

// defaultStartWait is how long worker start waits for a worker to run.
const defaultStartWait = 10 * time.Second

func (a *app) workerStartCommand() *cobra.Command {
	wait := durationFlag{Duration: defaultStartWait}
	cmd := &cobra.Command{
		Use:   "start WORKER… [flags]",
		Short: "Start workers",
		Long: `Starts workers and waits until they run. Where they begin is fixed before this returns: nothing that
is published afterwards is missed. If a worker does not run within --wait it stays wanted, and starts
when it can; the exit code is 1. Slots of a group without a running member are warned of.`,
		Example: `  turnlane worker start settler-0 settler-1 settler-2
  turnlane worker start settler-0 --wait 0 -o json`,
		Args: arguments("WORKER…"),
	}
	cmd.Flags().Var(&wait, "wait", "how long to wait until they run; 0 does not wait")
	asJSON := outputFlag(cmd.Flags())
	return a.verb(cmd, func(ctx context.Context, _ *cobra.Command, args []string) error {
		c, err := a.dial()
		if err != nil {
			return err
		}
		defer c.Close()
		type started struct {
			worker   *turnlanev1.Worker
			warnings []string
		}
		s := starts{app: a, client: c, wait: wait.Duration}
		var problems []error
		err = inParallel(len(args), true, func(i int) (started, error) {
			w, warnings, err := s.start(ctx, args[i])
			return started{w, warnings}, err
		}, func(i int, st started, err error) error {
			if err != nil {
				problems = append(problems, fmt.Errorf("%s: %w", printable(args[i]), err))
			}
			if st.worker == nil {
				return nil
			}
			s.note(st.worker, st.warnings)
			return a.printState(viewWorker(st.worker), asJSON())
		})
		s.warn(ctx)
		if err != nil {
			return err
		}
		return a.report(problems)
	})
}

// starts is the starting of one or several workers.
type starts struct {
	*app
	client *client.Client
	wait   time.Duration

	started  int
	warnings []string        // of the last one
	groups   map[string]bool // that started workers are members of
}

// start starts one worker and waits until it runs. The worker is nil if it was not even told to. It is
// safe for concurrent use.
func (s *starts) start(ctx context.Context, name string) (*turnlanev1.Worker, []string, error) {
	const firstPause, maxPause = 20 * time.Millisecond, 500 * time.Millisecond
	deadline := time.Now().Add(s.wait)
	resp, err := s.client.Workers.StartWorker(ctx, &turnlanev1.StartWorkerRequest{Worker: name})
	if err != nil {
		return nil, nil, s.client.Explain(err)
	}
	w := resp.GetWorker()
	for pause := firstPause; w.GetState() != turnlanev1.WorkerState_WORKER_STATE_RUNNING; pause = min(2*pause, maxPause) {
		left := time.Until(deadline)
		switch {
		case w.GetState() == turnlanev1.WorkerState_WORKER_STATE_FAILED:
			return w, resp.GetWarnings(), fmt.Errorf("it failed: %s", reasonOf(w))
		case s.wait == 0:
			return w, resp.GetWarnings(), nil
		case left <= 0:
			return w, resp.GetWarnings(), fmt.Errorf("it is still %s after %s (%s); it will run as soon as it can",
				stateName(w.GetState()), shortDuration(s.wait), reasonOf(w))
		}
		select {
		case <-time.After(min(pause, left)):
		case <-ctx.Done():
			return w, resp.GetWarnings(), ctx.Err()
		}
		got, err := s.client.Workers.GetWorker(ctx, &turnlanev1.GetWorkerRequest{Worker: w.GetId()})
		if err != nil {
			return w, resp.GetWarnings(), s.client.Explain(err)
		}
		w = got.GetWorker()
		w.TopicStatus = nil
	}
	return w, resp.GetWarnings(), nil
}

func reasonOf(w *turnlanev1.Worker) string {
	if w.GetReason() == "" {
		return "no reason is known yet"
	}
	return w.GetReason()
}

// note remembers what warn may have to tell of a worker that was started.
func (s *starts) note(w *turnlanev1.Worker, warnings []string) {
	s.started++
	s.warnings = warnings
	if g := w.GetGroup(); g != "" {
		if s.groups == nil {
			s.groups = make(map[string]bool)
		}
		s.groups[g] = true
	}
}

// warn tells the warnings. When several workers were started, those of each start are out of date when
// the last one runs, so the groups are asked for anew.
func (s *starts) warn(ctx context.Context) {
	if s.started <= 1 {
		for _, w := range s.warnings {
			s.app.warn(w)
		}
		return
	}
	for _, group := range slices.Sorted(maps.Keys(s.groups)) {
		resp, err := s.client.Workers.GetGroup(ctx, &turnlanev1.GetGroupRequest{Group: group})
		if err != nil {
			s.app.warn(fmt.Sprintf("group %s: its coverage is unknown: %v", group, s.client.Explain(err)))
			continue
		}
		for _, t := range resp.GetTopics() {
			if t.GetWarning() != "" {
				s.app.warn(t.GetWarning())
			}
		}
	}
}

// parallelCalls bounds the calls that are under way at once: enough to fill the server's group commits.
const parallelCalls = 32

// errSkipped is the result of work that was not begun, because other work failed before.
var errSkipped = errors.New("skipped")

// inParallel does n pieces of work, several at once, and calls each for every result in order. Unless
// it keeps going, no work is begun after a failure. It returns the first error of each that is not
// about skipped work, when all is done.
func inParallel[T any](n int, keepGoing bool, work func(i int) (T, error), each func(i int, v T, err error) error) error {
	type result struct {
		v   T
		err error
	}
	results := make([]chan result, n)
	for i := range results {
		results[i] = make(chan result, 1)
	}
	var next atomic.Int64
	var failed atomic.Bool
	var wg sync.WaitGroup
	for range min(n, parallelCalls) {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				r := result{err: errSkipped}
				if keepGoing || !failed.Load() {
					if r.v, r.err = work(i); r.err != nil {
						failed.Store(true)
					}
				}
				results[i] <- r
			}
		})
	}
	defer wg.Wait()
	var first error
	for i := range results {
		r := <-results[i]
		if errors.Is(r.err, errSkipped) {
			continue
		}
		if err := each(i, r.v, r.err); err != nil && first == nil {
			first = err
			if !keepGoing {
				failed.Store(true)
			}
		}
	}
	return first
}
