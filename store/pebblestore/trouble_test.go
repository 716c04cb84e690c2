package pebblestore_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/goleak"

	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/store"
	"github.com/turnlane/turnlane/store/pebblestore"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

func mustOpen(t *testing.T, opts pebblestore.Options) *pebblestore.Store {
	t.Helper()
	s, err := pebblestore.Open(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func appendOne(s *pebblestore.Store, topic, body string) ([]store.Appended, error) {
	return s.Append(context.Background(), topic, []store.Batch{{Records: []event.Record{record(time.Now(), body)}}})
}

func TestDirectoryInUse(t *testing.T) {
	dir := t.TempDir()
	mustOpen(t, pebblestore.Options{Dir: dir})
	_, err := pebblestore.Open(pebblestore.Options{Dir: dir})
	if !errors.Is(err, store.ErrUnavailable) || !strings.Contains(err.Error(), dir) || !strings.Contains(err.Error(), "in use") {
		t.Fatal(err)
	}
}

func TestDirectoryOfSomethingElse(t *testing.T) {
	dir := t.TempDir()
	db, err := pebble.Open(dir, &pebble.Options{Logger: quiet{}})
	if err != nil {
		t.Fatal(err)
	}
	db.Set([]byte("k"), nil, pebble.Sync)
	db.Close()
	if _, err = pebblestore.Open(pebblestore.Options{Dir: dir}); err == nil || !strings.Contains(err.Error(), dir) || !strings.Contains(err.Error(), "not made by Turnlane") {
		t.Fatal(err)
	}
}

type quiet struct{}

func (quiet) Infof(string, ...any)  {}
func (quiet) Errorf(string, ...any) {}
func (quiet) Fatalf(string, ...any) {}

func TestNewerLayout(t *testing.T) {
	dir := t.TempDir()
	s := mustOpen(t, pebblestore.Options{Dir: dir})
	if err := s.SetLayout(99); err != nil {
		t.Fatal(err)
	}
	s.Close()
	_, err := pebblestore.Open(pebblestore.Options{Dir: dir})
	if err == nil || !strings.Contains(err.Error(), "layout 99") || !strings.Contains(err.Error(), dir) {
		t.Fatal(err)
	}
}

func TestBadOptions(t *testing.T) {
	_, err := pebblestore.Open(pebblestore.Options{Fsync: 7, FsyncInterval: -1, MemoryLimit: 1})
	for _, name := range []string{"Fsync ", "FsyncInterval", "MemoryLimit"} {
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%v does not tell of %s", err, name)
		}
	}
	if _, err := pebblestore.ParseFsync("sometimes"); err == nil {
		t.Error("an unknown fsync was taken")
	}
}

// TestDamagedFiles: whatever byte of whatever file is damaged, the store opens or says ErrCorrupt (or
// that it is not ours); reads return what was written or ErrCorrupt; nothing panics.
func TestDamagedFiles(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "good")
	s := mustOpen(t, pebblestore.Options{Dir: dir})
	for i := range 300 {
		if _, err := appendOne(s, "a", fmt.Sprint(i, strings.Repeat("x", 300))); err != nil {
			t.Fatal(err)
		}
		if i == 150 {
			s.Flush()
		}
	}
	s.Close()
	var files []string
	filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if info, _ := d.Info(); err == nil && !d.IsDir() && info.Size() > 0 {
			files = append(files, path)
		}
		return err
	})
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, at := range []int{0, len(content) / 3, len(content) / 2, len(content) - 1} {
			t.Run(fmt.Sprint(filepath.Base(file), " ", at), func(t *testing.T) {
				bad := filepath.Join(t.TempDir(), "bad")
				if err := os.CopyFS(bad, os.DirFS(dir)); err != nil {
					t.Fatal(err)
				}
				damaged := append([]byte(nil), content...)
				damaged[at] ^= 0x55
				if err := os.WriteFile(filepath.Join(bad, filepath.Base(file)), damaged, 0o600); err != nil {
					t.Fatal(err)
				}
				s, err := pebblestore.Open(pebblestore.Options{Dir: bad, OnFatal: func(error) {}})
				if err != nil {
					t.Log(err)
					if !strings.Contains(err.Error(), bad) {
						t.Errorf("%v does not name %s", err, bad)
					}
					return
				}
				defer s.Close()
				p, err := s.Read(t.Context(), "a", event.Position{}, store.ReadLimit{})
				if err != nil {
					if !errors.Is(err, store.ErrCorrupt) {
						t.Errorf("read: %v", err)
					}
					if err := s.Check(t.Context()); !errors.Is(err, store.ErrCorrupt) {
						t.Errorf("check: %v", err)
					}
					return
				}
				for i, e := range p.Entries {
					if want := fmt.Sprint(i, strings.Repeat("x", 300)); string(e.Record[13:]) != want {
						t.Fatalf("entry %d is %q", i, e.Record[13:])
					}
				}
			})
		}
	}
}

