package fanout

import (
	"container/heap"
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"
)

// queue is an unbounded queue, first in, first out. Its users put in each topic or feed at most once.
type queue[T any] struct {
	mu     sync.Mutex
	filled sync.Cond
	in     []T // in order
	out    []T // in reverse order
	closed bool
}

func newQueue[T any]() *queue[T] {
	q := &queue[T]{}
	q.filled.L = &q.mu
	return q
}

func (q *queue[T]) push(item T) {
	q.mu.Lock()
	if !q.closed {
		q.in = append(q.in, item)
	}
	q.mu.Unlock()
	q.filled.Signal()
}

// pop waits for an item. It returns false once the queue is closed.
func (q *queue[T]) pop() (item T, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.in)+len(q.out) == 0 && !q.closed {
		q.filled.Wait()
	}
	if q.closed {
		return item, false
	}
	if len(q.out) == 0 {
		q.in, q.out = q.out, q.in
		for i, j := 0, len(q.out)-1; i < j; i, j = i+1, j-1 {
			q.out[i], q.out[j] = q.out[j], q.out[i]
		}
	}
	last := len(q.out) - 1
	item = q.out[last]
	clear(q.out[last:])
	q.out = q.out[:last]
	return item, true
}

func (q *queue[T]) close() {
	q.mu.Lock()
	q.closed = true
	q.in, q.out = nil, nil
	q.mu.Unlock()
	q.filled.Broadcast()
}

// delays calls functions later, from one goroutine. The functions must not block.
type delays struct {
	mu     sync.Mutex
	heap   delayHeap
	sooner chan struct{} // holds one: the heap has a new top
}

type delayedCall struct {
	at time.Time
	do func()
}

func newDelays() *delays { return &delays{sooner: make(chan struct{}, 1)} }

func (d *delays) after(wait time.Duration, do func()) {
	d.mu.Lock()
	heap.Push(&d.heap, delayedCall{time.Now().Add(wait), do})
	d.mu.Unlock()
	select {
	case d.sooner <- struct{}{}:
	default:
	}
}

func (d *delays) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		var calls []func()
		d.mu.Lock()
		now := time.Now()
		for len(d.heap) > 0 && !d.heap[0].at.After(now) {
			calls = append(calls, heap.Pop(&d.heap).(delayedCall).do)
		}
		var next <-chan time.Time
		if len(d.heap) > 0 {
			timer.Reset(d.heap[0].at.Sub(now))
			next = timer.C
		}
		d.mu.Unlock()
		for _, do := range calls {
			do()
		}
		select {
		case <-ctx.Done():
			return
		case <-d.sooner:
		case <-next:
		}
	}
}

type delayHeap []delayedCall

func (h delayHeap) Len() int           { return len(h) }
func (h delayHeap) Less(i, j int) bool { return h[i].at.Before(h[j].at) }
func (h delayHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *delayHeap) Push(x any)        { *h = append(*h, x.(delayedCall)) }
func (h *delayHeap) Pop() any {
	last := len(*h) - 1
	x := (*h)[last]
	(*h)[last] = delayedCall{}
	*h = (*h)[:last]
	return x
}

const (
	minBackoff = 20 * time.Millisecond
	maxBackoff = 5 * time.Second
)

// backoff returns how long to wait after so many failures in a row: twice as long each time, within
// the bounds above, and of that a random half to the whole, so that many do not return at once.
func backoff(failures int) time.Duration {
	wait := maxBackoff
	if shift := max(failures-1, 0); shift < 8 {
		wait = min(maxBackoff, minBackoff<<shift)
	}
	return wait/2 + rand.N(wait/2)
}

// faultLog logs failures of the upstream, one line a second at most: when it is away, all topics fail.
type faultLog struct {
	log *slog.Logger

	mu      sync.Mutex
	last    time.Time
	skipped int
}

func (l *faultLog) report(ctx context.Context, doing, topic string, err error) {
	if ctx.Err() != nil {
		return // the end of Run is no fault
	}
	if skipped, due := l.due(); due {
		l.log.Warn("the fan-out's upstream fails, will try again", "doing", doing, "topic", topic, "error", err, "more_failures", skipped)
	}
}

// due reports whether a line may be logged now, and how many were not since the last one.
func (l *faultLog) due() (skipped int, due bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if time.Since(l.last) < time.Second {
		l.skipped++
		return 0, false
	}
	skipped = l.skipped
	l.last, l.skipped = time.Now(), 0
	return skipped, true
}
