package event

import (
	"math"
	"testing"
)

func TestExtensionsStaySortedAndTyped(t *testing.T) {
	e := new(Event)
	if _, ok := e.Extension("a"); ok {
		t.Fatal("an empty event has an extension")
	}
	e.SetExtension("m", Integer(1))
	e.SetExtension("z", Boolean(true))
	e.SetExtension("a", String("x"))
	e.SetExtension("m", Integer(2))
	want := []Extension{{"a", String("x")}, {"m", Integer(2)}, {"z", Boolean(true)}}
	if len(e.Extensions) != 3 || e.Extensions[0] != want[0] || e.Extensions[1] != want[1] || e.Extensions[2] != want[2] {
		t.Fatalf("extensions are %v, want %v", e.Extensions, want)
	}
	if v, ok := e.Extension("m"); !ok || v != Integer(2) {
		t.Errorf("m is %v %v, want 2", v, ok)
	}
	if v, _ := e.Extension("m"); v == String("2") {
		t.Error("an integer equals the string of the same text")
	}
	e.DeleteExtension("a")
	e.DeleteExtension("nosuch")
	e.SetExtension("z", Value{})
	e.SetExtension("m", Value{})
	if e.Extensions != nil {
		t.Errorf("extensions are %v after all were deleted, want nil", e.Extensions)
	}
}

func TestValuesTellTheirKindAndCanonicalText(t *testing.T) {
	for _, c := range []struct {
		v    Value
		kind Kind
		name string
		text string
	}{
		{Value{}, NoKind, "none", ""},
		{Boolean(true), BooleanKind, "boolean", "true"},
		{Boolean(false), BooleanKind, "boolean", "false"},
		{Integer(0), IntegerKind, "integer", "0"},
		{Integer(math.MinInt32), IntegerKind, "integer", "-2147483648"},
		{String("ü"), StringKind, "string", "ü"},
		{Binary([]byte{0xFF, 0}), BinaryKind, "binary", "/wA="},
		{URI("urn:x"), URIKind, "uri", "urn:x"},
		{URIRef("/x"), URIRefKind, "uri-reference", "/x"},
		{Timestamp("2020-01-01T00:00:00z"), TimestampKind, "timestamp", "2020-01-01T00:00:00z"},
	} {
		if c.v.Kind() != c.kind || c.v.String() != c.text || c.v.Kind().String() != c.name {
			t.Errorf("%#v: kind %v, text %q; want %v (%s), %q", c.v, c.v.Kind(), c.v.String(), c.kind, c.name, c.text)
		}
		_, isBool := c.v.Boolean()
		_, isInt := c.v.Integer()
		_, isBin := c.v.Binary()
		_, isText := c.v.Text()
		answers := 0
		for _, is := range []bool{isBool, isInt, isBin, isText} {
			if is {
				answers++
			}
		}
		if want := 1; c.kind == NoKind && answers != 0 || c.kind != NoKind && answers != want {
			t.Errorf("%v answers to %d accessors", c.v.Kind(), answers)
		}
	}
	b := []byte("abc")
	v := Binary(b)
	b[0] = 'X'
	got, _ := v.Binary()
	got[1] = 'X'
	if again, _ := v.Binary(); string(again) != "abc" {
		t.Errorf("a binary value changed to %q through a slice", again)
	}
}

func TestCloneSharesNothingMutable(t *testing.T) {
	e := &Event{ID: "1", Source: "/s", Type: "t", DataKind: TextData, Data: []byte("abc"), unknown: "u"}
	e.SetExtension("x", Integer(1))
	c := e.Clone()
	if !c.Equal(e) || !e.Equal(c) {
		t.Fatal("a clone differs")
	}
	c.Data[0] = 'X'
	c.SetExtension("x", Integer(2))
	if string(e.Data) != "abc" || e.Extensions[0].Value != Integer(1) {
		t.Error("changing the clone changed the event")
	}
	if c.Equal(e) {
		t.Error("a changed clone is equal")
	}
	if empty := (&Event{Data: []byte{}, DataKind: TextData}).Clone(); empty.Data == nil {
		t.Error("the clone of empty data is nil")
	}
	var none *Event
	if none.Equal(e) || e.Equal(none) || !none.Equal(none) {
		t.Error("nil events compare wrongly")
	}
}
