package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/turnlane/turnlane/grouping"
	"github.com/turnlane/turnlane/internal/client"
	turnlanev1 "github.com/turnlane/turnlane/proto/turnlane/v1"
)

// createFlags is what the flags of worker create say.
type createFlags struct {
	req                      turnlanev1.CreateWorkerRequest
	size, index              numberFlag
	replay                   replayFlag
	policy                   policyFlags
	config, tags             pairsFlag
	count                    numberFlag
	start                    bool
	wait                     durationFlag
	hasSize, hasIndex, hasID bool
}

// replayFlag is a replay policy.
type replayFlag struct {
	replay *turnlanev1.Replay
	text   string
	now    func() time.Time
}

func (f *replayFlag) Set(text string) error {
	switch text {
	case "cursor":
		f.replay = &turnlanev1.Replay{Mode: turnlanev1.ReplayMode_REPLAY_MODE_CURSOR}
	case "off":
		f.replay = &turnlanev1.Replay{Mode: turnlanev1.ReplayMode_REPLAY_MODE_OFF}
	case "tail":
		return errors.New("want off to begin at the tail each time, or cursor to begin there once and then go on")
	default:
		first, err := client.ParseStart(text, f.now())
		if err != nil {
			return errors.New("want cursor, off, earliest, a time such as 2026-01-31T08:00:00Z or -10m, or a position such as 1700000000000-0")
		}
		f.replay = &turnlanev1.Replay{Mode: turnlanev1.ReplayMode_REPLAY_MODE_FIRST, First: first}
	}
	f.text = text
	return nil
}

func (f *replayFlag) Type() string   { return "REPLAY" }
func (f *replayFlag) String() string { return f.text }

func (a *app) workerCreateCommand() *cobra.Command {
	f := createFlags{
		size:   numberFlag{min: 1, max: grouping.MaxSize},
		index:  numberFlag{max: grouping.MaxSize - 1},
		replay: replayFlag{now: a.now},
		count:  numberFlag{n: 1, min: 1, max: 100_000},
		wait:   durationFlag{Duration: defaultStartWait},
	}
	cmd := &cobra.Command{
		Use:   "create --type T --topic A [--topic B]… [flags]",
		Short: "Create workers, and start them if asked to",
		Long: `Creates a worker, stopped unless --start is given, and prints its id, name and state.

With --count N it creates N workers with names NAME-0 to NAME-<N-1>. If a group is given too, they are
its members with the indexes 0 to N-1, and the group's size is N unless --group-size says more.

REPLAY says where the worker begins when it is started:
  cursor     where it was; the first time at the tail. The default of a worker without a group
  off        at the tail each time. The default of a member of a group
  earliest, a time (2026-01-31T08:00:00Z), a time ago (-10m), a position (inclusive)
             there the first time, and then where it was

` + policyHelp,
		Example: `  turnlane worker create --type echo --topic hello --config out=heard --start
  turnlane worker create --type settler --topic trades --name settler --group pairs --count 3 --start
  turnlane worker create --type probe --topic flights --replay earliest --handler-timeout 5s --tag team=ops
  turnlane worker create --type settler --topic trades --max-attempts 5 --on-exhausted pause`,
		Args: arguments(),
	}
	flags := cmd.Flags()
	flags.StringVar(&f.req.Type, "type", "", "the worker `TYPE`: the handler code that runs it (required)")
	flags.StringArrayVar(&f.req.Topics, "topic", nil, "a `TOPIC` that the worker reads; repeatable (required)")
	flags.StringVar(&f.req.Id, "id", "", "the worker's `ID` (default made up)")
	flags.StringVar(&f.req.Name, "name", "", "a unique `NAME`")
	flags.StringVar(&f.req.Group, "group", "", "slot `GROUP` that the worker is a member of")
	flags.Var(&f.size, "group-size", "number of slots in the group")
	flags.Var(&f.index, "group-index", "the member's slot, from 0")
	flags.Var(&f.replay, "replay", "where the worker begins, see above")
	f.policy.add(flags)
	flags.Var(&f.config, "config", "a setting for the handler; repeatable")
	flags.Var(&f.tags, "tag", "a tag; repeatable")
	flags.Var(&f.count, "count", "create so many workers")
	flags.BoolVar(&f.start, "start", false, "start what is created")
	flags.Var(&f.wait, "wait", "with --start: how long to wait until it runs")
	asJSON := outputFlag(flags)
	return a.verb(cmd, func(ctx context.Context, cmd *cobra.Command, _ []string) error {
		changed := cmd.Flags().Changed
		f.hasSize, f.hasIndex, f.hasID = changed("group-size"), changed("group-index"), changed("id")
		if changed("wait") && !f.start {
			return usagef("--wait goes with --start")
		}
		requests, err := f.requests()
		if err != nil {
			return err
		}
		return a.createWorkers(ctx, requests, &f, asJSON())
	})
}

