package turnlane

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/turnlane/turnlane/store/pebblestore"
)

// Version is the version of this module, as `turnlane version` and sessions show it.
const Version = "0.1.0"

// Fsync says when the embedded store forces writes to the disk.
type Fsync = pebblestore.Fsync

// When writes are forced to the disk. The embedded store on disk uses FsyncAlways unless told
// otherwise; in memory it makes no difference.
const (
	FsyncAlways   = pebblestore.Always   // before a write is acknowledged
	FsyncInterval = pebblestore.Interval // every second
	FsyncNever    = pebblestore.Never    // when the operating system likes
)

// Defaults of Config.
const (
	DefaultGRPCAddr     = "127.0.0.1:7400"
	DefaultHTTPAddr     = "127.0.0.1:7401"
	DefaultDrainTimeout = 10 * time.Second
)

// Config configures a Server. The zero value is a server in memory on the default addresses.
type Config struct {
	// DataDir is where the embedded store keeps its files; it is made if missing, and belongs to one
	// process at a time. "" keeps everything in memory: nothing survives the process.
	DataDir string
	// Fsync is for stores on disk. Default FsyncAlways.
	Fsync Fsync
	// GRPCAddr and HTTPAddr are the listening addresses. Port 0 picks a free one. Default
	// DefaultGRPCAddr and DefaultHTTPAddr.
	GRPCAddr, HTTPAddr string
	// Pod is the process's name in what it reports. Default the host's name.
	Pod string
	// DrainTimeout bounds how long a stop waits for running turns. Default 10 s.
	DrainTimeout time.Duration
	// MaxTurns bounds the turns of a worker type that are under way at the same time, so that many long
	// ones leave the rest of the machine to others. A type that it does not name has no bound. Workers
	// that wait are served in the order of their asking.
	MaxTurns map[string]int
	// TracerProvider makes OpenTelemetry spans of publish calls and of turns. A turn's span is in the trace
	// of its event, as the event's traceparent says, and the outputs of the turn carry the span on. The
	// provider, with its exporter, is the program's own: it shuts it down after Run. Default: no spans.
	TracerProvider trace.TracerProvider
	// Logger gets what a person should know. Default: warnings and errors to standard error.
	Logger *slog.Logger
}

// withDefaults returns a complete Config, or every problem of c at once.
func (c Config) withDefaults() (Config, error) {
	var problems []error
	for _, a := range []struct {
		field    string
		value    *string
		fallback string
	}{
		{"GRPCAddr", &c.GRPCAddr, DefaultGRPCAddr},
		{"HTTPAddr", &c.HTTPAddr, DefaultHTTPAddr},
	} {
		if *a.value == "" {
			*a.value = a.fallback
		}
		if _, err := net.ResolveTCPAddr("tcp", *a.value); err != nil {
			problems = append(problems, fmt.Errorf("%s %q: want host:port: %w", a.field, *a.value, err))
		}
	}
	if c.DrainTimeout < 0 {
		problems = append(problems, fmt.Errorf("DrainTimeout %s: want a positive duration", c.DrainTimeout))
	}
	for typ, n := range c.MaxTurns {
		if n < 1 {
			problems = append(problems, fmt.Errorf("MaxTurns[%q] is %d: want 1 or more, or leave it out for no bound", typ, n))
		}
	}
	if c.DrainTimeout == 0 {
		c.DrainTimeout = DefaultDrainTimeout
	}
	if c.Pod == "" {
		c.Pod, _ = os.Hostname()
		if c.Pod == "" {
			c.Pod = "turnlane"
		}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	}
	return c, errors.Join(problems...)
}
