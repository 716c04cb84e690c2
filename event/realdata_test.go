package event

import (
	"bufio"
	"compress/gzip"
	"os"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/cloudevents/sdk-go/binding/format/protobuf/v2/pb"
)

// realEvents are the lines of a file of real events.
func realEvents(t testing.TB, path string) [][]byte {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	var lines [][]byte
	s := bufio.NewScanner(z)
	s.Buffer(nil, 1<<20)
	for s.Scan() {
		lines = append(lines, append([]byte(nil), s.Bytes()...))
	}
	if err := s.Err(); err != nil {
		t.Fatal(err)
	}
	return lines
}

func TestRealEventsPassEveryCodecUnchanged(t *testing.T) {
	for path, count := range map[string]int{
		"testdata/quakes.cloudevents.jsonl.gz":                  1707,
		"testdata/webhooks.cloudevents.jsonl.gz":                329,
		"../examples/flights/data/flights.cloudevents.jsonl.gz": 20000,
	} {
		t.Run(path, func(t *testing.T) {
			lines := realEvents(t, path)
			if len(lines) != count {
				t.Fatalf("%d events, want %d", len(lines), count)
			}
			for i, line := range lines {
				e, err := ParseJSON(line)
				if err != nil {
					t.Fatalf("line %d: %v", i+1, err)
				}
				// The files are written in the order that AppendJSON uses, so even the line is the same.
				out, err := AppendJSON(nil, e)
				if err != nil || string(out) != string(line) {
					t.Fatalf("line %d: %v\ngot  %s\nwant %s", i+1, err, out, line)
				}
				same := func(codec string, got *Event, err error) {
					t.Helper()
					if err != nil || !got.Equal(e) {
						t.Fatalf("line %d by %s: %v\ngot  %+v\nwant %+v", i+1, codec, err, got, e)
					}
				}
				stored, err := DecodeRecord(AppendRecord(nil, e, 1, time.Unix(0, 0)))
				same("record", stored, err)
				p, err := ToProto(stored)
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
				fromProto, err := FromProto(q)
				same("protobuf", fromProto, err)
				h, body, err := ToHTTP(fromProto)
				if err != nil {
					t.Fatal(err)
				}
				fromHTTP, err := FromHTTP(h, body)
				same("HTTP", fromHTTP, err)
			}
		})
	}
}
