package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"

	"github.com/turnlane/turnlane/internal/client"
	turnlanev1 "github.com/turnlane/turnlane/proto/turnlane/v1"
)

func (a *app) workerCommand() *cobra.Command {
	cmd := parent(&cobra.Command{
		Use:   "worker",
		Short: "Create, start, stop, change, command and look at workers",
		Long:  "Workers are named by their id or by their unique name.",
	})
	cmd.AddCommand(
		a.workerCreateCommand(), a.workerListCommand(), a.workerGetCommand(), a.workerStartCommand(),
		a.workerStopCommand(), a.workerDeleteCommand(), a.workerSeekCommand(), a.workerUpdateCommand(),
		a.workerPauseCommand(), a.workerResumeCommand(), a.workerSendCommand(), a.workerStateCommand(),
	)
	return cmd
}

func (a *app) workerListCommand() *cobra.Command {
	var req turnlanev1.ListWorkersRequest
	state := choiceFlag{choices: []string{"STARTING", "RUNNING", "STOPPING", "STOPPED", "FAILED"}}
	var tags pairsFlag
	cmd := &cobra.Command{
		Use:   "list [flags]",
		Short: "List workers, in the order of their ids",
		Long:  "Lists the workers that match all of the flags.",
		Example: `  turnlane worker list --state RUNNING --topic flights
  turnlane worker list --tag team=ops -o json | jq -r .id`,
		Args: arguments(),
	}
	flags := cmd.Flags()
	flags.Var(upperFlag{&state}, "state", "only workers in this state: `STATE` is one of "+strings.Join(state.choices, ", "))
	flags.StringVar(&req.Type, "type", "", "only workers of this `TYPE`")
	flags.StringVar(&req.Group, "group", "", "only members of this `GROUP`")
	flags.StringVar(&req.Topic, "topic", "", "only workers on this `TOPIC`")
	flags.Var(&tags, "tag", "only workers with this tag; repeatable, all must match")
	asJSON := outputFlag(flags)
	return a.verb(cmd, func(ctx context.Context, _ *cobra.Command, _ []string) error {
		c, err := a.dial()
		if err != nil {
			return err
		}
		defer c.Close()
		req.State = turnlanev1.WorkerState(turnlanev1.WorkerState_value["WORKER_STATE_"+state.value])
		req.Tags, req.PageSize = tags, 1000
		if asJSON() {
			return eachListed(ctx, c, &req, func(v workerView) error { return a.printJSON(v) })
		}
		t := a.newTable("ID", "NAME", "TYPE", "TOPICS", "SLOT", "STATE", "POD", "REASON")
		return t.end(eachListed(ctx, c, &req, func(v workerView) error {
			t.row(v.ID, v.Name, v.Type, shortList(v.Topics), v.slot(), v.State, v.Pod, v.why())
			return nil
		}))
	})
}

// eachListed calls each for the workerView of every worker on all pages.
func eachListed(ctx context.Context, c *client.Client, req *turnlanev1.ListWorkersRequest, each func(v workerView) error) error {
	for {
		resp, err := c.Workers.ListWorkers(ctx, req)
		if err != nil {
			return c.Explain(err)
		}
		for _, w := range resp.GetWorkers() {
			if err := each(viewWorker(w)); err != nil {
				return err
			}
		}
		if req.PageToken = resp.GetNextPageToken(); req.PageToken == "" {
			return nil
		}
	}
}

// upperFlag takes a choice in any case.
type upperFlag struct{ *choiceFlag }

func (f upperFlag) Set(text string) error { return f.choiceFlag.Set(strings.ToUpper(text)) }

// shortList keeps a worker with a thousand topics from filling the screen.
func shortList(topics []string) string {
	const most = 3
	if len(topics) <= most {
		return strings.Join(topics, ",")
	}
	return strings.Join(topics[:most], ",") + fmt.Sprintf(",… (%d)", len(topics))
}

