// Package data is 20,000 real flights as events, and what must come out when they are added up.
//
// README.md says where they come from.
package data

import (
	"bufio"
	"bytes"
	"compress/gzip"
	_ "embed" // for the files
	"encoding/json"
	"fmt"

	"github.com/turnlane/turnlane/event"
)

//go:embed flights.cloudevents.jsonl.gz
var compressed []byte

//go:embed flights.expected.json
var expected []byte

// Airport is what is kept of the flights from one airport.
type Airport struct {
	Flights     int    `json:"flights"`
	Delay       int    `json:"delay_minutes"`  // the sum, early departures below 0
	Distance    int    `json:"distance_miles"` // the sum
	Late        int    `json:"late_over_15"`   // flights more than 15 minutes late
	OrderDigest string `json:"order_digest"`   // FNV-1a 64 over the ids in order, each followed by a newline
}

// Answer is what must come out.
type Answer struct {
	Events       int                `json:"events"`
	Airports     map[string]Airport `json:"by_subject"` // by the event's subject
	EventsOfSlot []int              `json:"events_per_slot_of_4"`
}

// Expected returns the answer, which was computed apart from this project.
func Expected() (Answer, error) {
	var a Answer
	if err := json.Unmarshal(expected, &a); err != nil {
		return Answer{}, fmt.Errorf("read the expected figures: %w", err)
	}
	return a, nil
}

// Events returns the flights in the order of their departure.
func Events() ([]*event.Event, error) {
	unzipped, err := gzip.NewReader(bytes.NewReader(compressed))
	if err != nil {
		return nil, fmt.Errorf("read the flights: %w", err)
	}
	var events []*event.Event
	lines := bufio.NewScanner(unzipped)
	for lines.Scan() {
		e, err := event.ParseJSON(lines.Bytes())
		if err != nil {
			return nil, fmt.Errorf("read flight %d: %w", len(events)+1, err)
		}
		events = append(events, e)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read the flights: %w", err)
	}
	return events, nil
}
