package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/turnlane/turnlane/internal/client"
	turnlanev1 "github.com/turnlane/turnlane/proto/turnlane/v1"
)

// Kinds of problems. Scripts rely on them.
const (
	problemServer      = "server"       // it cannot be reached, or it is not ready: its store, for one
	problemWorker      = "worker"       // it was started and does not run, or is paused
	problemGroup       = "group"        // a slot has no running member
	problemReader      = "reader"       // it has events to read, and gets nowhere
	problemDeadLetters = "dead_letters" // there are more than allowed
)

// problem is one as -o json tells it.
type problem struct {
	Problem string `json:"problem"`
	Subject string `json:"subject"` // a worker's id, a group's name, a topic
	Topic   string `json:"topic,omitempty"`
	Text    string `json:"text"`
}

// checkAtOnce bounds the calls under way.
const checkAtOnce = 8

func (a *app) checkCommand() *cobra.Command {
	var maxLetters numberFlag
	maxLetters.max = 1 << 62
	stuckAfter := durationFlag{Duration: 15 * time.Second, min: time.Second, max: time.Hour}
	cmd := &cobra.Command{
		Use:   "check [flags]",
		Short: "Say whether all is well, for monitoring",
		Long: `Looks at the server and prints each problem on a line. All is well if the server is ready and its store
can be read and written, every started worker runs, every group with a started member has a running one
for each slot, no reader is stuck, and there are no more dead letters than allowed.

The exit code is 0 if all is well, 1 if not, 2 if the command line asks for nothing that can be done.`,
		Example: `  turnlane check
  turnlane check --max-dead-letters 100 -o json`,
		Args: arguments(),
	}
	flags := cmd.Flags()
	flags.Var(&maxLetters, "max-dead-letters", "more dead letters in all are a problem (default any number is allowed)")
	flags.Var(&stuckAfter, "stuck-after", "a reader that has events and gets nowhere for so long is stuck")
	asJSON := outputFlag(flags)
	return a.verb(cmd, func(ctx context.Context, cmd *cobra.Command, _ []string) error {
		c, err := a.dial()
		if err != nil {
			return err
		}
		defer c.Close()
		k := &checker{app: a, c: c, asJSON: asJSON(), stuckAfter: stuckAfter.Duration}
		if cmd.Flags().Changed("max-dead-letters") {
			k.maxLetters = &maxLetters.n
		}
		if err := k.run(ctx); err != nil {
			return err
		}
		if k.problems > 0 {
			return errReported
		}
		if !k.asJSON {
			_, err = fmt.Fprintf(a.stdout, "all is well: %s started, %s, %s\n", plural(k.started, "worker"), plural(k.groups, "group"), plural(int(k.letters), "dead letter"))
		}
		return err
	})
}

// checker is one check.
type checker struct {
	*app
	c          *client.Client
	asJSON     bool
	stuckAfter time.Duration
	maxLetters *uint64

	started, groups int
	letters         uint64

	mu       sync.Mutex
	problems int
	err      error // of writing
}

func (k *checker) found(p problem) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.problems++
	var err error
	if k.asJSON {
		err = k.printJSON(p)
	} else if p.Topic != "" {
		_, err = fmt.Fprintf(k.stdout, "%s %s on %s: %s\n", p.Problem, printable(p.Subject), p.Topic, printable(p.Text))
	} else {
		_, err = fmt.Fprintf(k.stdout, "%s %s: %s\n", p.Problem, printable(p.Subject), printable(p.Text))
	}
	if k.err == nil {
		k.err = err
	}
}

// run looks at everything. What cannot be looked at is a problem of the server.
func (k *checker) run(ctx context.Context) error {
	for _, look := range []func(context.Context) error{k.ready, k.workers, k.deadLetters} {
		err := k.c.Explain(look(ctx))
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			k.found(problem{Problem: problemServer, Subject: k.c.Addr(), Text: err.Error()})
			break // the others would say the same
		}
	}
	return k.err
}

func (k *checker) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return k.c.Ready(ctx)
}

func (k *checker) deadLetters(ctx context.Context) error {
	if err := eachTopic(ctx, k.c, nil, "dlq.", func(t topicView) error {
		k.letters += t.Entries
		return nil
	}); err != nil {
		return err
	}
	if k.maxLetters != nil && k.letters > *k.maxLetters {
		k.found(problem{Problem: problemDeadLetters, Subject: "dlq.*", Text: fmt.Sprintf("there are %d, and at most %d are allowed; see dlq list", k.letters, *k.maxLetters)})
	}
	return nil
}

