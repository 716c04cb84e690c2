package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/internal/client"
	"github.com/turnlane/turnlane/internal/deadletter"
	turnlanev1 "github.com/turnlane/turnlane/proto/turnlane/v1"
)

func (a *app) dlqCommand() *cobra.Command {
	cmd := parent(&cobra.Command{
		Use:   "dlq",
		Short: "List, show, bring back and remove dead letters",
		Long: `Events that were given up on are dead letters. Those of topic T are in topic dlq.T, or where the
worker's policy sends them, each with the original event and what is known of its failure.`,
	})
	cmd.AddCommand(a.dlqListCommand(), a.dlqShowCommand(), a.dlqRedriveCommand(), a.dlqPurgeCommand())
	return cmd
}

// letterFilter adds the flags that pick dead letters.
func letterFilter(flags *pflag.FlagSet) *turnlanev1.DeadLetterFilter {
	f := &turnlanev1.DeadLetterFilter{}
	flags.StringVar(&f.Topic, "topic", "", "the topic of dead letters, `dlq.TOPIC`")
	flags.StringVar(&f.Type, "type", "", "only those of workers of this `TYPE`")
	flags.StringVar(&f.Fingerprint, "fingerprint", "", "only those with this kind of error, a `FINGERPRINT` as dlq list shows it")
	flags.StringVar(&f.Position, "position", "", "only the one at this `POSITION` of the topic")
	return f
}

// letterGroup is a group as -o json tells it.
type letterGroup struct {
	Topic         string `json:"topic"`
	Type          string `json:"type"`
	Reason        string `json:"reason"`
	Fingerprint   string `json:"fingerprint"`
	Count         uint64 `json:"count"`
	FirstAt       string `json:"first_at"`
	LastAt        string `json:"last_at"`
	FirstPosition string `json:"first_position"`
	LastPosition  string `json:"last_position"`
	Error         string `json:"error"`
}

func (a *app) dlqListCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list [flags]",
		Short: "List dead letters by topic, worker type and kind of error",
		Long: `Lists dead letters in groups: by topic, worker type, reason and fingerprint, which tells kinds of
errors apart. Numbers, ids and quoted parts of an error make no difference to it.`,
		Example: `  turnlane dlq list
  turnlane dlq list --topic dlq.orders -o json | jq .fingerprint`,
		Args: arguments(),
	}
	filter := letterFilter(cmd.Flags())
	asJSON := outputFlag(cmd.Flags())
	return a.verb(cmd, func(ctx context.Context, _ *cobra.Command, _ []string) error {
		c, err := a.dial()
		if err != nil {
			return err
		}
		defer c.Close()
		resp, err := c.DeadLetters.ListDeadLetters(ctx, &turnlanev1.ListDeadLettersRequest{Filter: filter})
		if err != nil {
			return c.Explain(err)
		}
		var t *table
		if !asJSON() {
			t = a.newTable("TOPIC", "TYPE", "REASON", "FINGERPRINT", "COUNT", "FIRST", "LAST", "ERROR")
		}
		for _, g := range resp.GetGroups() {
			if t != nil {
				t.row(g.GetTopic(), g.GetType(), g.GetReason(), g.GetFingerprint(), strconv.FormatUint(g.GetCount(), 10),
					secondText(g.GetFirstAt().AsTime()), secondText(g.GetLastAt().AsTime()), shortText(g.GetError()))
				continue
			}
			if err := a.printJSON(letterGroup{g.GetTopic(), g.GetType(), g.GetReason(), g.GetFingerprint(), g.GetCount(),
				timeText(g.GetFirstAt()), timeText(g.GetLastAt()), g.GetFirstPosition(), g.GetLastPosition(), g.GetError()}); err != nil {
				return err
			}
		}
		if t != nil {
			return t.end(nil)
		}
		return nil
	})
}

