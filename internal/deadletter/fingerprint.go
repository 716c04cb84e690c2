package deadletter

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"strings"
)

// What differs from one failure of a kind to the next. Words such as decade are no hexadecimal numbers:
// those have eight digits, or 0x before them.
var varying = regexp.MustCompile(`(?i)\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b` +
	`|\b0x[0-9a-f]+\b|\b[0-9a-f]{8,}\b|[0-9]+(?:[.,:][0-9]+)*`)

// Fingerprint tells kinds of failures apart: 12 hex digits of a hash of the reason and the error's text,
// in which numbers, UUIDs, hexadecimal numbers and quoted parts count as equal. It never changes for a
// text, so that it can be noted.
func Fingerprint(reason, errorText string) string {
	return digest(reason + "\n" + normal(errorText))
}

func normal(s string) string {
	return strings.Join(strings.Fields(varying.ReplaceAllString(unquoted(s), "#")), " ")
}

// unquoted puts `""` in place of each quoted part. A single quote begins one only where no word ends, so
// that an apostrophe is none. What a cut left without its end is quoted up to there.
func unquoted(s string) string {
	if !strings.ContainsAny(s, "\"'`") {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c != '"' && c != '`' && (c != '\'' || i > 0 && wordy(s[i-1])) {
			b.WriteByte(c)
			continue
		}
		b.WriteString(`""`)
		for i++; i < len(s) && !(s[i] == c && (c != '\'' || i+1 == len(s) || !wordy(s[i+1]))); i++ {
			if s[i] == '\\' && c == '"' {
				i++
			}
		}
	}
	return b.String()
}

func wordy(c byte) bool {
	return c|0x20 >= 'a' && c|0x20 <= 'z' || c >= '0' && c <= '9' || c >= 0x80
}

func digest(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:shortened/2])
}
