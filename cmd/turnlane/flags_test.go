package main

import (
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/turnlane/turnlane/internal/client"
)

var noon = time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)

func TestFlagsReadWhatPeopleWrite(t *testing.T) {
	var (
		d      = &durationFlag{}
		n      = &numberFlag{min: 0, max: 1 << 53}
		b      = new(bytesFlag)
		p      = new(pairsFlag)
		s      = &startFlag{now: func() time.Time { return noon }}
		r      = &replayFlag{now: func() time.Time { return noon }}
		starts = func() string { return client.FormatStart(s.start) }
		replay = func() string { return replayName(r.replay) }
	)
	for _, c := range []struct {
		flag  pflag.Value
		given string
		want  string
		got   func() string
	}{
		{d, "90s", "1m30s", d.String}, {d, "7d", "168h", d.String}, {d, "1d12h", "36h", d.String}, {d, "0", "", d.String},
		{d, "1.5h", "1h30m", d.String}, {d, "500ms", "500ms", d.String}, {d, "10m", "10m", d.String},
		{n, "42", "42", n.String},
		{b, "1024", "1024", b.String}, {b, "64KiB", "65536", b.String}, {b, "2GiB", "2147483648", b.String},
		{b, "1m", "1048576", b.String}, {b, "5mb", "5000000", b.String}, {b, "0", "", b.String},
		{p, "a=1", "a=1", p.String}, {p, "b=", "a=1 b=", p.String}, {p, "c=x=y", "a=1 b= c=x=y", p.String},
		{s, "tail", "tail", starts}, {s, "earliest", "earliest", starts},
		{s, "2026-01-31T13:00:00+01:00", "2026-01-31T12:00:00Z", starts}, {s, "2026-01-31", "2026-01-31T00:00:00Z", starts},
		{s, "-10m", "2026-01-31T11:50:00Z", starts}, {s, "-7d", "2026-01-24T12:00:00Z", starts},
		{s, "1700000000000-3", "1700000000000-3", starts}, {s, "0-0", "0-0", starts}, {s, "2026-11", "2026-11", starts},
		{s, "18446744073709551615-18446744073709551615", "18446744073709551615-18446744073709551615", starts},
		{r, "cursor", "cursor", replay}, {r, "off", "off", replay}, {r, "earliest", "earliest", replay},
		{r, "5-0", "5-0", replay}, {r, "-1h", "2026-01-31T11:00:00Z", replay},
	} {
		if err := c.flag.Set(c.given); err != nil {
			t.Errorf("%q: %v", c.given, err)
		} else if got := c.got(); got != c.want {
			t.Errorf("%q became %q, want %q", c.given, got, c.want)
		}
	}
}

func TestFlagsRefuseTheRest(t *testing.T) {
	start := func() pflag.Value { return &startFlag{now: func() time.Time { return noon }} }
	replay := func() pflag.Value { return &replayFlag{now: func() time.Time { return noon }} }
	durations := func() pflag.Value { return &durationFlag{} }
	numbers := func() pflag.Value { return &numberFlag{min: 1, max: 1024} }
	sizes := func() pflag.Value { return new(bytesFlag) }
	pairs := func() pflag.Value { return new(pairsFlag) }
	rates := func() pflag.Value { return new(rateFlag) }
	for _, c := range []struct {
		flag  func() pflag.Value
		given []string
	}{
		{start, []string{"", "head", "yesterday", "-", "--5m", "-5", "5", "5-", "05-1", "1-2-3", "18446744073709551616-0",
			"2026-13-01", "2026-01-31 12:00:00", "2026-01-31T12:00:00", "-99999999999d", "Tail"}},
		{replay, []string{"", "tail", "on", "-", "5"}},
		{durations, []string{"", "5", "-5s", "5x", "d", "1dd", "1d2d", "1d-2h", "1e3s", "99999999d", "106751d24h"}},
		{numbers, []string{"", "0", "1025", "-1", "1.5", "x", "18446744073709551616"}},
		{sizes, []string{"", "-1", "1.5MiB", "MiB", "x", "18446744073709551615KiB"}},
		{pairs, []string{"", "a", "=b"}},
		{rates, []string{"", "0", "-1", "x", "NaN", "Inf", "1e10"}},
	} {
		for _, given := range c.given {
			f := c.flag()
			if err := f.Set(given); err == nil {
				t.Errorf("%T took %q as %s", f, given, f)
			}
		}
	}
}