func (a *app) workerGetCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "get WORKER… [flags]",
		Short: "Show workers and where they are in their topics",
		Example: `  turnlane worker get settler-0
  turnlane worker get settler-0 -o json | jq '.topic_status[].lag_entries'`,
		Args: arguments("WORKER…"),
	}
	asJSON := outputFlag(cmd.Flags())
	return a.verb(cmd, func(ctx context.Context, _ *cobra.Command, args []string) error {
		return a.eachWorker(args, func(c *client.Client, name string) error {
			resp, err := c.Workers.GetWorker(ctx, &turnlanev1.GetWorkerRequest{Worker: name})
			if err != nil {
				return c.Explain(err)
			}
			v := viewWorker(resp.GetWorker())
			if asJSON() {
				return a.printJSON(v)
			}
			return a.describe(v)
		})
	})
}

// describe prints a worker in full.
func (a *app) describe(v workerView) error {
	t := a.newTable()
	for _, line := range [][2]string{
		{"id", v.ID}, {"name", v.Name}, {"type", v.Type}, {"topics", strings.Join(v.Topics, ", ")},
		{"slot", v.slot()}, {"desired", v.Desired}, {"state", v.State}, {"reason", v.why()}, {"progress", v.Progress}, {"pod", v.Pod},
		{"token", strconv.FormatUint(v.Token, 10)}, {"run", strconv.FormatUint(v.Run, 10)},
		{"revision", strconv.FormatUint(v.Revision, 10)},
		{"replay", v.Replay},
		{"policy", fmt.Sprintf("timeout %s (grace %s), %d attempts, back-off %s to %s, %d crashes, then %s", v.Policy.HandlerTimeout,
			v.Policy.HandlerGrace, v.Policy.MaxAttempts, v.Policy.Backoff, v.Policy.MaxBackoff, v.Policy.MaxCrashes, v.Policy.exhausted())},
		{"config", (*pairsFlag)(&v.Config).String()}, {"tags", (*pairsFlag)(&v.Tags).String()},
		{"created", v.CreatedAt}, {"updated", v.UpdatedAt},
	} {
		t.row(line[0], line[1])
	}
	if err := t.end(nil); err != nil || len(v.TopicStatus) == 0 {
		return err
	}
	fmt.Fprintln(a.stdout)
	t = a.newTable("TOPIC", "FEED", "CURSOR", "HEAD", "LAG", "BEHIND", "LANE", "EXAMINED", "OWNED", "FILTERED", "GAPS", "IN TURN")
	for _, s := range v.TopicStatus {
		t.row(s.Topic, s.Feed, s.Cursor, s.Head, strconv.FormatUint(s.LagEntries, 10), s.LagTime,
			strconv.FormatUint(uint64(s.LaneEvents), 10), strconv.FormatUint(s.Examined, 10),
			strconv.FormatUint(s.Owned, 10), strconv.FormatUint(s.Filtered, 10), strconv.FormatUint(s.Gaps, 10), s.inTurn())
	}
	return t.end(nil)
}

func (a *app) workerStopCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "stop WORKER… [flags]",
		Short:   "Stop workers, and wait for the turn in hand",
		Long:    "Stops workers: each finishes the turn that it is in, within the drain limit. Stopped workers stay\nstopped, also over a restart of the server, until they are started.",
		Example: "  turnlane worker stop settler-0 settler-1",
		Args:    arguments("WORKER…"),
	}
	asJSON := outputFlag(cmd.Flags())
	return a.verb(cmd, func(ctx context.Context, _ *cobra.Command, args []string) error {
		return a.eachWorker(args, func(c *client.Client, name string) error {
			resp, err := c.Workers.StopWorker(ctx, &turnlanev1.StopWorkerRequest{Worker: name})
			if err != nil {
				return c.Explain(err)
			}
			for _, w := range resp.GetWarnings() {
				a.warn(w)
			}
			return a.printState(viewWorker(resp.GetWorker()), asJSON())
		})
	})
}

