package event

import (
	"net/http"
	"net/textproto"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Mode says how an HTTP message carries events.
type Mode uint8

// The modes of the HTTP binding, and none.
const (
	RawMode         Mode = iota // no CloudEvents envelope at all
	BinaryMode                  // one event: attributes in ce- headers, data in the body; FromHTTP
	StructuredMode              // one event as JSON in the body; ParseJSON
	BatchMode                   // a JSON array of events in the body; ParseJSONBatch
	UnsupportedMode             // a CloudEvents format other than JSON
)

var modeNames = [...]string{"raw", "binary", "structured", "batch", "unsupported"}

// String returns the mode's name, such as "structured".
func (m Mode) String() string {
	if int(m) < len(modeNames) {
		return modeNames[m]
	}
	return "mode(" + strconv.Itoa(int(m)) + ")"
}

// HTTPMode tells from the headers how a message carries events. The content type decides; without a
// CloudEvents content type, any one header of the four required attributes means binary mode, so that
// a message that lacks another one is answered with an error rather than taken as raw.
func HTTPMode(h http.Header) Mode {
	t, _ := mediaType(strings.TrimLeft(h.Get("Content-Type"), " \t"))
	t = strings.ToLower(t)
	switch {
	case t == JSONMediaType:
		return StructuredMode
	case t == JSONBatchMediaType:
		return BatchMode
	case strings.HasPrefix(t, "application/cloudevents"):
		return UnsupportedMode
	}
	for name := range h {
		switch strings.ToLower(name) {
		case "ce-id", "ce-source", "ce-specversion", "ce-type":
			return BinaryMode
		}
	}
	return RawMode
}

const headerPrefix = "ce-"

// FromHTTP reads an event in the HTTP binary content mode. The event's data shares body.
//
// Header values are unquoted and percent-decoded; raw characters outside ASCII and malformed escapes
// are refused. HTTP has no types: every extension is a String. Headers that do not begin with "ce-",
// other than Content-Type, are no part of the event.
//
// The body becomes JSONData under a JSON Content-Type, and must then be JSON, since the header says
// what the body is (data_base64 and binary_data of the other formats carry declared bytes, which are
// taken as they are whatever the datacontenttype); TextData under text/*
// and XML types when it is UTF-8; else, and without a Content-Type, BinaryData. No body and an empty
// body are the same in HTTP: it is NoData, except that under a Content-Type that is not JSON an empty
// body that is not nil is empty data.
func FromHTTP(h http.Header, body []byte) (*Event, error) {
	e := new(Event)
	specVersion := ""
	for header, values := range h {
		name, ok := cutHeaderPrefix(header)
		if !ok {
			continue
		}
		if len(values) == 0 {
			continue
		}
		if len(values) > 1 {
			return nil, duplicate(fieldName(name))
		}
		if name == "datacontenttype" {
			return nil, invalid("datacontenttype", "is given as header ce-datacontenttype", "use the header Content-Type")
		}
		value, err := decodeHeader(fieldName(name), values[0])
		if err != nil {
			return nil, err
		}
		if err := e.setFromHeader(name, value, &specVersion); err != nil {
			return nil, err
		}
	}
	if err := checkSpecVersion(specVersion); err != nil {
		return nil, err
	}
	if err := e.sortExtensions(); err != nil {
		return nil, err
	}
	contentType := headerValues(h, "Content-Type")
	switch {
	case len(contentType) > 1:
		return nil, duplicate("Content-Type")
	case len(contentType) == 1:
		if e.DataContentType = strings.Trim(contentType[0], " \t"); e.DataContentType == "" {
			return nil, invalid("Content-Type", "is present but empty", "leave it out, or state a media type")
		}
	}
	if err := e.validateAttributes(); err != nil {
		return nil, err
	}
	if err := e.setBody(body); err != nil {
		return nil, err
	}
	return e, nil
}

// headerValues finds a header also under a key that is not in canonical form.
func headerValues(h http.Header, name string) (values []string) {
	for key, v := range h {
		if strings.EqualFold(key, name) {
			values = append(values, v...)
		}
	}
	return values
}

func cutHeaderPrefix(header string) (name string, ok bool) {
	if len(header) < len(headerPrefix) || !strings.EqualFold(header[:len(headerPrefix)], headerPrefix) {
		return "", false
	}
	return strings.ToLower(header[len(headerPrefix):]), true
}

func (e *Event) setFromHeader(name, value string, specVersion *string) error {
	var field *string
	switch name {
	case "id":
		field = &e.ID
	case "source":
		field = &e.Source
	case "type":
		field = &e.Type
	case "specversion":
		field = specVersion
	case "subject":
		field = &e.Subject
	case "time":
		field = &e.Time
	case "dataschema":
		field = &e.DataSchema
	default:
		if err := checkExtensionName(name); err != nil {
			return err
		}
		e.Extensions = append(e.Extensions, Extension{name, String(value)})
		return nil
	}
	switch {
	case *field != "":
		return duplicate(name) // the same header in another case
	case value == "" && (name == "subject" || name == "time" || name == "dataschema"):
		return presentEmpty(name)
	}
	*field = value
	return nil
}

func (e *Event) setBody(body []byte) error {
	switch {
	case len(body) == 0 && (body == nil || IsJSON(e.DataContentType)):
		return nil
	case e.DataContentType == "":
		e.DataKind = BinaryData
	case IsJSON(e.DataContentType):
		e.DataKind = JSONData
		if err := checkJSON(body); err != nil {
			return err
		}
	case isText(e.DataContentType) && utf8.Valid(body):
		e.DataKind = TextData
	default:
		e.DataKind = BinaryData
	}
	e.Data = body
	return nil
}

// decodeHeader undoes double-quoted strings (RFC 7230 section 3.2.6), then percent-encoding.
func decodeHeader(field, s string) (string, error) {
	plain := true
	for i := range len(s) {
		switch c := s[i]; {
		case c >= utf8.RuneSelf:
			return "", invalid(field, "has raw characters outside ASCII in its header", "percent-encode their UTF-8 bytes")
		case c == '"' || c == '%':
			plain = false
		}
	}
	if plain {
		return s, nil
	}
	s, ok := unquoteHeader(s)
	if !ok {
		return "", invalid(field, "has a quote in its header that is not closed", "percent-encode it as %22")
	}
	b := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c == '%' {
			if i+2 >= len(s) || !isHex(s[i+1]) || !isHex(s[i+2]) {
				return "", invalid(field, quote(s)+" has % without two hexadecimal digits after it", "percent-encode % as %25")
			}
			c = unhex(s[i+1])<<4 | unhex(s[i+2])
			i += 2
		}
		b = append(b, c)
	}
	if !utf8.Valid(b) {
		return "", invalid(field, quote(s)+" is percent-encoded but not valid UTF-8", "encode the bytes of UTF-8")
	}
	return string(b), nil
}

