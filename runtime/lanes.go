package runtime

import (
	"github.com/turnlane/turnlane/actor"
	"github.com/turnlane/turnlane/internal/command"
	"github.com/turnlane/turnlane/internal/deadletter"

	"github.com/turnlane/turnlane/event"
)

// laneKind is what a lane of an activation is for. After the topics of its definition a worker has the two
// lanes of its own, in the order of command.Lanes: they take every event whatever the worker's slot, have
// cursors in every replay mode, and are never sought.
type laneKind uint8

const (
	topicLane   laneKind = iota
	commandLane          // goes before all others
	redriveLane          // events that were given up and are brought back
)

// ownLanes is how many lanes a worker has beside its topics.
const ownLanes = 2

// ownRun stands for the worker's run in what is made from the lanes of its own: they go on over a seek, and so
// an event of theirs that comes again after one is the same.
const ownRun = 1

// topicsOf returns the topics of a worker's lanes.
func topicsOf(typ, id string, topics []string) []string {
	all := make([]string, 0, len(topics)+ownLanes)
	return append(append(all, topics...), command.Lanes(typ, id)...)
}

func kindOf(i, topics int) laneKind {
	switch i - topics {
	case 0:
		return commandLane
	case 1:
		return redriveLane
	}
	return topicLane
}

// run is what TurnInput.Run is for turns of the lane.
func (l *lane) run() uint64 {
	if l.kind == topicLane {
		return 0
	}
	return ownRun
}

// markRun is the run in the marks of what the lane's turns store.
func (l *lane) markRun() uint64 {
	if l.kind == topicLane {
		return l.a.worker.Run
	}
	return ownRun
}

// bringBack shows the turn's handler the event that was given up as it came at first.
func (t *turn) bringBack(e *event.Event) error {
	original, facts, err := deadletter.Redriven(e)
	if err != nil {
		return actor.Permanent(err)
	}
	t.Turn.Redriven(original, actor.Origin{Topic: facts.Topic, Position: facts.Position, Run: facts.Run})
	return nil
}
