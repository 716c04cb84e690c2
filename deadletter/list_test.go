package deadletter_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/turnlane/turnlane/deadletter"
	"github.com/turnlane/turnlane/event"
	format "github.com/turnlane/turnlane/internal/deadletter"
	"github.com/turnlane/turnlane/internal/metrics"
	"github.com/turnlane/turnlane/internal/rpcerr"
	v1 "github.com/turnlane/turnlane/proto/turnlane/v1"
)

func (p *process) list(f *v1.DeadLetterFilter) string {
	p.w.t.Helper()
	resp, err := p.ListDeadLetters(context.Background(), &v1.ListDeadLettersRequest{Filter: f})
	if err != nil {
		p.w.t.Fatal(err)
	}
	var lines []string
	for _, g := range resp.GetGroups() {
		lines = append(lines, fmt.Sprintf("%s %s %s %d", g.GetTopic(), g.GetType(), g.GetReason(), g.GetCount()))
		if g.GetFirstAt().AsTime().After(g.GetLastAt().AsTime()) || g.GetFirstAt().AsTime().IsZero() || g.GetFirstPosition() == "" {
			p.w.t.Errorf("%v", g)
		}
	}
	return strings.Join(lines, "; ")
}

func TestAListGroupsByKindOfFailure(t *testing.T) {
	w := newWorld(t)
	p := w.service(w.store, false)
	if got := p.list(nil); got != "" {
		t.Errorf("nothing yet: %s", got)
	}
	for i := range 30 {
		w.die("orders", "a", "echo", format.Failed, fmt.Sprintf("seat %d of %q is taken", i, strings.Repeat("x", i)))
	}
	_, first := w.die("orders", "b", "settler", format.Failed, "seat 1 of \"x\" is taken")
	w.die("orders", "a", "echo", format.Panic, "seat 1 of \"x\" is taken")
	_, last := w.die("trades", "a", "echo", format.Failed, "no route")
	w.append("dlq.trades", event.Record("\x01aaaaBBBBBBBB\xff\xff\xff"), nil)

	for _, c := range []struct {
		filter *v1.DeadLetterFilter
		want   string
	}{
		{nil, "dlq.orders echo failed 30; dlq.orders echo panic 1; dlq.orders settler failed 1; dlq.trades  unreadable 1; dlq.trades echo failed 1"},
		{&v1.DeadLetterFilter{Topic: "dlq.trades"}, "dlq.trades  unreadable 1; dlq.trades echo failed 1"},
		{&v1.DeadLetterFilter{Type: "settler"}, "dlq.orders settler failed 1"},
		{&v1.DeadLetterFilter{Fingerprint: strings.ToUpper(format.Fingerprint(format.Failed, "seat 9 of 'z' is taken"))}, "dlq.orders echo failed 30; dlq.orders settler failed 1"},
		{&v1.DeadLetterFilter{Topic: "dlq.orders", Position: first.String()}, "dlq.orders settler failed 1"},
		{&v1.DeadLetterFilter{Topic: "dlq.trades", Position: last.Prev().String()}, ""},
		{&v1.DeadLetterFilter{Topic: "dlq.nobody"}, ""},
	} {
		if got := p.list(c.filter); got != c.want {
			t.Errorf("%v:\n got %s\nwant %s", c.filter, got, c.want)
		}
	}
	for _, bad := range []*v1.DeadLetterFilter{{Topic: "orders"}, {Position: "1-1"}, {Fingerprint: "x"}} {
		if _, err := p.ListDeadLetters(t.Context(), &v1.ListDeadLettersRequest{Filter: bad}); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%v: %v", bad, err)
		}
	}
}

func TestAListOfTooManyKindsIsBounded(t *testing.T) {
	w := newWorld(t)
	for i := range 1200 {
		word := ""
		for n := i; len(word) < 4; n /= 26 {
			word += string(rune('g' + n%20))
		}
		w.die("orders", "a", "echo", format.Failed, fmt.Sprintf("%s%s", word, strings.Repeat("!", i%7)))
	}
	p := w.service(w.store, false)
	resp, err := p.ListDeadLetters(t.Context(), &v1.ListDeadLettersRequest{})
	if err != nil {
		t.Fatal(err)
	}
	sum := uint64(0)
	for _, g := range resp.GetGroups() {
		sum += g.GetCount()
	}
	if n := len(resp.GetGroups()); n != 1001 || sum != 1200 || resp.GetGroups()[0].GetError() != "other kinds, of which there are too many to list" {
		t.Errorf("%d groups of %d, first %v", n, sum, resp.GetGroups()[0])
	}
}

