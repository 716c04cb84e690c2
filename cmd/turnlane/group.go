package main

import (
	"context"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	turnlanev1 "github.com/turnlane/turnlane/proto/turnlane/v1"
)

// groupView is the coverage of a group on one topic as -o json tells it.
type groupView struct {
	Group     string     `json:"group"`
	Topic     string     `json:"topic"`
	GroupSize uint32     `json:"group_size"`
	Running   uint32     `json:"running"`
	Slots     []slotView `json:"slots"`
	Warning   string     `json:"warning"`
}

type slotView struct {
	Slot       uint32 `json:"slot"`
	WorkerID   string `json:"worker_id"`
	WorkerName string `json:"worker_name"`
	Pod        string `json:"pod"`
	State      string `json:"state"` // "" if the slot has no member
}

func (a *app) groupCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "group NAME [flags]",
		Short: "Show which slots of a group have a running member, per topic",
		Long: `Shows the slots of a group on each of its topics, with the member that has them and its state. Events
of a slot without a running member go to nobody, unless the member replays from its cursor.`,
		Example: `  turnlane group pairs
  turnlane group pairs -o json | jq '.slots[] | select(.state != "RUNNING") | .slot'`,
		Args: arguments("NAME"),
	}
	asJSON := outputFlag(cmd.Flags())
	return a.verb(cmd, func(ctx context.Context, _ *cobra.Command, args []string) error {
		c, err := a.dial()
		if err != nil {
			return err
		}
		defer c.Close()
		resp, err := c.Workers.GetGroup(ctx, &turnlanev1.GetGroupRequest{Group: args[0]})
		if err != nil {
			return c.Explain(err)
		}
		if len(resp.GetTopics()) == 0 {
			return fmt.Errorf("no worker is a member of group %q; see turnlane worker list --group", args[0])
		}
		for i, t := range resp.GetTopics() {
			v := viewGroup(resp.GetGroup(), t)
			if asJSON() {
				err = a.printJSON(v)
			} else {
				if i > 0 {
					fmt.Fprintln(a.stdout)
				}
				err = a.describeGroup(v)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

func viewGroup(group string, t *turnlanev1.GroupCoverage) groupView {
	v := groupView{
		Group: group, Topic: t.GetTopic(), GroupSize: t.GetGroupSize(), Running: t.GetRunning(),
		Slots: []slotView{}, Warning: t.GetWarning(),
	}
	for _, s := range t.GetSlots() {
		state := ""
		if s.GetState() != turnlanev1.WorkerState_WORKER_STATE_UNSPECIFIED {
			state = stateName(s.GetState())
		}
		v.Slots = append(v.Slots, slotView{s.GetSlot(), s.GetWorkerId(), s.GetWorkerName(), s.GetPod(), state})
	}
	return v
}

func (a *app) describeGroup(v groupView) error {
	fmt.Fprintf(a.stdout, "group %s on %s: %d of %d members running\n", v.Group, v.Topic, v.Running, v.GroupSize)
	t := a.newTable("SLOT", "WORKER", "NAME", "POD", "STATE")
	for _, s := range v.Slots {
		t.row(strconv.FormatUint(uint64(s.Slot), 10), s.WorkerID, s.WorkerName, s.Pod, s.State)
	}
	if err := t.end(nil); err != nil || v.Warning == "" {
		return err
	}
	_, err := fmt.Fprintf(a.stdout, "warning: %s\n", printable(v.Warning))
	return err
}
