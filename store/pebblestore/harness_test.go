package pebblestore_test

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/store"
	"github.com/turnlane/turnlane/store/pebblestore"
	"github.com/turnlane/turnlane/store/storetest"
)

// clocks are a wall clock and an elapsed time that tests move.
type clocks struct {
	mu      sync.Mutex
	wall    time.Time
	elapsed time.Duration
}

func newClocks() *clocks { return &clocks{wall: time.Date(2026, 5, 1, 0, 0, 0, 0, time.UTC)} }

func (c *clocks) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.wall
}

func (c *clocks) Elapsed() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.elapsed
}

func (c *clocks) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wall = c.wall.Add(d)
	c.elapsed += d
}

func (c *clocks) Step(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wall = c.wall.Add(d)
}

// crashFS is a file system that can take a picture of what a sudden end would leave, at its n-th write.
type crashFS struct {
	*vfs.MemFS
	left    atomic.Int64 // writes until the picture; negative when there is none to take
	over    atomic.Bool
	picture *vfs.MemFS // set before the write goes on
	kept    int        // percent of unsynced data that survives
}

func newCrashFS(mem *vfs.MemFS) *crashFS {
	f := &crashFS{MemFS: mem}
	f.left.Store(-1)
	return f
}

func (f *crashFS) at(n, kept int) func() bool {
	f.kept = kept
	f.over.Store(false)
	f.left.Store(int64(n))
	return f.over.Load
}

func (f *crashFS) write() {
	if f.left.Load() < 0 || f.left.Add(-1) != 0 {
		return
	}
	// First over, then the picture: whoever is answered before over is set relied on writes that are
	// in the picture.
	f.over.Store(true)
	f.picture = f.clone(f.kept)
}

func (f *crashFS) clone(kept int) *vfs.MemFS {
	return f.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: kept, RNG: rand.New(rand.NewPCG(7, 7))})
}

func (f *crashFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f.write()
	return f.file(f.MemFS.Create(name, c))
}

func (f *crashFS) OpenReadWrite(name string, c vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	f.write()
	return f.file(f.MemFS.OpenReadWrite(name, c, opts...))
}

func (f *crashFS) ReuseForWrite(oldname, newname string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f.write()
	return f.file(f.MemFS.ReuseForWrite(oldname, newname, c))
}

func (f *crashFS) OpenDir(name string) (vfs.File, error) { return f.file(f.MemFS.OpenDir(name)) }
func (f *crashFS) Remove(name string) error              { f.write(); return f.MemFS.Remove(name) }
func (f *crashFS) Rename(oldname, newname string) error {
	f.write()
	return f.MemFS.Rename(oldname, newname)
}
func (f *crashFS) Link(oldname, newname string) error {
	f.write()
	return f.MemFS.Link(oldname, newname)
}

func (f *crashFS) file(file vfs.File, err error) (vfs.File, error) {
	if err != nil {
		return nil, err
	}
	return &crashFile{file, f}, nil
}

type crashFile struct {
	vfs.File
	fs *crashFS
}

func (f *crashFile) Write(p []byte) (int, error) { f.fs.write(); return f.File.Write(p) }
func (f *crashFile) Sync() error                 { f.fs.write(); return f.File.Sync() }
func (f *crashFile) SyncData() error             { f.fs.write(); return f.File.SyncData() }

// diskHarness is a store on a file system that forgets what was not synced.
func diskHarness(t *testing.T, change func(*pebblestore.Options)) *storetest.Harness {
	t.Helper()
	c := newClocks()
	h := &storetest.Harness{Advance: c.Advance, StepClock: c.Step}
	fs := newCrashFS(vfs.NewCrashableMem())
	var s *pebblestore.Store
	open := func() store.Store {
		t.Helper()
		opts := pebblestore.Options{
			Dir: "data", FS: fs, Clock: c.Now, Elapsed: c.Elapsed,
			OnFatal: func(err error) { t.Errorf("the store failed: %v", err) },
		}
		if change != nil {
			change(&opts)
		}
		var err error
		if s, err = pebblestore.Open(opts); err != nil {
			t.Fatal(err)
		}
		h.Store = s
		return s
	}
	shut := func() {
		t.Helper()
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	}
	open()
	t.Cleanup(func() { shut() })
	h.Reopen = func() store.Store { shut(); return open() }
	h.Crash = func() store.Store {
		left := fs.picture
		if left == nil {
			left = fs.clone(rand.IntN(101))
		}
		shut()
		fs = newCrashFS(left)
		return open()
	}
	h.CrashAt = func(at int) func() bool { return fs.at(at, at%3*50) }
	h.Lift = func(topic string, to event.Position) {
		if err := s.Lift(topic, to); err != nil {
			t.Fatal(err)
		}
	}
	h.Break = func(key string) {
		if err := s.SetRaw(pebblestore.SpaceRegistry, key, []byte("not a record at all")); err != nil {
			t.Fatal(err)
		}
	}
	return h
}

func TestOnDisk(t *testing.T) {
	storetest.Run(t, func(t *testing.T) *storetest.Harness { return diskHarness(t, nil) })
}

// TestOnDiskSyncedNowAndThen: the promises that are not about sudden ends hold without syncs too.
func TestOnDiskSyncedNowAndThen(t *testing.T) {
	storetest.Run(t, func(t *testing.T) *storetest.Harness {
		h := diskHarness(t, func(o *pebblestore.Options) {
			o.Fsync, o.FsyncInterval = pebblestore.Interval, time.Hour
		})
		h.Crash, h.CrashAt = nil, nil
		return h
	})
}

// TestWithSmallCaches: nothing depends on what is in memory.
func TestWithSmallCaches(t *testing.T) {
	storetest.Run(t, func(t *testing.T) *storetest.Harness {
		h := diskHarness(t, nil)
		h.Store.(*pebblestore.Store).BoundCaches()
		h.CrashAt = nil
		reopen := h.Reopen
		h.Reopen = func() store.Store {
			s := reopen()
			s.(*pebblestore.Store).BoundCaches()
			return s
		}
		return h
	})
}

func TestInMemory(t *testing.T) {
	storetest.Run(t, func(t *testing.T) *storetest.Harness {
		c := newClocks()
		s, err := pebblestore.Open(pebblestore.Options{Clock: c.Now, Elapsed: c.Elapsed})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		return &storetest.Harness{Store: s, Advance: c.Advance, StepClock: c.Step}
	})
}
