package builtin

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/turnlane/turnlane/event"
)

// step is one step of a probe's script. It does one thing; if it names several they are done in the
// order of the fields. Pointers are nil for what the step does not name.
type step struct {
	sleep      *time.Duration
	hang       *time.Duration
	publish    *output
	add        map[string]int64 // to the state
	fail       *string
	permanent  *string
	retryAfter *time.Duration
	drop       *string
	panic      *string
	goexit     bool
	exit       *int
	times      int // attempts that the step is for: math.MaxInt unless it says otherwise
}

type output struct {
	topic, subject string
	data           []byte // nil: no data
}

// parseScript reads the steps from an event's data. What is not a JSON object with a list `do` is no
// script, and has no steps. Steps that are not objects, and members that are not known, are ignored;
// a known member with a value that makes no sense is an error.
func parseScript(e *event.Event) ([]step, error) {
	if e.DataKind == event.NoData || e.DataKind == event.ProtoData {
		return nil, nil
	}
	// The data may have come as text or as bytes: a client chooses that, and a script is one all the same.
	var object map[string]json.RawMessage
	if !startsWith(e.Data, '{') || json.Unmarshal(e.Data, &object) != nil {
		return nil, nil //nolint:nilerr // what is no script has no steps
	}
	var list []json.RawMessage
	if !startsWith(object["do"], '[') || json.Unmarshal(object["do"], &list) != nil {
		return nil, nil //nolint:nilerr // what is no script has no steps
	}
	steps := make([]step, 0, len(list))
	for i, raw := range list {
		var members map[string]json.RawMessage
		if !startsWith(raw, '{') || json.Unmarshal(raw, &members) != nil {
			continue
		}
		s, err := parseStep(members)
		if err != nil {
			return nil, fmt.Errorf("script: do[%d]: %w", i, err)
		}
		steps = append(steps, s)
	}
	return steps, nil
}

func parseStep(members map[string]json.RawMessage) (step, error) {
	s := step{times: math.MaxInt}
	for name, raw := range members {
		if string(raw) == "null" {
			continue
		}
		var err error
		switch name {
		case "sleep_ms":
			s.sleep, err = milliseconds(raw)
		case "hang_ms":
			s.hang, err = milliseconds(raw)
		case "retry_after_ms":
			s.retryAfter, err = milliseconds(raw)
		case "fail":
			s.fail = text(raw)
		case "permanent":
			s.permanent = text(raw)
		case "drop":
			s.drop = text(raw)
		case "panic":
			s.panic = text(raw)
		case "goexit":
			err = json.Unmarshal(raw, &s.goexit)
		case "exit":
			err = json.Unmarshal(raw, &s.exit)
		case "times":
			err = json.Unmarshal(raw, &s.times)
		case "publish":
			s.publish, err = parseOutput(raw)
		case "state":
			s.add, err = parseState(raw)
		}
		if err != nil {
			return step{}, fmt.Errorf("%s: %s makes no sense: %w", name, clip(raw), err)
		}
	}
	return s, nil
}

func parseOutput(raw []byte) (*output, error) {
	var o struct {
		Topic   string          `json:"topic"`
		Subject string          `json:"subject"`
		Data    json.RawMessage `json:"data"`
	}
	if err := json.Unmarshal(raw, &o); err != nil {
		return nil, err
	}
	return &output{topic: o.Topic, subject: o.Subject, data: o.Data}, nil
}

func parseState(raw []byte) (map[string]int64, error) {
	var o struct {
		Add map[string]int64 `json:"add"`
	}
	err := json.Unmarshal(raw, &o)
	return o.Add, err
}

// milliseconds reads a number of milliseconds, whole or not. Below 0 it is 0, and it ends where
// durations do.
func milliseconds(raw []byte) (*time.Duration, error) {
	var ms float64
	if err := json.Unmarshal(raw, &ms); err != nil {
		return nil, err
	}
	d := time.Duration(math.MaxInt64)
	if ns := ms * float64(time.Millisecond); ns < math.MaxInt64 {
		d = time.Duration(max(ns, 0))
	}
	return &d, nil
}

// text is a JSON string, or the JSON text of anything else.
func text(raw []byte) *string {
	var s string
	if json.Unmarshal(raw, &s) != nil {
		s = string(raw)
	}
	return &s
}

func startsWith(b []byte, c byte) bool {
	b = bytes.TrimLeft(b, " \t\r\n")
	return len(b) > 0 && b[0] == c
}

func clip(raw []byte) string {
	if len(raw) > 64 {
		return strconv.Quote(string(raw[:64])) + "…"
	}
	return strconv.Quote(string(raw))
}
