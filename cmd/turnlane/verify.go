package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	cepb "github.com/cloudevents/sdk-go/binding/format/protobuf/v2/pb"
	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"

	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/internal/builtin"
	"github.com/turnlane/turnlane/internal/client"
	"github.com/turnlane/turnlane/internal/lifecycle"
	turnlanev1 "github.com/turnlane/turnlane/proto/turnlane/v1"
)

func (a *app) verifyCommand() *cobra.Command {
	from := startFlag{now: a.now}
	out := builtin.DefaultReports
	var wait durationFlag
	cmd := &cobra.Command{
		Use:   "verify TOPIC [--out T] [--from WHERE] [flags]",
		Short: "Check what probe workers reported against the events of a topic",
		Long: `Joins the events of a topic with the turns that probe workers reported, and counts

  lost               events that a dedicated worker, or a slot group, which reports at all, did not finish,
                     nor give up on after its last attempt; all events if nobody reports
  repeated unmarked  second reports of the same attempt, or of an event that was finished before, also by
                     another member of the group, that are not marked as replayed
  out of order       events that a worker took after a later one: among those not replayed, and within
                     one activation
  overlapping turns  turns that a worker began before it had finished the one before

and reports that cannot be read. Marked repeats are counted too, and are no fault. The exit code is 1 if
any other count is not 0. A worker that began after the first event has "lost" what came before: say with
--from where it began. What retention removed from the topic is in no count, which a note tells.`,
		Example: `  turnlane worker create --type probe --topic flights --group g --count 4 --replay cursor --start
  turnlane pub flights --file flights.jsonl.gz
  turnlane verify flights --wait 10s
  turnlane verify flights --from -10m -o json`,
		Args: arguments("TOPIC"),
	}
	flags := cmd.Flags()
	flags.StringVar(&out, "out", out, "the topic that the workers report to, `T`")
	flags.Var(&from, "from", "check the events from here on (default earliest)")
	flags.Var(&wait, "wait", "check again until all is well, or nothing was reported for so long")
	asJSON := outputFlag(flags)
	return a.verb(cmd, func(ctx context.Context, _ *cobra.Command, args []string) error {
		c, err := a.dial()
		if err != nil {
			return err
		}
		defer c.Close()
		if from.start == nil {
			from.start = client.Earliest()
		}
		v, err := a.verifyUntilQuiet(ctx, c, args[0], out, from.start, wait.Duration)
		if err != nil {
			return err
		}
		if asJSON() {
			err = a.printJSON(v)
		} else {
			err = a.describeVerdict(v, out)
		}
		if err == nil && !v.OK {
			err = errReported
		}
		return err
	})
}

