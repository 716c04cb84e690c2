// Command scaling_workers checks how a server shares events out among workers. It uses the server at
// TURNLANE_ADDR, or starts one of its own in memory if that is not set.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/turnlane/turnlane/examples/scaling_workers/scaling"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := scaling.Run(ctx, scaling.Options{Addr: os.Getenv("TURNLANE_ADDR"), Out: os.Stdout})
	if err != nil {
		switch {
		case ctx.Err() != nil:
			fmt.Fprintln(os.Stderr, "scaling_workers: interrupted")
		case !errors.Is(err, scaling.ErrFailed):
			fmt.Fprintln(os.Stderr, "scaling_workers:", err)
		}
		os.Exit(1)
	}
}
