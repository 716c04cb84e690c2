package event

import (
	"errors"
	"strings"
	"testing"
	"time"
)

func valid() *Event { return &Event{ID: "1", Source: "/s", Type: "t"} }

// wantInvalid checks that err is an *Error about field whose text contains rule.
func wantInvalid(t *testing.T, err error, field, rule string) {
	t.Helper()
	if !errors.Is(err, ErrInvalid) {
		t.Fatalf("error %v, want one about %s: %s", err, field, rule)
	}
	e, ok := errors.AsType[*Error](err)
	if !ok || e.Field != field || !strings.Contains(e.Error(), rule) {
		t.Errorf("error is %q about %q, want one about %q that says %q", err, e.Field, field, rule)
	}
	if ok && e.Fix == "" {
		t.Errorf("error %q says no fix", err)
	}
	for _, r := range err.Error() {
		if r < 0x20 || r == 0x7F {
			t.Errorf("error %q has a control character", err)
		}
	}
}

func TestValidateNamesTheFieldAndTheRule(t *testing.T) {
	long := strings.Repeat("x", MaxNameLength+1)
	for name, c := range map[string]struct {
		change      func(e *Event)
		field, rule string
	}{
		"no id":                {func(e *Event) { e.ID = "" }, "id", "missing"},
		"no source":            {func(e *Event) { e.Source = "" }, "source", "missing"},
		"no type":              {func(e *Event) { e.Type = "" }, "type", "missing"},
		"control in id":        {func(e *Event) { e.ID = "a\x00" }, "id", "U+0000"},
		"delete in type":       {func(e *Event) { e.Type = "a\x7f" }, "type", "U+007F"},
		"C1 control":           {func(e *Event) { e.Subject = "a\u0085" }, "subject", "U+0085"},
		"noncharacter FFFE":    {func(e *Event) { e.Subject = "\ufffe" }, "subject", "U+FFFE"},
		"noncharacter FDD0":    {func(e *Event) { e.Subject = "\ufdd0" }, "subject", "U+FDD0"},
		"noncharacter 10FFFF":  {func(e *Event) { e.Subject = "\U0010ffff" }, "subject", "U+10FFFF"},
		"invalid UTF-8":        {func(e *Event) { e.Subject = "a\xff" }, "subject", "UTF-8"},
		"surrogate in UTF-8":   {func(e *Event) { e.Subject = "\xed\xa0\x80" }, "subject", "UTF-8"},
		"source with space":    {func(e *Event) { e.Source = "/a b" }, "source", "URI reference"},
		"relative schema":      {func(e *Event) { e.DataSchema = "/schema" }, "dataschema", "no scheme"},
		"schema with fragment": {func(e *Event) { e.DataSchema = "http://a/b#c" }, "dataschema", "fragment"},
		"content type":         {func(e *Event) { e.DataContentType = "json" }, "datacontenttype", "media type"},
		"time":                 {func(e *Event) { e.Time = "yesterday" }, "time", "RFC 3339"},
		"extension in capital": {func(e *Event) { e.SetExtension("Foo", String("x")) }, `"Foo"`, "attribute name"},
		"extension with dash":  {func(e *Event) { e.SetExtension("a-b", String("x")) }, `"a-b"`, "attribute name"},
		"extension no name":    {func(e *Event) { e.SetExtension("", String("x")) }, `""`, "empty"},
		"extension long":       {func(e *Event) { e.SetExtension(long, String("x")) }, quote(long), "65 characters"},
		"extension data":       {func(e *Event) { e.SetExtension("data", String("x")) }, "data", "CloudEvents defines it"},
		"extension data64":     {func(e *Event) { e.SetExtension("data_base64", String("x")) }, `"data_base64"`, "attribute name"},
		"extension id":         {func(e *Event) { e.SetExtension("id", String("x")) }, "id", "CloudEvents defines it"},
		"extension version":    {func(e *Event) { e.SetExtension("specversion", String("1.0")) }, "specversion", "CloudEvents defines it"},
		"extension text":       {func(e *Event) { e.SetExtension("x", String("\n")) }, "x", "U+000A"},
		"extension uri":        {func(e *Event) { e.SetExtension("x", URI("a/b")) }, "x", "absolute URI"},
		"extension uri ref":    {func(e *Event) { e.SetExtension("x", URIRef("%")) }, "x", "URI reference"},
		"extension timestamp":  {func(e *Event) { e.SetExtension("x", Timestamp("")) }, "x", "RFC 3339"},
		"extension no value":   {func(e *Event) { e.Extensions = []Extension{{Name: "x"}} }, "x", "no value"},
		"extensions unsorted": {func(e *Event) {
			e.Extensions = []Extension{{"b", Integer(1)}, {"a", Integer(1)}}
		}, "a", "out of order"},
		"extension twice": {func(e *Event) {
			e.Extensions = []Extension{{"a", Integer(1)}, {"a", Integer(1)}}
		}, "a", "twice"},
		"data without kind": {func(e *Event) { e.Data = []byte("x") }, "data", "data kind"},
		"data kind":         {func(e *Event) { e.DataKind = 9 }, "data", "unknown kind 9"},
		"json data":         {func(e *Event) { e.DataKind, e.Data = JSONData, []byte("{") }, "data", "not valid JSON"},
		"no json data":      {func(e *Event) { e.DataKind = JSONData }, "data", "not valid JSON"},
		"text data":         {func(e *Event) { e.DataKind, e.Data = TextData, []byte{0xFF} }, "data", "UTF-8"},
		"proto data":        {func(e *Event) { e.DataKind, e.Data = ProtoData, []byte{0xFF} }, "data", "google.protobuf.Any"},
	} {
		t.Run(name, func(t *testing.T) {
			e := valid()
			c.change(e)
			wantInvalid(t, e.Validate(), c.field, c.rule)
		})
	}
}

