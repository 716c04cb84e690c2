package event

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"fmt"
	"slices"
	"strconv"
	"unicode/utf8"
)

// Media types of the JSON event format.
const (
	JSONMediaType      = "application/cloudevents+json"
	JSONBatchMediaType = "application/cloudevents-batch+json"
)

// ParseJSON reads one event in the JSON event format. The event shares nothing with b.
//
// It is strict: UTF-8 without half surrogate pairs, each member once, names in their exact case,
// integers of 32 bits written as integers, nothing after the event, nesting up to 1000. An attribute
// that is null is absent; one that is empty is an error where CloudEvents has no empty value.
//
// The member data becomes
//   - JSONData, the value's bytes as they stand in b, when datacontenttype is JSON or absent (null is
//     the JSON value null);
//   - TextData when datacontenttype is not JSON: the value must then be a string, which is the content
//     (section 3.1.2 of the format lets a reader refuse others, and any reading of them would be a guess).
//
// The member data_base64 becomes BinaryData whatever the datacontenttype; null is as if absent.
// Objects inside data may repeat a member: that is the payload's own affair.
//
// Extensions are Boolean, Integer or String, as JSON has no other types.
func ParseJSON(b []byte) (*Event, error) {
	s := scanner{b: b}
	e, err := s.event()
	if err != nil {
		return nil, err
	}
	if err := s.end(); err != nil {
		return nil, err
	}
	return e, nil
}

// ParseJSONBatch reads a JSON array of events, which may be empty. One bad event fails the batch; the
// error then begins with its index, such as "events[3]", and wraps an *Error.
func ParseJSONBatch(b []byte) ([]*Event, error) {
	s := scanner{b: b}
	if err := s.expect('[', "an array of events"); err != nil {
		return nil, err
	}
	events := []*Event{}
	if s.peek() == ']' {
		s.i++
		if err := s.end(); err != nil {
			return nil, err
		}
		return events, nil
	}
	for {
		e, err := s.event()
		if err != nil {
			return nil, atIndex(len(events), err)
		}
		events = append(events, e)
		if s.peek() == ']' {
			s.i++
			if err := s.end(); err != nil {
				return nil, err
			}
			return events, nil
		}
		if err := s.expect(',', "a comma or the end of the batch"); err != nil {
			return nil, err
		}
	}
}

func atIndex(i int, err error) error { return fmt.Errorf("events[%d]: %w", i, err) }

// Members of the envelope, as bits of what has been seen.
const (
	seenID = 1 << iota
	seenSource
	seenSpecVersion
	seenType
	seenSubject
	seenTime
	seenDataContentType
	seenDataSchema
	seenData
	seenDataBase64
)

// envelope is an event being read.
type envelope struct {
	e           *Event
	seen        int
	specVersion string
	data        []byte // the raw value of member data
	binary      []byte // the decoded member data_base64, not nil if there is one
}

// event reads one event object.
func (s *scanner) event() (*Event, error) {
	if err := s.expect('{', "an event, which is a JSON object"); err != nil {
		return nil, err
	}
	m := envelope{e: new(Event)}
	if s.peek() == '}' {
		s.i++
		return m.finish()
	}
	for {
		name, err := s.str("a member name")
		if err != nil {
			return nil, err
		}
		if err := s.expect(':', "a colon"); err != nil {
			return nil, err
		}
		if err := m.member(s, name); err != nil {
			return nil, err
		}
		if s.peek() == '}' {
			s.i++
			return m.finish()
		}
		if err := s.expect(',', "a comma or the end of the event"); err != nil {
			return nil, err
		}
	}
}

func (m *envelope) member(s *scanner, t token) error {
	var buf [32]byte
	raw := t.bytes(buf[:])
	name, bit := coreMember(raw)
	if bit == 0 {
		return m.extension(s, raw)
	}
	if m.seen&bit != 0 {
		return duplicate(name)
	}
	m.seen |= bit
	switch bit {
	case seenData:
		var err error
		m.data, err = s.value()
		return err
	case seenDataBase64:
		return m.base64(s)
	}
	return m.attribute(s, name, bit)
}

// coreMember returns the name, without allocating it, and the bit of a member that is no extension.
func coreMember(raw []byte) (name string, bit int) {
	switch string(raw) {
	case "id":
		return "id", seenID
	case "source":
		return "source", seenSource
	case "specversion":
		return "specversion", seenSpecVersion
	case "type":
		return "type", seenType
	case "subject":
		return "subject", seenSubject
	case "time":
		return "time", seenTime
	case "datacontenttype":
		return "datacontenttype", seenDataContentType
	case "dataschema":
		return "dataschema", seenDataSchema
	case "data":
		return "data", seenData
	case "data_base64":
		return "data_base64", seenDataBase64
	}
	return "", 0
}

func duplicate(name string) error {
	return invalid(name, "is given more than once", "keep one")
}

