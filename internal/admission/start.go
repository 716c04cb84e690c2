package admission

import (
	"fmt"
	"time"
)

// MaxAhead is how far a time to start reading at may lie ahead of the server's clock, so that clocks may
// differ. Such a time counts as now: reading starts at the tail.
const MaxAhead = time.Minute

// StartTime says what is wrong with a time to start reading at, and how to mend it: nothing, unless it
// is too far ahead.
func StartTime(t, now time.Time) (rule, fix string) {
	if !t.After(now.Add(MaxAhead)) {
		return "", ""
	}

	return fmt.Sprintf("is %s, and the server's clock says %s; a start may be at most %d s ahead",
			t.UTC().Format(time.RFC3339), now.UTC().Format(time.RFC3339), int(MaxAhead.Seconds())),
		"use tail to start with what is stored from now on, or give a time gone by"
}
