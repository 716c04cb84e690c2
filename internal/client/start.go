package client

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/turnlane/turnlane/event"
	turnlanev1 "github.com/turnlane/turnlane/proto/turnlane/v1"
)

// ParseStart reads a place in a topic as people write it: "tail", "earliest", a time (RFC 3339, or a
// date, which is its midnight UTC), a time before now ("-10m"), or a position ("ms-seq").
func ParseStart(text string, now time.Time) (*turnlanev1.Start, error) {
	switch {
	case text == "tail":
		return Tail(), nil
	case text == "earliest":
		return Earliest(), nil
	case strings.HasPrefix(text, "-"):
		ago, err := ParseDuration(text[1:])
		if err != nil {
			return nil, fmt.Errorf("%q: %w", text, err)
		}
		return At(now.Add(-ago)), nil
	case looksLikePosition(text):
		p, err := event.ParsePosition(text)
		if err != nil {
			return nil, err
		}
		return From(p), nil
	}
	if t, err := time.Parse(time.RFC3339Nano, text); err == nil {
		return At(t), nil
	}
	if t, err := time.Parse(time.DateOnly, text); err == nil {
		return At(t), nil
	}
	return nil, fmt.Errorf("%q is no place in a topic: want tail, earliest, a time such as 2026-01-31T08:00:00Z, "+
		"a time ago such as -10m, or a position such as 1700000000000-0", text)
}

// looksLikePosition keeps positions and dates apart: digits with one dash between them.
func looksLikePosition(text string) bool {
	ms, seq, found := strings.Cut(text, "-")
	return found && ms != "" && seq != "" && strings.Trim(ms, "0123456789") == "" && strings.Trim(seq, "0123456789") == ""
}

// FormatStart is how ParseStart would have read it; times are absolute.
func FormatStart(s *turnlanev1.Start) string {
	switch at := s.GetAt().(type) {
	case *turnlanev1.Start_Earliest:
		return "earliest"
	case *turnlanev1.Start_Time:
		return at.Time.AsTime().Format(time.RFC3339Nano)
	case *turnlanev1.Start_Position:
		return at.Position
	}
	return "tail"
}

// Tail is only what is published from now on.
func Tail() *turnlanev1.Start {
	return &turnlanev1.Start{At: &turnlanev1.Start_Tail{Tail: true}}
}

// Earliest is everything that the topic still holds.
func Earliest() *turnlanev1.Start {
	return &turnlanev1.Start{At: &turnlanev1.Start_Earliest{Earliest: true}}
}

// At is what was stored at t or later.
func At(t time.Time) *turnlanev1.Start {
	return &turnlanev1.Start{At: &turnlanev1.Start_Time{Time: timestamppb.New(t)}}
}

// From is the entry at p and what comes after it.
func From(p event.Position) *turnlanev1.Start {
	return &turnlanev1.Start{At: &turnlanev1.Start_Position{Position: p.String()}}
}

// ParseDuration reads a duration of zero or more with a unit: those of time.ParseDuration, and days
// ("7d", "1d12h").
func ParseDuration(text string) (time.Duration, error) {
	bad := errors.New("want a duration such as 500ms, 30s, 10m, 2h or 7d")
	rest, days := text, time.Duration(0)
	if number, after, found := strings.Cut(text, "d"); found {
		h, err := time.ParseDuration(number + "h")
		if err != nil || number == "" || strings.ContainsAny(number, "hmsuµn+-") {
			return 0, bad
		}
		if days = 24 * h; days/24 != h {
			return 0, errors.New("the duration is too long")
		}
		if rest = after; rest == "" {
			return days, nil
		}
	}
	d, err := time.ParseDuration(rest)
	switch {
	case err != nil || strings.ContainsAny(rest, "+-"):
		return 0, bad
	case days+d < days:
		return 0, errors.New("the duration is too long")
	}
	return days + d, nil
}