// attribute reads the value of a core attribute, all of which are strings.
func (m *envelope) attribute(s *scanner, name string, bit int) error {
	if s.peek() == 'n' {
		return s.literal("null") // the same as absent
	}
	if s.peek() != '"' {
		if _, err := s.value(); err != nil {
			return err
		}
		return invalid(name, "is not a JSON string", "put its value in quotes")
	}
	t, err := s.str("a string")
	if err != nil {
		return err
	}
	text := t.text()
	if text == "" {
		if bit&(seenID|seenSource|seenType|seenSpecVersion) != 0 {
			return missing(name)
		}
		return presentEmpty(name)
	}
	e := m.e
	switch bit {
	case seenID:
		e.ID = text
	case seenSource:
		e.Source = text
	case seenSpecVersion:
		m.specVersion = text
	case seenType:
		e.Type = text
	case seenSubject:
		e.Subject = text
	case seenTime:
		e.Time = text
	case seenDataContentType:
		e.DataContentType = text
	case seenDataSchema:
		e.DataSchema = text
	}
	return nil
}

// extension reads the value of an extension. A null is kept for now, to find duplicates.
func (m *envelope) extension(s *scanner, rawName []byte) error {
	if problem := nameProblem(string(rawName)); problem != "" {
		return invalid(quote(rawName), "is not an attribute name: "+problem,
			"names are case-sensitive and use only a-z and 0-9")
	}
	x := Extension{Name: string(rawName)}
	switch c := s.peek(); {
	case c == '"':
		t, err := s.str("a string")
		if err != nil {
			return err
		}
		x.Value = String(t.text())
	case c == 't':
		if err := s.literal("true"); err != nil {
			return err
		}
		x.Value = Boolean(true)
	case c == 'f':
		if err := s.literal("false"); err != nil {
			return err
		}
		x.Value = Boolean(false)
	case c == 'n':
		if err := s.literal("null"); err != nil {
			return err
		}
	case c == '-' || c >= '0' && c <= '9':
		raw, integer, err := s.number()
		if err != nil {
			return err
		}
		if !integer {
			return invalid(x.Name, quote(raw)+" is not written as an integer, the only kind of number an attribute can be",
				"write an integer, or put the number in quotes")
		}
		n, err := strconv.ParseInt(string(raw), 10, 32)
		if err != nil {
			return invalid(x.Name, quote(raw)+" does not fit a signed integer of 32 bits", "put the number in quotes")
		}
		x.Value = Integer(int32(n))
	default:
		if _, err := s.value(); err != nil {
			return err
		}
		return invalid(x.Name, "is an object or an array, which an attribute cannot be",
			"use a string, an integer or a boolean, or move it into data")
	}
	m.e.Extensions = append(m.e.Extensions, x)
	return nil
}

func (m *envelope) base64(s *scanner) error {
	if s.peek() == 'n' {
		m.seen &^= seenDataBase64
		return s.literal("null")
	}
	if s.peek() != '"' {
		if _, err := s.value(); err != nil {
			return err
		}
		return invalid("data_base64", "is not a JSON string", "encode the bytes as standard base64 (RFC 4648)")
	}
	t, err := s.str("a string")
	if err != nil {
		return err
	}
	text := t.bytes(nil)
	m.binary = make([]byte, base64.StdEncoding.DecodedLen(len(text)))
	n, err := base64.StdEncoding.Strict().Decode(m.binary, text)
	// The decoder lets line ends pass; the format does not.
	if err != nil || bytes.ContainsAny(text, "\r\n") {
		return invalid("data_base64", "is not standard base64 with padding (RFC 4648 section 4)", "encode the bytes again")
	}
	m.binary = m.binary[:n]
	return nil
}

// finish checks what only the whole object shows.
func (m *envelope) finish() (*Event, error) {
	e := m.e
	if err := checkSpecVersion(m.specVersion); err != nil {
		return nil, err
	}
	if len(e.Extensions) > 0 {
		if err := e.sortExtensions(); err != nil {
			return nil, err
		}
	}
	switch {
	case m.data != nil && m.binary != nil:
		return nil, invalid("data", "and data_base64 are both given", "keep one")
	case m.binary != nil:
		e.Data, e.DataKind = m.binary, BinaryData
	case m.data != nil && !IsJSON(e.DataContentType):
		if m.data[0] != '"' {
			return nil, invalid("data", "is not a JSON string, and the datacontenttype "+quote(e.DataContentType)+" is not JSON",
				"make it a string, or use a JSON datacontenttype such as application/json")
		}
		raw := m.data[1 : len(m.data)-1]
		e.Data, e.DataKind = unescape(make([]byte, 0, len(raw)), raw), TextData
	case m.data != nil:
		e.Data, e.DataKind = bytes.Clone(m.data), JSONData
	}
	if err := e.validateAttributes(); err != nil {
		return nil, err
	}
	return e, nil
}

func checkSpecVersion(v string) error {
	switch v {
	case SpecVersion:
		return nil
	case "":
		return missing("specversion")
	}
	return invalid("specversion", quote(v)+" is not supported", `use "1.0"`)
}

