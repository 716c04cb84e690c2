package pebblestore

import "github.com/cockroachdb/pebble/v2/vfs"

// memoryFS is the file system of a store in memory.
type memoryFS struct{ vfs.FS }

func newMemoryFS() *memoryFS { return &memoryFS{vfs.NewMem()} }
