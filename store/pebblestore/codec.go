package pebblestore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"time"

	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/store"
)

// Every value but an entry's is sealed: a version byte, the fields, and a CRC-32C of both. Pebble has
// checksums of its own; this one also finds values that were written wrongly or by something else.

const valueVersion = 1

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// errGarbled is the plain cause of an ErrCorrupt; where it was found is added around it.
var errGarbled = errors.New("value is garbled")

// corrupt makes an ErrCorrupt that says what could not be read back.
func corrupt(err error, format string, args ...any) error {
	return fmt.Errorf("%w: %s: %w", store.ErrCorrupt, fmt.Sprintf(format, args...), err)
}

// writer builds a sealed value.
type writer struct{ b []byte }

func newWriter(size int) *writer {
	return &writer{b: append(make([]byte, 0, size+5), valueVersion)}
}

func (w *writer) uint(n uint64)  { w.b = binary.AppendUvarint(w.b, n) }
func (w *writer) int(n int64)    { w.b = binary.AppendVarint(w.b, n) }
func (w *writer) bytes(s []byte) { w.uint(uint64(len(s))); w.b = append(w.b, s...) }
func (w *writer) text(s string)  { w.uint(uint64(len(s))); w.b = append(w.b, s...) }

func (w *writer) flag(set bool) {
	if set {
		w.b = append(w.b, 1)
	} else {
		w.b = append(w.b, 0)
	}
}

func (w *writer) position(p event.Position) {
	w.b = binary.BigEndian.AppendUint64(w.b, p.Ms)
	w.b = binary.BigEndian.AppendUint64(w.b, p.Seq)
}

func (w *writer) time(t time.Time) {
	w.flag(!t.IsZero())
	if !t.IsZero() {
		w.int(t.Unix())
		w.uint(uint64(t.Nanosecond()))
	}
}

// seal ends the value and returns it.
func (w *writer) seal() []byte {
	return binary.BigEndian.AppendUint32(w.b, crc32.Checksum(w.b, castagnoli))
}

// reader takes a sealed value apart. After the first thing that does not fit it gives zeros and fails.
type reader struct {
	b    []byte
	fail error
}

func open(value []byte) *reader {
	n := len(value) - 4
	switch {
	case n < 1:
		return &reader{fail: fmt.Errorf("%w: %d bytes", errGarbled, len(value))}
	case crc32.Checksum(value[:n], castagnoli) != binary.BigEndian.Uint32(value[n:]):
		return &reader{fail: fmt.Errorf("%w: checksum differs", errGarbled)}
	case value[0] != valueVersion:
		return &reader{fail: fmt.Errorf("value version %d: this program reads version %d; upgrade it", value[0], valueVersion)}
	}
	return &reader{b: value[1:n]}
}

// take returns the next n bytes, or as many zeros as a fixed-size field needs.
func (r *reader) take(n int) []byte {
	if r.fail != nil || n > len(r.b) {
		r.stop()
		return make([]byte, min(n, positionLen))
	}
	b := r.b[:n]
	r.b = r.b[n:]
	return b
}

func (r *reader) stop() {
	if r.fail == nil {
		r.fail = fmt.Errorf("%w: cut short", errGarbled)
	}
	r.b = nil
}

func (r *reader) uint() uint64 {
	n, size := binary.Uvarint(r.b)
	if size <= 0 {
		r.stop()
		return 0
	}
	r.b = r.b[size:]
	return n
}

func (r *reader) int() int64 {
	n, size := binary.Varint(r.b)
	if size <= 0 {
		r.stop()
		return 0
	}
	r.b = r.b[size:]
	return n
}

func (r *reader) flag() bool               { return r.take(1)[0] != 0 }
func (r *reader) position() event.Position { return getPosition(r.take(positionLen)) }

// rest returns a slice of the value: the caller copies what it keeps.
func (r *reader) bytes() []byte {
	n := r.uint()
	if n > uint64(len(r.b)) {
		r.stop()
		return nil
	}
	return r.take(int(n))
}

func (r *reader) text() string { return string(r.bytes()) }

func (r *reader) time() time.Time {
	if !r.flag() {
		return time.Time{}
	}
	sec, ns := r.int(), r.uint()
	return time.Unix(sec, int64(ns%1e9)).UTC()
}

// done returns the first failure, or that something is left over.
func (r *reader) done() error {
	if r.fail == nil && len(r.b) != 0 {
		return fmt.Errorf("%w: %d bytes left over", errGarbled, len(r.b))
	}
	return r.fail
}