// requests returns one request for each worker.
func (f *createFlags) requests() ([]*turnlanev1.CreateWorkerRequest, error) {
	switch n := f.count.n; {
	case f.req.GetType() == "":
		return nil, usagef("--type is missing: the handler code that runs the worker, such as --type echo")
	case len(f.req.GetTopics()) == 0:
		return nil, usagef("--topic is missing: name a topic that the worker reads")
	case n > 1 && f.hasID:
		return nil, usagef("--id names one worker; with --count use --name")
	case f.req.GetGroup() == "" && (f.hasSize || f.hasIndex):
		return nil, usagef("--group is missing: --group, --group-size and --group-index go together")
	case f.req.GetGroup() == "":
	case n > 1 && f.hasIndex:
		return nil, usagef("--group-index is for one member; with --count the members get 0 to %d", n-1)
	case n > grouping.MaxSize:
		return nil, usagef("--count %d: a group has at most %d slots", n, grouping.MaxSize)
	case n > 1 && f.hasSize && n > f.size.n:
		return nil, usagef("--count %d is more than --group-size %d: a slot has one running member", n, f.size.n)
	case !f.hasSize && n == 1:
		return nil, usagef("--group-size is missing: the number of slots in group %s", f.req.GetGroup())
	case !f.hasIndex && n == 1 && f.size.n > 1:
		return nil, usagef("--group-index is missing: which of the slots 0 to %d the worker has", f.size.n-1)
	}
	f.req.GroupSize, f.req.GroupIndex = uint32(f.size.n), uint32(f.index.n)
	if f.req.GetGroup() != "" && !f.hasSize {
		f.req.GroupSize = uint32(f.count.n)
	}
	f.req.Config, f.req.Tags, f.req.Replay = f.config, f.tags, f.replay.replay
	f.req.Policy = f.policy.policy()
	requests := make([]*turnlanev1.CreateWorkerRequest, f.count.n)
	for i := range requests {
		requests[i] = proto.CloneOf(&f.req)
		if f.count.n == 1 {
			continue
		}
		if f.req.GetName() != "" {
			requests[i].Name += "-" + strconv.Itoa(i)
		}
		if f.req.GetGroup() != "" {
			requests[i].GroupIndex = uint32(i)
		}
	}
	return requests, nil
}

// createWorkers creates several workers at once and stops at the first failure.
func (a *app) createWorkers(ctx context.Context, requests []*turnlanev1.CreateWorkerRequest, f *createFlags, asJSON bool) error {
	c, err := a.dial()
	if err != nil {
		return err
	}
	defer c.Close()
	type made struct {
		worker   *turnlanev1.Worker // nil if it was not created
		warnings []string
	}
	var printErr error
	s := starts{app: a, client: c, wait: f.wait.Duration}
	created, p := 0, a.newProgress()
	err = inParallel(len(requests), false, func(i int) (made, error) {
		resp, err := c.Workers.CreateWorker(ctx, requests[i])
		if err != nil {
			return made{}, c.Explain(err)
		}
		m := made{worker: resp.GetWorker()}
		if f.start {
			w, warnings, err := s.start(ctx, m.worker.GetId())
			if w != nil {
				m.worker, m.warnings = w, warnings
			}
			if err != nil {
				return m, fmt.Errorf("created, but it does not run: %w", err)
			}
		}
		return m, nil
	}, func(_ int, m made, err error) error {
		if m.worker != nil {
			p.clear()
			created++
			s.note(m.worker, m.warnings)
			if printErr == nil {
				printErr = a.printState(viewWorker(m.worker), asJSON)
			}
			p.show("created %d of %d", created, len(requests))
		}
		return err
	})
	p.clear()
	if f.start {
		s.warn(ctx)
	}
	switch {
	case err != nil && len(requests) > 1:
		return fmt.Errorf("created %d of %d workers: %w", created, len(requests), err)
	case err != nil:
		return err
	}
	return printErr
}
