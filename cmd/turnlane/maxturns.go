package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// maxTurnsFlag is bounds by worker type, as TYPE=N; given as a variable, with commas between them.
type maxTurnsFlag struct{ max map[string]int }

func (f *maxTurnsFlag) Set(text string) error {
	for one := range strings.SplitSeq(text, ",") {
		typ, number, ok := strings.Cut(one, "=")
		n, err := strconv.Atoi(number)
		if !ok || typ == "" || err != nil || n < 1 {
			return errors.New("want TYPE=N with a number of 1 or more, such as report=4")
		}
		if f.max == nil {
			f.max = map[string]int{}
		}
		f.max[typ] = n
	}
	return nil
}

func (f *maxTurnsFlag) Type() string { return "TYPE=N" }
func (f *maxTurnsFlag) String() string {
	var all []string
	for _, typ := range slices.Sorted(maps.Keys(f.max)) {
		all = append(all, fmt.Sprintf("%s=%d", typ, f.max[typ]))
	}
	return strings.Join(all, ",")
}
