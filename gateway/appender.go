package gateway

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/store"
)

// How much one flush takes of what waits for a topic. It always takes one batch.
const (
	flushEvents = 512
	flushBytes  = 128 << 10
)

// lineShards spreads topics over locks.
const lineShards = 64

// appender takes batches of many callers to the store. Batches for one topic that come while another
// append to it is under way wait in the topic's line, and go to the store together: nobody waits for
// a batch to fill up, and under load one append carries many. Topics do not wait for each other.
//
// What is handed over and not yet answered is bounded in bytes; above that, callers wait.
type appender struct {
	log      store.Log
	room     *semaphore.Weighted // bytes
	capacity int64
	inFlight atomic.Int64                          // bytes
	flushed  func(topic string, events, bytes int) // after every append that stored something; must not block

	// cut ends the appends that are left when closing takes too long.
	cut    context.Context
	cutNow context.CancelFunc

	shards [lineShards]lineShard
}

type lineShard struct {
	mu     sync.Mutex
	lines  map[string]*line
	spare  []*line
	closed bool
	empty  chan struct{} // closed when closed and no line is left
}

// line is a topic with an append under way. Guarded by the shard's lock.
type line struct {
	waiting []*batch
}

// batch is one caller's records on their way.
type batch struct {
	topic   string
	records []event.Record
	bytes   int64
	taken   bool          // on its way to the store: no way back. Guarded by the shard's lock
	done    chan struct{} // gets one value when the fields below are set

	positions []event.Position
	err       error
}

// spareLines bounds what a shard keeps for reuse.
const spareLines = 16

func newAppender(log store.Log, capacity int64, flushed func(string, int, int)) *appender {
	a := &appender{log: log, room: semaphore.NewWeighted(capacity), capacity: capacity, flushed: flushed}
	a.cut, a.cutNow = context.WithCancel(context.Background())
	for i := range a.shards {
		a.shards[i].lines = make(map[string]*line)
		a.shards[i].empty = make(chan struct{})
	}
	return a
}

func (a *appender) shard(topic string) *lineShard {
	h := uint32(2166136261)
	for i := range len(topic) {
		h = (h ^ uint32(topic[i])) * 16777619
	}
	return &a.shards[(h^h>>16)%lineShards]
}

// append stores records and returns their positions. If nothing else is under way for the topic, the
// caller itself does it, without a change of goroutines.
func (a *appender) append(ctx context.Context, topic string, records []event.Record) ([]event.Position, error) {
	b, err := a.admit(ctx, topic, records)
	if err != nil {
		return nil, err
	}
	s := a.shard(topic)
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		a.release(b.bytes)
		return nil, errShuttingDown()
	}
	if l, busy := s.lines[topic]; busy {
		l.waiting = append(l.waiting, b)
		s.mu.Unlock()
		return a.wait(ctx, b)
	}
	l := s.open(topic)
	s.mu.Unlock()

	out, err := a.log.Append(ctx, topic, []store.Batch{{Records: records}})
	a.settle(topic, []*batch{b}, out, err)
	s.mu.Lock()
	if len(l.waiting) > 0 {
		go a.drain(s, topic, l)
	} else {
		s.shut(topic, l)
	}
	s.mu.Unlock()
	return b.positions, b.err
}

// submit hands records over, in order with earlier calls of the same caller for the topic. The answer
// comes from wait.
func (a *appender) submit(ctx context.Context, topic string, records []event.Record) (*batch, error) {
	b, err := a.admit(ctx, topic, records)
	if err != nil {
		return nil, err
	}
	s := a.shard(topic)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		a.release(b.bytes)
		return nil, errShuttingDown()
	}
	l, busy := s.lines[topic]
	if !busy {
		l = s.open(topic)
		go a.drain(s, topic, l)
	}
	l.waiting = append(l.waiting, b)
	return b, nil
}

// wait returns what became of a batch. A caller that goes away while its batch still waits takes it
// back; once the batch is on its way, its outcome is open.
func (a *appender) wait(ctx context.Context, b *batch) ([]event.Position, error) {
	select {
	case <-b.done:
		return b.positions, b.err
	default:
	}
	select {
	case <-b.done:
		return b.positions, b.err
	case <-ctx.Done():
	}
	s := a.shard(b.topic)
	s.mu.Lock()
	if !b.taken {
		l := s.lines[b.topic]
		for i, w := range l.waiting {
			if w == b {
				l.waiting = append(l.waiting[:i], l.waiting[i+1:]...)
				break
			}
		}
		s.mu.Unlock()
		a.release(b.bytes)
		return nil, context.Cause(ctx)
	}
	s.mu.Unlock()
	select {
	case <-b.done: // it came meanwhile
		return b.positions, b.err
	default:
		return nil, fmt.Errorf("%w: %w while the store was at it", store.ErrOutcomeUnknown, context.Cause(ctx))
	}
}

