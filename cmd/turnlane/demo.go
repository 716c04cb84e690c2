package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/turnlane/turnlane/examples/flights/flights"
	"github.com/turnlane/turnlane/examples/scaling_workers/scaling"
	"github.com/turnlane/turnlane/internal/client"
)

func (a *app) demoCommand() *cobra.Command {
	var slow bool
	cmd := &cobra.Command{
		Use:   "demo [scaling|flights] [flags]",
		Short: "Show that it works, with PASS or FAIL",
		Long: `Runs a demonstration, or both.

  scaling   one event for each of several workers, or for one of them; slot groups, with a member missing,
            and with another number of members. On the server of --addr or $` + client.EnvAddr + ` if one is
            named, else on one of its own in memory
  flights   20,000 real US flights through a slot group of four that keeps the books of each airport,
            compared with the known result. On a server of its own in memory

The exit code is 1 if anything fails.`,
		Example: `  turnlane demo scaling
  turnlane demo flights --slow`,
		ValidArgs: []string{"scaling", "flights"},
		Args:      arguments("[scaling|flights]"),
	}
	cmd.Flags().BoolVar(&slow, "slow", false, "flights: make one member crawl, so that its lane overflows")
	return a.verb(cmd, func(ctx context.Context, _ *cobra.Command, args []string) error {
		which := append(args, "")[0]
		switch which {
		case "", "scaling", "flights":
		default:
			return usagef("there is no demonstration %q: want scaling or flights", which)
		}
		if which == "scaling" && slow {
			return usagef("--slow goes with flights")
		}
		var problems []error
		if which != "flights" {
			addr := a.addr
			if addr == "" {
				addr = a.getenv(client.EnvAddr)
			}
			problems = append(problems, scaling.Run(ctx, scaling.Options{Addr: addr, Out: a.stdout}))
		}
		if which == "" && ctx.Err() == nil {
			fmt.Fprintln(a.stdout)
		}
		if which != "scaling" && ctx.Err() == nil {
			f, ok := a.stdout.(*os.File)
			problems = append(problems, flights.Run(ctx, flights.Options{
				Out: a.stdout, Terminal: ok && term.IsTerminal(int(f.Fd())), Slow: slow,
			}))
		}
		err := errors.Join(problems...)
		if errors.Is(err, scaling.ErrFailed) || errors.Is(err, flights.ErrFailed) {
			return errReported
		}
		return err
	})
}
