package main

import (
	"strings"
	"testing"
)

func TestMaxTurnsFlag(t *testing.T) {
	var f maxTurnsFlag
	for _, given := range []string{"report=4", "probe=1,echo=2", "report=5"} {
		if err := f.Set(given); err != nil {
			t.Errorf("%q: %v", given, err)
		}
	}
	if got := f.String(); got != "echo=2,probe=1,report=5" {
		t.Errorf("the flag is %q", got)
	}
	for _, given := range []string{"", "report", "=4", "report=", "report=0", "report=-1", "report=x", "a=1,b"} {
		if err := f.Set(given); err == nil || !strings.Contains(err.Error(), "TYPE=N") {
			t.Errorf("%q: %v", given, err)
		}
	}
}