// sortExtensions sorts, refuses duplicates and drops those without a value.
func (e *Event) sortExtensions() error {
	slices.SortFunc(e.Extensions, func(a, b Extension) int { return cmp.Compare(a.Name, b.Name) })
	for i := 1; i < len(e.Extensions); i++ {
		if e.Extensions[i].Name == e.Extensions[i-1].Name {
			return duplicate(e.Extensions[i].Name)
		}
	}
	e.Extensions = slices.DeleteFunc(e.Extensions, func(x Extension) bool { return x.Value.IsZero() })
	if len(e.Extensions) == 0 {
		e.Extensions = nil
	}
	return nil
}

// AppendJSON appends e in the JSON event format and returns the longer slice, or dst and an *Error if
// e is not valid. What ParseJSON read comes out so that ParseJSON reads the same again.
//
// JSONData is written as its bytes stand: line ends in it stay. Where one event must be one line, turn
// every CR and LF byte of the result into a blank: they are only ever white space between tokens.
// Under a datacontenttype that is not JSON, data is a string in this format: JSONData is then written as
// the string of its text. TextData is written as a string, or, where the datacontenttype is JSON and would make a reader take
// the string for a JSON value, as the JSON it is if it is JSON, else in base64. ProtoData is written
// in base64 without its type URL, which belongs in dataschema. Extensions of types that JSON lacks
// become strings in their canonical text.
func AppendJSON(dst []byte, e *Event) ([]byte, error) {
	if err := validPointer(e); err != nil {
		return dst, err
	}
	return appendJSON(dst, e), nil
}

func validPointer(e *Event) error {
	if e == nil {
		return invalid("event", "is nil", "pass an event")
	}
	return e.Validate()
}

// AppendJSONBatch appends a JSON array of events. An error names the index as ParseJSONBatch does.
func AppendJSONBatch(dst []byte, events []*Event) ([]byte, error) {
	start := len(dst)
	dst = append(dst, '[')
	for i, e := range events {
		if err := validPointer(e); err != nil {
			return dst[:start], atIndex(i, err)
		}
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendJSON(dst, e)
	}
	return append(dst, ']'), nil
}

func appendJSON(dst []byte, e *Event) []byte {
	dst = append(dst, `{"specversion":"1.0"`...)
	dst = appendMember(dst, "id", e.ID)
	dst = appendMember(dst, "source", e.Source)
	dst = appendMember(dst, "type", e.Type)
	if e.Subject != "" {
		dst = appendMember(dst, "subject", e.Subject)
	}
	if e.Time != "" {
		dst = appendMember(dst, "time", e.Time)
	}
	if e.DataContentType != "" {
		dst = appendMember(dst, "datacontenttype", e.DataContentType)
	}
	if e.DataSchema != "" {
		dst = appendMember(dst, "dataschema", e.DataSchema)
	}
	for _, x := range e.Extensions {
		switch x.Value.kind {
		case BooleanKind:
			dst = strconv.AppendBool(appendName(dst, x.Name), x.Value.num != 0)
		case IntegerKind:
			dst = strconv.AppendInt(appendName(dst, x.Name), int64(x.Value.num), 10)
		default:
			dst = appendMember(dst, x.Name, x.Value.String())
		}
	}
	return append(appendJSONData(dst, e), '}')
}

func appendJSONData(dst []byte, e *Event) []byte {
	switch e.DataKind {
	case JSONData:
		if !IsJSON(e.DataContentType) {
			return appendString(appendName(dst, "data"), e.Data)
		}
		return append(appendName(dst, "data"), e.Data...)
	case TextData:
		switch {
		case !IsJSON(e.DataContentType):
			return appendString(appendName(dst, "data"), e.Data)
		case checkJSON(e.Data) == nil:
			return append(appendName(dst, "data"), e.Data...)
		}
		return appendBase64(dst, e.Data)
	case BinaryData:
		return appendBase64(dst, e.Data)
	case ProtoData:
		value, _ := anyValue(e.Data)
		return appendBase64(dst, value)
	}
	return dst
}

func appendBase64(dst, data []byte) []byte {
	dst = append(appendName(dst, "data_base64"), '"')
	return append(base64.StdEncoding.AppendEncode(dst, data), '"')
}

// appendName appends a member name that needs no escapes.
func appendName(dst []byte, name string) []byte {
	dst = append(dst, `,"`...)
	dst = append(dst, name...)
	return append(dst, `":`...)
}

func appendMember(dst []byte, name, value string) []byte {
	return appendString(appendName(dst, name), value)
}

// appendString appends a JSON string with the escapes that JSON demands and no others. The text is
// valid UTF-8.
func appendString[T string | []byte](dst []byte, s T) []byte {
	const hexDigits = "0123456789abcdef"
	dst = append(dst, '"')
	start := 0
	for i := range len(s) {
		c := s[i]
		if c >= 0x20 && c != '"' && c != '\\' || c >= utf8.RuneSelf {
			continue
		}
		dst = append(dst, s[start:i]...)
		start = i + 1
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\n':
			dst = append(dst, '\\', 'n')
		case '\r':
			dst = append(dst, '\\', 'r')
		case '\t':
			dst = append(dst, '\\', 't')
		default:
			dst = append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&0xF])
		}
	}
	dst = append(dst, s[start:]...)
	return append(dst, '"')
}