func secondText(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05Z") }

// shortText keeps an error from filling the screen.
func shortText(s string) string {
	const most = 80
	if r := []rune(s); len(r) > most {
		return string(r[:most-1]) + "…"
	}
	return s
}

// letterView is a dead letter as -o json tells it. What does not apply is left out.
type letterView struct {
	Topic       string   `json:"topic"`
	Position    string   `json:"position"`
	Fingerprint string   `json:"fingerprint"`
	Reason      string   `json:"reason"`
	Error       string   `json:"error,omitempty"`
	Attempts    uint32   `json:"attempts"`
	Crashes     uint32   `json:"crashes"`
	Redrives    uint32   `json:"redrives"`
	Permanent   bool     `json:"permanent"`
	WorkerID    string   `json:"worker_id,omitempty"`
	WorkerName  string   `json:"worker_name,omitempty"`
	WorkerType  string   `json:"worker_type,omitempty"`
	Version     string   `json:"version,omitempty"`
	Run         uint64   `json:"run"`
	FromTopic   string   `json:"from_topic,omitempty"`
	FromPos     string   `json:"from_position,omitempty"`
	Key         string   `json:"key,omitempty"`
	Group       string   `json:"group,omitempty"`
	Slot        *uint32  `json:"slot,omitempty"`
	FirstFailed string   `json:"first_failed,omitempty"`
	LastFailed  string   `json:"last_failed,omitempty"`
	Event       verbatim `json:"event"`

	original *event.Event
}

func viewLetter(r *turnlanev1.ReadDeadLettersResponse) (letterView, error) {
	v := letterView{Topic: r.GetTopic(), Position: r.GetPosition(), Fingerprint: r.GetFingerprint()}
	dead, err := event.FromProto(r.GetEvent())
	if err != nil {
		return v, fmt.Errorf("%s at %s: %w", v.Topic, v.Position, err)
	}
	original, f, err := deadletter.Unwrap(dead)
	if err != nil { // somebody else's event
		original, f = dead, deadletter.Facts{Reason: "unreadable", Error: err.Error()}
	}
	v.original = original
	v.Reason, v.Error, v.Attempts, v.Crashes, v.Redrives, v.Permanent = f.Reason, f.Error, f.Attempts, f.Crashes, f.Redrives, f.Permanent
	v.WorkerID, v.WorkerName, v.WorkerType, v.Version, v.Run = f.WorkerID, f.WorkerName, f.WorkerType, f.Version, f.Run
	v.FromTopic, v.Key, v.Group = f.Topic, f.Key, f.Group
	if f.Topic != "" {
		v.FromPos = f.Position.String()
	}
	if f.Group != "" {
		v.Slot = &f.Slot
	}
	for _, t := range []struct {
		at time.Time
		to *string
	}{{f.FirstFailed, &v.FirstFailed}, {f.LastFailed, &v.LastFailed}} {
		if !t.at.IsZero() {
			*t.to = t.at.UTC().Format(time.RFC3339Nano)
		}
	}
	v.Event, err = event.AppendJSON(nil, original)
	return v, err
}

func (a *app) dlqShowCommand() *cobra.Command {
	limit := numberFlag{n: 10, min: 1, max: 10_000}
	cmd := &cobra.Command{
		Use:   "show [flags]",
		Short: "Show dead letters in full, oldest first",
		Example: `  turnlane dlq show --topic dlq.orders --limit 3
  turnlane dlq show --topic dlq.orders --position 1700000000000-0
  turnlane dlq show --fingerprint 6d0f0d21a34a -o json | jq .event`,
		Args: arguments(),
	}
	filter := letterFilter(cmd.Flags())
	cmd.Flags().Var(&limit, "limit", "show at most so many, 1 to 10000")
	asJSON := outputFlag(cmd.Flags())
	return a.verb(cmd, func(ctx context.Context, _ *cobra.Command, _ []string) error {
		c, err := a.dial()
		if err != nil {
			return err
		}
		defer c.Close()
		stream, err := c.DeadLetters.ReadDeadLetters(ctx, &turnlanev1.ReadDeadLettersRequest{Filter: filter, Limit: uint32(limit.n)})
		if err != nil {
			return c.Explain(err)
		}
		for n := 0; ; n++ {
			r, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				if n == 0 && filter.GetPosition() != "" {
					return fmt.Errorf("%s has no dead letter at %s", filter.GetTopic(), filter.GetPosition())
				}
				return nil
			}
			if err != nil {
				return c.Explain(err)
			}
			v, err := viewLetter(r)
			if err != nil {
				return err
			}
			if asJSON() {
				err = a.printJSON(v)
			} else {
				if n > 0 {
					fmt.Fprintln(a.stdout)
				}
				err = a.describeLetter(v)
			}
			if err != nil {
				return err
			}
		}
	})
}

