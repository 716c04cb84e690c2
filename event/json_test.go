package event

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
)

// envelopeJSON is a valid event with more members after the required ones.
func envelopeJSON(more string) string {
	if more != "" {
		more = "," + more
	}
	return `{"specversion":"1.0","id":"1","source":"/s","type":"t"` + more + `}`
}

func TestParseJSONReadsEveryKindOfEvent(t *testing.T) {
	event := func(change func(e *Event)) *Event {
		e := valid()
		change(e)
		return e
	}
	data := func(contentType string, kind DataKind, data string) *Event {
		return event(func(e *Event) { e.DataContentType, e.DataKind, e.Data = contentType, kind, []byte(data) })
	}
	extension := func(v Value) *Event { return event(func(e *Event) { e.SetExtension("x", v) }) }
	for name, c := range map[string]struct {
		more string
		want *Event
	}{
		"required only": {``, valid()},
		"everything": {
			`"subject":"a b","time":"2018-04-05t17:31:00.000z","datacontenttype":"text/json","dataschema":"urn:a","z":true,"a":-1,"m":"","data":[]`,
			event(func(e *Event) {
				e.Subject, e.Time, e.DataContentType, e.DataSchema = "a b", "2018-04-05t17:31:00.000z", "text/json", "urn:a"
				e.Extensions = []Extension{{"a", Integer(-1)}, {"m", String("")}, {"z", Boolean(true)}}
				e.DataKind, e.Data = JSONData, []byte("[]")
			}),
		},
		"nulls are absent":          {`"subject":null,"time":null,"datacontenttype":null,"dataschema":null,"x":null,"data_base64":null`, valid()},
		"escapes":                   {`"sub\u006aect":"\"\\\/ \u00fc\uD83D\ude00"`, event(func(e *Event) { e.Subject = "\"\\/ ü\U0001F600" })},
		"data of no type":           {`"data": { "a" : 1.0e+2 } `, data("", JSONData, `{ "a" : 1.0e+2 }`)},
		"data null":                 {`"data":null`, data("", JSONData, "null")},
		"data string":               {`"data":"\u0061"`, data("", JSONData, `"\u0061"`)},
		"data repeats members":      {`"data":{"a":1,"a":2}`, data("", JSONData, `{"a":1,"a":2}`)},
		"text":                      {`"datacontenttype":"text/xml","data":"\u0000<a>\n\ud83d\ude00"`, data("text/xml", TextData, "\x00<a>\n\U0001F600")},
		"text before its type":      {`"data":"\u0061","datacontenttype":"text/xml"`, data("text/xml", TextData, "a")},
		"empty text":                {`"datacontenttype":"text/xml","data":""`, data("text/xml", TextData, "")},
		"binary":                    {`"datacontenttype":"image/png","data_base64":"AP8="`, data("image/png", BinaryData, "\x00\xff")},
		"binary under JSON":         {`"datacontenttype":"application/json","data_base64":"e30="`, data("application/json", BinaryData, "{}")},
		"binary escaped":            {`"data_base64":"\u0041P8="`, data("", BinaryData, "\x00\xff")},
		"empty binary":              {`"data_base64":""`, data("", BinaryData, "")},
		"greatest integer":          {`"x":2147483647`, extension(Integer(2147483647))},
		"least integer":             {`"x":-2147483648`, extension(Integer(-2147483648))},
		"minus zero":                {`"x":-0`, extension(Integer(0))},
		"false":                     {`"x":false`, extension(Boolean(false))},
		"timestamp stays a string":  {`"x":"2018-04-05T17:31:00Z"`, extension(String("2018-04-05T17:31:00Z"))},
		"long name of an extension": {`"` + strings.Repeat("x", 64) + `":1`, event(func(e *Event) { e.SetExtension(strings.Repeat("x", 64), Integer(1)) })},
	} {
		t.Run(name, func(t *testing.T) {
			input := []byte(" \r\n\t" + envelopeJSON(c.more) + "\n")
			e, err := ParseJSON(input)
			if err != nil {
				t.Fatal(err)
			}
			if !e.Equal(c.want) {
				t.Fatalf("got  %+v\nwant %+v", e, c.want)
			}
			if (e.Data == nil) != (e.DataKind == NoData) {
				t.Errorf("data is %v with kind %d", e.Data, e.DataKind)
			}
			for i := range input {
				input[i] = '!' // the event must not share it
			}
			out, err := AppendJSON([]byte("kept"), e)
			if err != nil {
				t.Fatal(err)
			}
			out, ok := bytes.CutPrefix(out, []byte("kept"))
			if !ok || !json.Valid(out) {
				t.Fatalf("%q is not JSON after what was there", out)
			}
			again, err := ParseJSON(out)
			if err != nil {
				t.Fatalf("%s: %v", out, err)
			}
			if !again.Equal(c.want) {
				t.Errorf("%s\ngot  %+v\nwant %+v", out, again, c.want)
			}
		})
	}
}

