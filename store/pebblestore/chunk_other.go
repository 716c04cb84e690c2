//go:build !unix

package pebblestore

// Where memory can't be mapped, tables lie on the heap.

func newChunk(size int) ([]byte, error) { return make([]byte, size), nil }
func freeChunk([]byte)                  {}
