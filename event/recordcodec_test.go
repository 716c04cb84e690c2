package event

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	storev1 "github.com/turnlane/turnlane/proto/turnlane/store/v1"
)

// full is an event with everything that a record can hold.
func full() *Event {
	e := &Event{
		ID: "id", Source: "/s", Type: "t", Subject: "ü", Time: "2018-04-05t17:31:00.000+02:00",
		DataContentType: "application/json", DataSchema: "urn:x", DataKind: JSONData, Data: []byte(`{"a":1}`),
	}
	e.SetExtension("bin", Binary([]byte{0, 0xFF}))
	e.SetExtension("binempty", Binary(nil))
	e.SetExtension("intmin", Integer(math.MinInt32))
	e.SetExtension("intmax", Integer(math.MaxInt32))
	e.SetExtension("intzero", Integer(0))
	e.SetExtension("no", Boolean(false))
	e.SetExtension("yes", Boolean(true))
	e.SetExtension("str", String("é"))
	e.SetExtension("strempty", String(""))
	e.SetExtension("uri", URI("urn:y"))
	e.SetExtension("uriref", URIRef(""))
	e.SetExtension("ts", Timestamp("2018-04-05T17:31:00z"))
	return e
}

// toStored is the same message as AppendRecord writes, built with generated code.
func toStored(e *Event) *storev1.Event {
	m := &storev1.Event{
		Id: e.ID, Source: e.Source, Type: e.Type, Subject: e.Subject, Time: e.Time,
		Datacontenttype: e.DataContentType, Dataschema: e.DataSchema,
		DataKind: storev1.DataKind(e.DataKind), Data: e.Data,
	}
	for _, x := range e.Extensions {
		s := &storev1.Extension{Name: x.Name}
		switch text, _ := x.Value.Text(); x.Value.Kind() {
		case BooleanKind:
			b, _ := x.Value.Boolean()
			s.Value = &storev1.Extension_Boolean{Boolean: b}
		case IntegerKind:
			n, _ := x.Value.Integer()
			s.Value = &storev1.Extension_Integer{Integer: n}
		case StringKind:
			s.Value = &storev1.Extension_String_{String_: text}
		case BinaryKind:
			b, _ := x.Value.Binary()
			s.Value = &storev1.Extension_Binary{Binary: b}
		case URIKind:
			s.Value = &storev1.Extension_Uri{Uri: text}
		case URIRefKind:
			s.Value = &storev1.Extension_UriReference{UriReference: text}
		case TimestampKind:
			s.Value = &storev1.Extension_Timestamp{Timestamp: text}
		}
		m.Extensions = append(m.Extensions, s)
	}
	return m
}

func testEvents() map[string]*Event {
	events := map[string]*Event{"full": full(), "required only": valid()}
	for name, kind := range map[string]DataKind{"json": JSONData, "text": TextData, "binary": BinaryData, "proto": ProtoData} {
		e := valid()
		e.DataKind, e.Data = kind, []byte("\x0a\x01x")
		events[name] = e
		e = e.Clone()
		e.Data = []byte{}
		events["empty "+name] = e
	}
	return events
}

func TestRecordsComeBackAsTheyWere(t *testing.T) {
	storedAt := time.Date(2026, 1, 2, 3, 4, 5, 678, time.UTC)
	for name, e := range testEvents() {
		t.Run(name, func(t *testing.T) {
			r := Record(AppendRecord(nil, e, 0xDEADBEEF, storedAt))
			if err := r.Check(); err != nil {
				t.Fatal(err)
			}
			if r.Hash() != 0xDEADBEEF || !r.StoredAt().Equal(storedAt) {
				t.Errorf("header: hash %x, stored at %v", r.Hash(), r.StoredAt())
			}
			got, err := DecodeRecord(r)
			if err != nil {
				t.Fatal(err)
			}
			if !got.Equal(e) || (got.Data == nil) != (e.Data == nil) {
				t.Errorf("got  %+v\nwant %+v", got, e)
			}
			if after := AppendRecord([]byte("x"), got, 0xDEADBEEF, storedAt); string(after) != "x"+string(r) {
				t.Errorf("encoded again: %x\nwant           %x", after[1:], r)
			}
		})
	}
}