func TestValidateTakesEverythingTheTextAllows(t *testing.T) {
	e := &Event{
		ID: " any Text \U0001F600 \ufdcf\ufdf0\ufffd ", Source: "urn:x", Type: "ü", Subject: "a b\u00a0c",
		Time: "2016-12-31T23:59:60.5Z", DataContentType: `Text/Plain ; Charset="utf-8"`,
		DataSchema: "HTTP://user:p@[2001:db8::1]:80/a/b;c=%20?q=/?&x", DataKind: TextData,
	}
	e.SetExtension(strings.Repeat("0", MaxNameLength), String(""))
	e.SetExtension("timestamp", Timestamp("2020-02-29t00:00:00+23:59"))
	e.SetExtension("ref", URIRef(""))
	e.SetExtension("bin", Binary(nil))
	if err := e.Validate(); err != nil {
		t.Error(err)
	}
}

func TestURIs(t *testing.T) {
	for _, c := range []struct {
		uri                 string
		reference, absolute bool
	}{
		{"", true, false},
		{"/a", true, false},
		{"a/b:c", true, false},
		{"//host", true, false},
		{"?q", true, false},
		{"#f", true, false},
		{"./1:2", true, false},
		{"1:2", false, false},
		{":a", false, false},
		{"a_b:c", false, false},
		{"urn:", true, true},
		{"mailto:a@b.c", true, true},
		{"http://", true, true},
		{"http://a:/", true, true},
		{"http://a:8x/", false, false},
		{"http://a:80:80/", false, false},
		{"http://a@b@c/", false, false},
		{"http://u:p@c/", true, true},
		{"http://[::1]/", true, true},
		{"http://[::1]x/", false, false},
		{"http://[::1/", false, false},
		{"http://[::1%25eth0]/", false, false},
		{"http://[1.2.3.4]/", false, false},
		{"http://[v1.a:b]/", true, true},
		{"http://[v.a]/", false, false},
		{"http://[vg.a]/", false, false},
		{"http://a/b c", false, false},
		{"http://a/%zz", false, false},
		{"http://a/%4", false, false},
		{"http://a/%41", true, true},
		{"http://a/[b]", false, false},
		{"http://a?b?c", true, true},
		{"http://a#b", true, false},
		{"http://a#b#c", false, false},
		{"http://a/ü", false, false},
		{"http://a\\b", false, false},
		{"http://a/{b}", false, false},
		{"a\x00", false, false},
		{"https://a.b/c;d=e,f!$&'()*+", true, true},
	} {
		if got := uriProblem(c.uri, false); (got == "") != c.reference {
			t.Errorf("%q as a URI reference: problem %q, want valid %v", c.uri, got, c.reference)
		}
		if got := uriProblem(c.uri, true); (got == "") != c.absolute {
			t.Errorf("%q as an absolute URI: problem %q, want valid %v", c.uri, got, c.absolute)
		}
	}
}

func TestMediaTypes(t *testing.T) {
	for _, c := range []struct {
		s     string
		valid bool
		json  bool
	}{
		{"application/json", true, true},
		{"APPLICATION/JSON", true, true},
		{"application/json; charset=utf-8", true, true},
		{"application/json;charset=\"a;b\\\"c\"", true, true},
		{"application/json ;a=b\t; c=d", true, true},
		{"text/json", true, true},
		{"application/geo+json", true, true},
		{"application/geo+JSON;x=y", true, true},
		{"application/+json", true, true},
		{"application/jsonl", true, false},
		{"application/json+xml", true, false},
		{"text/plain; x=json", true, false},
		{"x-a/x_b.c+d", true, false},
		{"json", false, false},
		{"/json", false, true},
		{"application/", false, false},
		{"application/json;", false, true},
		{"application/json; charset", false, true},
		{"application/json; charset=", false, true},
		{"application/json; =x", false, true},
		{"application/json charset=utf-8", false, false},
		{"application/json; a=\"b", false, true},
		{"application/json; a=\"b\"c", false, true},
		{"application/json ", false, true},
		{" application/json", false, true},
		{"application/json/x", false, false},
		{"application /json", false, true},
		{"*/*", false, false},
		{"text/*", false, false},
		{"text/plaiñ", false, false},
		{"text/plain; a=\"\n\"", false, false},
	} {
		if got := mediaTypeProblem(c.s); (got == "") != c.valid {
			t.Errorf("%q: problem %q, want valid %v", c.s, got, c.valid)
		}
		if got := IsJSON(c.s); got != c.json {
			t.Errorf("IsJSON(%q) = %v", c.s, got)
		}
	}
	if !IsJSON("") {
		t.Error("an absent datacontenttype must mean JSON")
	}
}

