package main

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/internal/admission"
	"github.com/turnlane/turnlane/internal/client"
	"github.com/turnlane/turnlane/internal/rpcerr"
)

const (
	batchEvents = 256
	batchBytes  = 256 << 10
	maxLine     = 16 << 20 // bytes; escapes can make the text of an event far longer than the event

	outcomeUnknown = rpcerr.OutcomeUnknown
)

// lineSource is a file of events, one CloudEvents JSON object a line.
type lineSource struct {
	name string
	in   *bufio.Reader
	file io.Closer

	line int    // of what next returned last, from 1
	long []byte // the line so far, when it is longer than the buffer
}

// openLines opens a file, or standard input for "-", compressed with gzip or not.
func openLines(path string, stdin io.Reader) (*lineSource, error) {
	s := &lineSource{name: "standard input", file: io.NopCloser(nil)}
	in := stdin
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return nil, err // names the file and what is wrong
		}
		if info, err := f.Stat(); err == nil && info.IsDir() {
			_ = f.Close()
			return nil, fmt.Errorf("%s is a directory; name a file of CloudEvents, one JSON object a line", path)
		}
		s.name, s.file, in = path, f, f
	}
	s.in = bufio.NewReaderSize(in, 64<<10)
	magic, err := s.in.Peek(2)
	switch {
	case err != nil && !errors.Is(err, io.EOF):
		s.file.Close()
		return nil, fmt.Errorf("%s: %w", s.name, err)
	case bytes.Equal(magic, []byte{0x1f, 0x8b}):
		z, err := gzip.NewReader(s.in)
		if err != nil {
			s.file.Close()
			return nil, fmt.Errorf("%s: broken gzip: %w", s.name, err)
		}
		s.in = bufio.NewReaderSize(z, 64<<10)
	case strings.HasSuffix(path, ".gz"):
		s.file.Close()
		return nil, fmt.Errorf("%s: is named .gz but is not compressed with gzip; rename or compress it", s.name)
	}
	return s, nil
}

// Close closes the file; standard input stays open.
func (s *lineSource) Close() {
	_ = s.file.Close() // it was only read
}

// next returns the next line that is not blank, without its end, good until the next call. io.EOF
// follows the last line.
func (s *lineSource) next() ([]byte, error) {
	for {
		s.line++
		text, err := s.in.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			s.long = s.long[:0]
			for errors.Is(err, bufio.ErrBufferFull) && len(s.long) <= maxLine {
				s.long = append(s.long, text...)
				text, err = s.in.ReadSlice('\n')
			}
			s.long = append(s.long, text...)
			text = s.long
		}
		if len(text) > maxLine {
			return nil, s.errorf("longer than %d bytes; events are far smaller", maxLine)
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, s.errorf("cannot read on: %w", err)
		}
		if text = bytes.TrimSpace(text); len(text) > 0 {
			return text, nil
		}
		if err != nil {
			return nil, io.EOF
		}
	}
}

// waiting reports whether the next line has to be waited for, so that what is at hand should go out.
func (s *lineSource) waiting() bool {
	at, _ := s.in.Peek(s.in.Buffered())
	return bytes.IndexByte(at, '\n') < 0
}

func (s *lineSource) errorf(format string, args ...any) error {
	return fmt.Errorf("%s:%d: %w", s.name, s.line, fmt.Errorf(format, args...))
}