// TestGarbledValues: our own values that are not what they should be are errors by name.
func TestGarbledValues(t *testing.T) {
	for _, value := range []string{"", "x", "\x01aaaa", strings.Repeat("\xff", 300)} {
		s := mustOpen(t, pebblestore.Options{})
		for _, space := range []byte{pebblestore.SpaceTopic, pebblestore.SpaceOwner, pebblestore.SpaceRegistry} {
			if err := s.SetRaw(space, "bad", []byte(value)); err != nil {
				t.Fatal(err)
			}
		}
		_, read := s.Read(t.Context(), "bad", event.Position{}, store.ReadLimit{})
		_, add := appendOne(s, "bad", "x")
		_, list := s.Topics(t.Context(), "", "", 0)
		_, own := s.Owner(t.Context(), "bad")
		x, _ := s.OpenSession(t.Context(), store.SessionInfo{}, time.Minute)
		_, acquire := s.Acquire(t.Context(), "bad", x.ID)
		_, get := s.Get(t.Context(), "bad")
		for name, err := range map[string]error{"read": read, "append": add, "list": list, "owner": own, "acquire": acquire, "get": get} {
			if !errors.Is(err, store.ErrCorrupt) || !strings.Contains(err.Error(), "bad") {
				t.Errorf("%q: %s: %v", value, name, err)
			}
		}
		if _, err := appendOne(s, "good", "x"); err != nil {
			t.Error(err)
		}
	}
}

// fullDisk is a disk that says how much is free on it.
type fullDisk struct {
	vfs.FS
	free atomic.Uint64
}

func (d *fullDisk) GetDiskUsage(string) (vfs.DiskUsage, error) {
	return vfs.DiskUsage{AvailBytes: d.free.Load()}, nil
}

func TestFullDisk(t *testing.T) {
	disk := &fullDisk{FS: vfs.NewMem()}
	disk.free.Store(1 << 40)
	s := mustOpen(t, pebblestore.Options{Dir: "d", FS: disk})
	ctx := t.Context()
	x, _ := s.OpenSession(ctx, store.SessionInfo{}, time.Minute)
	o, err := s.Acquire(ctx, "w", x.ID)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := appendOne(s, "a", "before"); err != nil {
		t.Fatal(err)
	}
	s.Txn(ctx, store.Change{Key: "k", If: store.Any})

	disk.free.Store(63 << 20)
	s.LookAtDisk()
	_, add := appendOne(s, "a", "x")
	_, txn := s.Txn(ctx, store.Change{Key: "k2", If: store.Any})
	_, commit := s.Commit(ctx, []store.Commit{{Owner: o}})
	_, acquire := s.Acquire(ctx, "w2", x.ID)
	for name, err := range map[string]error{"append": add, "txn": txn, "commit": commit, "acquire": acquire, "check": s.Check(ctx)} {
		if !errors.Is(err, store.ErrExhausted) {
			t.Errorf("%s: %v", name, err)
		}
	}
	p, err := s.Read(ctx, "a", event.Position{}, store.ReadLimit{})
	if err != nil || len(p.Entries) != 1 {
		t.Error("read", p, err)
	}
	_, trim := s.Trim(ctx, "a", store.TrimLimit{UpTo: event.MaxPosition})
	_, del := s.Txn(ctx, store.Change{Key: "k", Delete: true, If: store.Any})
	if err := errors.Join(trim, del, s.Release(ctx, o), s.Forget(ctx, "w"), s.DeleteTopic(ctx, "a")); err != nil {
		t.Error("what frees space is let through:", err)
	}

	disk.free.Store(1 << 40)
	s.LookAtDisk()
	if _, err := appendOne(s, "a", "after"); err != nil {
		t.Error(err)
	}
	if err := s.Check(ctx); err != nil {
		t.Error(err)
	}
}

