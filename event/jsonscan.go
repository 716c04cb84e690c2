package event

import (
	"errors"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// maxDepth bounds how deep JSON may be nested: beyond it, common readers give up or overflow.
const maxDepth = 1000

// scanner reads JSON (RFC 8259) strictly: UTF-8 only, and no escape that stands for half a surrogate
// pair, since a reader could only replace it. It does not recurse.
type scanner struct {
	b []byte
	i int // the next byte
}

func (s *scanner) fail(problem string) error {
	return invalid("JSON", "is broken at byte "+strconv.Itoa(s.i)+": "+problem, "send valid JSON (RFC 8259) in UTF-8")
}

// unexpected is the error for the byte at hand.
func (s *scanner) unexpected(want string) error {
	if s.i >= len(s.b) {
		return s.fail("it ends too early, want " + want)
	}
	return s.fail(quote(string(rune(s.b[s.i]))) + " in place of " + want)
}

func (s *scanner) space() {
	for s.i < len(s.b) && isSpace(s.b[s.i]) {
		s.i++
	}
}

func isSpace(c byte) bool { return c == ' ' || c == '\n' || c == '\t' || c == '\r' }

// peek returns the next byte after white space, 0 at the end.
func (s *scanner) peek() byte {
	if s.i < len(s.b) && s.b[s.i] > ' ' { // mostly there is none
		return s.b[s.i]
	}
	s.space()
	if s.i < len(s.b) {
		return s.b[s.i]
	}
	return 0
}

func (s *scanner) expect(c byte, want string) error {
	if s.peek() != c || s.i == len(s.b) {
		return s.unexpected(want)
	}
	s.i++
	return nil
}

// token is a string token: the bytes between the quotes.
type token struct {
	raw     []byte
	escaped bool // raw has escapes
}

// bytes returns the string's content, in buf if it must be put together.
func (t token) bytes(buf []byte) []byte {
	if !t.escaped {
		return t.raw
	}
	return unescape(buf[:0], t.raw)
}

func (t token) text() string {
	if !t.escaped {
		return string(t.raw)
	}
	return string(unescape(make([]byte, 0, len(t.raw)), t.raw))
}

// str reads a string token, whose opening quote is next after white space.
func (s *scanner) str(want string) (token, error) {
	if err := s.expect('"', want); err != nil {
		return token{}, err
	}
	start, escaped := s.i, false
	for {
		i := s.i
		for i < len(s.b) && plainInString[s.b[i]] {
			i++
		}
		s.i = i
		if i == len(s.b) {
			return token{}, s.unexpected("the end of a string")
		}
		switch c := s.b[i]; {
		case c == '"':
			s.i++
			return token{s.b[start:i], escaped}, nil
		case c == '\\':
			escaped = true
			if err := s.escape(); err != nil {
				return token{}, err
			}
		case c < 0x20:
			return token{}, s.fail("the control character " + codePoint(rune(c)) + " inside a string must be escaped")
		default:
			r, n := utf8.DecodeRune(s.b[s.i:])
			if r == utf8.RuneError && n == 1 {
				return token{}, s.fail("it is not valid UTF-8")
			}
			s.i += n
		}
	}
}

// plainInString has the ASCII bytes that stand for themselves in a string.
var plainInString = func() (plain [256]bool) {
	for c := 0x20; c < utf8.RuneSelf; c++ {
		plain[c] = c != '"' && c != '\\'
	}
	return plain
}()

func (s *scanner) escape() error {
	if s.i+1 >= len(s.b) {
		s.i = len(s.b)
		return s.unexpected("an escape")
	}
	switch s.b[s.i+1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		s.i += 2
		return nil
	case 'u':
	default:
		return s.fail(quote(s.b[s.i:s.i+2]) + " is not an escape")
	}
	r, ok := hex4(s.b, s.i)
	if !ok {
		return s.fail("\\u is not followed by four hexadecimal digits")
	}
	if !utf16.IsSurrogate(r) {
		s.i += 6
		return nil
	}
	low, ok := hex4(s.b, s.i+6)
	if !ok || utf16.DecodeRune(r, low) == utf8.RuneError {
		return s.fail(quote(s.b[s.i:s.i+6]) + " is half of a surrogate pair, which is no character")
	}
	s.i += 12
	return nil
}

// hex4 reads the escape \uXXXX at i.
func hex4(b []byte, i int) (rune, bool) {
	if i+6 > len(b) || b[i] != '\\' || b[i+1] != 'u' {
		return 0, false
	}
	var r rune
	for _, c := range b[i+2 : i+6] {
		switch {
		case c >= '0' && c <= '9':
			c -= '0'
		case c >= 'a' && c <= 'f':
			c -= 'a' - 10
		case c >= 'A' && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, false
		}
		r = r<<4 | rune(c)
	}
	return r, true
}

// unescape appends the content of a string token that has been scanned.
func unescape(dst, raw []byte) []byte {
	for i := 0; i < len(raw); {
		if raw[i] != '\\' {
			dst = append(dst, raw[i])
			i++
			continue
		}
		switch c := raw[i+1]; c {
		case 'u':
			r, _ := hex4(raw, i)
			i += 6
			if utf16.IsSurrogate(r) {
				low, _ := hex4(raw, i)
				r = utf16.DecodeRune(r, low)
				i += 6
			}
			dst = utf8.AppendRune(dst, r)
			continue
		case 'b':
			dst = append(dst, '\b')
		case 'f':
			dst = append(dst, '\f')
		case 'n':
			dst = append(dst, '\n')
		case 'r':
			dst = append(dst, '\r')
		case 't':
			dst = append(dst, '\t')
		default:
			dst = append(dst, c)
		}
		i += 2
	}
	return dst
}

// number reads a number token and reports whether it is written as an integer.
func (s *scanner) number() (raw []byte, integer bool, err error) {
	start := s.i
	if s.b[s.i] == '-' {
		s.i++
	}
	switch {
	case s.i < len(s.b) && s.b[s.i] == '0':
		s.i++
	case s.digits() == 0:
		return nil, false, s.unexpected("a digit")
	}
	integer = true
	if s.i < len(s.b) && s.b[s.i] == '.' {
		s.i++
		integer = false
		if s.digits() == 0 {
			return nil, false, s.unexpected("a digit")
		}
	}
	if s.i < len(s.b) && s.b[s.i]|0x20 == 'e' {
		s.i++
		integer = false
		if s.i < len(s.b) && (s.b[s.i] == '+' || s.b[s.i] == '-') {
			s.i++
		}
		if s.digits() == 0 {
			return nil, false, s.unexpected("a digit")
		}
	}
	return s.b[start:s.i], integer, nil
}

func (s *scanner) digits() int {
	start := s.i
	for s.i < len(s.b) && s.b[s.i] >= '0' && s.b[s.i] <= '9' {
		s.i++
	}
	return s.i - start
}

func (s *scanner) literal(word string) error {
	if len(s.b)-s.i < len(word) || string(s.b[s.i:s.i+len(word)]) != word {
		return s.unexpected("a value")
	}
	s.i += len(word)
	return nil
}

// value reads any value and returns its bytes without white space around them.
func (s *scanner) value() ([]byte, error) {
	s.space()
	start := s.i
	var inObject [maxDepth/64 + 1]uint64 // a stack of bits: object or array
	depth := 0
	for {
		// A value begins.
		var open byte
		var err error
		switch c := s.peek(); c {
		case '{', '[':
			if depth == maxDepth {
				return nil, s.fail("it is nested deeper than " + strconv.Itoa(maxDepth))
			}
			s.i++
			open = c
			bit := uint64(1) << (depth % 64)
			inObject[depth/64] &^= bit
			if c == '{' {
				inObject[depth/64] |= bit
			}
			depth++
		case '"':
			_, err = s.str("a string")
		case 't':
			err = s.literal("true")
		case 'f':
			err = s.literal("false")
		case 'n':
			err = s.literal("null")
		case '-', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9':
			_, _, err = s.number()
		default:
			err = s.unexpected("a value")
		}
		if err != nil {
			return nil, err
		}
		// Close what ends here, up to the next value.
		for {
			if depth == 0 {
				return s.b[start:s.i], nil
			}
			object := inObject[(depth-1)/64]&(1<<((depth-1)%64)) != 0
			c := s.peek()
			if object && c == '}' || !object && c == ']' {
				s.i++
				depth--
				open = 0
				continue
			}
			if open == 0 {
				if err := s.expect(',', "a comma or the end of the object or array"); err != nil {
					return nil, err
				}
			}
			if object {
				if err := s.name(); err != nil {
					return nil, err
				}
			}
			break
		}
	}
}

// name reads the name of a member and its colon.
func (s *scanner) name() error {
	if _, err := s.str("a member name"); err != nil {
		return err
	}
	return s.expect(':', "a colon")
}

// end checks that only white space is left.
func (s *scanner) end() error {
	if s.space(); s.i < len(s.b) {
		return s.unexpected("the end")
	}
	return nil
}

// checkJSON checks that data is one JSON value.
func checkJSON(data []byte) error {
	s := scanner{b: data}
	_, err := s.value()
	if err == nil {
		err = s.end()
	}
	if err != nil {
		rule := "is malformed"
		if e, ok := errors.AsType[*Error](err); ok {
			rule = e.Rule
		}
		return invalid("data", "is not valid JSON: it "+rule, "correct it, or state another datacontenttype")
	}
	return nil
}
