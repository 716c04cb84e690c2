package pebblestore

import (
	"encoding/binary"
	"sync"

	"github.com/turnlane/turnlane/event"
)

// memoryLog holds the entries of a store in memory. They do not go through the database: there they
// would be copied several times by flushes and compactions before a trim frees them, which costs the
// time, and several times the memory. They lie outside of Go's heap, which would take twice their size.
//
// Only the committer changes it. Readers take a topic's lock, copy what they need, and let go.
type memoryLog struct {
	arena arena // only used by the committer

	mu     sync.RWMutex
	topics map[uint64]*memoryTopic
}

// memoryTopic is the log of one incarnation: a segment for each block, the last of which may be open.
type memoryTopic struct {
	mu       sync.RWMutex
	segments []segment
}

// segment holds the entries of one block: for each ms, seq, length, record.
type segment struct {
	data   []byte // from the arena
	start  int    // entries before it are trimmed
	size   int
	end    event.Position // its last entry
	closed bool
	block  block
}

const entryHeader = positionLen + 4

func newMemoryLog() *memoryLog { return &memoryLog{topics: map[uint64]*memoryTopic{}} }

func (l *memoryLog) topic(id uint64) *memoryTopic {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.topics[id]
}

func (l *memoryLog) put(id uint64, p event.Position, r event.Record) error {
	t := l.topic(id)
	if t == nil {
		t = &memoryTopic{}
		l.mu.Lock()
		l.topics[id] = t
		l.mu.Unlock()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if n := len(t.segments); n == 0 || t.segments[n-1].closed {
		t.segments = append(t.segments, segment{})
	}
	sg := &t.segments[len(t.segments)-1]
	need := sg.size + entryHeader + len(r)
	if need > len(sg.data) {
		data, err := l.arena.get(need)
		if err != nil {
			return err
		}
		copy(data, sg.data[:sg.size])
		l.arena.put(sg.data)
		sg.data = data
	}
	b := sg.data[sg.size:need]
	putPosition(b, p)
	binary.BigEndian.PutUint32(b[positionLen:], uint32(len(r)))
	copy(b[entryHeader:], r)
	sg.size, sg.end = need, p
	return nil
}

func (l *memoryLog) closeBlock(id uint64, b block) {
	t := l.topic(id)
	t.mu.Lock()
	defer t.mu.Unlock()
	sg := &t.segments[len(t.segments)-1]
	sg.closed, sg.block = true, b
}

func (l *memoryLog) cut(id uint64, p *trimPlan) {
	t := l.topic(id)
	t.mu.Lock()
	defer t.mu.Unlock()
	n := 0
	for n < len(t.segments) && !p.cut.Less(t.segments[n].end) {
		l.arena.put(t.segments[n].data)
		n++
	}
	clear(t.segments[:n])
	if t.segments = t.segments[n:]; len(t.segments) == 0 {
		t.segments = nil
		return
	}
	sg := &t.segments[0]
	for sg.start < sg.size && !p.cut.Less(getPosition(sg.data[sg.start:])) {
		sg.start += entryHeader + sg.length(sg.start)
	}
	if p.shortened {
		sg.block = p.short
	}
}

func (l *memoryLog) drop(id uint64) {
	t := l.topic(id)
	if t == nil {
		return
	}
	l.mu.Lock()
	delete(l.topics, id)
	l.mu.Unlock()
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, sg := range t.segments {
		l.arena.put(sg.data)
	}
	t.segments = nil
}

// release gives all memory back; nobody reads any more.
func (l *memoryLog) release() {
	for id := range l.topics {
		l.drop(id)
	}
	l.arena.release()
}

func (sg *segment) length(at int) int {
	return int(binary.BigEndian.Uint32(sg.data[at+positionLen:]))
}

// block makes a memoryTopic an entryReader, as do scan and close.
func (t *memoryTopic) block(p event.Position) (end event.Position, b block, ok bool, err error) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	i := search(t.segments, p)
	if i == len(t.segments) || !t.segments[i].closed {
		return end, b, false, nil
	}
	return t.segments[i].end, t.segments[i].block, true, nil
}

func (t *memoryTopic) scan(from, to event.Position, visit func(event.Position, []byte) (bool, error)) error {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for i := search(t.segments, from); i < len(t.segments); i++ {
		sg := &t.segments[i]
		for at := sg.start; at < sg.size; {
			p := getPosition(sg.data[at:])
			start := at + entryHeader
			at = start + sg.length(at)
			switch {
			case p.Less(from):
				continue
			case to.Less(p):
				return nil
			}
			if more, err := visit(p, sg.data[start:at:at]); err != nil || !more {
				return err
			}
		}
	}
	return nil
}

// last is p: in memory a block ends at an entry.
func (t *memoryTopic) last(p event.Position) (event.Position, error) { return p, nil }

func (t *memoryTopic) close() error { return nil }
