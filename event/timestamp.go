package event

import (
	"strconv"
	"time"
)

// TimeValue returns the event's time, with its offset, and false if the event has none or it is not
// valid. Digits beyond nanoseconds are cut off, and a leap second becomes the second after it: Time
// keeps the text.
func (e *Event) TimeValue() (time.Time, bool) {
	t, problem := parseTimestamp(e.Time)
	return t, problem == ""
}

func checkTimestamp(field, s string) error {
	if _, problem := parseTimestamp(s); problem != "" {
		return invalid(field, quote(s)+" is not a timestamp (RFC 3339): "+problem, "write it like 2018-04-05T17:31:00Z")
	}
	return nil
}

// parseTimestamp reads date-time of RFC 3339 section 5.6 with the ranges of section 5.7. "T" and "Z"
// may be in lower case; the blank that some put in place of "T" is not in the grammar. A leap second
// is taken only where one can be: at the end of June or December, UTC.
func parseTimestamp(s string) (t time.Time, problem string) {
	const form = "want YYYY-MM-DDThh:mm:ss[.fraction](Z|±hh:mm)"
	if len(s) < len("2006-01-02T15:04:05Z") ||
		s[4] != '-' || s[7] != '-' || s[10]|0x20 != 't' || s[13] != ':' || s[16] != ':' {
		return t, form
	}
	year, ok0 := digits(s[0:4])
	month, ok1 := digits(s[5:7])
	day, ok2 := digits(s[8:10])
	hour, ok3 := digits(s[11:13])
	minute, ok4 := digits(s[14:16])
	second, ok5 := digits(s[17:19])
	if !(ok0 && ok1 && ok2 && ok3 && ok4 && ok5) {
		return t, form
	}
	switch {
	case month < 1 || month > 12:
		return t, "there is no month " + s[5:7]
	case day < 1 || day > daysIn(year, month):
		return t, "there is no day " + s[0:10]
	case hour > 23:
		return t, "there is no hour " + s[11:13]
	case minute > 59:
		return t, "there is no minute " + s[14:16]
	case second > 60:
		return t, "there is no second " + s[17:19]
	}
	i, nanos := 19, 0
	if s[i] == '.' {
		start, unit := i+1, 100_000_000
		for i++; i < len(s) && s[i] >= '0' && s[i] <= '9'; i++ {
			nanos += int(s[i]-'0') * unit
			unit /= 10
		}
		if i == start {
			return t, "no digit follows the point"
		}
	}
	zone, problem := parseOffset(s[i:])
	if problem != "" {
		return t, problem
	}
	t = time.Date(year, time.Month(month), day, hour, minute, second, nanos, zone)
	if second == 60 {
		u := t.UTC() // the instant after the leap second
		if u.Hour() != 0 || u.Minute() != 0 || u.Second() != 0 || u.Day() != 1 ||
			u.Month() != time.July && u.Month() != time.January {
			return time.Time{}, "second 60 exists only at the end of June or December, UTC"
		}
	}
	return t, ""
}

func parseOffset(s string) (*time.Location, string) {
	if s == "Z" || s == "z" {
		return time.UTC, ""
	}
	if len(s) != len("+00:00") || s[0] != '+' && s[0] != '-' || s[3] != ':' {
		return nil, "want Z or an offset such as +01:00 at the end"
	}
	hours, ok1 := digits(s[1:3])
	minutes, ok2 := digits(s[4:6])
	if !ok1 || !ok2 || hours > 23 || minutes > 59 {
		return nil, "there is no offset " + quote(s)
	}
	seconds := hours*3600 + minutes*60
	if seconds == 0 {
		return time.UTC, ""
	}
	if s[0] == '-' {
		seconds = -seconds
	}
	return time.FixedZone("", seconds), ""
}

func digits(s string) (n int, ok bool) {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return 0, false
		}
		n = n*10 + int(s[i]-'0')
	}
	return n, true
}

func daysIn(year, month int) int {
	switch month {
	case 4, 6, 9, 11:
		return 30
	case 2:
		if year%4 == 0 && (year%100 != 0 || year%400 == 0) {
			return 29
		}
		return 28
	}
	return 31
}

// The range of google.protobuf.Timestamp: years 1 to 9999.
const (
	minProtoSeconds = -62135596800
	maxProtoSeconds = 253402300799
)

// protoTimestampText is the form that the JSON mapping of protobuf gives a timestamp: UTC, "Z", and
// 0, 3, 6 or 9 digits of fraction.
func protoTimestampText(seconds int64, nanos int32) (text, problem string) {
	if seconds < minProtoSeconds || seconds > maxProtoSeconds {
		return "", strconv.FormatInt(seconds, 10) + " seconds are outside the years 1 to 9999"
	}
	if nanos < 0 || nanos > 999_999_999 {
		return "", strconv.Itoa(int(nanos)) + " nanoseconds are not within 0 to 999999999"
	}
	layout := "2006-01-02T15:04:05.000000000Z"
	switch {
	case nanos == 0:
		layout = "2006-01-02T15:04:05Z"
	case nanos%1_000_000 == 0:
		layout = "2006-01-02T15:04:05.000Z"
	case nanos%1000 == 0:
		layout = "2006-01-02T15:04:05.000000Z"
	}
	return time.Unix(seconds, int64(nanos)).UTC().Format(layout), ""
}

// protoTimestamp is the inverse of protoTimestampText; false for text that it would not give back.
func protoTimestamp(text string) (seconds int64, nanos int32, ok bool) {
	t, problem := parseTimestamp(text)
	if problem != "" {
		return 0, 0, false
	}
	seconds, nanos = t.Unix(), int32(t.Nanosecond())
	canonical, problem := protoTimestampText(seconds, nanos)
	return seconds, nanos, problem == "" && canonical == text
}