func TestRecordAgreesWithGeneratedCode(t *testing.T) {
	for name, e := range testEvents() {
		t.Run(name, func(t *testing.T) {
			want, err := proto.MarshalOptions{Deterministic: true}.Marshal(toStored(e))
			if err != nil {
				t.Fatal(err)
			}
			r := AppendRecord(nil, e, 0, time.Unix(0, 0))
			if string(r[recordHeader:]) != string(want) {
				t.Errorf("by hand %x\ngenerated %x", r[recordHeader:], want)
			}
			m := new(storev1.Event)
			if err := proto.Unmarshal(r[recordHeader:], m); err != nil {
				t.Fatal(err)
			}
			if !proto.Equal(m, toStored(e)) || len(m.ProtoReflect().GetUnknown()) > 0 {
				t.Errorf("generated code reads %v, want %v", m, toStored(e))
			}
		})
	}
}

// record is a record whose message is the given bytes.
func record(message ...[]byte) Record {
	r := Record(AppendRecord(nil, &Event{}, 0, time.Unix(0, 0)))
	for _, m := range message {
		r = append(r, m...)
	}
	return r
}

func field(num protowire.Number, content string) []byte {
	return protowire.AppendString(protowire.AppendTag(nil, num, protowire.BytesType), content)
}

func varint(num protowire.Number, v uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(nil, num, protowire.VarintType), v)
}

func TestRecordsKeepWhatTheyDoNotKnow(t *testing.T) {
	newExtension := field(fieldExtensions, string(field(1, "later"))+string(field(15, "v")))
	unset := field(fieldExtensions, string(field(1, "unset")))
	known := AppendRecord(nil, full(), 7, time.Unix(1, 0))
	r := Record(append(slices.Clip(known), field(100, "a")...))
	r = append(r, newExtension...)
	r = append(r, varint(101, 5)...)
	r = append(r, unset...)
	r = append(r, varint(fieldID, 1)...) // a known number with another wire type
	e, err := DecodeRecord(r)
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := e.Extension("later"); ok {
		t.Error("an extension of unknown type shows")
	}
	if e.Equal(full()) {
		t.Error("an event that has more is equal to one that has not")
	}
	e.Subject = "changed"
	again := Record(AppendRecord(nil, e, 7, time.Unix(1, 0)))
	back, err := DecodeRecord(again)
	if err != nil {
		t.Fatal(err)
	}
	if back.unknown != e.unknown || !strings.HasSuffix(string(again), string(r[len(known):])) {
		t.Errorf("unknown fields were %x, came back as %x", r[len(known):], back.unknown)
	}
	if back.unknown = ""; !back.Equal(func() *Event { e := full(); e.Subject = "changed"; return e }()) {
		t.Errorf("got %+v", back)
	}
}

func TestRecordsOfOtherWritersAreReadByTheRulesOfProtobuf(t *testing.T) {
	ext := func(name string, v uint64) []byte {
		return field(fieldExtensions, string(varint(3, v))+string(field(1, name)))
	}
	e, err := DecodeRecord(record(
		field(fieldData, "first"), ext("b", 1), field(fieldID, "old"), ext("a", math.MaxUint64),
		varint(fieldDataKind, 1), varint(fieldDataKind, 3), field(fieldID, "new"), field(fieldData, "second")))
	if err != nil {
		t.Fatal(err)
	}
	want := &Event{ID: "new", DataKind: BinaryData, Data: []byte("second"), Extensions: []Extension{{"a", Integer(-1)}, {"b", Integer(1)}}}
	if !e.Equal(want) {
		t.Errorf("got %+v, want %+v", e, want)
	}
	// The last of several values counts.
	e, err = DecodeRecord(record(field(fieldExtensions, string(field(1, "x"))+string(varint(2, 1))+string(field(4, "s")))))
	if v, _ := e.Extension("x"); err != nil || v != String("s") {
		t.Errorf("got %v, %v", v, err)
	}
}

