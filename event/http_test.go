package event

import (
	"bufio"
	"bytes"
	"maps"
	"net/http"
	"strings"
	"testing"
)

// headers is the four required attributes and some more headers, as net/http would give them.
func headers(more ...string) http.Header {
	h := http.Header{}
	for _, line := range append([]string{"ce-specversion: 1.0", "ce-id: 1", "ce-source: /s", "ce-type: t"}, more...) {
		name, value, _ := strings.Cut(line, ":")
		h.Add(name, strings.Trim(value, " "))
	}
	return h
}

func TestFromHTTPReadsHeadersAndBody(t *testing.T) {
	event := func(change func(e *Event)) *Event {
		e := valid()
		change(e)
		return e
	}
	subject := func(s string) *Event { return event(func(e *Event) { e.Subject = s }) }
	data := func(contentType string, kind DataKind, data string) *Event {
		return event(func(e *Event) { e.DataContentType, e.DataKind, e.Data = contentType, kind, []byte(data) })
	}
	for name, c := range map[string]struct {
		headers []string
		body    []byte
		want    *Event
	}{
		"required only": {nil, nil, valid()},
		"everything": {
			[]string{"CE-Subject: a", "ce-time: 2018-04-05T17:31:00Z", "ce-dataschema: urn:x", "ce-b: 1", "ce-a: ", "Content-Type: text/plain; charset=utf-8", "X-Other: y", "Cef-Id: z"},
			[]byte("hello"),
			event(func(e *Event) {
				e.Subject, e.Time, e.DataSchema, e.DataContentType = "a", "2018-04-05T17:31:00Z", "urn:x", "text/plain; charset=utf-8"
				e.Extensions = []Extension{{"a", String("")}, {"b", String("1")}}
				e.DataKind, e.Data = TextData, []byte("hello")
			}),
		},
		"the text's own example":  {[]string{"ce-subject: Euro%20%E2%82%AC%20%F0%9F%98%80"}, nil, subject("Euro € \U0001F600")},
		"lower case":              {[]string{"ce-subject: %e2%82%ac"}, nil, subject("€")},
		"needlessly encoded":      {[]string{"ce-subject: %61%2f"}, nil, subject("a/")},
		"decoded once":            {[]string{"ce-subject: %2541"}, nil, subject("%41")},
		"raw space":               {[]string{"ce-subject: a b"}, nil, subject("a b")},
		"quoted":                  {[]string{`ce-subject: "a \"b\" \\ c"`}, nil, subject(`a "b" \ c`)},
		"quoted, then encoded":    {[]string{`ce-subject: "%22\%61"`}, nil, subject(`"a`)},
		"partly quoted":           {[]string{`ce-subject: a" b "c`}, nil, subject(`a b c`)},
		"backslash outside quote": {[]string{`ce-subject: a\b`}, nil, subject(`a\b`)},
		"JSON":                    {[]string{"Content-Type: application/json"}, []byte(" {} \n"), data("application/json", JSONData, " {} \n")},
		"JSON suffix":             {[]string{"Content-Type: a/b+json;c=d"}, []byte(`1`), data("a/b+json;c=d", JSONData, `1`)},
		"XML":                     {[]string{"Content-Type: application/xml"}, []byte("<ü/>"), data("application/xml", TextData, "<ü/>")},
		"text in Latin-1":         {[]string{"Content-Type: text/plain;charset=iso-8859-1"}, []byte("u"), data("text/plain;charset=iso-8859-1", BinaryData, "u")},
		"text that is not UTF-8":  {[]string{"Content-Type: text/plain"}, []byte("\xfc"), data("text/plain", BinaryData, "\xfc")},
		"bytes":                   {[]string{"Content-Type: application/octet-stream"}, []byte("abc"), data("application/octet-stream", BinaryData, "abc")},
		"no content type":         {nil, []byte("{}"), data("", BinaryData, "{}")},
		"empty body":              {nil, []byte{}, valid()},
		"empty JSON body":         {[]string{"Content-Type: application/json"}, []byte{}, event(func(e *Event) { e.DataContentType = "application/json" })},
		"empty text":              {[]string{"Content-Type: text/plain"}, []byte{}, data("text/plain", TextData, "")},
		"no text":                 {[]string{"Content-Type: text/plain"}, nil, event(func(e *Event) { e.DataContentType = "text/plain" })},
	} {
		t.Run(name, func(t *testing.T) {
			e, err := FromHTTP(headers(c.headers...), c.body)
			if err != nil {
				t.Fatal(err)
			}
			if !e.Equal(c.want) {
				t.Fatalf("got  %+v\nwant %+v", e, c.want)
			}
			if c.want.DataContentType == "" && c.body != nil {
				return // comes back as it is, but see the test of ToHTTP
			}
			h, body, err := ToHTTP(e)
			if err != nil {
				t.Fatal(err)
			}
			again, err := FromHTTP(h, body)
			if err != nil || !again.Equal(c.want) {
				t.Errorf("%v %q\ngot  %+v (%v)\nwant %+v", h, body, again, err, c.want)
			}
		})
	}
}

func TestFromHTTPRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		headers     []string
		body        string
		field, rule string
	}{
		"id twice":             {[]string{"ce-id: 1"}, "", "id", "more than once"},
		"extension twice":      {[]string{"ce-x: 1", "ce-x: 1"}, "", "x", "more than once"},
		"content type twice":   {[]string{"content-type: text/plain", "content-type: text/plain"}, "", "Content-Type", "more than once"},
		"ce-datacontenttype":   {[]string{"ce-datacontenttype: text/plain"}, "", "datacontenttype", "Content-Type"},
		"ce-data":              {[]string{"ce-data: x"}, "", "data", "CloudEvents defines it"},
		"name with a dash":     {[]string{"ce-a-b: x"}, "", `"a-b"`, "attribute name"},
		"no name":              {[]string{"ce-: x"}, "", `""`, "empty"},
		"empty subject":        {[]string{"ce-subject: "}, "", "subject", "present but empty"},
		"quoted empty subject": {[]string{`ce-subject: ""`}, "", "subject", "present but empty"},
		"empty time":           {[]string{"ce-time: "}, "", "time", "present but empty"},
		"empty content type":   {[]string{"content-type: "}, "", "Content-Type", "present but empty"},
		"content type":         {[]string{"content-type: json"}, "", "datacontenttype", "media type"},
		"time":                 {[]string{"ce-time: now"}, "", "time", "RFC 3339"},
		"schema":               {[]string{"ce-dataschema: x"}, "", "dataschema", "absolute URI"},
		"raw UTF-8":            {[]string{"ce-subject: ü"}, "", "subject", "outside ASCII"},
		"encoded Latin-1":      {[]string{"ce-subject: %FC"}, "", "subject", "not valid UTF-8"},
		"overlong":             {[]string{"ce-subject: %C0%A0"}, "", "subject", "not valid UTF-8"},
		"encoded surrogate":    {[]string{"ce-subject: %ED%A0%80"}, "", "subject", "not valid UTF-8"},
		"encoded control":      {[]string{"ce-subject: a%0A"}, "", "subject", "U+000A"},
		"percent alone":        {[]string{"ce-subject: 100%"}, "", "subject", "two hexadecimal digits"},
		"percent and one":      {[]string{"ce-subject: %4"}, "", "subject", "two hexadecimal digits"},
		"percent and letters":  {[]string{"ce-subject: %zz"}, "", "subject", "two hexadecimal digits"},
		"open quote":           {[]string{`ce-subject: "a`}, "", "subject", "not closed"},
		"open escape":          {[]string{`ce-subject: "a\`}, "", "subject", "not closed"},
		"body not JSON":        {[]string{"content-type: application/json"}, "hello", "data", "not valid JSON"},
		"body half JSON":       {[]string{"content-type: application/json"}, `{"a":`, "data", "not valid JSON"},
		"two JSON bodies":      {[]string{"content-type: application/json"}, `1 2`, "data", "not valid JSON"},
		"body surrogate":       {[]string{"content-type: application/json"}, `"\ud800"`, "data", "surrogate"},
	} {
		t.Run(name, func(t *testing.T) {
			e, err := FromHTTP(headers(c.headers...), []byte(c.body))
			if e != nil {
				t.Errorf("got event %+v", e)
			}
			wantInvalid(t, err, c.field, c.rule)
		})
	}
	for _, name := range []string{"id", "source", "type", "specversion"} {
		h := headers()
		h.Del("ce-" + name)
		_, err := FromHTTP(h, nil)
		wantInvalid(t, err, name, "missing")
		h.Set("ce-"+name, "")
		_, err = FromHTTP(h, nil)
		wantInvalid(t, err, name, "missing")
	}
	h := headers()
	h["ce-id"] = []string{"1"} // beside Ce-Id
	_, err := FromHTTP(h, nil)
	wantInvalid(t, err, "id", "more than once")
	h = headers("ce-specversion: 1.1")
	h["Ce-Specversion"] = []string{"1.1"}
	_, err = FromHTTP(h, nil)
	wantInvalid(t, err, "specversion", "not supported")
}

func TestToHTTPWritesCanonicalHeaders(t *testing.T) {
	e := &Event{
		ID: "a b\"%~!", Source: "/s", Type: "t", Subject: "Euro € \U0001F600", Time: "2018-04-05t17:31:00z",
		DataSchema: "urn:x", DataContentType: "a/b", DataKind: BinaryData, Data: []byte{0},
	}
	e.SetExtension("bin", Binary([]byte{0xFF}))
	e.SetExtension("int", Integer(-5))
	e.SetExtension("yes", Boolean(true))
	h, body, err := ToHTTP(e)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"Ce-Specversion": "1.0", "Ce-Id": "a%20b%22%25~!", "Ce-Source": "/s", "Ce-Type": "t",
		"Ce-Subject": "Euro%20%E2%82%AC%20%F0%9F%98%80", "Ce-Time": "2018-04-05t17:31:00z",
		"Ce-Dataschema": "urn:x", "Content-Type": "a/b", "Ce-Bin": "/w==", "Ce-Int": "-5", "Ce-Yes": "true",
	}
	got := map[string]string{}
	for name := range h {
		got[name] = h.Get(name)
	}
	if !maps.Equal(got, want) || string(body) != "\x00" {
		t.Errorf("got  %v %q\nwant %v", got, body, want)
	}
}

func TestToHTTPSaysWhatJSONImplied(t *testing.T) {
	for name, c := range map[string]struct {
		kind              DataKind
		data, contentType string
	}{
		"JSON":   {JSONData, "{}", "application/json"},
		"text":   {TextData, "x", ""},
		"binary": {BinaryData, "x", ""},
	} {
		e := valid()
		e.DataKind, e.Data = c.kind, []byte(c.data)
		h, body, err := ToHTTP(e)
		if err != nil || h.Get("Content-Type") != c.contentType || string(body) != c.data {
			t.Errorf("%s: content type %q, body %q, error %v; want %q", name, h.Get("Content-Type"), body, err, c.contentType)
		}
	}
	h, body, err := ToHTTP(valid())
	if err != nil || body != nil || h["Content-Type"] != nil {
		t.Errorf("without data: %v %q %v", h, body, err)
	}
	e := valid()
	e.DataKind = TextData
	if _, body, _ := ToHTTP(e); body == nil {
		t.Error("empty data gives no body")
	}
	_, _, err = ToHTTP(&Event{})
	wantInvalid(t, err, "id", "missing")
}

func TestHTTPHeadersSurviveTheWire(t *testing.T) {
	e := &Event{ID: "\"quoted\" \\ %", Source: "/s", Type: "日本語", Subject: " leading and trailing "}
	h, _, err := ToHTTP(e)
	if err != nil {
		t.Fatal(err)
	}
	request, _ := http.NewRequest(http.MethodPost, "http://h/", nil)
	request.Header = h
	var wire bytes.Buffer
	if err := request.Write(&wire); err != nil {
		t.Fatal(err)
	}
	arrived, err := http.ReadRequest(bufio.NewReader(&wire))
	if err != nil {
		t.Fatal(err)
	}
	again, err := FromHTTP(arrived.Header, nil)
	if err != nil || !again.Equal(e) {
		t.Errorf("got %+v (%v), want %+v", again, err, e)
	}
}

func TestHTTPMode(t *testing.T) {
	for _, c := range []struct {
		header string
		want   Mode
		name   string
	}{
		{"Content-Type: application/cloudevents+json", StructuredMode, "structured"},
		{"Content-Type: Application/CloudEvents+JSON; charset=UTF-8", StructuredMode, "structured"},
		{"Content-Type: application/cloudevents-batch+json;charset=utf-8", BatchMode, "batch"},
		{"Content-Type: application/cloudevents+avro", UnsupportedMode, "unsupported"},
		{"Content-Type: application/cloudevents-batch+protobuf", UnsupportedMode, "unsupported"},
		{"Content-Type: application/cloudevents", UnsupportedMode, "unsupported"},
		{"Content-Type: application/json", RawMode, "raw"},
		{"X: y", RawMode, "raw"},
		{"ce-subject: y", RawMode, "raw"},
		{"ce-id: y", BinaryMode, "binary"},
		{"CE-TYPE: y", BinaryMode, "binary"},
		{"ce-source: y", BinaryMode, "binary"},
		{"ce-specversion: y", BinaryMode, "binary"},
	} {
		name, value, _ := strings.Cut(c.header, ": ")
		h := http.Header{}
		h.Set(name, value)
		if got := HTTPMode(h); got != c.want || got.String() != c.name {
			t.Errorf("%s: %v, want %v (%s)", c.header, got, c.want, c.name)
		}
	}
	h := headers("Content-Type: application/cloudevents+json")
	if got := HTTPMode(h); got != StructuredMode {
		t.Errorf("structured with binary headers too: %v", got)
	}
}
