package event

import (
	"encoding/json"
	"errors"
	"math"
	"testing"
	"time"
)

func TestPositionsAreReadInTheirOneForm(t *testing.T) {
	for text, want := range map[string]Position{
		"0-0":             {},
		"1700000000000-7": {1700000000000, 7},
		"18446744073709551615-18446744073709551615": MaxPosition,
	} {
		p, err := ParsePosition(text)
		if err != nil || p != want || p.String() != text {
			t.Errorf("%s: %v %v", text, p, err)
		}
		b, err := json.Marshal(p)
		var back Position
		if err != nil || string(b) != `"`+text+`"` || json.Unmarshal(b, &back) != nil || back != p {
			t.Errorf("%s as JSON: %s %v", text, b, err)
		}
	}
	for _, text := range []string{
		"", "-", "1", "1-", "-1", "1-2-3", "01-0", "0-00", "+1-0", "1--0", " 1-0", "1-0 ", "0x1-0", "1_0-0", "*", "1-*",
		"18446744073709551616-0", "0-18446744073709551616",
	} {
		p := Position{1, 1}
		if _, err := ParsePosition(text); !errors.Is(err, ErrPosition) {
			t.Errorf("%q: error %v", text, err)
		}
		if err := p.UnmarshalText([]byte(text)); err == nil || p != (Position{1, 1}) {
			t.Errorf("%q set the position to %v", text, p)
		}
	}
}

func TestPositionsAreInOrderUpToTheGreatest(t *testing.T) {
	ordered := []Position{{}, {0, 1}, {0, math.MaxUint64}, {1, 0}, {1, 1}, {math.MaxUint64, 0}, {math.MaxUint64, math.MaxUint64 - 1}, MaxPosition}
	for i, p := range ordered {
		for j, q := range ordered {
			want := 0
			if i < j {
				want = -1
			} else if i > j {
				want = 1
			}
			if p.Compare(q) != want || p.Less(q) != (want < 0) {
				t.Errorf("%v and %v: Compare %d, Less %v", p, q, p.Compare(q), p.Less(q))
			}
		}
		if p.IsZero() != (i == 0) {
			t.Errorf("%v is zero: %v", p, p.IsZero())
		}
		if next := p.Next(); p == MaxPosition && next != p || p != MaxPosition && (!p.Less(next) || next.Prev() != p) {
			t.Errorf("after %v comes %v, before which %v", p, next, next.Prev())
		}
	}
	if (Position{}).Prev() != (Position{}) {
		t.Error("something lies before the zero position")
	}
	if got := (Position{0, math.MaxUint64}).Next(); got != (Position{1, 0}) {
		t.Errorf("after the last of a millisecond comes %v", got)
	}
}

func TestRecordHeaderHoldsTimesBeforeTheEpoch(t *testing.T) {
	at := time.Date(1969, 12, 31, 23, 59, 59, 1, time.UTC)
	if r := Record(AppendRecord(nil, valid(), 0, at)); r.Check() != nil || !r.StoredAt().Equal(at) {
		t.Errorf("stored at %v, want %v", r.StoredAt(), at)
	}
}
