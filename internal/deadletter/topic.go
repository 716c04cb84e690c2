package deadletter

import (
	"strings"
)

const (
	// Prefix begins the names of all topics of dead letters.
	Prefix = "dlq."
	// Pubsub is the topic of the records that nobody can decode.
	Pubsub = "dlq.pubsub"

	workers   = "wrk."
	maxTopic  = 255 // admission.MaxTopic
	shortened = 12  // hex digits that tell shortened names apart
)

// Topic is where the events of a topic go that a worker of a type gives up: dlq.<topic>, or what the
// worker's policy says (override, not empty). Commands and what was sent back to a worker by other means
// (wrk.<type>.…) go to dlq.wrk.<type>; for a redriven event ask with the topic that its facts give.
//
// What is read from a topic of dead letters has no further one: Topic returns "". Such an event stays
// where it is and always was, in the dlq. topic, and giving it up again is only reported. So dlq.dlq.*
// never exists, and no event goes in circles between topics of dead letters.
func Topic(topic, workerType, override string) string {
	switch {
	case strings.HasPrefix(topic, Prefix):
		return ""
	case override != "":
		return override
	case strings.HasPrefix(topic, workers):
		if of, _, ok := strings.Cut(topic[len(workers):], "."); ok && of != "" {
			return Prefix + workers + of
		}
		return Prefix + workers + workerType
	}
	name := Prefix + topic
	if len(name) > maxTopic {
		// Only topics that nobody can publish to are so long.
		name = name[:maxTopic-1-shortened] + "-" + digest(topic)
	}
	return name
}

// RedriveTopic is the topic by which a worker gets its dead letters back: an ordinary lane of it.
func RedriveTopic(workerType, workerID string) string {
	return workers + workerType + ".redrive." + workerID
}

// IsCommandTopic tells the topics of commands, wrk.<type>.command.<worker id>: a redriven event with
// such a Facts.Topic is a command.
func IsCommandTopic(topic string) bool { return isWorkerTopic(topic, "command") }

// IsRedriveTopic tells the topics of RedriveTopic.
func IsRedriveTopic(topic string) bool { return isWorkerTopic(topic, "redrive") }

func isWorkerTopic(topic, kind string) bool {
	rest, ok := strings.CutPrefix(topic, workers)
	if !ok {
		return false
	}
	of, rest, _ := strings.Cut(rest, ".")
	got, id, ok := strings.Cut(rest, ".")
	return ok && of != "" && got == kind && id != "" && !strings.Contains(id, ".")
}