func unquoteHeader(s string) (string, bool) {
	if strings.IndexByte(s, '"') < 0 {
		return s, true
	}
	b := make([]byte, 0, len(s))
	quoted := false
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '"':
			quoted = !quoted
		case c == '\\' && quoted:
			if i++; i == len(s) {
				return "", false
			}
			b = append(b, s[i])
		default:
			b = append(b, c)
		}
	}
	return string(b), !quoted
}

func unhex(c byte) byte {
	if c <= '9' {
		return c - '0'
	}
	return c | 0x20 - 'a' + 10
}

// ToHTTP returns e in the HTTP binary content mode: headers under canonical keys, and a body that is
// nil when there is no data. The body shares the event's data.
//
// The only thing ever added is Content-Type: application/json for JSONData without datacontenttype,
// which the CloudEvents JSON format asks for, since HTTP would otherwise not imply it. The body of
// ProtoData is the message without its type URL, which belongs in dataschema.
func ToHTTP(e *Event) (http.Header, []byte, error) {
	if err := validPointer(e); err != nil {
		return nil, nil, err
	}
	h := make(http.Header, 6+len(e.Extensions))
	set := func(name, value string) {
		h[textproto.CanonicalMIMEHeaderKey(headerPrefix+name)] = []string{encodeHeader(value)}
	}
	set("specversion", SpecVersion)
	set("id", e.ID)
	set("source", e.Source)
	set("type", e.Type)
	if e.Subject != "" {
		set("subject", e.Subject)
	}
	if e.Time != "" {
		set("time", e.Time)
	}
	if e.DataSchema != "" {
		set("dataschema", e.DataSchema)
	}
	for _, x := range e.Extensions {
		set(x.Name, x.Value.String())
	}
	switch {
	case e.DataContentType != "":
		h["Content-Type"] = []string{e.DataContentType}
	case e.DataKind == JSONData:
		h["Content-Type"] = []string{"application/json"}
	}
	switch {
	case e.DataKind == NoData:
		return h, nil, nil
	case e.DataKind == ProtoData:
		value, _ := anyValue(e.Data)
		return h, value, nil
	case e.Data == nil:
		return h, []byte{}, nil
	}
	return h, e.Data, nil
}

// encodeHeader percent-encodes the space, the double quote, "%" and everything but printable ASCII.
func encodeHeader(s string) string {
	const hexDigits = "0123456789ABCDEF"
	plain := func(c byte) bool { return c > ' ' && c < 0x7F && c != '"' && c != '%' }
	i := 0
	for i < len(s) && plain(s[i]) {
		i++
	}
	if i == len(s) {
		return s
	}
	b := append(make([]byte, 0, len(s)+16), s[:i]...)
	for ; i < len(s); i++ {
		if c := s[i]; plain(c) {
			b = append(b, c)
		} else {
			b = append(b, '%', hexDigits[c>>4], hexDigits[c&0xF])
		}
	}
	return string(b)
}