// verifyUntilQuiet verifies again until all is well or nothing new was reported for so long. It leaves the
// server alone for at least as long as it keeps it busy.
func (a *app) verifyUntilQuiet(ctx context.Context, c *client.Client, topic, out string, from *turnlanev1.Start, quiet time.Duration) (*verdict, error) {
	const minPause = 100 * time.Millisecond
	last := time.Now() // when something new was reported, as far as we know
	for turns := 0; ; {
		began := time.Now()
		v, err := a.verify(ctx, c, topic, out, from)
		if err != nil || v.OK {
			return v, err
		}
		if v.Turns != turns {
			turns, last = v.Turns, began
		}
		if time.Since(last) >= quiet {
			return v, nil
		}
		select {
		case <-time.After(max(minPause, time.Since(began))):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// verify reads the topics as they are now. The reports are read last, so that they are at least as new
// as the events.
func (a *app) verify(ctx context.Context, c *client.Client, topic, out string, from *turnlanev1.Start) (*verdict, error) {
	v, result := newVerification(topic), &verdict{}
	if err := askBeginning(ctx, c, topic, from, result); err != nil {
		return nil, err
	}
	p := a.newProgress()
	defer p.clear()
	read := func(topic string, from *turnlanev1.Start, each func(event.Position, *cepb.CloudEvent) error) error {
		n := 0
		err := c.Read(ctx, client.Read{
			Topic: topic, From: from, Until: client.Tail(),
			Event: func(at event.Position, e *cepb.CloudEvent) error {
				n++
				p.show("%s: %d events read", topic, n)
				return each(at, e)
			},
			Gap: func(g *turnlanev1.Gap) {
				p.clear()
				a.warn(fmt.Sprintf("%s lacks %s to %s (%s)", topic, g.GetFirst(), g.GetLast(), g.GetKind()))
			},
		})
		if err != nil {
			return fmt.Errorf("%s: %w", printable(topic), err)
		}
		return nil
	}
	err := read(topic, from, func(at event.Position, e *cepb.CloudEvent) error {
		v.addEvent(at, e.GetId())
		return nil
	})
	if err != nil {
		return nil, err
	}
	err = read(out, client.Earliest(), func(at event.Position, e *cepb.CloudEvent) error {
		if e.GetType() != builtin.ReportType {
			return nil
		}
		r, err := parseReport(jsonData(e))
		if err == nil {
			err = v.addReport(e.GetId(), r, result)
		}
		if err != nil {
			result.Malformed++
			result.example("malformed", "%s at %s: %v", out, at, err)
		}
		return nil
	})
	if err != nil && !notFound(err) {
		return nil, err
	}
	err = read(lifecycle.Topic, client.Earliest(), func(_ event.Position, e *cepb.CloudEvent) error {
		if e.GetType() == lifecycle.TypeExhausted {
			var d lifecycle.Data
			if json.Unmarshal(jsonData(e), &d) == nil {
				v.addPassed(d.Topic, d.Position, d.WorkerID, d.Group)
			}
		}
		return nil
	})
	if err != nil && !notFound(err) {
		return nil, err
	}
	v.finish(result)
	return result, nil
}

// askBeginning checks that there is a topic, and notes in the verdict if it lacks events after a start
// since retention removed them.
func askBeginning(ctx context.Context, c *client.Client, topic string, from *turnlanev1.Start, out *verdict) error {
	resp, err := c.Gateway.GetTopic(ctx, &turnlanev1.GetTopicRequest{Topic: topic})
	if err = c.Explain(err); notFound(err) {
		return fmt.Errorf("there is no topic %s", printable(topic))
	} else if err != nil {
		return fmt.Errorf("%s: %w", printable(topic), err)
	}
	t := resp.GetTopic()
	if t.GetRemoved() == "" {
		return nil
	}
	removed, err := event.ParsePosition(t.GetRemoved())
	if err != nil {
		return fmt.Errorf("the server's answer: %w", err)
	}
	lacks := false
	switch at := from.GetAt().(type) {
	case *turnlanev1.Start_Earliest:
		lacks = true
	case *turnlanev1.Start_Time:
		lacks = at.Time.AsTime().UnixMilli() <= int64(removed.Ms)
	case *turnlanev1.Start_Position:
		p, err := event.ParsePosition(at.Position)
		lacks = err == nil && p.Compare(removed) <= 0
	}
	if lacks {
		out.First, out.removed = t.GetFirst(), t.GetRemoved()
	}
	return nil
}

// jsonData is the data of an event as bytes, however it was sent.
func jsonData(e *cepb.CloudEvent) []byte {
	if text := e.GetTextData(); text != "" {
		return []byte(text)
	}
	return e.GetBinaryData()
}

func notFound(err error) bool {
	var e *client.Error
	return errors.As(err, &e) && e.Code == codes.NotFound
}

func (a *app) describeVerdict(v *verdict, out string) error {
	fmt.Fprintf(a.stdout, "%s: %s, %s by %s reported on %s\n", v.Topic, plural(v.Events, "event"), plural(v.Turns, "turn"), plural(v.Workers, "worker"), out)
	for _, c := range []struct {
		name, kind string
		n          int
	}{
		{"lost", "lost", v.Lost},
		{"repeated, unmarked", "repeated_unmarked", v.RepeatedUnmarked},
		{"out of order", "out_of_order", v.OutOfOrder},
		{"overlapping turns", "overlapping", v.Overlapping},
		{"repeated, marked", "", v.RepeatedMarked},
		{"given up", "", v.GivenUp},
		{"malformed reports", "malformed", v.Malformed},
	} {
		if c.kind == "malformed" && c.n == 0 {
			continue
		}
		fmt.Fprintf(a.stdout, "%-18s  %d\n", c.name, c.n)
		for _, example := range v.Examples[c.kind] {
			fmt.Fprintln(a.stdout, "  "+printable(example))
		}
	}
	switch {
	case v.removed == "":
	case v.First == "":
		fmt.Fprintf(a.stdout, "note: %s has no events left; retention removed all up to %s, and how many entries that was is not known\n", v.Topic, v.removed)
	default:
		fmt.Fprintf(a.stdout, "note: %s has events only from %s on; retention removed what came before, up to %s, and how many entries that was is not known\n",
			v.Topic, v.First, v.removed)
	}
	if v.Lost > 0 && v.Lost == v.lostEarly {
		fmt.Fprintln(a.stdout, "All that is lost lies before the first report of those who lost it; if they began later, say so with --from.")
	}
	result := "PASS"
	if !v.OK {
		result = "FAIL"
	}
	_, err := fmt.Fprintln(a.stdout, result)
	return err
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

func nanos(n int64) time.Duration { return time.Duration(n) }