// batches sends the events in batches: as many as are at hand, up to a bound, and no faster than the
// rate. At a line that is no event it sends what came before and returns an error. It blocks on the
// input whatever the context says.
func (s *lineSource) batches(ctx context.Context, f pubFlags, to chan<- client.Batch) error {
	var b client.Batch
	size := 0
	flush := func() error {
		if len(b.Events) == 0 {
			return nil
		}
		select {
		case to <- b:
			b, size = client.Batch{}, 0
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	began, sent := time.Now(), 0
	for {
		text, err := s.next()
		if err != nil {
			if flushErr := flush(); flushErr != nil {
				return flushErr
			}
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		e, err := parseLine(text, f)
		if err != nil {
			if flushErr := flush(); flushErr != nil {
				return flushErr
			}
			return s.errorf("%w", err)
		}
		if f.rate > 0 {
			due := began.Add(time.Duration(float64(sent) / float64(f.rate) * float64(time.Second)))
			if wait := time.Until(due); wait > 0 {
				if err := flush(); err != nil {
					return err
				}
				select {
				case <-time.After(max(wait, time.Millisecond)):
				case <-ctx.Done():
					return ctx.Err()
				}
			}
			sent++
		}
		if size+len(text) > batchBytes {
			if err := flush(); err != nil {
				return err
			}
		}
		b.Events, b.Lines, size = append(b.Events, e), append(b.Lines, s.line), size+len(text)
		if len(b.Events) == batchEvents || s.waiting() {
			if err := flush(); err != nil {
				return err
			}
		}
	}
}

// parseLine reads an event, and gives it an id, a source and a type if it has none.
func parseLine(text []byte, f pubFlags) (*event.Event, error) {
	e, err := event.ParseJSON(text)
	for range 3 { // one of the three is missing at a time
		var missing *event.Error
		if err == nil || !errors.As(err, &missing) {
			break
		}
		value := ""
		switch missing.Field {
		case "id":
			value = newID()
		case "source":
			value = f.source
		case "type":
			value = f.typ
		}
		if value == "" || !absent(text, missing.Field) {
			break
		}
		text = insertMember(text, missing.Field, value)
		e, err = event.ParseJSON(text)
	}
	if err != nil {
		return nil, err
	}
	return e, admission.Decoded(e, 0)
}

// absent reports whether a JSON object has no member of that name.
func absent(text []byte, name string) bool {
	var members map[string]json.RawMessage
	if json.Unmarshal(text, &members) != nil {
		return false
	}
	_, found := members[name]
	return !found
}

// insertMember puts a member at the beginning of a JSON object.
func insertMember(text []byte, name, value string) []byte {
	open := bytes.IndexByte(text, '{') + 1
	rest := text[open:]
	member := strconv.Quote(name) + ":"
	quoted, err := json.Marshal(value)
	if err != nil {
		panic(err) // a string
	}
	out := make([]byte, 0, len(text)+len(member)+len(quoted)+1)
	out = append(append(append(out, text[:open]...), member...), quoted...)
	if trimmed := bytes.TrimSpace(rest); len(trimmed) > 0 && trimmed[0] != '}' {
		out = append(out, ',')
	}
	return append(out, rest...)
}

// lineOf returns the line that a refusal is about, if it names an event of the batch, else 0.
func lineOf(refused *client.Error, b client.Batch) int {
	if len(b.Lines) == 1 {
		return b.Lines[0]
	}
	rest, found := strings.CutPrefix(refused.Facts["field"], "events[")
	if !found {
		return 0
	}
	index, _, _ := strings.Cut(rest, "]")
	i, err := strconv.Atoi(index)
	if err != nil || i < 0 || i >= len(b.Lines) {
		return 0
	}
	return b.Lines[i]
}

// lineSpans is a set of lines, which come in order, blank ones left out.
type lineSpans [][2]int

func (s *lineSpans) add(lines []int) {
	if len(lines) == 0 {
		return
	}
	first, last := lines[0], lines[len(lines)-1]
	*s = append(*s, [2]int{first, last})
	if n := len(*s); n > 1 && (*s)[n-2][1]+1 == first {
		(*s)[n-2][1] = last
		*s = (*s)[:n-1]
	}
}

// String is "1-256, 513".
func (s *lineSpans) String() string {
	parts := make([]string, len(*s))
	for i, span := range *s {
		parts[i] = strconv.Itoa(span[0])
		if span[1] > span[0] {
			parts[i] += "-" + strconv.Itoa(span[1])
		}
	}
	return strings.Join(parts, ", ")
}
