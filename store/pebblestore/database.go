package pebblestore

import (
	"time"

	"github.com/cockroachdb/pebble/v2"
	sst "github.com/cockroachdb/pebble/v2/sstable/block"
)

const (
	cacheBytes = 8 << 20
	// flushDelay bounds how long the space of small trims stays taken.
	flushDelay = 30 * time.Second
)

// pebbleOptions returns small settings: the log is written once, read at its end, and trimmed at its
// start, so a large cache gains nothing. Only what has come to rest in the lowest levels is compressed;
// above, most of the time would go into compressing and expanding the same entries again (measured: a
// third less CPU per event).
func (s *Store) pebbleOptions() *pebble.Options {
	o := &pebble.Options{
		FS:                          s.opts.FS,
		Lock:                        s.lock,
		FormatMajorVersion:          pebble.FormatNewest,
		DisableWAL:                  s.opts.inMemory(),
		CacheSize:                   cacheBytes,
		MemTableSize:                16 << 20,
		MemTableStopWritesThreshold: 4,
		L0CompactionThreshold:       8,
		LBaseMaxBytes:               256 << 20,
		L0StopWritesThreshold:       32,
		MaxOpenFiles:                500,
		FlushDelayDeleteRange:       flushDelay,
		CompactionConcurrencyRange:  func() (int, int) { return 1, 2 },
		Logger:                      &s.health,
		EventListener:               s.health.listener(),
	}
	for i := range o.Levels {
		o.Levels[i].BlockSize = 32 << 10
		o.Levels[i].Compression = func() *sst.CompressionProfile { return sst.NoCompression }
		if i >= len(o.Levels)-2 && !s.opts.inMemory() {
			o.Levels[i].Compression = func() *sst.CompressionProfile { return sst.FastestCompression }
		}
		if s.opts.inMemory() {
			// The log is elsewhere; here are small rows, read one by one from anywhere. To fetch and
			// expand large blocks for them took a third of the time of starting 20,000 workers.
			o.Levels[i].BlockSize = 4 << 10
		}
	}
	if s.opts.inMemory() {
		o.MemTableSize = 2 << 20
	}
	return o
}
