package pebblestore

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Fsync says when writes are forced to the disk.
type Fsync int

const (
	// Always syncs before a write is acknowledged or read: nothing acknowledged is ever lost.
	Always Fsync = iota
	// Interval syncs every FsyncInterval: an end of the process loses at most what came since.
	Interval
	// Never leaves it to the operating system.
	Never
)

// ParseFsync reads "always", "interval" or "never".
func ParseFsync(s string) (Fsync, error) {
	for f := Always; f <= Never; f++ {
		if s == f.String() {
			return f, nil
		}
	}
	return 0, fmt.Errorf("fsync %q: want always, interval or never", s)
}

func (f Fsync) String() string {
	switch f {
	case Always:
		return "always"
	case Interval:
		return "interval"
	case Never:
		return "never"
	}
	return fmt.Sprintf("Fsync(%d)", int(f))
}

// Options configure a Store. The zero value is a store in memory.
type Options struct {
	// Dir is the directory of the database, made if missing; only one process can have it open. ""
	// keeps everything in memory: nothing is synced, and nothing survives Close.
	Dir string
	// Fsync says when writes are durable; without effect in memory. Default Always.
	Fsync Fsync
	// FsyncInterval is the time between two syncs under Interval. Default 1 s.
	FsyncInterval time.Duration
	// FreeSpaceFloor is the free space of Dir's disk, in bytes, below which all writes but trims and
	// deletions are refused with ErrExhausted. Default 64 MiB; negative switches the check off.
	FreeSpaceFloor int64
	// MemoryLimit is how many bytes of records all topics of a store in memory may hold together. What
	// is above is trimmed, oldest entries first, from the topics that hold most. Default 256 MiB;
	// without effect on disk.
	MemoryLimit uint64

	// Clock gives the wall time of positions and sessions. It may step. Default time.Now.
	Clock func() time.Time
	// Elapsed gives the time that has passed since some start, by a clock that never steps. Sessions
	// expire by it. Default the monotonic clock.
	Elapsed func() time.Duration
	// FS is the file system of Dir. Default the operating system's; without effect in memory.
	FS vfs.FS
	// Logger is told of trouble, and on level Debug of what Pebble does. Default: discard.
	Logger *slog.Logger
	// OnFatal is called, once, when the database can't go on: on-disk state is then only known by
	// opening it again. Default: print one line to stderr and end the process with status 1. If it
	// returns, all further calls fail with ErrUnavailable.
	OnFatal func(error)
}

const (
	defaultFreeSpaceFloor = 64 << 20
	defaultMemoryLimit    = 256 << 20
)

// withDefaults returns complete options, or every problem there is.
func (o Options) withDefaults() (Options, error) {
	var problems []error
	if o.Fsync < Always || o.Fsync > Never {
		problems = append(problems, fmt.Errorf("Fsync is %d: want Always, Interval or Never", int(o.Fsync)))
	}
	if o.FsyncInterval < 0 {
		problems = append(problems, fmt.Errorf("FsyncInterval is %s: want a positive duration", o.FsyncInterval))
	}
	if o.FsyncInterval == 0 {
		o.FsyncInterval = time.Second
	}
	if o.FreeSpaceFloor == 0 {
		o.FreeSpaceFloor = defaultFreeSpaceFloor
	}
	if o.MemoryLimit == 0 {
		o.MemoryLimit = defaultMemoryLimit
	}
	if o.MemoryLimit < 1<<20 {
		problems = append(problems, fmt.Errorf("MemoryLimit is %d bytes: want at least 1 MiB", o.MemoryLimit))
	}
	if o.Clock == nil {
		o.Clock = time.Now
	}
	if o.Elapsed == nil {
		start := time.Now()
		o.Elapsed = func() time.Duration { return time.Since(start) }
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.OnFatal == nil {
		o.OnFatal = func(err error) {
			fmt.Fprintf(os.Stderr, "turnlane: the store can't go on and ends the process: %v\n", err)
			os.Exit(1)
		}
	}
	return o, errors.Join(problems...)
}

// inMemory reports whether the store lives and dies with the process.
func (o *Options) inMemory() bool { return o.Dir == "" }