// workers looks at the started workers, their groups and their readers.
func (k *checker) workers(ctx context.Context) error {
	var running []*turnlanev1.Worker
	groups := map[string]bool{}
	for req := (&turnlanev1.ListWorkersRequest{PageSize: 1000}); ; {
		resp, err := k.c.Workers.ListWorkers(ctx, req)
		if err != nil {
			return err
		}
		for _, w := range resp.GetWorkers() {
			if w.GetDesired() != turnlanev1.DesiredState_DESIRED_STATE_RUNNING {
				continue
			}
			k.started++
			if w.GetGroup() != "" {
				groups[w.GetGroup()] = true
			}
			switch {
			case w.GetState() != turnlanev1.WorkerState_WORKER_STATE_RUNNING:
				text := "it is " + stateName(w.GetState())
				if w.GetReason() != "" {
					text += ": " + w.GetReason()
				}
				k.found(problem{Problem: problemWorker, Subject: label(w), Text: text})
			case w.GetPaused():
				text := "it is paused"
				if w.GetPauseReason() != "" {
					text += ": " + w.GetPauseReason()
				}
				k.found(problem{Problem: problemWorker, Subject: label(w), Text: text})
			default:
				running = append(running, w)
			}
		}
		if req.PageToken = resp.GetNextPageToken(); req.PageToken == "" {
			break
		}
	}
	k.groups = len(groups)
	for group := range groups {
		resp, err := k.c.Workers.GetGroup(ctx, &turnlanev1.GetGroupRequest{Group: group})
		if err != nil {
			return err
		}
		for _, t := range resp.GetTopics() {
			if t.GetRunning() < t.GetGroupSize() {
				k.found(problem{Problem: problemGroup, Subject: group, Topic: t.GetTopic(),
					Text: fmt.Sprintf("%d of %d members are running", t.GetRunning(), t.GetGroupSize())})
			}
		}
	}
	return k.readers(ctx, running)
}

func label(w *turnlanev1.Worker) string {
	if w.GetName() != "" {
		return w.GetName()
	}
	return w.GetId()
}

// place is where a reader is: if it stays there although there is something to read, it is stuck.
type place struct {
	cursor   string
	examined uint64
	inTurn   string
	attempt  uint32
	lane     uint32
}

// suspect is a reader that has something to read.
type suspect struct {
	worker *turnlanev1.Worker
	topic  string
	first  place
}

// readers waits for readers that are behind to move. Who has a turn under way, or waits for a retry, is
// not stuck: a turn has a deadline.
func (k *checker) readers(ctx context.Context, running []*turnlanev1.Worker) error {
	suspects, err := k.behind(ctx, running, nil)
	if err != nil {
		return err
	}
	deadline := k.now().Add(k.stuckAfter)
	for pause := 50 * time.Millisecond; len(suspects) > 0 && k.now().Before(deadline); pause = min(2*pause, 2*time.Second) {
		timer := time.NewTimer(min(pause, deadline.Sub(k.now())))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
		var again []*turnlanev1.Worker
		for _, s := range suspects {
			if len(again) == 0 || again[len(again)-1].GetId() != s.worker.GetId() {
				again = append(again, s.worker)
			}
		}
		if suspects, err = k.behind(ctx, again, suspects); err != nil {
			return err
		}
	}
	for _, s := range suspects {
		k.found(problem{Problem: problemReader, Subject: label(s.worker), Topic: s.topic,
			Text: fmt.Sprintf("it has events to read, and has been at %s for %s", orNothing(s.first.cursor), shortDuration(k.stuckAfter))})
	}
	return nil
}

func orNothing(cursor string) string {
	if cursor == "" {
		return "its beginning"
	}
	return cursor
}

// behind returns the readers of workers that have something to read and, if known is not nil, are still
// where they were. They are in the order of the workers.
func (k *checker) behind(ctx context.Context, workers []*turnlanev1.Worker, known []suspect) ([]suspect, error) {
	type readerKey struct{ worker, topic string }
	first := map[readerKey]place{}
	for _, s := range known {
		first[readerKey{s.worker.GetId(), s.topic}] = s.first
	}
	found := make([][]suspect, len(workers))
	group, call := errgroup.WithContext(ctx)
	group.SetLimit(checkAtOnce)
	for i, w := range workers {
		group.Go(func() error {
			resp, err := k.c.Workers.GetWorker(call, &turnlanev1.GetWorkerRequest{Worker: w.GetId()})
			if err != nil {
				if notFound(k.c.Explain(err)) {
					return nil // deleted meanwhile
				}
				return err
			}
			now := resp.GetWorker()
			if now.GetState() != turnlanev1.WorkerState_WORKER_STATE_RUNNING || now.GetPaused() || now.GetToken() != w.GetToken() {
				return nil // another activation, or none: it moved
			}
			for _, t := range now.GetTopicStatus() {
				at := place{t.GetCursor(), t.GetExamined(), t.GetInTurn(), t.GetAttempt(), t.GetLaneEvents()}
				before, was := first[readerKey{w.GetId(), t.GetTopic()}]
				lags := t.GetLagEntries() > 0 || t.GetFeed() == turnlanev1.FeedState_FEED_STATE_STALLED
				if !lags || t.GetInTurn() != "" || t.GetRetryAt() != nil || known != nil && (!was || before != at) {
					continue
				}
				found[i] = append(found[i], suspect{w, t.GetTopic(), at})
			}
			return nil
		})
	}
	err := group.Wait()
	return slices.Concat(found...), err
}
