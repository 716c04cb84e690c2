package command

import "strings"

// Prefix begins the names of all topics that are workers' own.
const Prefix = "wrk."

// Kind is what one of a worker's own topics is for.
type Kind uint8

// What a worker's own topics are for.
const (
	Commands Kind = iota + 1 // commands to the worker
	Replies                  // what it answered
	Redrives                 // dead letters of its that come again
)

var kinds = map[string]Kind{"command": Commands, "reply": Replies, "redrive": Redrives}

// Topic is where the commands to a worker are published.
func Topic(typ, id string) string { return Prefix + typ + ".command." + id }

// ReplyTopic is where a worker answers commands that name no other topic.
func ReplyTopic(typ, id string) string { return Prefix + typ + ".reply." + id }

// RedriveTopic is where dead letters of a worker come again.
func RedriveTopic(typ, id string) string { return Prefix + typ + ".redrive." + id }

// Lanes are the topics of its own that a worker reads beside those of its definition: with cursors of
// their own in every replay mode, past slots, and never sought.
func Lanes(typ, id string) []string { return []string{Topic(typ, id), RedriveTopic(typ, id)} }

// Topics are all topics of a worker's own.
func Topics(typ, id string) []string {
	return []string{Topic(typ, id), ReplyTopic(typ, id), RedriveTopic(typ, id)}
}

// DeadLetterTopic is where commands to workers of a type go that are given up on.
func DeadLetterTopic(typ string) string { return "dlq." + Prefix + typ }

// ParseTopic takes the name of a worker's own topic apart. Types and ids have no dots, so that a name
// has one reading only.
func ParseTopic(topic string) (typ string, kind Kind, id string, ok bool) {
	rest, ok := strings.CutPrefix(topic, Prefix)
	if !ok {
		return "", 0, "", false
	}
	typ, rest, _ = strings.Cut(rest, ".")
	word, id, _ := strings.Cut(rest, ".")
	kind = kinds[word]
	if typ == "" || kind == 0 || id == "" || strings.Contains(id, ".") {
		return "", 0, "", false
	}
	return typ, kind, id, true
}

// Reserved tells whether a topic begins with wrk., and so is nobody's but a worker's.
func Reserved(topic string) bool { return strings.HasPrefix(topic, Prefix) }
