package event

import (
	"testing"
	"time"
)

// quake is a real event of about 900 bytes.
func quake(b *testing.B) (*Event, []byte) {
	line := realEvents(b, "testdata/quakes.cloudevents.jsonl.gz")[0]
	e, err := ParseJSON(line)
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(line)))
	b.ReportAllocs()
	b.ResetTimer()
	return e, line
}

func BenchmarkAppendRecord(b *testing.B) {
	e, _ := quake(b)
	buf := make([]byte, 0, 4096)
	for b.Loop() {
		buf = AppendRecord(buf[:0], e, 1, time.Unix(1, 0))
	}
}

func BenchmarkAppendRecordWithExtensions(b *testing.B) {
	e := full()
	b.ReportAllocs()
	buf := make([]byte, 0, 4096)
	for b.Loop() {
		buf = AppendRecord(buf[:0], e, 1, time.Unix(1, 0))
	}
}

func BenchmarkDecodeRecord(b *testing.B) {
	e, _ := quake(b)
	r := Record(AppendRecord(nil, e, 1, time.Unix(1, 0)))
	for b.Loop() {
		if _, err := DecodeRecord(r); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDecodeRecordWithExtensions(b *testing.B) {
	r := Record(AppendRecord(nil, full(), 1, time.Unix(1, 0)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := DecodeRecord(r); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkParseJSON(b *testing.B) {
	_, line := quake(b)
	for b.Loop() {
		if _, err := ParseJSON(line); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkAppendJSON(b *testing.B) {
	e, _ := quake(b)
	buf := make([]byte, 0, 4096)
	for b.Loop() {
		var err error
		if buf, err = AppendJSON(buf[:0], e); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkFromProto(b *testing.B) {
	e, _ := quake(b)
	p, err := ToProto(e)
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := FromProto(p); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkToProto(b *testing.B) {
	e, _ := quake(b)
	for b.Loop() {
		if _, err := ToProto(e); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkFromHTTP(b *testing.B) {
	e, _ := quake(b)
	h, body, err := ToHTTP(e)
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := FromHTTP(h, body); err != nil {
			b.Fatal(err)
		}
	}
}