// admit waits until there is room for the records.
func (a *appender) admit(ctx context.Context, topic string, records []event.Record) (*batch, error) {
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	b := &batch{topic: topic, records: records, done: make(chan struct{}, 1)}
	for _, r := range records {
		b.bytes += int64(len(r))
	}
	b.bytes = min(b.bytes, a.capacity) // a larger batch goes alone
	if err := a.room.Acquire(ctx, b.bytes); err != nil {
		return nil, err
	}
	a.inFlight.Add(b.bytes)
	return b, nil
}

func (a *appender) release(bytes int64) {
	a.inFlight.Add(-bytes)
	a.room.Release(bytes)
}

// drain appends what waits in a line until nothing does.
func (a *appender) drain(s *lineShard, topic string, l *line) {
	var taken []*batch
	var batches []store.Batch
	for {
		s.mu.Lock()
		taken = l.take(taken[:0])
		if len(taken) == 0 {
			s.shut(topic, l)
			s.mu.Unlock()
			return
		}
		s.mu.Unlock()
		batches = batches[:0]
		for _, b := range taken {
			batches = append(batches, store.Batch{Records: b.records})
		}
		out, err := a.log.Append(a.cut, topic, batches)
		a.settle(topic, taken, out, err)
		if err != nil {
			// The store may still hold on to the slice of an append that was cut short.
			batches = nil
		}
		clear(taken)
	}
}

// take moves the first batches of the line to dst, as many as one flush carries.
func (l *line) take(dst []*batch) []*batch {
	events, bytes := 0, int64(0)
	for _, b := range l.waiting {
		events += len(b.records)
		bytes += b.bytes
		if len(dst) > 0 && (events > flushEvents || bytes > flushBytes) {
			break
		}
		b.taken = true
		dst = append(dst, b)
	}
	rest := copy(l.waiting, l.waiting[len(dst):])
	clear(l.waiting[rest:])
	l.waiting = l.waiting[:rest]
	return dst
}

// settle answers batches.
func (a *appender) settle(topic string, batches []*batch, out []store.Appended, err error) {
	events, bytes := 0, 0
	var room int64
	for i, b := range batches {
		room += b.bytes
		switch {
		case err != nil:
			b.err = err
		case out[i].Err != nil:
			b.err = out[i].Err
		default:
			b.positions = out[i].Positions
			events += len(b.records)
			for _, r := range b.records {
				bytes += len(r)
			}
		}
	}
	if events > 0 {
		a.flushed(topic, events, bytes)
	}
	for _, b := range batches {
		b.records = nil
		b.done <- struct{}{}
	}
	a.release(room)
}

// close refuses new batches, and returns once those under way are answered. After the limit they are
// cut short, and their outcome is open; a store that does not even let go of them is left behind.
func (a *appender) close(limit time.Duration) {
	for i := range a.shards {
		s := &a.shards[i]
		s.mu.Lock()
		if !s.closed {
			s.closed = true
			if len(s.lines) == 0 {
				close(s.empty)
			}
		}
		s.mu.Unlock()
	}
	defer a.cutNow()
	timer := time.AfterFunc(limit, a.cutNow)
	defer timer.Stop()
	hung := time.NewTimer(limit + time.Second)
	defer hung.Stop()
	for i := range a.shards {
		select {
		case <-a.shards[i].empty:
		case <-hung.C:
			return
		}
	}
}

// open makes a topic busy. The caller holds s.mu.
func (s *lineShard) open(topic string) *line {
	l := &line{}
	if n := len(s.spare); n > 0 {
		l, s.spare = s.spare[n-1], s.spare[:n-1]
	}
	s.lines[topic] = l
	return l
}

// shut ends a line in which nothing waits. The caller holds s.mu.
func (s *lineShard) shut(topic string, l *line) {
	delete(s.lines, topic)
	if len(s.spare) < spareLines && cap(l.waiting) <= 2*flushEvents {
		s.spare = append(s.spare, l)
	}
	if s.closed && len(s.lines) == 0 {
		close(s.empty)
	}
}
