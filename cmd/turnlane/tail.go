package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	cepb "github.com/cloudevents/sdk-go/binding/format/protobuf/v2/pb"
	"github.com/spf13/cobra"

	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/internal/client"
	turnlanev1 "github.com/turnlane/turnlane/proto/turnlane/v1"
)

type tailFlags struct {
	from, until startFlag
	count       numberFlag
	timeout     durationFlag
}

// tailedGap is a gap as tail -o json tells it, on standard error.
type tailedGap struct {
	Topic string `json:"topic"`
	Gap   gap    `json:"gap"`
}

type gap struct {
	First string `json:"first"`
	Last  string `json:"last"`
	Kind  string `json:"kind"`
}

func (a *app) tailCommand() *cobra.Command {
	f := tailFlags{
		from:    startFlag{now: a.now},
		until:   startFlag{now: a.now},
		count:   numberFlag{min: 1, max: 1 << 53},
		timeout: durationFlag{min: time.Millisecond},
	}
	cmd := &cobra.Command{
		Use:   "tail TOPIC [flags]",
		Short: "Print the events of a topic as they come",
		Long: `Prints the events of a topic: position, id, type, subject (- if there is none) and data. With -o json a
line is {"topic","position","event":{CloudEvents JSON}}, with JSON data byte for byte, except that line
ends between its tokens become blanks.

It starts at the topic's end unless --from says otherwise, and goes on until --until, -n or --timeout
ends it, or Ctrl-C does. What the topic no longer holds is told on standard error as a gap. When the
server goes away, tail waits for it and goes on where it was.

WHERE is tail (the end as it is now), earliest, a time (2026-01-31T08:00:00Z, or a date: midnight UTC),
a time ago (-10m), or a position (inclusive). The exit code is 1 when --timeout comes before -n events,
or before --until.`,
		Example: `  turnlane tail flights
  turnlane tail flights --from -10m -o json | jq .event.subject
  turnlane tail flights --from earliest --until tail
  turnlane tail flights -n 3 --timeout 10s`,
		Args: arguments("TOPIC"),
	}
	flags := cmd.Flags()
	flags.Var(&f.from, "from", "where to start (default tail)")
	flags.Var(&f.until, "until", "where to stop, inclusive (default never)")
	flags.VarP(&f.count, "count", "n", "stop after so many events")
	flags.Var(&f.timeout, "timeout", "stop after this time")
	asJSON := outputFlag(flags)
	return a.verb(cmd, func(ctx context.Context, _ *cobra.Command, args []string) error {
		return a.tail(ctx, args[0], f, asJSON())
	})
}

func (a *app) tail(ctx context.Context, topic string, f tailFlags, asJSON bool) error {
	c, err := a.dial()
	if err != nil {
		return err
	}
	defer c.Close()
	reading, stop := context.WithCancel(ctx) // a deadline would be the server's business too
	defer stop()
	if f.timeout.Duration > 0 {
		defer time.AfterFunc(f.timeout.Duration, stop).Stop()
	}
	p := &tailPrinter{app: a, topic: topic, asJSON: asJSON, out: bufio.NewWriterSize(a.stdout, 64<<10)}
	err = c.Read(reading, client.Read{
		Topic: topic,
		From:  f.from.start,
		Until: f.until.start,
		Event: func(at event.Position, e *cepb.CloudEvent) error {
			if err := p.print(at, e); err != nil {
				return err
			}
			if p.events == f.count.n {
				return client.ErrStop
			}
			return nil
		},
		Idle: p.out.Flush,
		Gap:  p.gap,
		Lost: func(err error) { fmt.Fprintf(a.stderr, "%v; waiting for it to come back\n", err) },
	})
	if flushErr := p.out.Flush(); flushErr != nil {
		return flushErr
	}
	switch {
	case err == nil, ctx.Err() != nil: // Ctrl-C
		return nil
	case reading.Err() != nil && f.count.n > 0:
		return fmt.Errorf("%s: %s within %s; %d were asked for", topic, plural(int(p.events), "event"), f.timeout.String(), f.count.n)
	case reading.Err() != nil && f.until.start != nil:
		return fmt.Errorf("%s: %s had not come after %s", topic, f.until.text, f.timeout.String())
	case reading.Err() != nil:
		return nil
	}
	return err
}

// tailPrinter prints events and gaps.
type tailPrinter struct {
	*app
	topic  string
	asJSON bool
	out    *bufio.Writer
	events uint64
	buf    []byte
}

func (p *tailPrinter) print(at event.Position, pb *cepb.CloudEvent) error {
	p.events++
	e, err := event.FromProto(pb)
	if err != nil {
		return fmt.Errorf("%s at %s: %w", p.topic, at, err)
	}
	if p.asJSON {
		if p.buf, err = appendTailed(p.buf[:0], p.topic, at, e); err != nil {
			return fmt.Errorf("%s at %s: %w", p.topic, at, err)
		}
		_, err = p.out.Write(p.buf)
		return err
	}
	subject := e.Subject
	if subject == "" {
		subject = "-"
	}
	_, err = fmt.Fprintf(p.out, "%s  %s  %s  %s  %s\n", at, printable(e.ID), printable(e.Type), printable(subject), dataText(e))
	return err
}

// appendTailed appends an event as tail -o json tells it: a line of JSON. It is put together by hand,
// to spare each event the way through encoding/json; otherwise it is as writeJSON writes a verbatim.
func appendTailed(dst []byte, topic string, at event.Position, e *event.Event) ([]byte, error) {
	name, err := json.Marshal(topic)
	if err != nil {
		return nil, err
	}
	dst = append(append(dst, `{"topic":`...), name...)
	dst = append(append(append(dst, `,"position":"`...), at.String()...), `","event":`...)
	start := len(dst)
	if dst, err = event.AppendJSON(dst, e); err != nil {
		return nil, err
	}
	blankLineEnds(dst[start:])
	return append(dst, "}\n"...), nil
}

func (p *tailPrinter) gap(g *turnlanev1.Gap) {
	if err := p.out.Flush(); err != nil {
		return // the next print has it too
	}
	if p.asJSON {
		_ = writeJSON(p.stderr, tailedGap{p.topic, gap{g.GetFirst(), g.GetLast(), g.GetKind()}})
		return
	}
	fmt.Fprintf(p.stderr, "gap: %s lacks %s to %s (%s)\n", p.topic, g.GetFirst(), g.GetLast(), g.GetKind())
}

// dataText is an event's data on one line.
func dataText(e *event.Event) string {
	switch e.DataKind {
	case event.JSONData, event.TextData:
		return printable(strings.TrimSpace(string(e.Data)))
	case event.BinaryData, event.ProtoData:
		return fmt.Sprintf("<%d bytes>", len(e.Data))
	}
	return ""
}
