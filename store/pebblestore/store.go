package pebblestore

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/turnlane/turnlane/store"
)

// layoutVersion is the version of the keys and values that this program writes.
const layoutVersion = 1

// Store is a store.Store on one Pebble database. Open makes one.
type Store struct {
	opts   Options
	db     *pebble.DB
	lock   *pebble.Lock
	memory *memoryLog // of a store in memory, else nil
	logger *slog.Logger

	queue    queue
	topics   topicCache
	tails    tailBudget
	hub      newsHub
	watches  keyWatches
	sessions sessions
	synced   progress
	space    spaceGuard
	health   health

	// life is held for reading by whoever uses the database, and for writing by Close.
	life   sync.RWMutex
	closed atomic.Bool
	tasks  sync.WaitGroup
	// work ends when Close begins: what need not be finished stops.
	work     context.Context
	stopWork context.CancelFunc
}

var _ store.Store = (*Store)(nil)

// Open opens the store, making it first if the directory has none, and starts its committer. The caller
// closes it. It fails with ErrUnavailable if another process has the directory, with ErrCorrupt if what
// is there is damaged, and by name if it was written by a newer version.
func Open(opts Options) (*Store, error) {
	opts, err := opts.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("store options: %w", err)
	}
	s := &Store{opts: opts, logger: opts.Logger}
	s.work, s.stopWork = context.WithCancel(context.Background())
	s.health.onFatal = opts.OnFatal
	s.health.logger = opts.Logger
	s.health.stopped = s.work.Done()
	s.sessions.init(opts.Clock, opts.Elapsed)
	s.topics.init()
	s.hub.init()
	s.queue.init()

	counters, err := s.openDatabase()
	if err != nil {
		s.stopWork()
		return nil, fmt.Errorf("open store %s: %w", s.place(), err)
	}
	s.space.init(s.opts.FS, opts.Dir, opts.FreeSpaceFloor, opts.inMemory())

	c := newCommitter(s, counters)
	s.tasks.Go(c.run)
	if opts.Fsync == Interval && !opts.inMemory() {
		s.tasks.Go(s.syncLoop)
	}
	return s, nil
}

func (s *Store) place() string {
	if s.opts.inMemory() {
		return "in memory"
	}
	return s.opts.Dir
}

func (s *Store) openDatabase() (c counters, err error) {
	dir := s.opts.Dir
	if s.opts.inMemory() {
		dir = "memory"
		s.memory = newMemoryLog()
		s.opts.FS = vfs.NewMem()
	} else if s.opts.FS == nil {
		s.opts.FS = vfs.Default
	}
	if err := s.opts.FS.MkdirAll(dir, 0o750); err != nil {
		return c, fmt.Errorf("make the directory: %w", err)
	}
	if s.lock, err = pebble.LockDirectory(dir, s.opts.FS); err != nil {
		return c, fmt.Errorf("%w: the directory is in use by another process (%w)", store.ErrUnavailable, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.lock.Close())
		}
	}()

	if s.db, err = openPebble(dir, s.pebbleOptions()); err != nil {
		if pebble.IsCorruptionError(err) {
			return c, corrupt(err, "the database can't be opened")
		}
		return c, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.db.Close())
		}
	}()

	if err := s.checkLayout(); err != nil {
		return c, err
	}
	value, err := s.get(counterKey)
	if err != nil || value == nil {
		return c, err
	}
	if c, err = decodeCounters(value); err != nil {
		return c, corrupt(err, "the counters")
	}
	return c, nil
}

// openPebble is pebble.Open, but for panics on damaged files, which it returns.
func openPebble(dir string, opts *pebble.Options) (db *pebble.DB, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = corrupt(fmt.Errorf("%v", p), "the database can't be opened")
		}
	}()
	return pebble.Open(dir, opts)
}

// checkLayout marks a new database with the layout's version and refuses one that is not ours, or
// newer than this program.
func (s *Store) checkLayout() error {
	value, err := s.get(formatKey)
	switch {
	case err != nil:
		return err
	case value == nil:
		iter, err := s.db.NewIter(nil)
		if err != nil {
			return err
		}
		empty := !iter.First()
		if err := iter.Close(); err != nil {
			return err
		}
		if !empty {
			return errors.New("the directory holds a Pebble database that was not made by Turnlane")
		}
		w := newWriter(4)
		w.uint(layoutVersion)
		return s.db.Set(formatKey, w.seal(), &pebble.WriteOptions{Sync: !s.opts.inMemory()})
	}
	r := open(value)
	version := r.uint()
	if err := r.done(); err != nil {
		return corrupt(err, "the version of the layout")
	}
	if version > layoutVersion {
		return fmt.Errorf("written by a newer Turnlane (layout %d, this program reads up to %d): upgrade this program",
			version, layoutVersion)
	}
	return nil
}