// printState prints a worker in short: id, name if it has one, state, and whether it is paused.
func (a *app) printState(v workerView, asJSON bool) error {
	if asJSON {
		return a.printJSON(v)
	}
	line := v.ID
	if v.Name != "" {
		line += "  " + printable(v.Name)
	}
	line += "  " + v.State
	if v.Paused {
		line += "  paused"
	}
	_, err := fmt.Fprintln(a.stdout, line)
	return err
}

func (a *app) workerDeleteCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "delete WORKER… [flags]",
		Short:   "Delete workers, running or not",
		Long:    "Deletes workers from any state. What they were is kept just enough for an id created again to go on\ncounting its runs and tokens.",
		Example: "  turnlane worker delete settler-0",
		Args:    arguments("WORKER…"),
	}
	asJSON := outputFlag(cmd.Flags())
	return a.verb(cmd, func(ctx context.Context, _ *cobra.Command, args []string) error {
		return a.eachWorker(args, func(c *client.Client, name string) error {
			resp, err := c.Workers.DeleteWorker(ctx, &turnlanev1.DeleteWorkerRequest{Worker: name})
			if err != nil {
				return c.Explain(err)
			}
			for _, w := range resp.GetWarnings() {
				a.warn(w)
			}
			if asJSON() {
				return a.printJSON(struct {
					Worker  string `json:"worker"`
					Deleted bool   `json:"deleted"`
				}{name, true})
			}
			_, err = fmt.Fprintf(a.stdout, "%s  deleted\n", printable(name))
			return err
		})
	})
}

func (a *app) workerSeekCommand() *cobra.Command {
	to := startFlag{now: a.now}
	var topics []string
	cmd := &cobra.Command{
		Use:   "seek WORKER --to WHERE [--topic T]… [flags]",
		Short: "Move a worker to another place in its topics",
		Long: `Moves the cursor of a worker, running or stopped, and begins a new run. It goes on with the entry
at WHERE: tail, earliest, a time, a time ago (-10m) or a position.`,
		Example: `  turnlane worker seek settler-0 --to earliest
  turnlane worker seek settler-0 --to -1h --topic trades`,
		Args: arguments("WORKER", "[WHERE]"),
	}
	flags := cmd.Flags()
	flags.Var(&to, "to", "the place to go on at")
	flags.StringArrayVar(&topics, "topic", nil, "only on this `TOPIC`; repeatable (default all of the worker's)")
	asJSON := outputFlag(flags)
	return a.verb(cmd, func(ctx context.Context, _ *cobra.Command, args []string) error {
		switch {
		case len(args) > 1 && to.start != nil:
			return usagef("%q is one place too many: --to says %s", args[1], to.text)
		case len(args) > 1:
			if err := to.Set(args[1]); err != nil {
				return usageError(err.Error())
			}
		case to.start == nil:
			return usagef("--to is missing: say where to go on, such as --to earliest")
		}
		return a.eachWorker(args[:1], func(c *client.Client, name string) error {
			resp, err := c.Workers.SeekWorker(ctx, &turnlanev1.SeekWorkerRequest{Worker: name, Topics: topics, To: to.start})
			if err != nil {
				return c.Explain(err)
			}
			return a.printState(viewWorker(resp.GetWorker()), asJSON())
		})
	})
}

// eachWorker does something for each worker named, and goes on when it fails for one.
func (a *app) eachWorker(names []string, do func(c *client.Client, name string) error) error {
	c, err := a.dial()
	if err != nil {
		return err
	}
	defer c.Close()
	var problems []error
	for _, name := range names {
		if err := do(c, name); err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", printable(name), err))
			if unreachable(err) {
				break
			}
		}
	}
	return a.report(problems)
}

// unreachable reports whether the server cannot be asked for anything else either.
func unreachable(err error) bool {
	var e *client.Error
	return errors.As(err, &e) && (e.Code == codes.Unavailable && e.Reason == "" || e.Code == codes.Canceled)
}

// report tells all problems but the last, which it returns.
func (a *app) report(problems []error) error {
	if len(problems) == 0 {
		return nil
	}
	last := len(problems) - 1
	for _, err := range problems[:last] {
		fmt.Fprintln(a.stderr, err)
	}
	return problems[last]
}
