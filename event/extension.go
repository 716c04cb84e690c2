package event

import (
	"bytes"
	"encoding/base64"
	"slices"
	"strconv"
	"strings"
)

// Extension is one extension attribute of an event.
type Extension struct {
	Name  string // [a-z0-9]+
	Value Value
}

// Kind is a type of the CloudEvents type system.
type Kind uint8

// The types of the type system.
const (
	NoKind        Kind = iota // the zero Value: no value at all
	BooleanKind               // true or false
	IntegerKind               // a whole number of 32 bits, signed
	StringKind                // Unicode text without control characters and noncharacters
	BinaryKind                // bytes
	URIKind                   // an absolute URI
	URIRefKind                // a URI reference
	TimestampKind             // RFC 3339 text
)

var kindNames = [...]string{"none", "boolean", "integer", "string", "binary", "uri", "uri-reference", "timestamp"}

// String returns the kind's name, such as "uri-reference".
func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return "kind(" + strconv.Itoa(int(k)) + ")"
}

// Value is the value of an extension attribute with its CloudEvents type. It is immutable, and two
// values can be compared with ==: they are equal when type and content are. Constructors check
// nothing; Validate does. The zero Value means that there is none.
type Value struct {
	text string // the content of every kind but boolean and integer; of BinaryKind the raw bytes
	num  int32  // the integer, or 1 for true
	kind Kind
}

// Boolean returns a Value of BooleanKind.
func Boolean(b bool) Value {
	v := Value{kind: BooleanKind}
	if b {
		v.num = 1
	}
	return v
}

// Integer returns a Value of IntegerKind.
func Integer(n int32) Value { return Value{kind: IntegerKind, num: n} }

// String returns a Value of StringKind.
func String(s string) Value { return Value{kind: StringKind, text: s} }

// Binary returns a Value of BinaryKind with a copy of b.
func Binary(b []byte) Value { return Value{kind: BinaryKind, text: string(b)} }

// URI returns a Value of URIKind.
func URI(s string) Value { return Value{kind: URIKind, text: s} }

// URIRef returns a Value of URIRefKind.
func URIRef(s string) Value { return Value{kind: URIRefKind, text: s} }

// Timestamp returns a Value of TimestampKind. The text is kept as it is given.
func Timestamp(s string) Value { return Value{kind: TimestampKind, text: s} }

// Kind returns the value's type.
func (v Value) Kind() Kind { return v.kind }

// IsZero reports whether there is no value.
func (v Value) IsZero() bool { return v.kind == NoKind }

// Boolean returns the boolean, and false for a value of another kind.
func (v Value) Boolean() (b, ok bool) {
	return v.kind == BooleanKind && v.num != 0, v.kind == BooleanKind
}

// Integer returns the integer, and false for a value of another kind.
func (v Value) Integer() (int32, bool) {
	if v.kind != IntegerKind {
		return 0, false
	}
	return v.num, true
}

// Binary returns a copy of the bytes, and false for a value of another kind.
func (v Value) Binary() ([]byte, bool) {
	if v.kind != BinaryKind {
		return nil, false
	}
	return []byte(v.text), true
}

// Text returns the text of a string, URI, URI reference or timestamp, and false for another kind.
func (v Value) Text() (string, bool) {
	switch v.kind {
	case StringKind, URIKind, URIRefKind, TimestampKind:
		return v.text, true
	}
	return "", false
}

// String returns the canonical text of the CloudEvents type system: "true", "-7", standard base64 for
// binary, the text itself for the others, and "" for the zero Value.
func (v Value) String() string {
	switch v.kind {
	case BooleanKind:
		return strconv.FormatBool(v.num != 0)
	case IntegerKind:
		return strconv.Itoa(int(v.num))
	case BinaryKind:
		return base64.StdEncoding.EncodeToString([]byte(v.text))
	}
	return v.text
}

// Extension returns the value of the extension attribute with that name, if the event has one.
func (e *Event) Extension(name string) (Value, bool) {
	i, ok := e.findExtension(name)
	if !ok {
		return Value{}, false
	}
	return e.Extensions[i].Value, true
}

// SetExtension sets an extension attribute; the zero Value deletes it. It changes e.Extensions in
// place: Clone first what shares it.
func (e *Event) SetExtension(name string, v Value) {
	if v.IsZero() {
		e.DeleteExtension(name)
		return
	}
	i, ok := e.findExtension(name)
	if ok {
		e.Extensions[i].Value = v
		return
	}
	e.Extensions = slices.Insert(e.Extensions, i, Extension{name, v})
}

// DeleteExtension removes an extension attribute if the event has it.
func (e *Event) DeleteExtension(name string) {
	if i, ok := e.findExtension(name); ok {
		e.Extensions = slices.Delete(e.Extensions, i, i+1)
		if len(e.Extensions) == 0 {
			e.Extensions = nil
		}
	}
}

func (e *Event) findExtension(name string) (int, bool) {
	return slices.BinarySearchFunc(e.Extensions, name, func(x Extension, name string) int {
		return strings.Compare(x.Name, name)
	})
}

// Clone returns a copy of e that shares nothing mutable with it.
func (e *Event) Clone() *Event {
	c := *e
	c.Extensions = slices.Clone(e.Extensions)
	c.Data = bytes.Clone(e.Data)
	return &c
}

// Equal reports whether e and f have the same attributes, of the same types, and the same data given
// in the same way.
func (e *Event) Equal(f *Event) bool {
	if e == nil || f == nil {
		return e == f
	}
	return e.ID == f.ID && e.Source == f.Source && e.Type == f.Type && e.Subject == f.Subject &&
		e.Time == f.Time && e.DataContentType == f.DataContentType && e.DataSchema == f.DataSchema &&
		e.DataKind == f.DataKind && e.unknown == f.unknown && bytes.Equal(e.Data, f.Data) &&
		slices.Equal(e.Extensions, f.Extensions)
}