func TestTimestamps(t *testing.T) {
	for text, want := range map[string]string{ // "" for invalid
		"2018-04-05T17:31:00Z":            "2018-04-05T17:31:00Z",
		"2018-04-05t17:31:00z":            "2018-04-05T17:31:00Z",
		"2018-04-05T17:31:00.5+02:00":     "2018-04-05T15:31:00.5Z",
		"2018-04-05T17:31:00.1234567899Z": "2018-04-05T17:31:00.123456789Z",
		"2018-04-05T17:31:00-00:00":       "2018-04-05T17:31:00Z",
		"2018-04-05T17:31:00-23:59":       "2018-04-06T17:30:00Z",
		"0000-01-01T00:00:00Z":            "0000-01-01T00:00:00Z",
		"9999-12-31T23:59:59.999999999Z":  "9999-12-31T23:59:59.999999999Z",
		"2000-02-29T00:00:00Z":            "2000-02-29T00:00:00Z",
		"2016-12-31T23:59:60Z":            "2017-01-01T00:00:00Z",
		"1990-12-31T15:59:60-08:00":       "1991-01-01T00:00:00Z",
		"2015-07-01T01:59:60.25+02:00":    "2015-07-01T00:00:00.25Z",
		"1900-02-29T00:00:00Z":            "",
		"2018-02-29T00:00:00Z":            "",
		"2018-04-31T00:00:00Z":            "",
		"2018-00-01T00:00:00Z":            "",
		"2018-13-01T00:00:00Z":            "",
		"2018-01-00T00:00:00Z":            "",
		"2018-04-05T24:00:00Z":            "",
		"2018-04-05T17:60:00Z":            "",
		"2018-04-05T17:31:60Z":            "",
		"2018-04-05T23:59:60Z":            "",
		"2016-12-31T23:59:61Z":            "",
		"2016-12-31T23:59:60+01:00":       "",
		"2018-04-05 17:31:00Z":            "",
		"2018-04-05T17:31:00":             "",
		"2018-04-05T17:31Z":               "",
		"2018-04-05T17:31:00.Z":           "",
		"2018-04-05T17:31:00,5Z":          "",
		"2018-04-05T17:31:00+0200":        "",
		"2018-04-05T17:31:00+02":          "",
		"2018-04-05T17:31:00+24:00":       "",
		"2018-04-05T17:31:00+02:60":       "",
		"2018-04-05T17:31:00ZZ":           "",
		"2018-04-05T17:31:00 Z":           "",
		"+018-04-05T17:31:00Z":            "",
		"2018-4-05T17:31:00Z":             "",
		"18-04-05T17:31:00.000Z":          "",
		"20180405T173100Z":                "",
		"２018-04-05T17:31:00Z":            "",
		"2018-04-05T-7:31:00Z":            "",
		"":                                "",
	} {
		e := Event{Time: text}
		got, ok := e.TimeValue()
		if ok != (want != "") {
			t.Errorf("%q is valid: %v, want %v", text, ok, want != "")
			continue
		}
		if s := got.UTC().Format(time.RFC3339Nano); ok && s != want {
			t.Errorf("%q is %s, want %s", text, s, want)
		}
	}
}

func TestOnlyCanonicalTextIsAProtobufTimestamp(t *testing.T) {
	for text, want := range map[string]bool{
		"2018-04-05T17:31:00Z":            true,
		"2018-04-05T17:31:00.650Z":        true,
		"2018-04-05T17:31:00.000001Z":     true,
		"2018-04-05T17:31:00.000000001Z":  true,
		"0001-01-01T00:00:00Z":            true,
		"9999-12-31T23:59:59.999999999Z":  true,
		"1969-12-31T23:59:59.999Z":        true,
		"0000-12-31T23:59:59Z":            false,
		"2018-04-05T17:31:00z":            false,
		"2018-04-05t17:31:00Z":            false,
		"2018-04-05T17:31:00+00:00":       false,
		"2018-04-05T17:31:00.65Z":         false,
		"2018-04-05T17:31:00.000Z":        false,
		"2018-04-05T17:31:00.1234567891Z": false,
		"2016-12-31T23:59:60Z":            false,
		"nonsense":                        false,
	} {
		if _, _, ok := protoTimestamp(text); ok != want {
			t.Errorf("%q: %v, want %v", text, ok, want)
		}
	}
}
