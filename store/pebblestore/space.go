package pebblestore

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/turnlane/turnlane/store"
)

// How often the free space is looked at: the first of these that is reached.
const (
	spaceEvery      = 100 * time.Millisecond
	spaceEveryBytes = 4 << 20
)

// spaceGuard refuses writes while the disk is nearly full: Pebble on a full disk blocks for ever.
type spaceGuard struct {
	fs    vfs.FS
	dir   string
	floor uint64

	// Only used by the committer.
	looked  time.Time
	written int

	free atomic.Uint64
	low  atomic.Bool
}

func (g *spaceGuard) init(fs vfs.FS, dir string, floor int64, inMemory bool) {
	if inMemory || floor < 0 {
		return
	}
	g.fs, g.dir, g.floor = fs, dir, uint64(floor)
	g.look(time.Now())
}

// wrote counts bytes, and looks at the disk when it is time.
func (g *spaceGuard) wrote(bytes int) {
	if g.fs == nil {
		return
	}
	g.written += bytes
	if now := time.Now(); g.written >= spaceEveryBytes || now.Sub(g.looked) >= spaceEvery {
		g.look(now)
	}
}

func (g *spaceGuard) look(now time.Time) {
	g.looked, g.written = now, 0
	usage, err := g.fs.GetDiskUsage(g.dir)
	if err != nil {
		g.low.Store(false) // a disk that can't be asked is not known to be full
		return
	}
	g.free.Store(usage.AvailBytes)
	g.low.Store(usage.AvailBytes < g.floor)
}

// err returns ErrExhausted while the disk is nearly full.
func (g *spaceGuard) err() error {
	if !g.low.Load() {
		return nil
	}
	return fmt.Errorf("%w: %d MiB are free on the disk of %s and writes stop below %d MiB: free space, trim topics, or lower the floor",
		store.ErrExhausted, g.free.Load()>>20, g.dir, g.floor>>20)
}