func (a *app) describeLetter(v letterView) error {
	worker := v.WorkerID
	if v.WorkerName != "" {
		worker += " (" + v.WorkerName + ")"
	}
	if v.Group != "" {
		worker += fmt.Sprintf(", %s/%d", v.Group, *v.Slot)
	}
	fails := fmt.Sprintf("%d attempts, %d crashes", v.Attempts, v.Crashes)
	if v.Redrives > 0 {
		fails += fmt.Sprintf(", brought back %d times before", v.Redrives)
	}
	if v.Permanent {
		fails += ", permanent"
	}
	t := a.newTable()
	for _, line := range [][2]string{
		{"dead letter", v.Topic + " " + v.Position}, {"from", strings.TrimSpace(v.FromTopic + " " + v.FromPos)},
		{"worker", worker}, {"type", v.WorkerType}, {"reason", v.Reason}, {"error", v.Error}, {"fingerprint", v.Fingerprint},
		{"failures", fails}, {"first failed", v.FirstFailed}, {"last failed", v.LastFailed}, {"run by", v.Version},
		{"key", v.Key}, {"event id", v.original.ID}, {"event type", v.original.Type}, {"source", v.original.Source},
	} {
		if line[1] != "" {
			t.row(line[0], line[1])
		}
	}
	if err := t.end(nil); err != nil {
		return err
	}
	if text := dataText(v.original); text != "" {
		_, err := fmt.Fprintf(a.stdout, "%s\n", text)
		return err
	}
	return nil
}

// perSecondFlag is a whole number of events per second, with or without "/s".
type perSecondFlag struct{ numberFlag }

func (f *perSecondFlag) Set(text string) error {
	return f.numberFlag.Set(strings.TrimSuffix(text, "/s"))
}
func (f *perSecondFlag) Type() string { return "N/s" }

// redriven is the end of a redrive as -o json tells it.
type redriven struct {
	ID        string `json:"id,omitempty"`
	Topic     string `json:"topic"`
	Total     uint64 `json:"total"`
	Done      uint64 `json:"done"`
	Skipped   uint64 `json:"skipped"`
	DryRun    bool   `json:"dry_run"`
	Cancelled bool   `json:"cancelled"`
}

func (a *app) dlqRedriveCommand() *cobra.Command {
	rate := perSecondFlag{numberFlag{min: 1, max: 1_000_000}}
	var dryRun, cancel bool
	var to string
	cmd := &cobra.Command{
		Use:   "redrive --topic dlq.TOPIC [flags]",
		Short: "Bring dead letters back to the workers that failed",
		Long: `Gives the original events back to the workers that gave them up, and removes each dead letter once its
event is stored: no event is lost, and none comes twice. The server goes on with it when this command
ends, and after a restart; the same command again follows it. One that fails again is a dead letter again.
Those of workers that do not exist any more stay where they are; --to takes them to a topic.`,
		Example: `  turnlane dlq redrive --topic dlq.orders --dry-run
  turnlane dlq redrive --topic dlq.orders --fingerprint 6d0f0d21a34a --rate 20/s
  turnlane dlq redrive --topic dlq.orders --type settler --to orders.again`,
		Args: arguments(),
	}
	flags := cmd.Flags()
	filter := letterFilter(flags)
	flags.Var(&rate, "rate", "events per second (default 100/s)")
	flags.BoolVar(&dryRun, "dry-run", false, "only count what would be done")
	flags.StringVar(&to, "to", "", "append the events to this `TOPIC` instead")
	flags.BoolVar(&cancel, "cancel", false, "end the redrive of the topic that is under way")
	asJSON := outputFlag(flags)
	return a.verb(cmd, func(ctx context.Context, cmd *cobra.Command, _ []string) error {
		if filter.GetTopic() == "" {
			return usagef("--topic is missing: the topic of dead letters, such as --topic dlq.orders")
		}
		c, err := a.dial()
		if err != nil {
			return err
		}
		defer c.Close()
		if cancel {
			for _, other := range []string{"type", "fingerprint", "position", "rate", "dry-run", "to"} {
				if cmd.Flags().Changed(other) {
					return usagef("--cancel goes with --topic alone, and --%s is given", other)
				}
			}
			return a.cancelRedrive(ctx, c, filter.GetTopic(), asJSON())
		}
		return a.redrive(ctx, c, &turnlanev1.RedriveRequest{Filter: filter, Rate: uint32(rate.n), DryRun: dryRun, To: to}, asJSON())
	})
}

