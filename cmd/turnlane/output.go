package main

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/term"
)

// printJSON writes one line of JSON to standard output.
func (a *app) printJSON(v any) error { return writeJSON(a.stdout, v) }

func writeJSON(w io.Writer, v any) error {
	var line bytes.Buffer
	enc := json.NewEncoder(&line)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return err
	}
	_, err := w.Write(putVerbatim(line.Bytes()))
	return err
}

// verbatim is a JSON value that writeJSON writes byte for byte, except that line ends between its tokens
// become blanks: encoding/json would write a json.RawMessage anew. Must be valid JSON.
type verbatim []byte

// verbatimMark begins the string that stands for a verbatim until writeJSON puts it in. It is drawn anew by
// each process, so that no text that it was given can hold it.
var verbatimMark = rand.Text()

// MarshalJSON makes it a json.Marshaler.
func (v verbatim) MarshalJSON() ([]byte, error) {
	b := append([]byte{'"'}, verbatimMark...)
	return append(base64.StdEncoding.AppendEncode(b, v), '"'), nil
}

// UnmarshalJSON makes it a json.Unmarshaler.
func (v *verbatim) UnmarshalJSON(b []byte) error {
	*v = append((*v)[:0], b...)
	return nil
}

// putVerbatim replaces what stands for verbatim values by these.
func putVerbatim(line []byte) []byte {
	mark := []byte(`"` + verbatimMark)
	var out []byte
	for {
		before, after, found := bytes.Cut(line, mark)
		if out = append(out, before...); !found {
			return out
		}
		encoded, rest, _ := bytes.Cut(after, []byte{'"'})
		start := len(out)
		out, _ = base64.StdEncoding.AppendDecode(out, encoded) // we encoded it
		blankLineEnds(out[start:])
		line = rest
	}
}

// blankLineEnds keeps JSON on one line. In it, line ends are only ever between tokens.
func blankLineEnds(b []byte) {
	for i, c := range b {
		if c == '\n' || c == '\r' {
			b[i] = ' '
		}
	}
}

// table is columns that line up.
type table struct {
	w     *tabwriter.Writer
	heads []string // not yet written
}

// newTable starts a table; end ends it.
func (a *app) newTable(heads ...string) *table {
	return &table{w: tabwriter.NewWriter(a.stdout, 0, 8, 2, ' ', 0), heads: heads}
}

func (t *table) row(cells ...string) {
	if len(t.heads) > 0 {
		fmt.Fprintln(t.w, strings.Join(t.heads, "\t"))
		t.heads = nil
	}
	for i, cell := range cells {
		if cell = printable(cell); cell == "" {
			cell = "-"
		}
		cells[i] = cell
	}
	fmt.Fprintln(t.w, strings.Join(cells, "\t"))
}

// end writes what there is. An empty table has its heads, unless there was an error, which it returns.
func (t *table) end(err error) error {
	if len(t.heads) > 0 && err == nil {
		fmt.Fprintln(t.w, strings.Join(t.heads, "\t"))
	}
	if flushErr := t.w.Flush(); err == nil {
		err = flushErr
	}
	return err
}

// printable keeps text from breaking lines, tables and terminals.
func printable(s string) string {
	clean := func(r rune) bool { return r != utf8.RuneError && unicode.IsPrint(r) }
	if strings.IndexFunc(s, func(r rune) bool { return !clean(r) }) < 0 {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		switch {
		case clean(r):
			b.WriteRune(r)
		case r == '\n' || r == '\r' || r == '\t':
			b.WriteByte(' ')
		case n == 1:
			fmt.Fprintf(&b, `\x%02x`, s[i])
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
		i += n
	}
	return b.String()
}

// warn tells what a person should know although all went well.
func (a *app) warn(text string) { fmt.Fprintf(a.stderr, "warning: %s\n", printable(text)) }

// progress shows how far long work is, on a terminal only. It must be used by one goroutine at a time.
type progress struct {
	w     io.Writer // nil if there is nobody to see it
	now   func() time.Time
	shown time.Time
	width int
}

func (a *app) newProgress() *progress {
	p := &progress{now: a.now}
	if f, ok := a.stderr.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		p.w = f
	}
	return p
}

// show replaces what was shown, at most five times a second.
func (p *progress) show(format string, args ...any) {
	if p.w == nil {
		return
	}
	now := p.now()
	if now.Sub(p.shown) < 200*time.Millisecond {
		return
	}
	p.shown = now
	text := fmt.Sprintf(format, args...)
	fmt.Fprintf(p.w, "\r%-*s", p.width, text)
	p.width = len(text)
}

// clear takes the line away.
func (p *progress) clear() {
	if p.width > 0 {
		fmt.Fprintf(p.w, "\r%*s\r", p.width, "")
		p.width = 0
	}
}
