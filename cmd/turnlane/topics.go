package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/turnlane/turnlane/internal/client"
	turnlanev1 "github.com/turnlane/turnlane/proto/turnlane/v1"
)

// topicView is a topic as -o json tells it.
type topicView struct {
	Topic       string `json:"topic"`
	Entries     uint64 `json:"entries"`
	Bytes       uint64 `json:"bytes"`
	First       string `json:"first"`
	Last        string `json:"last"`
	Removed     string `json:"removed"`
	Incarnation string `json:"incarnation"`
	MaxBytes    uint64 `json:"max_bytes"` // 0 is the default
	MaxAge      string `json:"max_age"`   // "" is the default
}

func viewTopic(t *turnlanev1.Topic) topicView {
	return topicView{
		Topic: t.GetTopic(), Entries: t.GetEntries(), Bytes: t.GetBytes(), First: t.GetFirst(), Last: t.GetLast(),
		Removed: t.GetRemoved(), Incarnation: t.GetIncarnation(),
		MaxBytes: t.GetRetention().GetMaxBytes(), MaxAge: durationText(t.GetRetention().GetMaxAge()),
	}
}

func (a *app) topicsCommand() *cobra.Command {
	var prefix string
	cmd := &cobra.Command{
		Use:   "topics [TOPIC…] [flags]",
		Short: "List topics, or those named",
		Example: `  turnlane topics
  turnlane topics --prefix orders. -o json
  turnlane topics flights`,
		Args: arguments("[TOPIC…]"),
	}
	cmd.Flags().StringVar(&prefix, "prefix", "", "only topics whose names begin with `PREFIX`")
	asJSON := outputFlag(cmd.Flags())
	return a.verb(cmd, func(ctx context.Context, _ *cobra.Command, args []string) error {
		if len(args) > 0 && prefix != "" {
			return usagef("TOPIC and --prefix exclude each other")
		}
		c, err := a.dial()
		if err != nil {
			return err
		}
		defer c.Close()
		if asJSON() {
			return eachTopic(ctx, c, args, prefix, func(v topicView) error { return a.printJSON(v) })
		}
		t := a.newTable("TOPIC", "ENTRIES", "BYTES", "FIRST", "LAST")
		return t.end(eachTopic(ctx, c, args, prefix, func(v topicView) error {
			t.row(v.Topic, strconv.FormatUint(v.Entries, 10), strconv.FormatUint(v.Bytes, 10), v.First, v.Last)
			return nil
		}))
	})
}

// eachTopic calls each for the topics named, or for all with the prefix if none is.
func eachTopic(ctx context.Context, c *client.Client, names []string, prefix string, each func(topicView) error) error {
	for _, name := range names {
		resp, err := c.Gateway.GetTopic(ctx, &turnlanev1.GetTopicRequest{Topic: name})
		if err != nil {
			return c.Explain(err)
		}
		if err := each(viewTopic(resp.GetTopic())); err != nil {
			return err
		}
	}
	req := &turnlanev1.ListTopicsRequest{PageSize: 1000, Prefix: prefix}
	for more := len(names) == 0; more; more = req.PageToken != "" {
		resp, err := c.Gateway.ListTopics(ctx, req)
		if err != nil {
			return c.Explain(err)
		}
		for _, topic := range resp.GetTopics() {
			if err := each(viewTopic(topic)); err != nil {
				return err
			}
		}
		req.PageToken = resp.GetNextPageToken()
	}
	return nil
}

func (a *app) topicCommand() *cobra.Command {
	cmd := parent(&cobra.Command{
		Use:   "topic",
		Short: "Set what a topic keeps",
	})
	cmd.AddCommand(a.topicSetCommand())
	return cmd
}

func (a *app) topicSetCommand() *cobra.Command {
	var maxBytes bytesFlag
	maxAge := durationFlag{max: 100 * 365 * 24 * time.Hour}
	cmd := &cobra.Command{
		Use:   "set TOPIC [--max-bytes N] [--max-age D] [flags]",
		Short: "Set the retention of a topic",
		Long: `Sets how much a topic keeps, by bytes and by age; what is beyond is removed from its beginning. A flag
that is left out keeps what was set, and 0 goes back to the default. The topic need not exist yet.`,
		Example: `  turnlane topic set flights --max-bytes 500MiB --max-age 30d
  turnlane topic set flights --max-age 0`,
		Args: arguments("TOPIC"),
	}
	flags := cmd.Flags()
	flags.Var(&maxBytes, "max-bytes", "keep at most so many bytes, such as 1048576 or 500MiB; 0 is the default")
	flags.Var(&maxAge, "max-age", "keep at most so long, such as 12h or 30d; 0 is the default")
	asJSON := outputFlag(flags)
	return a.verb(cmd, func(ctx context.Context, cmd *cobra.Command, args []string) error {
		hasBytes, hasAge := cmd.Flags().Changed("max-bytes"), cmd.Flags().Changed("max-age")
		if !hasBytes && !hasAge {
			return usagef("nothing to set: give --max-bytes, --max-age or both")
		}
		c, err := a.dial()
		if err != nil {
			return err
		}
		defer c.Close()
		retention := &turnlanev1.Retention{MaxBytes: uint64(maxBytes)}
		if maxAge.Duration > 0 {
			retention.MaxAge = durationpb.New(maxAge.Duration)
		}
		if !hasBytes || !hasAge { // the call sets both
			resp, err := c.Gateway.GetTopic(ctx, &turnlanev1.GetTopicRequest{Topic: args[0]})
			switch err = c.Explain(err); {
			case err == nil && !hasBytes:
				retention.MaxBytes = resp.GetTopic().GetRetention().GetMaxBytes()
			case err == nil:
				retention.MaxAge = resp.GetTopic().GetRetention().GetMaxAge()
			case !notFound(err):
				return err
			}
		}
		resp, err := c.Gateway.SetTopic(ctx, &turnlanev1.SetTopicRequest{Topic: args[0], Retention: retention})
		if err != nil {
			return c.Explain(err)
		}
		v := viewTopic(resp.GetTopic())
		if asJSON() {
			return a.printJSON(v)
		}
		_, err = fmt.Fprintf(a.stdout, "%s keeps %s and %s\n", v.Topic, orDefault(v.MaxBytes > 0, fmt.Sprintf("%d bytes", v.MaxBytes), "bytes"),
			orDefault(v.MaxAge != "", v.MaxAge, "age"))
		return err
	})
}

func orDefault(set bool, value, what string) string {
	if set {
		return value
	}
	return "the default " + what
}
