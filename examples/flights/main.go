// Command flights runs 20,000 real flights through a slot group of four workers and compares what they
// add up with the known answer. With the word serve it is a server that hosts the worker type, for as long
// as it is left running:
//
//	flights serve --data DIR [--grpc ADDR] [--http ADDR] [--ready-file F]
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/term"

	"github.com/turnlane/turnlane"
	"github.com/turnlane/turnlane/examples/flights/flights"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "serve" {
		if err := serve(os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, "flights:", err)
			os.Exit(1)
		}
		return
	}
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

func serve(args []string) error {
	flags := flag.NewFlagSet("flights serve", flag.ExitOnError)
	var c turnlane.Config
	flags.StringVar(&c.DataDir, "data", "", "the directory of the store; without it nothing survives the process")
	flags.StringVar(&c.GRPCAddr, "grpc", "", "the address for gRPC")
	flags.StringVar(&c.HTTPAddr, "http", "", "the address for HTTP")
	readyFile := flags.String("ready-file", "", "written once the server is up, with its addresses")
	_ = flags.Parse(args) // it exits
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return flights.Serve(ctx, c, func(srv *turnlane.Server) error {
		fmt.Fprintf(os.Stderr, "flights: serving gRPC on %s and HTTP on %s\n", srv.GRPCAddr(), srv.HTTPAddr())
		if *readyFile == "" {
			return nil
		}
		text, err := json.Marshal(map[string]any{"grpc": srv.GRPCAddr(), "http": srv.HTTPAddr(), "pid": os.Getpid()})
		if err != nil {
			return err
		}
		if err := os.WriteFile(*readyFile+".tmp", text, 0o644); err != nil {
			return err
		}
		return os.Rename(*readyFile+".tmp", *readyFile)
	})
}
