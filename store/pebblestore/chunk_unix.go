//go:build unix

package pebblestore

import (
	"fmt"
	"syscall"
)

// newChunk returns zeroed memory that the garbage collector does not know of.
func newChunk(size int) ([]byte, error) {
	c, err := syscall.Mmap(-1, 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes of memory: %w", size, err)
	}
	return c, nil
}

func freeChunk(c []byte) {
	if err := syscall.Munmap(c); err != nil {
		panic(fmt.Sprintf("pebblestore: unmap memory: %v", err)) // it was not from newChunk
	}
}
