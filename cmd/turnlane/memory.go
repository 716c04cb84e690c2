package main

import (
	"context"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

const (
	// Garbage is collected when the heap has grown by so many percent. A server makes much garbage and
	// keeps little, so that collecting it earlier costs a good deal of the time and gains little memory.
	gcPercent = 400
	// leastMemory is where garbage is collected earlier than that. It stays well below what a server
	// needs together with the records that a store in memory holds, which are not in the heap.
	leastMemory = 256 << 20
)

// tuneMemory sets how garbage is collected in this process, unless the environment says it, and goes on
// to do so until ctx ends.
func (a *app) tuneMemory(ctx context.Context) {
	if a.getenv("GOGC") != "" || a.getenv("GOMEMLIMIT") != "" {
		return
	}
	debug.SetGCPercent(gcPercent)
	limit := memoryLimit(0, 0)
	debug.SetMemoryLimit(limit)
	go func() {
		ticker := time.NewTicker(time.Second)
		defer ticker.Stop()
		in := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/memory/classes/heap/stacks:bytes"}}
		for {
			select {
			case <-ticker.C:
			case <-ctx.Done():
				return
			}
			metrics.Read(in)
			if next := memoryLimit(in[0].Value.Uint64(), in[1].Value.Uint64()); next != limit {
				limit = next
				debug.SetMemoryLimit(limit)
			}
		}
	}()
}

// memoryLimit is the limit for a heap of which so much is in use. A fixed one would have a server with
// many workers collect garbage all the time once they need more than that: here the heap can always
// grow to twice what is in use, as Go has it by default.
func memoryLimit(live, stacks uint64) int64 {
	const step = 32 << 20 // it is changed seldom: that stops the program for a moment
	return int64(max(leastMemory, (2*live+stacks+step)/step*step+step))
}
