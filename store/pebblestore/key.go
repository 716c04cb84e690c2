package pebblestore

import (
	"encoding/binary"

	"github.com/turnlane/turnlane/event"
)

// The first byte of every key.
const (
	spaceFormat   byte = 0x00
	spaceCounters byte = 0x01
	spaceTopic    byte = 0x10
	spaceEntry    byte = 0x11
	spaceBlock    byte = 0x12
	spaceToken    byte = 0x13
	spaceTurn     byte = 0x14
	spaceRegistry byte = 0x20
	spaceOwner    byte = 0x30
	spaceLeader   byte = 0x31
	spaceWorker   byte = 0x40
)

// What follows a worker's name in spaceWorker.
const (
	kindHead    byte = 0
	kindCursor  byte = 1
	kindAttempt byte = 2
	kindState   byte = 3
)

const (
	positionLen = 16
	entryKeyLen = 1 + 8 + positionLen
	// entryOverhead is what an entry costs besides its record, for the accounting of topics.
	entryOverhead = entryKeyLen
)

var (
	formatKey  = []byte("\x00format")
	counterKey = []byte{spaceCounters}
)

// named returns the key of name in a space that is keyed by names alone.
func named(space byte, name string) []byte {
	k := make([]byte, 0, 1+len(name))
	return append(append(k, space), name...)
}

func putPosition(b []byte, p event.Position) {
	binary.BigEndian.PutUint64(b, p.Ms)
	binary.BigEndian.PutUint64(b[8:], p.Seq)
}

func getPosition(b []byte) event.Position {
	return event.Position{Ms: binary.BigEndian.Uint64(b), Seq: binary.BigEndian.Uint64(b[8:])}
}

// putEntryKey writes the key of a position in spaceEntry or spaceBlock to b[:entryKeyLen].
func putEntryKey(b []byte, space byte, topic uint64, p event.Position) {
	b[0] = space
	binary.BigEndian.PutUint64(b[1:], topic)
	putPosition(b[9:], p)
}

func entryKey(space byte, topic uint64, p event.Position) []byte {
	b := make([]byte, entryKeyLen)
	putEntryKey(b, space, topic, p)
	return b
}

// endKey returns the first key after that of p: the exclusive end of a range up to and including p.
func endKey(space byte, topic uint64, p event.Position) []byte {
	b := make([]byte, entryKeyLen+1)
	putEntryKey(b, space, topic, p)
	return b
}

// keyPosition reads the position back; ok is false for a key of another shape.
func keyPosition(k []byte) (p event.Position, ok bool) {
	if len(k) != entryKeyLen {
		return p, false
	}
	return getPosition(k[9:]), true
}

// topicSpan returns the bounds of all that a space has for a topic.
func topicSpan(space byte, topic uint64) (lower, upper []byte) {
	lower = make([]byte, 9)
	lower[0] = space
	binary.BigEndian.PutUint64(lower[1:], topic)
	return lower, successor(lower)
}

func tokenKey(topic uint64, worker string) []byte {
	k := make([]byte, 9, 9+len(worker))
	k[0] = spaceToken
	binary.BigEndian.PutUint64(k[1:], topic)
	return append(k, worker...)
}

func turnKey(topic uint64, worker, input string) []byte {
	k := make([]byte, 11, 11+len(worker)+len(input))
	k[0] = spaceTurn
	binary.BigEndian.PutUint64(k[1:], topic)
	binary.BigEndian.PutUint16(k[9:], uint16(len(worker)))
	return append(append(k, worker...), input...)
}

// workerKey returns the key of a kind of a worker's data, to which the caller may append.
func workerKey(worker string, kind byte) []byte {
	k := make([]byte, 3, 3+len(worker)+1+64)
	k[0] = spaceWorker
	binary.BigEndian.PutUint16(k[1:], uint16(len(worker)))
	return append(append(k, worker...), kind)
}

func attemptKey(worker, topic string, p event.Position) []byte {
	k := append(workerKey(worker, kindAttempt), topic...)
	var b [positionLen]byte
	putPosition(b[:], p)
	return append(k, b[:]...)
}

// successor returns the smallest key that does not start with prefix, nil if there is none.
func successor(prefix []byte) []byte {
	for i := len(prefix) - 1; i >= 0; i-- {
		if prefix[i] != 0xff {
			s := append([]byte(nil), prefix[:i+1]...)
			s[i]++
			return s
		}
	}
	return nil
}
