package event

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/cloudevents/sdk-go/binding/format/protobuf/v2/pb"

	storev1 "github.com/turnlane/turnlane/proto/turnlane/store/v1"
)

// Whatever the bytes, a decoder gives a valid event or an *Error, and the event passes the codecs.

func checkDecoded(t *testing.T, e *Event, err error) bool {
	t.Helper()
	if err != nil {
		if e != nil || !errors.Is(err, ErrInvalid) {
			t.Fatalf("event %+v with error %v", e, err)
		}
		if i := strings.IndexFunc(err.Error(), func(r rune) bool { return r < 0x20 || r == 0x7F }); i >= 0 {
			t.Fatalf("error %q has control characters", err)
		}
		return false
	}
	if err := e.Validate(); err != nil {
		t.Fatalf("decoded an event that is not valid: %v", err)
	}
	if e.Data == nil != (e.DataKind == NoData) {
		t.Fatalf("data %v of kind %d", e.Data, e.DataKind)
	}
	r, err := DecodeRecord(AppendRecord(nil, e, 1, time.Unix(0, 1)))
	checkSame(t, "record", r, err, e)
	return true
}

func checkSame(t *testing.T, codec string, got *Event, err error, want *Event) {
	t.Helper()
	if err != nil || !got.Equal(want) {
		t.Fatalf("%s: %v\ngot  %+v\nwant %+v", codec, err, got, want)
	}
}

// throughJSON, throughProto and throughHTTP encode e, check the encoding and decode it again.

func throughJSON(t *testing.T, e *Event) (*Event, error) {
	t.Helper()
	out, err := AppendJSON(nil, e)
	if err != nil || !json.Valid(out) {
		t.Fatalf("%s: %v", out, err)
	}
	return ParseJSON(out)
}

func throughProto(t *testing.T, e *Event) (*Event, error) {
	t.Helper()
	p, err := ToProto(e)
	if err != nil {
		t.Fatal(err)
	}
	wire, err := proto.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	q := new(pb.CloudEvent)
	if err := proto.Unmarshal(wire, q); err != nil {
		t.Fatal(err)
	}
	return FromProto(q)
}

func throughHTTP(t *testing.T, e *Event) (*Event, error) {
	t.Helper()
	h, body, err := ToHTTP(e)
	if err != nil {
		t.Fatal(err)
	}
	return FromHTTP(h, body)
}

// sameText compares e and f by what HTTP carries of an extension: its canonical text.
func sameText(e, f *Event) bool {
	e, f = e.Clone(), f.Clone()
	for _, x := range [][]Extension{e.Extensions, f.Extensions} {
		for i := range x {
			x[i].Value = String(x[i].Value.String())
		}
	}
	e.DataKind, f.DataKind = NoData, NoData
	return e.Equal(f)
}

func FuzzParseJSON(f *testing.F) {
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := ParseJSON(b)
		if !checkDecoded(t, e, err) {
			return
		}
		if !json.Valid(b) {
			t.Fatal("encoding/json does not take it")
		}
		batch, err := ParseJSONBatch(bytes.Join([][]byte{[]byte("["), b, []byte("]")}, nil))
		if err != nil || len(batch) != 1 || !batch[0].Equal(e) {
			t.Fatalf("as a batch of one: %v %v", batch, err)
		}
		again, err := throughJSON(t, e)
		checkSame(t, "JSON", again, err, e)
		want := e
		if e.DataKind == JSONData && !IsJSON(e.DataContentType) {
			want = e.Clone()
			want.DataKind = TextData
		}
		again, err = throughProto(t, e)
		checkSame(t, "protobuf", again, err, want)
		if again, err = throughHTTP(t, e); err != nil {
			if e.DataKind != BinaryData || !IsJSON(e.DataContentType) {
				t.Fatal(err)
			}
			return // HTTP cannot say that the bytes are not the JSON that they claim to be
		}
		if want = e.Clone(); e.DataKind == JSONData && e.DataContentType == "" {
			want.DataContentType = "application/json"
		}
		if !sameText(again, want) {
			t.Fatalf("HTTP\ngot  %+v\nwant %+v", again, want)
		}
	})
}

func FuzzFromHTTP(f *testing.F) {
	f.Fuzz(func(t *testing.T, block string, body []byte) {
		h := http.Header{}
		for line := range strings.SplitSeq(block, "\n") {
			name, value, _ := strings.Cut(line, ":")
			h[name] = append(h[name], value) // not canonical, on purpose
		}
		HTTPMode(h)
		e, err := FromHTTP(h, body)
		if !checkDecoded(t, e, err) {
			return
		}
		again, err := throughHTTP(t, e)
		checkSame(t, "HTTP", again, err, e)
		again, err = throughProto(t, e)
		checkSame(t, "protobuf", again, err, e)
		if e.DataKind == JSONData {
			e.Data = bytes.Trim(e.Data, " \t\r\n") // JSON has no place for space around a value
		}
		again, err = throughJSON(t, e)
		checkSame(t, "JSON", again, err, e)
	})
}

func FuzzFromProto(f *testing.F) {
	f.Fuzz(func(t *testing.T, b []byte) {
		p := new(pb.CloudEvent)
		if proto.Unmarshal(b, p) != nil {
			return
		}
		e, err := FromProto(p)
		if !checkDecoded(t, e, err) {
			return
		}
		again, err := throughProto(t, e)
		checkSame(t, "protobuf", again, err, e)
		again, err = throughJSON(t, e)
		if err != nil {
			t.Fatal(err)
		}
		want := e.Clone()
		switch e.DataKind { // what JSON cannot tell apart
		case JSONData:
			want.Data = bytes.Trim(e.Data, " \t\r\n")
		case ProtoData:
			want.Data, _ = anyValue(e.Data)
		}
		if !sameText(again, want) {
			t.Fatalf("JSON\ngot  %+v\nwant %+v", again, want)
		}
	})
}

func FuzzDecodeRecord(f *testing.F) {
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := DecodeRecord(b)
		if err != nil {
			if e != nil || !errors.Is(err, ErrRecord) {
				t.Fatalf("event %+v with error %v", e, err)
			}
			return
		}
		r := Record(b)
		again, err := DecodeRecord(AppendRecord(nil, e, r.Hash(), r.StoredAt()))
		checkSame(t, "record", again, err, e)
		m := new(storev1.Event)
		if err := proto.Unmarshal(b[recordHeader:], m); err != nil {
			t.Fatalf("generated code: %v", err)
		}
		if e.ID != m.Id || e.Source != m.Source || e.Type != m.Type || e.Subject != m.Subject || e.Time != m.Time ||
			e.DataContentType != m.Datacontenttype || e.DataSchema != m.Dataschema ||
			int(e.DataKind) != int(m.DataKind) || !bytes.Equal(e.Data, m.Data) {
			t.Fatalf("got %+v, generated code %v", e, m)
		}
		for _, x := range toStored(e).Extensions {
			found := false
			for _, y := range m.Extensions {
				found = found || proto.Equal(x, y)
			}
			if !found {
				t.Fatalf("extension %v is not in %v", x, m)
			}
		}
	})
}