// get returns a copy of the value of key, nil if there is none. The caller holds life, or is the
// committer, or has the store alone.
func (s *Store) get(key []byte) ([]byte, error) {
	value, closer, err := s.db.Get(key)
	switch {
	case errors.Is(err, pebble.ErrNotFound):
		return nil, nil
	case err != nil:
		return nil, s.readError(err)
	}
	value = append(make([]byte, 0, len(value)), value...)
	return value, closer.Close()
}

// readError gives an error of Pebble its kind.
func (s *Store) readError(err error) error {
	if pebble.IsCorruptionError(err) {
		s.health.corrupted(err)
		return fmt.Errorf("%w: %w", store.ErrCorrupt, err)
	}
	return fmt.Errorf("%w: %w", store.ErrUnavailable, err)
}

// begin admits a call that reads the database; the caller ends with s.life.RUnlock unless it failed.
func (s *Store) begin() error {
	s.life.RLock()
	if s.closed.Load() {
		s.life.RUnlock()
		return store.ErrClosed
	}
	if err := s.health.fatal(); err != nil {
		s.life.RUnlock()
		return err
	}
	return nil
}

// Check reports whether the store serves reads and writes now: it passes an empty write through the
// committer, and fails while background work of the database fails or the disk is full.
func (s *Store) Check(ctx context.Context) error {
	if err := s.submit(ctx, &probe{}); err != nil {
		return fmt.Errorf("check store: %w", err)
	}
	if err := s.health.check(); err != nil {
		return fmt.Errorf("check store: %w", err)
	}
	if err := s.space.err(); err != nil {
		return fmt.Errorf("check store: %w", err)
	}
	return nil
}

// probe is a write of nothing.
type probe struct{ ticket }

func (*probe) stage(*committer) {}
func (*probe) publish(*Store)   {}
func (*probe) grows() bool      { return false }

// Close finishes the writes that were accepted, ends the committer and closes the database. Bells that
// are still open end with ErrClosed, as do later calls. A second Close does nothing.
func (s *Store) Close() error {
	if !s.queue.close() {
		return nil
	}
	s.stopWork()
	s.tasks.Wait()
	s.hub.closeAll()
	s.watches.closeAll()

	s.life.Lock()
	defer s.life.Unlock()
	s.closed.Store(true)
	if s.health.fatal() != nil {
		return nil // Pebble may hold its locks for good
	}
	var err error
	if !s.opts.inMemory() && s.opts.Fsync != Always {
		err = s.db.LogData(nil, pebble.Sync)
	}
	err = errors.Join(err, s.db.Close(), s.lock.Close())
	if s.memory != nil {
		s.memory.release()
	}
	return err
}

// syncLoop makes what was written durable every FsyncInterval.
func (s *Store) syncLoop() {
	ticker := time.NewTicker(s.opts.FsyncInterval)
	defer ticker.Stop()
	var done uint64
	for {
		select {
		case <-s.work.Done():
			return
		case <-ticker.C:
		}
		now := s.synced.reached()
		if now == done || s.health.fatal() != nil {
			continue
		}
		if err := s.guard(func() error { return s.db.LogData(nil, pebble.Sync) }); err != nil {
			s.health.die(fmt.Errorf("sync the log: %w", err))
			continue
		}
		done = now
	}
}

// guard turns a panic of Pebble on a failed write into an error.
func (s *Store) guard(write func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			if cause, ok := p.(error); ok {
				err = cause
			} else {
				err = fmt.Errorf("panic: %v", p)
			}
		}
	}()
	return write()
}

// counters are the numbers that only ever grow.
type counters struct {
	revision uint64 // the last given to a registry record
	topic    uint64 // the last given to a topic's incarnation
}

func (c counters) encode() []byte {
	w := newWriter(20)
	w.uint(c.revision)
	w.uint(c.topic)
	return w.seal()
}

func decodeCounters(value []byte) (counters, error) {
	r := open(value)
	c := counters{revision: r.uint(), topic: r.uint()}
	return c, r.done()
}

// unixNano is t in Unix nanoseconds, the nearest there is for times far away.
func unixNano(t time.Time) int64 {
	const farthest = 1 << 33 // seconds, just inside what nanoseconds can tell
	switch sec := t.Unix(); {
	case sec > farthest:
		return 1<<63 - 1
	case sec < -farthest:
		return noTime
	}
	return t.UnixNano()
}

// storedAt is the stored time of a record in Unix nanoseconds, noTime for one without a header.
func storedAt(record []byte) int64 {
	if len(record) < 13 {
		return noTime
	}
	return int64(binary.BigEndian.Uint64(record[5:]))
}
