package main

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"

	"github.com/turnlane/turnlane/internal/client"
	"github.com/turnlane/turnlane/internal/rpcerr"
	turnlanev1 "github.com/turnlane/turnlane/proto/turnlane/v1"
)

// updateFlags is what the flags of worker update say.
type updateFlags struct {
	revision              numberFlag
	tags, config          pairsFlag
	dropTags, dropConfigs []string
	policy                policyFlags
}

// fixedFlag is a flag for what never changes of a worker.
type fixedFlag struct{}

func (fixedFlag) Set(string) error {
	return errors.New("the type, topics, group, name and replay of a worker never change: create another worker, and delete this one")
}
func (fixedFlag) Type() string   { return "" }
func (fixedFlag) String() string { return "" }

func (a *app) workerUpdateCommand() *cobra.Command {
	f := updateFlags{revision: numberFlag{min: 1, max: 1<<64 - 1}}
	cmd := &cobra.Command{
		Use:   "update WORKER [--tag K=V]… [--config K=V]… [flags]",
		Short: "Change tags, config and policy of a worker",
		Long: `Changes what is given and leaves the rest. A running worker takes the change over between two turns.

With --revision the change is made only if the worker still is at that revision, as worker get shows
it. Without, it is made to whatever the worker is now.

` + policyHelp,
		Example: `  turnlane worker update settler-0 --tag team=ops --untag owner
  turnlane worker update settler-0 --max-attempts 10 --on-exhausted pause
  turnlane worker update settler-0 --config limit=500 --revision 4711`,
		Args: arguments("WORKER"),
	}
	flags := cmd.Flags()
	flags.Var(&f.revision, "revision", "change the worker only if this is its revision")
	flags.Var(&f.tags, "tag", "set a tag; repeatable")
	flags.StringArrayVar(&f.dropTags, "untag", nil, "remove the tag `KEY`; repeatable")
	flags.Var(&f.config, "config", "set a setting for the handler; repeatable")
	flags.StringArrayVar(&f.dropConfigs, "unset", nil, "remove the setting `KEY`; repeatable")
	f.policy.add(flags)
	for _, name := range []string{"type", "topic", "group", "group-size", "group-index", "name", "id", "replay"} {
		flags.Var(fixedFlag{}, name, "")
		_ = flags.MarkHidden(name) // it fails only for flags that there are not
	}
	asJSON := outputFlag(flags)
	return a.verb(cmd, func(ctx context.Context, _ *cobra.Command, args []string) error {
		if f.nothing() {
			return usagef("nothing to change: give --tag, --untag, --config, --unset or a flag of the policy")
		}
		return a.eachWorker(args, func(c *client.Client, name string) error {
			w, err := f.update(ctx, c, name)
			if err != nil {
				return c.Explain(err)
			}
			return a.printState(viewWorker(w), asJSON())
		})
	})
}

func (f *updateFlags) nothing() bool {
	return len(f.tags)+len(f.config)+len(f.dropTags)+len(f.dropConfigs) == 0 && f.policy.policy() == nil
}

// update reads the worker and makes the change to what it is, again if somebody else was faster.
func (f *updateFlags) update(ctx context.Context, c *client.Client, name string) (*turnlanev1.Worker, error) {
	const tries = 20
	for n := 1; ; n++ {
		got, err := c.Workers.GetWorker(ctx, &turnlanev1.GetWorkerRequest{Worker: name})
		if err != nil {
			return nil, err
		}
		w := got.GetWorker()
		if f.revision.n != 0 && f.revision.n != w.GetRevision() {
			return nil, fmt.Errorf("it is at revision %d and not at %d any more; look at what it is, and try again", w.GetRevision(), f.revision.n)
		}
		req := &turnlanev1.UpdateWorkerRequest{Worker: w.GetId(), Revision: w.GetRevision(), Policy: f.policy.policy()}
		if len(f.tags)+len(f.dropTags) > 0 {
			req.Tags = &turnlanev1.TagSet{Tags: merge(w.GetTags(), f.tags, f.dropTags)}
		}
		if len(f.config)+len(f.dropConfigs) > 0 {
			req.Config = &turnlanev1.ConfigSet{Config: merge(w.GetConfig(), f.config, f.dropConfigs)}
		}
		resp, err := c.Workers.UpdateWorker(ctx, req)
		if err == nil {
			return resp.GetWorker(), nil
		}
		e, ok := errors.AsType[*client.Error](c.Explain(err))
		if !ok || e.Code != codes.Aborted || e.Reason != rpcerr.Conflict || f.revision.n != 0 || n == tries {
			return nil, err
		}
	}
}

// merge is a map with some keys set and others dropped.
func merge(now, set map[string]string, drop []string) map[string]string {
	next := make(map[string]string, len(now)+len(set))
	maps.Copy(next, now)
	for _, key := range drop {
		delete(next, key)
	}
	maps.Copy(next, set)
	return next
}

func (a *app) workerPauseCommand() *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use:   "pause WORKER… [flags]",
		Short: "Hold the events of workers back",
		Long: `Pauses workers: each finishes the turn that it is in, and takes no events until it is resumed, also
over a restart. Commands go on. What comes meanwhile waits, as long as its topic keeps it.`,
		Example: `  turnlane worker pause settler-0 --reason "bank is down"`,
		Args:    arguments("WORKER…"),
	}
	cmd.Flags().StringVar(&reason, "reason", "", "`TEXT` that is shown with the worker")
	asJSON := outputFlag(cmd.Flags())
	return a.verb(cmd, func(ctx context.Context, _ *cobra.Command, args []string) error {
		return a.eachWorker(args, func(c *client.Client, name string) error {
			resp, err := c.Workers.PauseWorker(ctx, &turnlanev1.PauseWorkerRequest{Worker: name, Reason: reason})
			if err != nil {
				return c.Explain(err)
			}
			return a.printState(viewWorker(resp.GetWorker()), asJSON())
		})
	})
}

func (a *app) workerResumeCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "resume WORKER… [flags]",
		Short:   "End the pause of workers",
		Long:    "Ends the pause of workers, whether somebody paused them or an event that was given up did. They go on\nwhere they were.",
		Example: "  turnlane worker resume settler-0",
		Args:    arguments("WORKER…"),
	}
	asJSON := outputFlag(cmd.Flags())
	return a.verb(cmd, func(ctx context.Context, _ *cobra.Command, args []string) error {
		return a.eachWorker(args, func(c *client.Client, name string) error {
			resp, err := c.Workers.ResumeWorker(ctx, &turnlanev1.ResumeWorkerRequest{Worker: name})
			if err != nil {
				return c.Explain(err)
			}
			return a.printState(viewWorker(resp.GetWorker()), asJSON())
		})
	})
}
