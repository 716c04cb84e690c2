package feed

import (
	"fmt"

	"github.com/turnlane/turnlane/event"
)

// Bounds are the facts about a log that gaps are told by, from the same moment as what was read.
type Bounds struct {
	Incarnation string         // "" while there is no log
	Last        event.Position // the newest position given out
	Removed     event.Position // the newest position removed from the front
}

// Kind says why a range of a log can't be read. Kinds count from 1.
type Kind uint8

// The kinds of gaps.
const (
	// Trimmed means that retention removed the range before the feed came to it. The feed goes on after it.
	Trimmed Kind = iota + 1
	// Incarnation means that the feed's log is gone; what it held after the feed's position is lost, however much
	// that was. The feed goes on from the start of the log in its place.
	Incarnation
	// Regressed means that the log ends before the feed's position, as after a failover that lost its newest
	// entries. The feed saw what the range held, or was told to begin there; what is put there anew is
	// delivered, since the feed goes on after the log's end.
	Regressed
	// Undecodable is one entry whose record can't be read. It is told to every feed, also of a slot, since nobody
	// knows whose it was. The feed goes on after it.
	Undecodable
)

func (k Kind) String() string {
	switch k {
	case Trimmed:
		return "trimmed"
	case Incarnation:
		return "incarnation"
	case Regressed:
		return "regressed"
	case Undecodable:
		return "undecodable"
	}
	return fmt.Sprintf("kind(%d)", uint8(k))
}

// Gap is a range of positions, both ends included, in which a feed can no longer read what was there.
// Whether it held events that the feed owns is not known.
type Gap struct {
	Kind Kind
	// First and Last bound the range. Last is event.MaxPosition when the end of the lost log is unknown.
	First, Last event.Position
	// Incarnation is the log that the range was in.
	Incarnation string
	// After and Next are where the feed goes on: after that position, in that incarnation.
	After event.Position
	Next  string
}

func (g Gap) String() string {
	return fmt.Sprintf("%s gap from %s to %s", g.Kind, g.First, g.Last)
}

// FindGap compares a reader's position and incarnation with the log's bounds. It returns the gap, if
// there is one; a log may show one after another, so call it again with the gap's After and Next. A
// reader without an incarnation has no log to lose and takes the present one's.
func FindGap(pos event.Position, incarnation string, log Bounds) (Gap, bool) {
	switch {
	case incarnation != "" && incarnation != log.Incarnation && !off(checkIncarnation):
		return Gap{Kind: Incarnation, First: pos.Next(), Last: event.MaxPosition,
			Incarnation: incarnation, Next: log.Incarnation}, true
	case log.Last.Less(pos) && !off(checkRegressed):
		return Gap{Kind: Regressed, First: log.Last.Next(), Last: pos,
			Incarnation: log.Incarnation, After: log.Last, Next: log.Incarnation}, true
	case pos.Less(log.Removed) && !off(checkTrimmed):
		return Gap{Kind: Trimmed, First: pos.Next(), Last: log.Removed,
			Incarnation: log.Incarnation, After: log.Removed, Next: log.Incarnation}, true
	}
	return Gap{}, false
}
