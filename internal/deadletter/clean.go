package deadletter

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// clean makes a text fit for an attribute and a line of a log: control characters, what is not UTF-8 and
// what CloudEvents strings cannot hold are escaped, and it is cut at MaxError bytes, with "…" at the end.
func clean(s string) string {
	if len(s) <= MaxError && plain(s) {
		return s
	}
	const ellipsis = "…"
	var b strings.Builder
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		piece := s[i : i+n]
		switch {
		case r == utf8.RuneError && n == 1:
			piece = fmt.Sprintf("\\x%02x", s[i])
		case unicode.IsControl(r), r == '\u2028', r == '\u2029', r >= 0xFDD0 && r <= 0xFDEF, r&0xFFFE == 0xFFFE:
			piece = fmt.Sprintf("\\u%04x", r)
		}
		rest := len(s) - i - n
		if b.Len()+len(piece) > MaxError || rest > 0 && b.Len()+len(piece)+len(ellipsis) > MaxError && b.Len()+len(piece)+rest > MaxError {
			b.WriteString(ellipsis)
			break
		}
		b.WriteString(piece)
		i += n
	}
	return b.String()
}

func plain(s string) bool {
	for i := range len(s) {
		if s[i] < 0x20 || s[i] >= 0x7f {
			return false
		}
	}
	return true
}
