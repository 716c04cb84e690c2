package gateway

import (
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/turnlane/turnlane/internal/rpcerr"
	turnlanev1 "github.com/turnlane/turnlane/proto/turnlane/v1"
	"github.com/turnlane/turnlane/store"
)

func TestSubscribeStarts(t *testing.T) {
	s := newServer(t)
	for topic, c := range map[string]struct {
		from func(positions []string) *turnlanev1.Start
		want []string
	}{
		"tail":            {func([]string) *turnlanev1.Start { return tail() }, ids(10, 5)},
		"unset":           {func([]string) *turnlanev1.Start { return nil }, ids(10, 5)},
		"earliest":        {func([]string) *turnlanev1.Start { return earliest() }, ids(0, 15)},
		"position":        {func(p []string) *turnlanev1.Start { return at(p[3]) }, ids(3, 12)},
		"zero":            {func([]string) *turnlanev1.Start { return at("0-0") }, ids(0, 15)},
		"next":            {func(p []string) *turnlanev1.Start { return at(mustPosition(t, p[9]).Next().String()) }, ids(10, 5)},
		"time-before-all": {func([]string) *turnlanev1.Start { return timeStart(1) }, ids(0, 15)},
		"time-soon":       {func([]string) *turnlanev1.Start { return timeStart(time.Now().Unix() + 30) }, ids(10, 5)},
	} {
		t.Run(topic, func(t *testing.T) {
			positions := s.publish(topic, 0, 10)
			sub := s.subscribe(&turnlanev1.SubscribeRequest{Topic: topic, From: c.from(positions)})
			s.publish(topic, 10, 5) // after Started, so never missed
			if got := sub.take(len(c.want)); !slices.Equal(got, c.want) {
				t.Errorf("got %v, want %v", got, c.want)
			}
			if len(sub.gaps) > 0 {
				t.Errorf("gaps %v", sub.gaps)
			}
		})
	}
}

func timeStart(seconds int64) *turnlanev1.Start {
	return &turnlanev1.Start{At: &turnlanev1.Start_Time{Time: &timestamppb.Timestamp{Seconds: seconds}}}
}

func TestSubscribeUntil(t *testing.T) {
	s := newServer(t)
	p := s.publish("t", 0, 10)
	between := mustPosition(t, p[4]).Next().String() // no entry is there, or the next one is
	if between == p[5] {
		between = p[4]
	}
	for _, c := range []struct {
		name        string
		topic       string
		from, until *turnlanev1.Start
		want        []string
	}{
		{"the end", "t", earliest(), tail(), ids(0, 10)},
		{"a position, inclusive", "t", earliest(), at(p[4]), ids(0, 5)},
		{"between two entries", "t", earliest(), at(between), ids(0, 5)},
		{"the first", "t", earliest(), earliest(), ids(0, 1)},
		{"before the start", "t", at(p[5]), at(p[2]), nil},
		{"just one", "t", at(p[5]), at(p[5]), ids(5, 1)},
		{"the tail until the tail", "t", tail(), tail(), nil},
		{"no such topic", "none", earliest(), tail(), nil},
		{"a time gone by", "t", earliest(), timeStart(1), nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			sub := s.subscribe(&turnlanev1.SubscribeRequest{Topic: c.topic, From: c.from, Until: c.until})
			if got := sub.rest(); !slices.Equal(got, c.want) {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
}

// A start that the log no longer holds, or does not hold yet, is told.
func TestSubscribeGapsAtTheStart(t *testing.T) {
	s := newServer(t)
	p := s.publish("t", 0, 10)
	if _, err := s.store.Trim(deadline(t), "t", store.TrimLimit{UpTo: mustPosition(t, p[5])}); err != nil {
		t.Fatal(err)
	}
	after := mustPosition(t, p[9]).Next()
	beyond := after.Next().Next()
	soon := time.UnixMilli(int64(after.Ms)).Add(30 * time.Second)
	for _, c := range []struct {
		name string
		from *turnlanev1.Start
		want []string
	}{
		{"earliest", earliest(), ids(6, 4)},
		{"a position that is gone", at(p[3]), append([]string{"trimmed:" + p[3] + ":" + p[5]}, ids(6, 4)...)},
		{"the last that is gone", at(p[5]), append([]string{"trimmed:" + p[5] + ":" + p[5]}, ids(6, 4)...)},
		{"the first that is held", at(p[6]), ids(6, 4)},
		{"a time that may be gone", timeStart(1000), append([]string{"trimmed:1000000-0:" + p[5]}, ids(6, 4)...)},
		{"a time to come", timeStart(soon.Unix()), nil},
		{"beyond the end", at(beyond.String()), []string{"regressed:" + after.String() + ":" + beyond.Prev().String()}},
	} {
		t.Run(c.name, func(t *testing.T) {
			req := &turnlanev1.SubscribeRequest{Topic: "t", From: c.from, Until: at(p[9])}
			if c.name == "beyond the end" {
				req.Until = nil
			}
			sub := s.subscribe(req)
			if req.Until != nil {
				sub.rest()
			} else if err := sub.next(); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(sub.log, c.want) {
				t.Errorf("got %v, want %v", sub.log, c.want)
			}
		})
	}
}

func TestSubscribeRefusals(t *testing.T) {
	s := newServer(t)
	for _, c := range []struct {
		name  string
		req   *turnlanev1.SubscribeRequest
		field string
	}{
		{"no topic", &turnlanev1.SubscribeRequest{}, "topic"},
		{"a bad topic", &turnlanev1.SubscribeRequest{Topic: "a b"}, "topic"},
		{"a bad position", &turnlanev1.SubscribeRequest{Topic: "t", From: at("1")}, "from.position"},
		{"a negative position", &turnlanev1.SubscribeRequest{Topic: "t", From: at("-1-0")}, "from.position"},
		{"a bad end", &turnlanev1.SubscribeRequest{Topic: "t", Until: at("x-y")}, "until.position"},
		{"a bad time", &turnlanev1.SubscribeRequest{Topic: "t", From: timeStart(1 << 40)}, "from.time"},
		{"a time to come", &turnlanev1.SubscribeRequest{Topic: "t", From: timeStart(time.Now().Unix() + 3600)}, "from.time"},
		{"the largest time", &turnlanev1.SubscribeRequest{Topic: "t", ReplaySince: timeStart(253402300799)}, "replay_since.time"},
		{"a tail that is not", &turnlanev1.SubscribeRequest{Topic: "t", From: &turnlanev1.Start{At: &turnlanev1.Start_Tail{}}}, "from.tail"},
		{"two starts", &turnlanev1.SubscribeRequest{Topic: "t", From: tail(), ReplaySince: earliest()}, "replay_since"},
	} {
		t.Run(c.name, func(t *testing.T) {
			stream, err := s.client.Subscribe(deadline(t), c.req)
			if err == nil {
				_, err = stream.Recv()
			}
			wantRefused(t, err, codes.InvalidArgument, rpcerr.InvalidField, c.field)
		})
	}
}
