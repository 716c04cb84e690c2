package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/turnlane/turnlane"
	"github.com/turnlane/turnlane/internal/client"
)

type devFlags struct {
	data, readyFile, pod string
	grpc, http           addrFlag
	fsync, logLevel      choiceFlag
	drain                durationFlag
	maxTurns             maxTurnsFlag
}

func (a *app) devCommand() *cobra.Command {
	f := devFlags{
		grpc:     turnlane.DefaultGRPCAddr,
		http:     turnlane.DefaultHTTPAddr,
		fsync:    choiceFlag{value: "always", choices: []string{"always", "interval", "never"}},
		logLevel: choiceFlag{value: "warn", choices: []string{"debug", "info", "warn", "error"}},
		drain:    durationFlag{Duration: turnlane.DefaultDrainTimeout},
	}
	cmd := &cobra.Command{
		Use:   "dev [flags]",
		Short: "Run everything in one process, on the embedded store",
		Long: `Runs every role in one process on the embedded store: in memory, or in a directory with --data. SIGTERM
or Ctrl-C drains: running turns end within --drain-timeout, outputs and cursors are stored. A second one
ends the process at once.

Each flag can be given as an environment variable too, such as TURNLANE_DATA or TURNLANE_READY_FILE; the
flag wins. The ready file gets {"grpc":ADDRESS,"http":ADDRESS,"pid":N} once the server serves, and is
removed when it ends.

Garbage is collected when the heap has grown fivefold, or at 256 MiB if that comes first, but not before
it has doubled. Set GOGC or GOMEMLIMIT to have it as Go does.`,
		Example: `  turnlane dev
  turnlane dev --data ./data --fsync interval
  turnlane dev --grpc 127.0.0.1:0 --http 127.0.0.1:0 --ready-file ready.json`,
		Args: arguments(),
	}
	flags := cmd.Flags()
	flags.StringVar(&f.data, "data", "", "keep the data in `DIR`, which is made if missing (default in memory)")
	flags.Var(&f.fsync, "fsync", "force writes to the disk before each acknowledgement, every second, or never")
	flags.Var(&f.grpc, "grpc", "serve gRPC on `ADDR`; port 0 picks a free one")
	flags.Var(&f.http, "http", "serve HTTP on `ADDR`; port 0 picks a free one")
	flags.StringVar(&f.readyFile, "ready-file", "", "write addresses and pid to file `F` once ready")
	flags.StringVar(&f.pod, "pod", "", "`NAME` of this process in what it reports (default the host's)")
	flags.Var(&f.drain, "drain-timeout", "how long a stop waits for running turns")
	flags.Var(&f.maxTurns, "max-turns", "at most N turns of a worker `TYPE=N` at the same time; repeat it for more types (default no bound)")
	flags.Var(&f.logLevel, "log-level", "log this and what is worse to standard error")
	return a.verb(cmd, func(ctx context.Context, cmd *cobra.Command, _ []string) error {
		if err := refuseEmpty(cmd.Flags(), "data", "ready-file", "pod"); err != nil {
			return err
		}
		if err := a.flagsFromEnv(cmd.LocalFlags()); err != nil {
			return err
		}
		return a.dev(ctx, f)
	})
}

// flagsFromEnv sets the flags that were not given from their TURNLANE_ variables.
func (a *app) flagsFromEnv(flags *pflag.FlagSet) error {
	var problem error
	flags.VisitAll(func(flag *pflag.Flag) {
		name := "TURNLANE_" + strings.ToUpper(strings.ReplaceAll(flag.Name, "-", "_"))
		value := a.getenv(name)
		if value == "" || flag.Changed || flag.Name == "help" || flag.Name == "addr" || problem != nil {
			return
		}
		if err := flag.Value.Set(value); err != nil {
			problem = usagef("%s=%q: %v", name, value, err)
		}
	})
	return problem
}

func (a *app) dev(ctx context.Context, f devFlags) error {
	var level slog.Level
	if err := level.UnmarshalText([]byte(f.logLevel.value)); err != nil {
		return usageError(err.Error())
	}
	cfg := turnlane.Config{
		DataDir: f.data, GRPCAddr: string(f.grpc), HTTPAddr: string(f.http), Pod: f.pod, DrainTimeout: f.drain.Duration, MaxTurns: f.maxTurns.max,
		Fsync:  map[string]turnlane.Fsync{"always": turnlane.FsyncAlways, "interval": turnlane.FsyncInterval, "never": turnlane.FsyncNever}[f.fsync.value],
		Logger: slog.New(slog.NewTextHandler(a.stderr, &slog.HandlerOptions{Level: level})),
	}
	srv, err := turnlane.NewServer(cfg)
	if err != nil {
		return usageError(plain(err))
	}
	if f.readyFile != "" {
		// One of a server that was killed would be taken for ours.
		if err := os.Remove(f.readyFile); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("--ready-file: %w", err)
		}
	}
	running, stop := context.WithCancel(ctx)
	defer stop()
	a.tuneMemory(running)
	ended := make(chan error, 1)
	go func() { ended <- srv.Run(running) }()
	select {
	case err := <-ended:
		return explainRun(err)
	case <-srv.Ready():
	}
	if f.readyFile != "" {
		if err := writeReady(f.readyFile, ready{srv.GRPCAddr(), srv.HTTPAddr(), os.Getpid()}); err != nil {
			stop()
			return errors.Join(fmt.Errorf("--ready-file: %w", err), <-ended)
		}
		defer func() { _ = os.Remove(f.readyFile) }()
	}
	a.banner(srv, f)
	select {
	case err := <-ended:
		return explainRun(err)
	case <-ctx.Done():
		fmt.Fprintln(a.stderr, "turnlane: draining: running turns may end first; a second signal exits at once")
	}
	return explainRun(<-ended)
}

func (a *app) banner(srv *turnlane.Server, f devFlags) {
	where := "in memory; --data DIR keeps it"
	if f.data != "" {
		where = "in " + printable(f.data)
	}
	export := ""
	if srv.GRPCAddr() != client.DefaultAddr {
		export = "  export " + client.EnvAddr + "=" + srv.GRPCAddr() + "\n"
	}
	fmt.Fprintf(a.stdout, `Turnlane %s is ready (%s)
  gRPC  %s
  HTTP  http://%s
Try in another terminal:
%s  turnlane worker create --type echo --topic hello --config out=heard --start
  turnlane pub hello '{"text":"hi"}'
  turnlane tail heard --from earliest
Ctrl-C stops it.
`, turnlane.Version, where, srv.GRPCAddr(), srv.HTTPAddr(), export)
}

// ready is what the ready file holds.
type ready struct {
	GRPC string `json:"grpc"`
	HTTP string `json:"http"`
	PID  int    `json:"pid"`
}

// writeReady writes the file so that whoever sees it sees all of it.
func writeReady(path string, r ready) error {
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	_, err = f.Write(append(text, '\n'))
	if err = errors.Join(err, f.Chmod(0o644), f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}

// explainRun adds what to do to the errors of a start.
func explainRun(err error) error {
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf(`%s; is another "turnlane dev" running? Stop it, or choose other addresses with --grpc and --http (port 0 picks a free one)`, plain(err))
	}
	if err != nil {
		return errors.New(plain(err))
	}
	return nil
}

// plain is an error of the server without the package's name, which the command says already, on one
// line.
func plain(err error) string {
	return strings.ReplaceAll(strings.TrimPrefix(err.Error(), "turnlane: "), "\n", "; ")
}
