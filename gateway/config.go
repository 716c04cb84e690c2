package gateway

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/trace"

	"github.com/turnlane/turnlane/internal/admission"
	"github.com/turnlane/turnlane/internal/fanout"
	"github.com/turnlane/turnlane/store"
)

// MaxMessageBytes is what a gRPC server for a Gateway with default limits must let in
// (grpc.MaxRecvMsgSize): the largest batch, and room for what is around it.
const MaxMessageBytes = defaultBatchBytes + 4<<20

const (
	defaultBatchBytes  = 16 << 20
	defaultBatchEvents = 65_536
)

// Config is what a Gateway is made of. Zero fields mean the defaults.
type Config struct {
	Store store.Store // required
	Hub   *fanout.Hub // required; run by the caller

	// Commands tells which workers commands may be published to. Default: none.
	Commands Commands

	Logger *slog.Logger // default: discard
	Meter  metric.Meter // default: measure nothing
	// TracerProvider makes a span of each publish call. Default: none.
	TracerProvider trace.TracerProvider

	Retention Retention

	// MaxEventBytes bounds an event as it is stored. Default 1 MiB, at most MaxBatchBytes.
	MaxEventBytes int
	// MaxBatchEvents and MaxBatchBytes (as stored) bound a batch. Default 65,536 and 16 MiB.
	MaxBatchEvents int
	MaxBatchBytes  int
	// InFlightBytes bounds what is on its way to the store; publishers wait above it. Default 64 MiB,
	// at least MaxBatchBytes.
	InFlightBytes int64

	// BufferEvents and BufferBytes bound what waits for one subscriber; one event is always let in.
	// Default 1,024 and 1 MiB.
	BufferEvents int
	BufferBytes  int
	// StallAfter is how long a subscriber may take nothing while events wait. Default 1 min.
	StallAfter time.Duration
	// ReplayEvents and ReplayBytes bound replay_since. Default 10,000 and 64 MiB.
	ReplayEvents int
	ReplayBytes  int64

	// Clock gives the stored time of events, and ages to retention. Default time.Now.
	Clock func() time.Time
}

// Retention is how much of a topic is kept when nobody has set it. Zero fields mean the defaults.
type Retention struct {
	MaxBytes         uint64        // default 1 GiB
	MaxAge           time.Duration // default 7 days
	DeadLetterMaxAge time.Duration // of topics dlq.*; default 14 days
	ReplyMaxAge      time.Duration // of the replies to commands, wrk.<type>.reply.<id>; default 1 hour
	// Every is how often topics are looked at; a look at very many takes longer, so that it never uses
	// more than a hundredth of a processor. Default 1 s.
	Every time.Duration
}

// withDefaults returns a complete configuration, or every problem there is.
func (c Config) withDefaults() (Config, error) {
	var problems []error
	require := func(ok bool, format string, args ...any) {
		if !ok {
			problems = append(problems, fmt.Errorf(format, args...))
		}
	}
	require(c.Store != nil, "Store is not set")
	require(c.Hub != nil, "Hub is not set")
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Meter == nil {
		c.Meter = noop.Meter{}
	}
	if c.Clock == nil {
		c.Clock = time.Now
	}
	orDefault(&c.MaxEventBytes, admission.DefaultMaxEvent)
	orDefault(&c.MaxBatchEvents, defaultBatchEvents)
	orDefault(&c.MaxBatchBytes, defaultBatchBytes)
	orDefault(&c.InFlightBytes, 64<<20)
	orDefault(&c.BufferEvents, 1024)
	orDefault(&c.BufferBytes, 1<<20)
	orDefault(&c.StallAfter, time.Minute)
	orDefault(&c.ReplayEvents, 10_000)
	orDefault(&c.ReplayBytes, 64<<20)
	orDefault(&c.Retention.MaxBytes, 1<<30)
	orDefault(&c.Retention.MaxAge, 7*24*time.Hour)
	orDefault(&c.Retention.DeadLetterMaxAge, 14*24*time.Hour)
	orDefault(&c.Retention.ReplyMaxAge, time.Hour)
	orDefault(&c.Retention.Every, time.Second)

	require(c.MaxEventBytes > 0, "MaxEventBytes is %d: want a positive number", c.MaxEventBytes)
	require(c.MaxBatchEvents > 0, "MaxBatchEvents is %d: want a positive number", c.MaxBatchEvents)
	require(c.MaxBatchBytes >= c.MaxEventBytes, "MaxBatchBytes is %d: want at least MaxEventBytes, %d", c.MaxBatchBytes, c.MaxEventBytes)
	require(c.InFlightBytes >= int64(c.MaxBatchBytes), "InFlightBytes is %d: want at least MaxBatchBytes, %d", c.InFlightBytes, c.MaxBatchBytes)
	require(c.BufferEvents > 0, "BufferEvents is %d: want a positive number", c.BufferEvents)
	require(c.BufferBytes > 0, "BufferBytes is %d: want a positive number", c.BufferBytes)
	require(c.StallAfter > 0, "StallAfter is %s: want a positive duration", c.StallAfter)
	require(c.ReplayEvents > 0, "ReplayEvents is %d: want a positive number", c.ReplayEvents)
	require(c.ReplayBytes > 0, "ReplayBytes is %d: want a positive number", c.ReplayBytes)
	require(c.Retention.MaxAge > 0, "Retention.MaxAge is %s: want a positive duration", c.Retention.MaxAge)
	require(c.Retention.DeadLetterMaxAge > 0, "Retention.DeadLetterMaxAge is %s: want a positive duration", c.Retention.DeadLetterMaxAge)
	require(c.Retention.ReplyMaxAge > 0, "Retention.ReplyMaxAge is %s: want a positive duration", c.Retention.ReplyMaxAge)
	require(c.Retention.Every > 0, "Retention.Every is %s: want a positive duration", c.Retention.Every)
	if len(problems) > 0 {
		return c, fmt.Errorf("gateway: %w", errors.Join(problems...))
	}
	return c, nil
}

func orDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}