func TestParseJSONRefuses(t *testing.T) {
	deep := strings.Repeat("[", maxDepth+1) + strings.Repeat("]", maxDepth+1)
	for name, c := range map[string]struct{ input, field, rule string }{
		"nothing":              {"", "JSON", "ends too early"},
		"blank":                {"  ", "JSON", "ends too early"},
		"array":                {"[]", "JSON", "an event, which is a JSON object"},
		"byte order mark":      {"\ufeff" + envelopeJSON(""), "JSON", "byte 0"},
		"empty object":         {"{}", "specversion", "missing"},
		"cut":                  {`{"id":"1"`, "JSON", "ends too early"},
		"cut in a string":      {`{"id":"1`, "JSON", "end of a string"},
		"cut in an escape":     {`{"id":"1\`, "JSON", "ends too early"},
		"trailing bytes":       {envelopeJSON("") + "x", "JSON", `"x" in place of the end`},
		"trailing event":       {envelopeJSON("") + envelopeJSON(""), "JSON", "in place of the end"},
		"trailing NUL":         {envelopeJSON("") + "\x00", "JSON", "in place of the end"},
		"trailing comma":       {`{"id":"1",}`, "JSON", "a member name"},
		"single quotes":        {`{'id':'1'}`, "JSON", "a member name"},
		"comment":              {`{/**/}`, "JSON", "a member name"},
		"no colon":             {`{"id" "1"}`, "JSON", "a colon"},
		"no id":                {`{"specversion":"1.0","source":"/s","type":"t"}`, "id", "missing"},
		"id null":              {`{"specversion":"1.0","id":null,"source":"/s","type":"t"}`, "id", "missing"},
		"id empty":             {`{"specversion":"1.0","id":"","source":"/s","type":"t"}`, "id", "missing or empty"},
		"no version":           {`{"id":"1","source":"/s","type":"t"}`, "specversion", "missing"},
		"version 0.3":          {`{"specversion":"0.3","id":"1","source":"/s","type":"t"}`, "specversion", `"0.3" is not supported`},
		"version 1.0.2":        {`{"specversion":"1.0.2","id":"1","source":"/s","type":"t"}`, "specversion", "not supported"},
		"version number":       {`{"specversion":1.0,"id":"1","source":"/s","type":"t"}`, "specversion", "not a JSON string"},
		"id number":            {`{"specversion":"1.0","id":1,"source":"/s","type":"t"}`, "id", "not a JSON string"},
		"ID":                   {envelopeJSON(`"ID":"2"`), `"ID"`, "case-sensitive"},
		"dashed name":          {envelopeJSON(`"a-b":"2"`), `"a-b"`, "attribute name"},
		"name with NUL":        {envelopeJSON(`"a\u0000":"2"`), `"a\x00"`, "attribute name"},
		"empty name":           {envelopeJSON(`"":"2"`), `""`, "empty"},
		"Data":                 {envelopeJSON(`"Data":{}`), `"Data"`, "attribute name"},
		"subject empty":        {envelopeJSON(`"subject":""`), "subject", "present but empty"},
		"subject object":       {envelopeJSON(`"subject":{}`), "subject", "not a JSON string"},
		"time empty":           {envelopeJSON(`"time":""`), "time", "present but empty"},
		"content type empty":   {envelopeJSON(`"datacontenttype":""`), "datacontenttype", "present but empty"},
		"schema empty":         {envelopeJSON(`"dataschema":""`), "dataschema", "present but empty"},
		"time number":          {envelopeJSON(`"time":1`), "time", "not a JSON string"},
		"duplicate id":         {envelopeJSON(`"id":"1"`), "id", "more than once"},
		"duplicate escaped":    {envelopeJSON(`"\u0069d":"1"`), "id", "more than once"},
		"duplicate null":       {envelopeJSON(`"subject":null,"subject":"x"`), "subject", "more than once"},
		"duplicate data":       {envelopeJSON(`"data":1,"data":1`), "data", "more than once"},
		"duplicate extension":  {envelopeJSON(`"x":1,"y":2,"x":1`), "x", "more than once"},
		"duplicate null ext":   {envelopeJSON(`"x":1,"x":null`), "x", "more than once"},
		"object under text":    {envelopeJSON(`"datacontenttype":"text/xml","data":{"a":"b"}`), "data", "is not a JSON string, and the datacontenttype \"text/xml\" is not JSON"},
		"null under text":      {envelopeJSON(`"data":null,"datacontenttype":"text/plain"`), "data", "not a JSON string"},
		"number under a blob":  {envelopeJSON(`"datacontenttype":"application/octet-stream","data":5`), "data", "not a JSON string"},
		"both data":            {envelopeJSON(`"data":1,"data_base64":"AA=="`), "data", "both given"},
		"both data, null":      {envelopeJSON(`"data":null,"data_base64":"AA=="`), "data", "both given"},
		"extension object":     {envelopeJSON(`"x":{"a":1}`), "x", "object or an array"},
		"extension array":      {envelopeJSON(`"x":[]`), "x", "object or an array"},
		"extension 1.5":        {envelopeJSON(`"x":1.5`), "x", `"1.5" is not written as an integer`},
		"extension 1.0":        {envelopeJSON(`"x":1.0`), "x", "not written as an integer"},
		"extension 1e3":        {envelopeJSON(`"x":1e3`), "x", "not written as an integer"},
		"extension 2^31":       {envelopeJSON(`"x":2147483648`), "x", "does not fit"},
		"extension -2^31-1":    {envelopeJSON(`"x":-2147483649`), "x", "does not fit"},
		"extension huge":       {envelopeJSON(`"x":` + strings.Repeat("9", 400)), "x", "does not fit"},
		"extension control":    {envelopeJSON(`"x":"\u0007"`), "x", "U+0007"},
		"extension noncharact": {envelopeJSON(`"x":"\uffff"`), "x", "U+FFFF"},
		"leading zero":         {envelopeJSON(`"x":01`), "JSON", "a comma"},
		"plus":                 {envelopeJSON(`"x":+1`), "JSON", "a value"},
		"bare minus":           {envelopeJSON(`"x":-`), "JSON", "a digit"},
		"point":                {envelopeJSON(`"x":1.`), "JSON", "a digit"},
		"exponent":             {envelopeJSON(`"x":1e`), "JSON", "a digit"},
		"NaN":                  {envelopeJSON(`"data":NaN`), "JSON", "a value"},
		"True":                 {envelopeJSON(`"x":True`), "JSON", "a value"},
		"tru":                  {envelopeJSON(`"x":tru`), "JSON", "a value"},
		"base64 url":           {envelopeJSON(`"data_base64":"_-8="`), "data_base64", "standard base64"},
		"base64 no padding":    {envelopeJSON(`"data_base64":"AP8"`), "data_base64", "standard base64"},
		"base64 stray bits":    {envelopeJSON(`"data_base64":"AP9="`), "data_base64", "standard base64"},
		"base64 line end":      {envelopeJSON(`"data_base64":"AP8=\n"`), "data_base64", "standard base64"},
		"base64 number":        {envelopeJSON(`"data_base64":1`), "data_base64", "not a JSON string"},
		"raw control":          {envelopeJSON("\"subject\":\"a\nb\""), "JSON", "U+000A"},
		"bad escape":           {envelopeJSON(`"subject":"\x41"`), "JSON", "not an escape"},
		"bad hex":              {envelopeJSON(`"subject":"\u00g0"`), "JSON", "four hexadecimal"},
		"invalid UTF-8":        {envelopeJSON("\"subject\":\"\xff\""), "JSON", "UTF-8"},
		"overlong UTF-8":       {envelopeJSON("\"subject\":\"\xc0\xaf\""), "JSON", "UTF-8"},
		"surrogate in UTF-8":   {envelopeJSON("\"subject\":\"\xed\xa0\xbd\""), "JSON", "UTF-8"},
		"invalid UTF-8 name":   {envelopeJSON("\"\xff\":1"), "JSON", "UTF-8"},
		"invalid UTF-8 data":   {envelopeJSON("\"data\":{\"a\":\"\xff\"}"), "JSON", "UTF-8"},
		"lone high surrogate":  {envelopeJSON(`"subject":"\ud800"`), "JSON", "surrogate"},
		"lone low surrogate":   {envelopeJSON(`"subject":"\udc00"`), "JSON", "surrogate"},
		"swapped surrogates":   {envelopeJSON(`"subject":"\udc00\ud800"`), "JSON", "surrogate"},
		"high and text":        {envelopeJSON(`"subject":"\ud800x"`), "JSON", "surrogate"},
		"high and escape":      {envelopeJSON(`"subject":"\ud800\n"`), "JSON", "surrogate"},
		"high twice":           {envelopeJSON(`"subject":"\ud800\ud800"`), "JSON", "surrogate"},
		"surrogate in data":    {envelopeJSON(`"data":["\ud800"]`), "JSON", "surrogate"},
		"surrogate in a name":  {envelopeJSON(`"data":{"\ud800":1}`), "JSON", "surrogate"},
		"data cut":             {`{"data":[1,`, "JSON", "ends too early"},
		"data mixed brackets":  {envelopeJSON(`"data":[1}`), "JSON", "a comma or the end"},
		"data trailing comma":  {envelopeJSON(`"data":[1,]`), "JSON", "a value"},
		"data object comma":    {envelopeJSON(`"data":{"a":1,}`), "JSON", "a member name"},
		"data no comma":        {envelopeJSON(`"data":[1 2]`), "JSON", "a comma"},
		"data empty":           {envelopeJSON(`"data":`), "JSON", "a value"},
		"data too deep":        {envelopeJSON(`"data":` + deep), "JSON", "nested deeper than 1000"},
		"a MiB of brackets":    {strings.Repeat("[", 1<<20), "JSON", "an event"},
		"brackets in data":     {`{"data":` + strings.Repeat("[", 1<<20), "JSON", "nested deeper"},
		"objects in data":      {`{"data":` + strings.Repeat(`{"a":`, 1<<18), "JSON", "nested deeper"},
		"brackets in an ext":   {`{"x":` + strings.Repeat("[", 1<<20), "JSON", "nested deeper"},
	} {
		t.Run(name, func(t *testing.T) {
			e, err := ParseJSON([]byte(c.input))
			if e != nil {
				t.Errorf("got event %+v", e)
			}
			wantInvalid(t, err, c.field, c.rule)
		})
	}
}

func TestParseJSONTakesTheGreatestDepth(t *testing.T) {
	data := strings.Repeat(`{"a":[`, maxDepth/2) + strings.Repeat("]}", maxDepth/2)
	e, err := ParseJSON([]byte(envelopeJSON(`"data":` + data)))
	if err != nil {
		t.Fatal(err)
	}
	if string(e.Data) != data {
		t.Error("data changed")
	}
}

func TestScannerAgreesWithEncodingJSON(t *testing.T) {
	for _, text := range []string{
		`{}`, `[]`, `[[],{}]`, `{"a":{"b":[1,2,{"c":null}]},"d":"e"}`, `[1,]`, `{"a"}`, `{"a":}`, `{,}`, `[,]`, `]`, `}`, `{]`, `[}`,
		`0`, `-0`, `00`, `1.5e-10`, `1E+1`, `.5`, `--1`, `0x1`, `""`, `"\u00e9"`, `"\`, `true`, `false`, `null`, `nul`, `truex`, `[true false]`,
		`{"a":1 "b":2}`, `{"a":1,"b":2}`, "[1\n,\t2\r]", "\v1", `{"a":1}}`, `[[[[1]]]`, ` 1 `, `1 2`, `{1:2}`,
	} {
		if got, want := checkJSON([]byte(text)) == nil, json.Valid([]byte(text)); got != want {
			t.Errorf("%q is valid: %v, want %v", text, got, want)
		}
	}
}

func TestBatches(t *testing.T) {
	one, two := envelopeJSON(`"subject":"1"`), envelopeJSON(`"subject":"2","data":{}`)
	for input, want := range map[string]int{
		"[]": 0, " [ ] ": 0, "[" + one + "]": 1, "[" + one + " , " + two + "]\n": 2,
	} {
		events, err := ParseJSONBatch([]byte(input))
		if err != nil || len(events) != want || events == nil {
			t.Errorf("%s: %d events, error %v, want %d", input, len(events), err, want)
			continue
		}
		out, err := AppendJSONBatch(nil, events)
		if err != nil {
			t.Fatal(err)
		}
		again, err := ParseJSONBatch(out)
		if err != nil || len(again) != want {
			t.Fatalf("%s: %v", out, err)
		}
		for i := range events {
			if !again[i].Equal(events[i]) {
				t.Errorf("%d: got %+v, want %+v", i, again[i], events[i])
			}
		}
	}
	for input, says := range map[string]string{
		"":                         "an array of events",
		one:                        "an array of events",
		"[":                        "an event",
		"[" + one:                  "a comma or the end of the batch",
		"[" + one + ",]":           "events[1]: invalid event: JSON",
		"[" + one + "]]":           "in place of the end",
		"[]x":                      "in place of the end",
		"[" + one + ",{}]":         "events[1]: invalid event: specversion is missing",
		"[" + one + ",null]":       "events[1]",
		"[" + one + "," + one[:40]: "events[1]",
	} {
		events, err := ParseJSONBatch([]byte(input))
		if events != nil || err == nil || !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: error %v, want one that says %q", input, err, says)
		}
	}
	for i, bad := range []*Event{{}, nil} {
		out, err := AppendJSONBatch([]byte("kept"), []*Event{valid(), bad})
		if string(out) != "kept" || !errors.Is(err, ErrInvalid) || !strings.HasPrefix(err.Error(), "events[1]: ") {
			t.Errorf("%d: %q, %v", i, out, err)
		}
	}
}

func TestAppendJSONWritesDataSoThatItIsReadAsItWas(t *testing.T) {
	anyMessage := []byte("\x0a\x03t/x\x12\x02\x08\x01")
	for name, c := range map[string]struct {
		contentType string
		kind        DataKind
		data        string
		want        string // the member
		reads       DataKind
	}{
		"JSON with space around":     {"", JSONData, " {} ", `"data": {} `, JSONData},
		"JSON text under JSON":       {"application/json", TextData, `{"a":1}`, `"data":{"a":1}`, JSONData},
		"other text under JSON":      {"application/json", TextData, `<a>`, `"data_base64":"PGE+"`, BinaryData},
		"empty text under JSON":      {"", TextData, ``, `"data_base64":""`, BinaryData},
		"JSON string under text":     {"text/plain", JSONData, `"a"`, `"data":"\"a\""`, TextData},
		"JSON object under text":     {"text/plain", JSONData, ` {"a": 1}`, `"data":" {\"a\": 1}"`, TextData},
		"control characters in text": {"text/plain", TextData, "\x00\x1f\x7f\t\r\n\"\\/<\u2028", `"data":"\u0000\u001f` + "\x7f" + `\t\r\n\"\\/<` + "\u2028" + `"`, TextData},
		"binary":                     {"application/json", BinaryData, "{}", `"data_base64":"e30="`, BinaryData},
		"message":                    {"application/protobuf", ProtoData, string(anyMessage), `"data_base64":"CAE="`, BinaryData},
	} {
		t.Run(name, func(t *testing.T) {
			e := valid()
			e.DataContentType, e.DataKind, e.Data = c.contentType, c.kind, []byte(c.data)
			out, err := AppendJSON(nil, e)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.HasSuffix(string(out), ","+c.want+"}") {
				t.Errorf("got %s, want it to end with %s", out, c.want)
			}
			again, err := ParseJSON(out)
			if err != nil {
				t.Fatal(err)
			}
			if again.DataKind != c.reads {
				t.Errorf("%s is read as kind %d, want %d", out, again.DataKind, c.reads)
			}
		})
	}
}

func TestAppendJSONRefusesInvalidEvents(t *testing.T) {
	out, err := AppendJSON([]byte("kept"), &Event{ID: "1"})
	wantInvalid(t, err, "source", "missing")
	if string(out) != "kept" {
		t.Errorf("got %q", out)
	}
	_, err = AppendJSON(nil, nil)
	wantInvalid(t, err, "event", "nil")
	e := valid()
	e.DataKind, e.Data = JSONData, []byte(`1,"id":"2"`)
	_, err = AppendJSON(nil, e)
	wantInvalid(t, err, "data", "not valid JSON")
}
