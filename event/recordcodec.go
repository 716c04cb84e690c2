package event

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
)

// The codec is written by hand because every event passes it twice: AppendRecord allocates nothing,
// DecodeRecord an event, one string for all attributes, and a slice if there are extensions. The
// message is turnlane.store.v1.Event.

// Field numbers of turnlane.store.v1.Event and Extension.
const (
	fieldID              = 1
	fieldSource          = 2
	fieldType            = 3
	fieldSubject         = 4
	fieldTime            = 5
	fieldDataContentType = 6
	fieldDataSchema      = 7
	fieldExtensions      = 8
	fieldDataKind        = 9
	fieldData            = 10

	fieldExtensionName  = 1
	fieldExtensionValue = 1 // plus the Kind: 2 for a boolean up to 8 for a timestamp
)

// AppendRecord appends e as a record and returns the longer slice. The hash is the slot hash of the
// routing key; storedAt counts in nanoseconds, within the years 1678 to 2261. The event must be
// valid: it is not checked again. Fields that came from a newer program's record go back into it.
func AppendRecord(dst []byte, e *Event, hash uint32, storedAt time.Time) []byte {
	dst = append(dst, recordVersion)
	dst = binary.BigEndian.AppendUint32(dst, hash)
	dst = binary.BigEndian.AppendUint64(dst, uint64(storedAt.UnixNano()))
	dst = appendText(dst, fieldID, e.ID)
	dst = appendText(dst, fieldSource, e.Source)
	dst = appendText(dst, fieldType, e.Type)
	dst = appendText(dst, fieldSubject, e.Subject)
	dst = appendText(dst, fieldTime, e.Time)
	dst = appendText(dst, fieldDataContentType, e.DataContentType)
	dst = appendText(dst, fieldDataSchema, e.DataSchema)
	for i := range e.Extensions {
		dst = appendExtension(dst, &e.Extensions[i])
	}
	if e.DataKind != NoData {
		dst = protowire.AppendTag(dst, fieldDataKind, protowire.VarintType)
		dst = protowire.AppendVarint(dst, uint64(e.DataKind))
	}
	if len(e.Data) > 0 {
		dst = protowire.AppendTag(dst, fieldData, protowire.BytesType)
		dst = protowire.AppendBytes(dst, e.Data)
	}
	return append(dst, e.unknown...)
}

// appendText appends a string field, nothing for an empty one.
func appendText(dst []byte, field protowire.Number, s string) []byte {
	if s == "" {
		return dst
	}
	dst = protowire.AppendTag(dst, field, protowire.BytesType)
	return protowire.AppendString(dst, s)
}

func appendExtension(dst []byte, x *Extension) []byte {
	// Every tag of Extension is one byte.
	size := 1 + protowire.SizeBytes(len(x.Name))
	switch x.Value.kind {
	case NoKind:
		return dst
	case BooleanKind, IntegerKind:
		size += 1 + protowire.SizeVarint(uint64(int64(x.Value.num)))
	default:
		size += 1 + protowire.SizeBytes(len(x.Value.text))
	}
	dst = protowire.AppendTag(dst, fieldExtensions, protowire.BytesType)
	dst = protowire.AppendVarint(dst, uint64(size))
	dst = protowire.AppendTag(dst, fieldExtensionName, protowire.BytesType)
	dst = protowire.AppendString(dst, x.Name)
	field := fieldExtensionValue + protowire.Number(x.Value.kind)
	switch x.Value.kind {
	case BooleanKind, IntegerKind:
		dst = protowire.AppendTag(dst, field, protowire.VarintType)
		return protowire.AppendVarint(dst, uint64(int64(x.Value.num)))
	}
	dst = protowire.AppendTag(dst, field, protowire.BytesType)
	return protowire.AppendString(dst, x.Value.text)
}

// ErrRecord is wrapped by every error of DecodeRecord.
var ErrRecord = errors.New("broken record")

// DecodeRecord reads the event of a record. The event's data is a slice of r: neither may be written
// to. Its strings are copies.
//
// Any bytes give an event or an error. Attributes are not validated again, except that text is UTF-8
// and extensions are in order.
func DecodeRecord(r Record) (*Event, error) {
	if err := r.Check(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrRecord, err)
	}
	d := recordDecoder{b: r[recordHeader:], e: new(Event)}
	if err := d.decode(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrRecord, err)
	}
	return d.e, nil
}

// recordDecoder walks over the message in b. The attributes stand before the data, so one string of
// that part serves them all as slices of it.
type recordDecoder struct {
	b     []byte
	text  string // b as a string, up to a field that begins the data or lies beyond it
	e     *Event
	order bool // extensions came out of order

	unknown []byte // becomes e.unknown
}

func (d *recordDecoder) decode() error {
	e := d.e
	extensions, err := d.survey()
	if err != nil {
		return err
	}
	if extensions > 0 {
		e.Extensions = make([]Extension, 0, extensions)
	}
	var kind uint64
	for i := 0; i < len(d.b); {
		f, _ := readField(d.b, i, len(d.b))
		switch {
		case f.num <= fieldDataSchema && f.typ == protowire.BytesType:
			s, err := d.string(f)
			if err != nil {
				return err
			}
			switch f.num {
			case fieldID:
				e.ID = s
			case fieldSource:
				e.Source = s
			case fieldType:
				e.Type = s
			case fieldSubject:
				e.Subject = s
			case fieldTime:
				e.Time = s
			case fieldDataContentType:
				e.DataContentType = s
			case fieldDataSchema:
				e.DataSchema = s
			}
		case f.num == fieldExtensions && f.typ == protowire.BytesType:
			if err := d.extension(i, f); err != nil {
				return err
			}
		case f.num == fieldDataKind && f.typ == protowire.VarintType:
			kind, _ = protowire.ConsumeVarint(d.b[f.start:])
		case f.num == fieldData && f.typ == protowire.BytesType:
			e.Data = d.b[f.start:f.end:f.end]
		default:
			d.unknown = append(d.unknown, d.b[i:f.end]...)
		}
		i = f.end
	}
	if kind > uint64(ProtoData) {
		return fmt.Errorf("data kind %d is unknown to this program; upgrade it", kind)
	}
	e.DataKind = DataKind(kind)
	e.unknown = string(d.unknown)
	switch {
	case e.DataKind != NoData && e.Data == nil:
		e.Data = []byte{}
	case e.DataKind == NoData && len(e.Data) > 0:
		return errors.New("it has data without a data kind")
	case e.DataKind == NoData:
		e.Data = nil
	}
	return d.sortExtensions()
}