// brokenDisk fails every sync of the log from some moment on.
type brokenDisk struct {
	vfs.FS
	broken atomic.Bool
}

type brokenFile struct {
	vfs.File
	disk *brokenDisk
}

func (d *brokenDisk) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := d.FS.Create(name, c)
	if err != nil || !strings.HasSuffix(name, ".log") {
		return f, err
	}
	return &brokenFile{f, d}, nil
}

func (f *brokenFile) fail() error {
	if f.disk.broken.Load() {
		return syscall.EIO
	}
	return nil
}

func (f *brokenFile) Sync() error { return errors.Join(f.fail(), f.File.Sync()) }
func (f *brokenFile) SyncData() error {
	return errors.Join(f.fail(), f.File.SyncData())
}

// TestBrokenDisk: a sync that fails ends the store once, with one reason; whoever waits is told that the
// outcome is unknown, everyone after that the store is unavailable.
func TestBrokenDisk(t *testing.T) {
	disk := &brokenDisk{FS: vfs.NewMem()}
	fatal := make(chan error, 10)
	s := mustOpen(t, pebblestore.Options{Dir: "d", FS: disk, OnFatal: func(err error) { fatal <- err }})
	if _, err := appendOne(s, "a", "good"); err != nil {
		t.Fatal(err)
	}
	disk.broken.Store(true)
	if _, err := appendOne(s, "a", "bad"); !errors.Is(err, store.ErrOutcomeUnknown) {
		t.Errorf("append: %v", err)
	}
	if err := <-fatal; !errors.Is(err, syscall.EIO) {
		t.Errorf("fatal: %v", err)
	}
	_, again := appendOne(s, "a", "later")
	_, read := s.Read(t.Context(), "a", event.Position{}, store.ReadLimit{})
	for name, err := range map[string]error{"append": again, "read": read, "check": s.Check(t.Context())} {
		if !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if len(fatal) != 0 {
		t.Error("it was told twice")
	}
	disk.broken.Store(false)
	s.Abandon()
}

// TestTrimFreesDisk: what is trimmed is gone from the disk, without the store being closed.
func TestTrimFreesDisk(t *testing.T) {
	mem := vfs.NewMem()
	s := mustOpen(t, pebblestore.Options{Dir: "d", FS: mem, Fsync: pebblestore.Never})
	if err := flood(s, 1, 64_000); err != nil {
		t.Fatal(err)
	}
	before := s.TableBytes()
	if _, err := s.Trim(t.Context(), "t0", store.TrimLimit{MaxBytes: 4 << 20}); err != nil {
		t.Fatal(err)
	}
	s.AwaitCompactions()
	if after := s.TableBytes(); after > 8<<20 {
		t.Fatalf("%d MiB on disk before the trim to 4 MiB, %d MiB after: %s", before>>20, after>>20, s.Describe())
	}
}

func TestAppendsThatEndEarly(t *testing.T) {
	s := mustOpen(t, pebblestore.Options{Dir: t.TempDir()})
	release := s.Stall()
	var errs []error
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	waiting, stop := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		_, err := s.Append(waiting, "a", []store.Batch{{Records: []event.Record{record(time.Now(), "x")}}})
		done <- err
	}()
	for s.Queued() == 0 {
		runtime.Gosched()
	}
	stop()
	errs = append(errs, <-done)
	_, err := s.Append(ctx, "a", []store.Batch{{Records: []event.Record{record(time.Now(), "x")}}})
	errs = append(errs, err)
	for _, err := range errs {
		if !errors.Is(err, context.Canceled) || errors.Is(err, store.ErrOutcomeUnknown) {
			t.Errorf("not yet begun: %v", err)
		}
	}
	release()
	if b, _ := s.Bounds(t.Context(), "a"); b.Incarnation != "" {
		t.Errorf("an abandoned append was stored: %+v", b)
	}
}