func TestBrokenRecordsAreRefused(t *testing.T) {
	newer := record()
	newer[0] = 2
	for name, c := range map[string]struct {
		record Record
		says   string
	}{
		"nothing":           {nil, "0 bytes"},
		"short header":      {record()[:12], "12 bytes"},
		"newer version":     {newer, "version 2"},
		"broken tag":        {record([]byte{0xFF}), "byte 0"},
		"field 0":           {record([]byte{0x02, 0}), "byte 0"},
		"cut field":         {record([]byte{0x0A, 5, 'a'}), "field at byte 0"},
		"lonely end group":  {record([]byte{0x0C}), "field at byte 0"},
		"id not UTF-8":      {record(field(fieldID, "\xff")), "field 1 is not valid UTF-8"},
		"cut extension":     {record(field(fieldExtensions, "\x0a\x05a")), "extension at byte"},
		"broken extension":  {record(field(fieldExtensions, "\xff")), "extension at byte"},
		"name not UTF-8":    {record(field(fieldExtensions, string(field(1, "\xff")))), "UTF-8"},
		"value not UTF-8":   {record(field(fieldExtensions, string(field(4, "\xff")))), "UTF-8"},
		"extension twice":   {record(field(8, string(field(1, "x"))+string(varint(2, 1))), field(8, string(field(1, "x"))+string(varint(2, 1)))), "more than once"},
		"newer data kind":   {record(varint(fieldDataKind, 5)), "data kind 5"},
		"data without kind": {record(field(fieldData, "x")), "without a data kind"},
	} {
		t.Run(name, func(t *testing.T) {
			e, err := DecodeRecord(c.record)
			if e != nil || !errors.Is(err, ErrRecord) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %+v, error %v, want one that says %q", e, err, c.says)
			}
		})
	}
}

func TestRecordOfAMiBOfUnknownFieldsIsReadInOnePass(t *testing.T) {
	e, err := DecodeRecord(record([]byte(strings.Repeat("\xf8\x07\x00", 1<<20/3))))
	if err != nil || len(e.unknown) != 1<<20/3*3 {
		t.Errorf("%d unknown bytes, error %v", len(e.unknown), err)
	}
}

func TestDecodedStringsDoNotShareTheRecord(t *testing.T) {
	r := Record(AppendRecord(nil, full(), 0, time.Unix(0, 0)))
	e, err := DecodeRecord(r)
	if err != nil {
		t.Fatal(err)
	}
	data := string(e.Data)
	e.Data = []byte(data)
	if cap(e.Data[:0:len(e.Data)]) > len(e.Data) {
		t.Error("appending to the data would write into the record")
	}
	clear(r)
	if !e.Equal(full()) {
		t.Errorf("got %+v after the record's buffer was reused", e)
	}
}

func TestRecordCodecAllocations(t *testing.T) {
	e := full()
	buf := make([]byte, 0, 4096)
	if n := testing.AllocsPerRun(100, func() { buf = AppendRecord(buf[:0], e, 1, time.Unix(1, 0)) }); n != 0 {
		t.Errorf("AppendRecord allocates %v times, want 0", n)
	}
	r := Record(buf)
	decode := func() {
		if _, err := DecodeRecord(r); err != nil {
			t.Fatal(err)
		}
	}
	if n := testing.AllocsPerRun(100, decode); n > 3 {
		t.Errorf("DecodeRecord allocates %v times, want 3: event, text, extensions", n)
	}
	r = AppendRecord(nil, valid(), 1, time.Unix(1, 0))
	if n := testing.AllocsPerRun(100, decode); n > 2 {
		t.Errorf("DecodeRecord of an event without extensions allocates %v times, want 2", n)
	}
}
