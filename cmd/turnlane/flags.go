package main

import (
	"errors"
	"fmt"
	"maps"
	"math/bits"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/turnlane/turnlane/internal/client"
	turnlanev1 "github.com/turnlane/turnlane/proto/turnlane/v1"
)

// Values of flags. Each says in its error what it wants; flagError adds the flag and what was given.

// durationFlag is a duration of zero or more.
type durationFlag struct {
	time.Duration
	min, max time.Duration // 0 means unbounded
}

func (f *durationFlag) Set(text string) error {
	d, err := client.ParseDuration(text)
	switch {
	case err != nil:
		return err
	case d < f.min:
		return fmt.Errorf("want at least %s", f.min)
	case f.max > 0 && d > f.max:
		return fmt.Errorf("want at most %s", f.max)
	}
	f.Duration = d
	return nil
}

func (f *durationFlag) Type() string { return "D" }
func (f *durationFlag) String() string {
	if f.Duration == 0 {
		return ""
	}
	return shortDuration(f.Duration)
}

// shortDuration is d without the zero units that time.Duration adds: 10m, not 10m0s.
func shortDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// numberFlag is a whole number within bounds.
type numberFlag struct {
	n        uint64
	min, max uint64
}

func (f *numberFlag) Set(text string) error {
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil || n < f.min || n > f.max {
		return fmt.Errorf("want a whole number from %d to %d", f.min, f.max)
	}
	f.n = n
	return nil
}

func (f *numberFlag) Type() string { return "N" }
func (f *numberFlag) String() string {
	if f.n == 0 {
		return ""
	}
	return strconv.FormatUint(f.n, 10)
}

// rateFlag is a number per second above zero.
type rateFlag float64

func (f *rateFlag) Set(text string) error {
	r, err := strconv.ParseFloat(text, 64)
	if err != nil || !(r >= 0.001 && r <= 1e9) {
		return errors.New("want events per second, from 0.001 to 1e9")
	}
	*f = rateFlag(r)
	return nil
}

func (f *rateFlag) Type() string { return "N" }
func (f *rateFlag) String() string {
	if *f == 0 {
		return ""
	}
	return strconv.FormatFloat(float64(*f), 'g', -1, 64)
}

// bytesFlag is a number of bytes.
type bytesFlag uint64

var byteUnits = []struct {
	suffix string
	factor uint64
}{
	{"kib", 1 << 10}, {"mib", 1 << 20}, {"gib", 1 << 30}, {"tib", 1 << 40},
	{"kb", 1e3}, {"mb", 1e6}, {"gb", 1e9}, {"tb", 1e12},
	{"k", 1 << 10}, {"m", 1 << 20}, {"g", 1 << 30}, {"t", 1 << 40}, {"b", 1},
}

func (f *bytesFlag) Set(text string) error {
	bad := errors.New("want a number of bytes such as 1048576, 64KiB, 500MiB or 2GiB")
	number, factor := strings.ToLower(text), uint64(1)
	for _, u := range byteUnits {
		if rest, found := strings.CutSuffix(number, u.suffix); found {
			number, factor = rest, u.factor
			break
		}
	}
	n, err := strconv.ParseUint(number, 10, 64)
	if err != nil {
		return bad
	}
	high, low := bits.Mul64(n, factor)
	if high != 0 {
		return errors.New("that is more than 64 bits hold")
	}
	*f = bytesFlag(low)
	return nil
}

func (f *bytesFlag) Type() string { return "BYTES" }
func (f *bytesFlag) String() string {
	if *f == 0 {
		return ""
	}
	return strconv.FormatUint(uint64(*f), 10)
}

// addrFlag is an address to listen on.
type addrFlag string

func (f *addrFlag) Set(text string) error {
	if text == "" {
		return errors.New("want HOST:PORT, or leave it out")
	}
	if _, err := net.ResolveTCPAddr("tcp", text); err != nil {
		return fmt.Errorf("want HOST:PORT: %w", err)
	}
	*f = addrFlag(text)
	return nil
}

func (f *addrFlag) Type() string   { return "ADDR" }
func (f *addrFlag) String() string { return string(*f) }

// startFlag is a place in a topic. Times ago count from when the flag is read.
type startFlag struct {
	start *turnlanev1.Start // nil if not given
	text  string
	now   func() time.Time
}

func (f *startFlag) Set(text string) error {
	start, err := client.ParseStart(text, f.now())
	if err != nil {
		return err
	}
	f.start, f.text = start, text
	return nil
}

func (f *startFlag) Type() string   { return "WHERE" }
func (f *startFlag) String() string { return f.text }

// pairsFlag is a map, one key=value a flag.
type pairsFlag map[string]string

func (f *pairsFlag) Set(text string) error {
	key, value, found := strings.Cut(text, "=")
	switch {
	case !found || key == "":
		return errors.New("want key=value")
	case *f == nil:
		*f = make(pairsFlag)
	}
	if _, twice := (*f)[key]; twice {
		return fmt.Errorf("%s is given twice", key)
	}
	(*f)[key] = value
	return nil
}

func (f *pairsFlag) Type() string { return "K=V" }
func (f *pairsFlag) String() string {
	var b strings.Builder
	for i, key := range slices.Sorted(maps.Keys(*f)) {
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(key + "=" + (*f)[key])
	}
	return b.String()
}

// choiceFlag is one word of a few.
type choiceFlag struct {
	value   string
	choices []string
}

func (f *choiceFlag) Set(text string) error {
	if !slices.Contains(f.choices, text) {
		return errors.New("want " + strings.Join(f.choices, " or "))
	}
	f.value = text
	return nil
}

func (f *choiceFlag) Type() string   { return strings.Join(f.choices, "|") }
func (f *choiceFlag) String() string { return f.value }

// outputFlag adds -o, and returns whether it asks for JSON.
func outputFlag(flags *pflag.FlagSet) func() bool {
	f := &choiceFlag{value: "text", choices: []string{"text", "json"}}
	flags.VarP(f, "output", "o", "json prints one JSON object a line, `text|json`")
	return func() bool { return f.value == "json" }
}

// refuseEmpty refuses flags that are given but empty.
func refuseEmpty(flags *pflag.FlagSet, names ...string) error {
	for _, name := range names {
		if flag := flags.Lookup(name); flag.Changed && flag.Value.String() == "" {
			return usagef("--%s is empty; leave it out, or give it a value", name)
		}
	}
	return nil
}
