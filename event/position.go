package event

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Position is an entry's place in its topic: two unsigned 64-bit numbers written "ms-seq", strictly
// increasing within one incarnation of the topic. Ms is usually, but not necessarily, the wall clock
// of the append in milliseconds: order rests on positions, age and replay by time never do.
//
// The zero Position lies before every entry.
type Position struct {
	Ms, Seq uint64
}

// MaxPosition lies at or after every entry.
var MaxPosition = Position{math.MaxUint64, math.MaxUint64}

// ErrPosition is wrapped by every error of ParsePosition.
var ErrPosition = errors.New("malformed position")

// ParsePosition reads "ms-seq", both decimal without sign or leading zeros.
func ParsePosition(s string) (Position, error) {
	ms, seq, ok := strings.Cut(s, "-")
	if !ok {
		return Position{}, fmt.Errorf("%w %q: want two numbers, ms-seq, such as 1700000000000-0", ErrPosition, s)
	}
	var p Position
	for _, part := range []struct {
		text string
		to   *uint64
	}{{ms, &p.Ms}, {seq, &p.Seq}} {
		n, err := strconv.ParseUint(part.text, 10, 64)
		if err != nil || strconv.FormatUint(n, 10) != part.text {
			return Position{}, fmt.Errorf("%w %q: %q is not an unsigned 64-bit number", ErrPosition, s, part.text)
		}
		*part.to = n
	}
	return p, nil
}

// String returns "ms-seq".
func (p Position) String() string {
	b := make([]byte, 0, 24)
	b = strconv.AppendUint(b, p.Ms, 10)
	b = append(b, '-')
	return string(strconv.AppendUint(b, p.Seq, 10))
}

// MarshalText makes a Position "ms-seq" in JSON and logs.
func (p Position) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText is ParsePosition.
func (p *Position) UnmarshalText(text []byte) error {
	q, err := ParsePosition(string(text))
	if err != nil {
		return err
	}
	*p = q
	return nil
}

// Compare returns -1, 0 or +1 as p lies before, at or after q.
func (p Position) Compare(q Position) int {
	if c := cmp.Compare(p.Ms, q.Ms); c != 0 {
		return c
	}
	return cmp.Compare(p.Seq, q.Seq)
}

// Less reports whether p lies before q.
func (p Position) Less(q Position) bool {
	return p.Ms < q.Ms || p.Ms == q.Ms && p.Seq < q.Seq
}

// IsZero reports whether p lies before every entry.
func (p Position) IsZero() bool { return p == Position{} }

// Next returns the smallest position after p; MaxPosition has none and is returned itself.
func (p Position) Next() Position {
	switch {
	case p.Seq < math.MaxUint64:
		return Position{p.Ms, p.Seq + 1}
	case p.Ms < math.MaxUint64:
		return Position{p.Ms + 1, 0}
	}
	return p
}

// Prev returns the largest position before p; the zero Position has none and is returned itself.
func (p Position) Prev() Position {
	switch {
	case p.Seq > 0:
		return Position{p.Ms, p.Seq - 1}
	case p.Ms > 0:
		return Position{p.Ms - 1, math.MaxUint64}
	}
	return p
}
