// Package scaling is the check of how events are shared out among workers: phase by phase it makes a
// few workers that leave a marker for each event they get, publishes events, and counts.
//
// It works against any server, its topics, groups and workers are new for each run, and the workers
// are deleted again, also when a phase fails or the run is interrupted.
package scaling

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/turnlane/turnlane"
	"github.com/turnlane/turnlane/internal/client"
	turnlanev1 "github.com/turnlane/turnlane/proto/turnlane/v1"
)

// ErrFailed is returned by Run when a phase failed, after that was printed.
var ErrFailed = errors.New("scaling: FAIL")

// Options say how the check is run.
type Options struct {
	// Addr is the gRPC address of the server. "" starts one in this process, in memory.
	Addr string
	// Out gets a few lines for each phase, then PASS or FAIL for each. Default: nobody.
	Out io.Writer
	// Quiet is for how long nothing more must come once all is there. Default 500 ms.
	Quiet time.Duration
	// Patience is for how long something more may come while not all is there. Default 10 s.
	Patience time.Duration
	// Logger is for a server of its own. Default: errors to standard error.
	Logger *slog.Logger
}

// phase is one check. It returns lines that tell what happened, and what was wrong.
type phase struct {
	name string
	run  func(ctx context.Context, b *bench) (lines, problems []string, err error)
}

// The phases are printed block by block: what happened in each phase of a block, then the verdicts.
var blocks = [][]phase{
	{{"fan-out", fanOut}, {"exactly-one", exactlyOne}, {"group", slotGroup}},
	{{"order", order}, {"overload", overload}, {"missing-slot", missingSlot}, {"reshard", reshard}, {"side-by-side", sideBySide}},
}

// Run runs all phases. It blocks until they are done and everything that it made is gone; when ctx ends
// it stops, deletes its workers, and returns the context's error.
func Run(ctx context.Context, o Options) error {
	if o.Out == nil {
		o.Out = io.Discard
	}
	if o.Quiet <= 0 {
		o.Quiet = 500 * time.Millisecond
	}
	if o.Patience <= 0 {
		o.Patience = 10 * time.Second
	}
	if o.Addr != "" {
		return against(ctx, o)
	}
	return withServer(ctx, o)
}

// withServer runs the phases against a server of its own. The server outlives ctx, so that the workers
// can be deleted on it as on any other.
func withServer(ctx context.Context, o Options) error {
	if o.Logger == nil {
		// Warnings are a matter of course here: one phase leaves a slot without a member on purpose.
		o.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	}
	srv, err := turnlane.NewServer(turnlane.Config{GRPCAddr: "127.0.0.1:0", HTTPAddr: "127.0.0.1:0", Logger: o.Logger})
	if err != nil {
		return err
	}
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- srv.Run(serving) }()
	select {
	case <-srv.Ready():
	case err := <-ended:
		return fmt.Errorf("start the server: %w", err)
	case <-ctx.Done():
		stop()
		return errors.Join(ctx.Err(), <-ended)
	}
	o.Addr = srv.GRPCAddr()
	err = against(ctx, o)
	stop()
	if e := <-ended; err == nil {
		err = e
	}
	return err
}

func against(ctx context.Context, o Options) error {
	c, err := client.Dial(o.Addr)
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := c.Gateway.ListTopics(ctx, &turnlanev1.ListTopicsRequest{PageSize: 1}); err != nil {
		return c.Explain(err)
	}
	var failed error
	for _, block := range blocks {
		var verdicts strings.Builder
		for _, p := range block {
			good, err := judge(ctx, p, newBench(c, o, p.name), o.Out)
			if err != nil {
				return err
			}
			verdict := "PASS"
			if !good {
				verdict, failed = "FAIL", ErrFailed
			}
			fmt.Fprintf(&verdicts, "%s: %s\n", p.name, verdict)
		}
		if _, err := io.WriteString(o.Out, verdicts.String()); err != nil {
			return err
		}
	}
	return failed
}

// judge runs one phase and prints what happened. An error means that there is no point in going on.
func judge(ctx context.Context, p phase, b *bench, out io.Writer) (good bool, err error) {
	lines, problems, err := p.run(ctx, b)
	if err != nil && ctx.Err() == nil {
		problems = append(problems, err.Error())
	}
	if len(problems) > 0 && ctx.Err() == nil {
		problems = append(problems, b.states(ctx)...)
	}
	if err := b.clear(ctx); err != nil {
		problems = append(problems, err.Error())
	}
	if ctx.Err() != nil {
		return false, ctx.Err()
	}
	for _, line := range lines {
		fmt.Fprintln(out, line)
	}
	for _, problem := range problems {
		fmt.Fprintf(out, "  %s: %s\n", p.name, problem)
	}
	return len(problems) == 0, nil
}
