package runtime

import (
	"math"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

func TestDelaysStayWithinTheirBoundsForAnyAttempt(t *testing.T) {
	for _, c := range []struct {
		name    string
		p       policy
		attempt uint32
		ceiling time.Duration
	}{
		{"first", policy{backoff: 200 * time.Millisecond, maxBackoff: time.Minute}, 1, 200 * time.Millisecond},
		{"doubles", policy{backoff: 200 * time.Millisecond, maxBackoff: time.Minute}, 4, 1600 * time.Millisecond},
		{"capped", policy{backoff: 200 * time.Millisecond, maxBackoff: time.Minute}, 20, time.Minute},
		{"far out", policy{backoff: 200 * time.Millisecond, maxBackoff: time.Minute}, math.MaxUint32, time.Minute},
		{"cap below the floor", policy{backoff: 1, maxBackoff: 1}, 3, minBackoff},
		{"huge", policy{backoff: math.MaxInt64, maxBackoff: math.MaxInt64}, 64, math.MaxInt64},
		{"first above the cap", policy{backoff: time.Hour, maxBackoff: time.Second}, 1, time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			low, high := time.Duration(math.MaxInt64), time.Duration(0)
			for range 2000 {
				d := c.p.delay(c.attempt)
				low, high = min(low, d), max(high, d)
			}
			if low < minBackoff || high > c.ceiling {
				t.Errorf("between %s and %s, want within %s and %s", low, high, minBackoff, c.ceiling)
			}
			if c.ceiling > time.Second && (low > c.ceiling/4 || high < c.ceiling/2) {
				t.Errorf("between %s and %s: the jitter is not full", low, high)
			}
		})
	}
}

func TestErrorTextsAreCleaned(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{"plain text", "plain text"},
		{"größer \"so\" \\ 日本", "größer \"so\" \\ 日本"},
		{"a\x1b[31m\nb\u0085\u2028", `a\u001b[31m\u000ab\u0085\u2028`},
		{"bad \xff utf8", `bad \xff utf8`},
		{strings.Repeat("é", 600), strings.Repeat("é", 512) + "…"},
		{"x" + strings.Repeat("é", 600), "x" + strings.Repeat("é", 511) + "…"},
	} {
		got := clean(c.in)
		if got != c.want || !utf8.ValidString(got) {
			t.Errorf("clean(%q) = %q, want %q", c.in, got, c.want)
		}
	}
}
