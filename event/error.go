package event

import (
	"errors"
	"strconv"
)

// ErrInvalid is what every *Error is: errors.Is(err, ErrInvalid).
var ErrInvalid = errors.New("invalid event")

// Error says why something is not a CloudEvents 1.0 event, or not in the format it claims.
type Error struct {
	Field string // the attribute, "data", or the thing around them: "JSON", "header", "body"
	Rule  string // what is wrong, with the offending value quoted and cut short
	Fix   string // what to do about it; the errors of this package all have one
}

// Error returns one line without control characters: "invalid event: <field> <rule>; <fix>".
func (e *Error) Error() string {
	s := ErrInvalid.Error() + ": " + e.Field + " " + e.Rule
	if e.Fix != "" {
		s += "; " + e.Fix
	}
	return s
}

// Is makes errors.Is(err, ErrInvalid) true.
func (e *Error) Is(target error) bool { return target == ErrInvalid }

func invalid(field, rule, fix string) error { return &Error{field, rule, fix} }

const maxQuoted = 64

// quote makes any text fit for an error message: escaped, and cut when it is long.
func quote[T string | []byte](text T) string {
	if len(text) <= maxQuoted {
		return strconv.Quote(string(text))
	}
	return strconv.Quote(string(text[:maxQuoted])) + "…"
}

// fieldName is an attribute name as given, quoted unless it is a proper one.
func fieldName[T string | []byte](name T) string {
	s := string(name)
	if nameProblem(s) == "" {
		return s
	}
	return quote(s)
}