// recordField is one field: its content is b[start:end], without the length for BytesType.
type recordField struct {
	num        protowire.Number
	typ        protowire.Type
	start, end int
}

// readField reads the field at i of b[:end].
func readField(b []byte, i, end int) (f recordField, err error) {
	// Nearly always: a tag of one byte, and a length of one byte.
	if i+1 < end && b[i] < 0x80 && b[i]&7 == byte(protowire.BytesType) && b[i] >= 8 && b[i+1] < 0x80 {
		f = recordField{protowire.Number(b[i] >> 3), protowire.BytesType, i + 2, i + 2 + int(b[i+1])}
		if f.end <= end {
			return f, nil
		}
	}
	return readAnyField(b, i, end)
}

func readAnyField(b []byte, i, end int) (f recordField, err error) {
	num, typ, n := protowire.ConsumeTag(b[i:end])
	if n < 0 {
		return f, protowire.ParseError(n)
	}
	if num > protowire.MaxValidNumber { // which ConsumeTag lets pass
		return f, fmt.Errorf("%d is no field number", num)
	}
	f = recordField{num: num, typ: typ, start: i + n}
	m := protowire.ConsumeFieldValue(num, typ, b[f.start:end])
	if m < 0 {
		return f, protowire.ParseError(m)
	}
	f.end = f.start + m
	if typ == protowire.BytesType {
		_, n := protowire.ConsumeVarint(b[f.start:])
		f.start += n
	}
	return f, nil
}

// survey checks the structure once, counts the extensions and makes the string.
func (d *recordDecoder) survey() (extensions int, err error) {
	textEnd := 0
	for i := 0; i < len(d.b); {
		f, err := readField(d.b, i, len(d.b))
		if err != nil {
			return 0, fmt.Errorf("field at byte %d: %w", i, err)
		}
		i = f.end
		if f.num <= fieldExtensions && f.typ == protowire.BytesType {
			textEnd = i
		}
		if f.num == fieldExtensions && f.typ == protowire.BytesType {
			extensions++
		}
	}
	d.text = string(d.b[:textEnd])
	return extensions, nil
}

func (d *recordDecoder) string(f recordField) (string, error) {
	s := d.text[f.start:f.end]
	if !utf8.ValidString(s) {
		return "", fmt.Errorf("field %d is not valid UTF-8", f.num)
	}
	return s, nil
}

// extension reads the extension field that spans b[start:outer.end].
func (d *recordDecoder) extension(start int, outer recordField) error {
	var x Extension
	known := true
	for i := outer.start; i < outer.end; {
		f, err := readField(d.b, i, outer.end)
		if err != nil {
			return fmt.Errorf("extension at byte %d: %w", i, err)
		}
		i = f.end
		if f.num == fieldExtensionName && f.typ == protowire.BytesType {
			s, err := d.string(f)
			if err != nil {
				return err
			}
			x.Name = s
			continue
		}
		kind := kindOf(f)
		switch kind {
		case NoKind:
			known = false
		case BooleanKind, IntegerKind:
			v, _ := protowire.ConsumeVarint(d.b[f.start:])
			x.Value = Integer(int32(v))
			if kind == BooleanKind {
				x.Value = Boolean(v != 0)
			}
		case BinaryKind:
			x.Value = Value{kind: kind, text: d.text[f.start:f.end]}
		default:
			s, err := d.string(f)
			if err != nil {
				return err
			}
			x.Value = Value{kind: kind, text: s}
		}
	}
	if !known || x.Value.IsZero() {
		d.unknown = append(d.unknown, d.b[start:outer.end]...)
		return nil
	}
	if n := len(d.e.Extensions); n > 0 && d.e.Extensions[n-1].Name >= x.Name {
		d.order = true
	}
	d.e.Extensions = append(d.e.Extensions, x)
	return nil
}

// kindOf is the kind of value that a field of Extension holds, NoKind for a field that is unknown.
func kindOf(f recordField) Kind {
	if f.num <= fieldExtensionValue || f.num > fieldExtensionValue+protowire.Number(TimestampKind) {
		return NoKind
	}
	kind, want := Kind(f.num-fieldExtensionValue), protowire.BytesType
	if kind == BooleanKind || kind == IntegerKind {
		want = protowire.VarintType
	}
	if f.typ != want {
		return NoKind
	}
	return kind
}

// sortExtensions keeps the event's promise that extensions are sorted, each name once, also for a
// record that another program wrote.
func (d *recordDecoder) sortExtensions() error {
	if len(d.e.Extensions) == 0 {
		d.e.Extensions = nil
	}
	if !d.order {
		return nil
	}
	if err := d.e.sortExtensions(); err != nil {
		return err
	}
	d.e.Extensions = slices.Clip(d.e.Extensions)
	return nil
}
