// Command flights runs 20,000 real flights through a slot group of four workers and compares what they
// add up with the known answer.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/term"

	"github.com/turnlane/turnlane/examples/flights/flights"
)

func main() {
	slow := flag.Bool("slow", false, "make one member crawl until the others are done, so that its lane overflows")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := flights.Run(ctx, flights.Options{
		Out:      os.Stdout,
		Terminal: term.IsTerminal(int(os.Stdout.Fd())),
		Slow:     *slow,
	})
	if err != nil {
		switch {
		case ctx.Err() != nil:
			fmt.Fprintln(os.Stderr, "flights: interrupted")
		case !errors.Is(err, flights.ErrFailed):
			fmt.Fprintln(os.Stderr, "flights:", err)
		}
		os.Exit(1)
	}
}