func TestDeadLettersAreShownWhole(t *testing.T) {
	w := newWorld(t)
	e, pos := w.die("orders", "a", "echo", format.Failed, "boom")
	at := w.append("dlq.orders", event.Record("\x01aaaaBBBBBBBB\xff\xff\xff"), nil)
	w.die("trades", "a", "echo", format.Failed, "boom")
	p := w.service(w.store, false)
	s := &stream[v1.ReadDeadLettersResponse]{ctx: t.Context()}
	if err := p.ReadDeadLetters(&v1.ReadDeadLettersRequest{}, s); err != nil || len(s.got) != 3 {
		t.Fatal(s.got, err)
	}
	got, err := event.FromProto(s.got[0].GetEvent())
	if err != nil {
		t.Fatal(err)
	}
	original, f, err := format.Unwrap(got)
	if err != nil || !original.Equal(e) || f.Error != "boom" || s.got[0].GetPosition() != pos.String() || s.got[0].GetTopic() != "dlq.orders" ||
		s.got[0].GetFingerprint() != format.Fingerprint(format.Failed, "boom") {
		t.Errorf("%v %+v %v", s.got[0], f, err)
	}
	if r := s.got[1]; r.GetPosition() != at.String() || r.GetEvent().GetType() != format.UndecodableType || len(r.GetEvent().GetBinaryData()) != 16 {
		t.Errorf("%v", r)
	}
	s = &stream[v1.ReadDeadLettersResponse]{ctx: t.Context()}
	if err := p.ReadDeadLetters(&v1.ReadDeadLettersRequest{Limit: 1, Filter: &v1.DeadLetterFilter{Type: "echo"}}, s); err != nil || len(s.got) != 1 {
		t.Errorf("limit: %v %v", s.got, err)
	}
	if err := p.ReadDeadLetters(&v1.ReadDeadLettersRequest{Limit: 10_001}, s); status.Code(err) != codes.InvalidArgument {
		t.Errorf("a large limit: %v", err)
	}
}

func TestAPurgeRemovesWhatItsFilterTakes(t *testing.T) {
	w := newWorld(t)
	for range 700 {
		w.die("orders", "a", "echo", format.Failed, "boom")
		w.die("orders", "b", "settler", format.Failed, "boom")
	}
	w.die("trades", "a", "echo", format.Failed, "boom")
	p := w.service(w.store, false)
	for _, f := range []*v1.DeadLetterFilter{nil, {}} {
		_, err := p.PurgeDeadLetters(t.Context(), &v1.PurgeDeadLettersRequest{Filter: f})
		if status.Code(err) != codes.InvalidArgument || rpcerr.Info(err).GetMetadata()["field"] != "filter" {
			t.Fatalf("without a filter: %v", err)
		}
	}
	for _, c := range []struct {
		filter *v1.DeadLetterFilter
		want   uint64
		left   string
	}{
		{&v1.DeadLetterFilter{Topic: "dlq.orders", Type: "echo"}, 700, "dlq.orders settler failed 700; dlq.trades echo failed 1"},
		{&v1.DeadLetterFilter{Fingerprint: "000000000000"}, 0, "dlq.orders settler failed 700; dlq.trades echo failed 1"},
		{&v1.DeadLetterFilter{Type: "settler"}, 700, "dlq.trades echo failed 1"},
		{&v1.DeadLetterFilter{Topic: "dlq.trades"}, 1, ""},
	} {
		got, err := p.PurgeDeadLetters(t.Context(), &v1.PurgeDeadLettersRequest{Filter: c.filter})
		if err != nil || got.GetRemoved() != c.want || p.list(nil) != c.left {
			t.Errorf("%v: %v %v, left %s", c.filter, got, err, p.list(nil))
		}
	}
}

func TestTheLeaderCountsDeadLetters(t *testing.T) {
	w := newWorld(t)
	m, err := metrics.New()
	if err != nil {
		t.Fatal(err)
	}
	defer m.Shutdown(context.Background())
	for range 3 {
		w.die("orders", "a", "echo", format.Failed, "boom")
	}
	w.die("orders", "a", "echo", format.Panic, "boom")
	p := w.service(w.store, true, func(c *deadletter.Config) { c.Meter = m.Meter() })
	await := func(lines ...string) {
		t.Helper()
		var page string
		for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
			r := httptest.NewRecorder()
			m.Handler().ServeHTTP(r, httptest.NewRequest(http.MethodGet, "/metrics", nil))
			page = r.Body.String()
			missing := false
			for _, line := range lines {
				missing = missing || !strings.Contains(page, line)
			}
			if !missing {
				return
			}
		}
		t.Fatalf("no %q in:\n%s", lines, page)
	}
	await(`turnlane_deadletters{reason="failed",topic="dlq.orders"} 3`, `turnlane_deadletters{reason="panic",topic="dlq.orders"} 1`,
		`turnlane_deadletters_age_seconds{reason="failed",topic="dlq.orders"}`)
	w.die("orders", "a", "echo", format.Failed, "boom")
	w.die("trades", "a", "echo", format.Timeout, "boom")
	await(`turnlane_deadletters{reason="failed",topic="dlq.orders"} 4`, `turnlane_deadletters{reason="timeout",topic="dlq.trades"} 1`)
	if _, err := p.PurgeDeadLetters(t.Context(), &v1.PurgeDeadLettersRequest{Filter: &v1.DeadLetterFilter{Topic: "dlq.trades"}}); err != nil {
		t.Fatal(err)
	}
	await(`turnlane_deadletters_purged_total 1`)
}

func TestAConfigThatCannotWorkIsRefused(t *testing.T) {
	_, err := deadletter.New(deadletter.Config{Poll: -1, CountEvery: -1})
	for _, field := range []string{"Store", "Session", "Poll", "CountEvery"} {
		if err == nil || !strings.Contains(err.Error(), "Config."+field) {
			t.Errorf("%s: %v", field, err)
		}
	}
}
