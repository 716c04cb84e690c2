package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/turnlane/turnlane/internal/client"
)

// Exit codes. Scripts rely on them.
const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
)

// app is one run of the command line and the world that it sees.
type app struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	getenv         func(string) string
	now            func() time.Time

	addr    string // --addr
	entered bool   // a verb took over: what fails now is no longer the command line's fault
}

// run executes one command line and returns the exit code. When the context ends the verb winds up.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer, getenv func(string) string) int {
	a := &app{stdin: stdin, stdout: stdout, stderr: stderr, getenv: getenv, now: time.Now}
	root := a.rootCommand()
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	cmd, err := root.ExecuteContextC(ctx)
	return a.exit(cmd, err)
}

func (a *app) rootCommand() *cobra.Command {
	root := parent(&cobra.Command{
		Use:   "turnlane",
		Short: "Run event-driven workers: one turn at a time, in order, in many copies",
		Long: `Turnlane stores events in topics and runs workers on them. A worker takes one turn at a
time, in the order of each topic; copies of a worker can share a topic without a coordinator.`,
		Example: `  turnlane dev                                  # everything in one process, in memory
  turnlane worker create --type echo --topic hello --config out=heard --start
  turnlane tail heard --from earliest
  turnlane pub hello '{"text":"hi"}'`,
		SilenceErrors:     true,
		SilenceUsage:      true,
		DisableAutoGenTag: true,
	})
	root.SetFlagErrorFunc(flagError)
	root.PersistentFlags().StringVar(&a.addr, "addr", "",
		"address of the server, `HOST:PORT` (default "+client.DefaultAddr+", or $"+client.EnvAddr+")")
	root.AddCommand(
		a.devCommand(), a.pubCommand(), a.tailCommand(), a.workerCommand(), a.groupCommand(), a.routeCommand(),
		a.topicsCommand(), a.topicCommand(), a.eventCommand(), a.dlqCommand(), a.checkCommand(), a.verifyCommand(), a.demoCommand(), a.versionCommand(),
	)
	return root
}

// verb makes run the action of a command.
func (a *app) verb(cmd *cobra.Command, run func(ctx context.Context, cmd *cobra.Command, args []string) error) *cobra.Command {
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		a.entered = true
		return run(cmd.Context(), cmd, args)
	}
	cmd.DisableFlagsInUseLine = true
	return cmd
}

// parent makes a command that only holds others. Alone it shows its help; the root does so by right,
// the others because a verb is missing.
func parent(cmd *cobra.Command) *cobra.Command {
	cmd.Args = cobra.ArbitraryArgs
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			text := fmt.Sprintf("there is no verb %q", args[0])
			if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
				text += "; did you mean " + strings.Join(near, " or ") + "?"
			}
			return usageError(text)
		}
		if cmd.HasParent() {
			var verbs []string
			for _, c := range cmd.Commands() {
				verbs = append(verbs, c.Name())
			}
			return usageError("a verb is missing: one of " + strings.Join(verbs, ", "))
		}
		return cmd.Help()
	}
	cmd.SuggestionsMinimumDistance = 2
	return cmd
}

// arguments checks how many arguments a verb gets. Names are what its help calls them; the last may be
// "X…" for one or more, and those in brackets may be left out.
func arguments(names ...string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		for i, name := range names {
			if i >= len(args) && !strings.HasPrefix(name, "[") {
				return usageError(strings.TrimSuffix(name, "…") + " is missing")
			}
			if strings.HasSuffix(name, "…") || strings.HasSuffix(name, "…]") {
				return nil
			}
		}
		if len(args) > len(names) {
			return usageError(fmt.Sprintf("%q is one argument too many; quote what has blanks in it", args[len(names)]))
		}
		return nil
	}
}

// dial returns a client of the server that the flags and the environment name.
func (a *app) dial() (*client.Client, error) {
	addr := a.addr
	if addr == "" {
		addr = a.getenv(client.EnvAddr)
	}
	c, err := client.Dial(addr)
	if err != nil {
		return nil, usageError(err.Error())
	}
	return c, nil
}

// usageError is a command line that asks for nothing that can be done.
type usageError string

func (e usageError) Error() string { return string(e) }

// usagef makes a usageError.
func usagef(format string, args ...any) error { return usageError(fmt.Sprintf(format, args...)) }

// errReported fails a verb that has already said why.
var errReported = errors.New("failed")

// exit tells the error, if there is one, and returns the exit code.
func (a *app) exit(cmd *cobra.Command, err error) int {
	if err == nil {
		return exitDone
	}
	if errors.Is(err, errReported) {
		return exitFailed
	}
	text := err.Error()
	if errors.Is(err, context.Canceled) {
		text = "interrupted"
	}
	fmt.Fprintf(a.stderr, "%s: %s\n", cmd.CommandPath(), text)
	var usage usageError
	if !errors.As(err, &usage) && a.entered {
		return exitFailed
	}
	if cmd.HasParent() && cmd.Runnable() && !cmd.HasSubCommands() {
		fmt.Fprintf(a.stderr, "usage: %s\n", cmd.UseLine())
	}
	fmt.Fprintf(a.stderr, "Run \"%s --help\" for more.\n", cmd.CommandPath())
	return exitUsage
}

// flagError words what is wrong with a flag.
func flagError(_ *cobra.Command, err error) error {
	if invalid, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		flag := invalid.GetFlag()
		return usagef("--%s %q: %v", flag.Name, invalid.GetValue(), invalid.Unwrap())
	}
	if missing, ok := errors.AsType[*pflag.ValueRequiredError](err); ok {
		flag := missing.GetFlag()
		name, _ := pflag.UnquoteUsage(flag)
		return usagef("--%s has no value: want --%s %s", flag.Name, flag.Name, name)
	}
	return usageError(err.Error())
}
