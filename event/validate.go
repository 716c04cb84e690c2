package event

import (
	"strconv"
	"unicode/utf8"
)

// SpecVersion is the only version of CloudEvents that is read and written.
const SpecVersion = "1.0"

// MaxNameLength bounds the names of extension attributes, in bytes. CloudEvents recommends 20 and
// sets no limit.
const MaxNameLength = 64

// Validate reports the first rule of CloudEvents 1.0 that e breaks, as an *Error. Every decoder but
// DecodeRecord ends with it. It reads all of the data when that must be JSON or text.
func (e *Event) Validate() error {
	if err := e.validateAttributes(); err != nil {
		return err
	}
	return e.validateData()
}

func (e *Event) validateAttributes() error {
	for _, a := range [...]struct{ name, value string }{{"id", e.ID}, {"source", e.Source}, {"type", e.Type}} {
		if a.value == "" {
			return missing(a.name)
		}
	}
	if err := checkString("id", e.ID); err != nil {
		return err
	}
	if err := checkURI("source", e.Source, false); err != nil {
		return err
	}
	if err := checkString("type", e.Type); err != nil {
		return err
	}
	if err := checkString("subject", e.Subject); err != nil {
		return err
	}
	if e.Time != "" {
		if err := checkTimestamp("time", e.Time); err != nil {
			return err
		}
	}
	if e.DataContentType != "" {
		if problem := mediaTypeProblem(e.DataContentType); problem != "" {
			return invalid("datacontenttype", quote(e.DataContentType)+" is not a media type (RFC 2046): "+problem,
				"write it like application/json or text/plain; charset=utf-8")
		}
	}
	if e.DataSchema != "" {
		if err := checkURI("dataschema", e.DataSchema, true); err != nil {
			return err
		}
	}
	return e.validateExtensions()
}

func (e *Event) validateExtensions() error {
	for i, x := range e.Extensions {
		if err := checkExtensionName(x.Name); err != nil {
			return err
		}
		if i > 0 && e.Extensions[i-1].Name >= x.Name {
			return invalid(x.Name, "is out of order or given twice among the extensions", "use SetExtension")
		}
		if err := checkValue(x.Name, x.Value); err != nil {
			return err
		}
	}
	return nil
}

func checkValue(name string, v Value) error {
	switch v.kind {
	case BooleanKind, IntegerKind, BinaryKind:
		return nil
	case StringKind:
		return checkString(name, v.text)
	case URIKind:
		return checkURI(name, v.text, true)
	case URIRefKind:
		return checkURI(name, v.text, false)
	case TimestampKind:
		return checkTimestamp(name, v.text)
	}
	return invalid(name, "has no value", "give it one, or leave the extension out")
}

func (e *Event) validateData() error {
	switch e.DataKind {
	case NoData:
		if len(e.Data) > 0 {
			return invalid("data", "has bytes but the data kind says that there is none", "set DataKind")
		}
	case JSONData:
		return checkJSON(e.Data)
	case TextData:
		if !utf8.Valid(e.Data) {
			return invalid("data", "is given as text but is not valid UTF-8", "give it as binary data")
		}
	case BinaryData:
	case ProtoData:
		if _, ok := anyValue(e.Data); !ok {
			return invalid("data", "is not a marshalled google.protobuf.Any", "marshal an Any, or use BinaryData")
		}
	default:
		return invalid("data", "has the unknown kind "+strconv.Itoa(int(e.DataKind)), "use one of the DataKind constants")
	}
	return nil
}

func missing(name string) error {
	return invalid(name, "is missing or empty, and it is required", "give the event a non-empty "+name)
}

// presentEmpty is the error for an optional attribute that is there without content.
func presentEmpty(name string) error {
	return invalid(name, "is present but empty", "leave it out, or give it a value")
}

func checkString(field, s string) error {
	if problem := stringProblem(s); problem != "" {
		return invalid(field, quote(s)+" "+problem, "remove it: CloudEvents strings cannot hold it")
	}
	return nil
}

// stringProblem applies the rules of the CloudEvents type String.
func stringProblem(s string) string {
	for i := 0; i < len(s); {
		c := s[i]
		if c < utf8.RuneSelf {
			if c < 0x20 || c == 0x7F {
				return "contains the control character " + codePoint(rune(c))
			}
			i++
			continue
		}
		r, n := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && n == 1:
			return "is not valid UTF-8 at byte " + strconv.Itoa(i)
		case r <= 0x9F:
			return "contains the control character " + codePoint(r)
		case r >= 0xFDD0 && r <= 0xFDEF, r&0xFFFE == 0xFFFE:
			return "contains the noncharacter " + codePoint(r)
		}
		i += n
	}
	return ""
}

func codePoint(r rune) string {
	hex := []byte("0000")
	digits := strconv.AppendInt(nil, int64(r), 16)
	for i, d := range digits {
		if d >= 'a' {
			digits[i] = d - 'a' + 'A'
		}
	}
	if len(digits) < 4 {
		digits = append(hex[:4-len(digits)], digits...)
	}
	return "U+" + string(digits)
}

func checkExtensionName(name string) error {
	if problem := nameProblem(name); problem != "" {
		return invalid(quote(name), "is not an attribute name: "+problem, "use only a-z and 0-9")
	}
	if isCoreName(name) {
		return invalid(name, "cannot be the name of an extension: CloudEvents defines it", "choose another name")
	}
	return nil
}

func nameProblem(name string) string {
	if name == "" {
		return "it is empty"
	}
	for _, c := range name {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return quote(string(c)) + " is not allowed"
		}
	}
	if len(name) > MaxNameLength {
		return strconv.Itoa(len(name)) + " characters are more than " + strconv.Itoa(MaxNameLength)
	}
	return ""
}

func isCoreName(name string) bool {
	switch name {
	case "id", "source", "specversion", "type", "subject", "time", "datacontenttype", "dataschema", "data":
		return true
	}
	return false
}