func (a *app) redrive(ctx context.Context, c *client.Client, req *turnlanev1.RedriveRequest, asJSON bool) error {
	stream, err := c.DeadLetters.Redrive(ctx, req)
	if err != nil {
		return c.Explain(err)
	}
	progress := a.newProgress()
	defer progress.clear()
	var last *turnlanev1.RedriveResponse
	trouble := ""
	for {
		r, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			progress.clear()
			if last != nil && !req.GetDryRun() {
				return fmt.Errorf("%w; %d of %d were brought back so far; the server goes on with the rest: the same command follows it, --cancel ends it",
					c.Explain(err), last.GetDone(), last.GetTotal())
			}
			return c.Explain(err)
		}
		last = r
		if t := r.GetTrouble(); t != trouble {
			if trouble = t; t != "" {
				progress.clear()
				a.warn("held up, and trying again: " + t)
			}
		}
		progress.show("%d of %d brought back, %d stay where they are", r.GetDone(), r.GetTotal(), r.GetSkipped())
	}
	progress.clear()
	if last == nil || !last.GetFinished() {
		return errors.New("the server ended the answer early; the same command follows the redrive")
	}
	topic := req.GetFilter().GetTopic()
	if asJSON {
		err = a.printJSON(redriven{last.GetId(), topic, last.GetTotal(), last.GetDone(), last.GetSkipped(), req.GetDryRun(), last.GetCancelled()})
	} else {
		would := "brought back"
		if req.GetDryRun() {
			would = "would be brought back"
		}
		_, err = fmt.Fprintf(a.stdout, "%s: %d of %s %s\n", topic, last.GetDone(), plural(int(last.GetTotal()), "dead letter"), would)
	}
	if n := last.GetSkipped(); n > 0 {
		a.warn(fmt.Sprintf("%d stay where they are: their worker does not exist any more, or they cannot be read; see dlq show, and --to", n))
	}
	if err == nil && last.GetCancelled() {
		return errors.New("it was cancelled: the rest stays where it is")
	}
	return err
}

func (a *app) cancelRedrive(ctx context.Context, c *client.Client, topic string, asJSON bool) error {
	resp, err := c.DeadLetters.CancelRedrive(ctx, &turnlanev1.CancelRedriveRequest{Topic: topic})
	switch {
	case err != nil:
		return c.Explain(err)
	case resp.GetId() == "":
		return fmt.Errorf("no redrive of %s is under way", topic)
	case asJSON:
		return a.printJSON(redriven{ID: resp.GetId(), Topic: topic, Cancelled: true})
	}
	_, err = fmt.Fprintf(a.stdout, "%s: the redrive ends\n", topic)
	return err
}

func (a *app) dlqPurgeCommand() *cobra.Command {
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "purge [flags]",
		Short: "Remove dead letters for good",
		Long:  "Removes the dead letters that match all of the flags, of which at least one has to be given.",
		Example: `  turnlane dlq purge --topic dlq.orders --fingerprint 6d0f0d21a34a
  turnlane dlq purge --topic dlq.orders --dry-run`,
		Args: arguments(),
	}
	filter := letterFilter(cmd.Flags())
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only count what would be removed")
	asJSON := outputFlag(cmd.Flags())
	return a.verb(cmd, func(ctx context.Context, _ *cobra.Command, _ []string) error {
		if filter.GetTopic() == "" && filter.GetType() == "" && filter.GetFingerprint() == "" {
			return usagef("say what to remove: --topic, --type or --fingerprint")
		}
		c, err := a.dial()
		if err != nil {
			return err
		}
		defer c.Close()
		removed, would := uint64(0), "removed"
		if dryRun {
			would = "would be removed"
			resp, err := c.DeadLetters.ListDeadLetters(ctx, &turnlanev1.ListDeadLettersRequest{Filter: filter})
			if err != nil {
				return c.Explain(err)
			}
			for _, g := range resp.GetGroups() {
				removed += g.GetCount()
			}
		} else {
			resp, err := c.DeadLetters.PurgeDeadLetters(ctx, &turnlanev1.PurgeDeadLettersRequest{Filter: filter})
			if err != nil {
				return c.Explain(err)
			}
			removed = resp.GetRemoved()
		}
		if asJSON() {
			return a.printJSON(struct {
				Removed uint64 `json:"removed"`
				DryRun  bool   `json:"dry_run"`
			}{removed, dryRun})
		}
		_, err = fmt.Fprintf(a.stdout, "%s %s\n", plural(int(removed), "dead letter"), would)
		return err
	})
}
