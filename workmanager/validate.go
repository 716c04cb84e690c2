package workmanager

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/grouping"
	"github.com/turnlane/turnlane/internal/admission"
	"github.com/turnlane/turnlane/internal/command"
	"github.com/turnlane/turnlane/internal/rpcerr"
	storev1 "github.com/turnlane/turnlane/proto/turnlane/store/v1"
	turnlanev1 "github.com/turnlane/turnlane/proto/turnlane/v1"
)

// Limits of a worker's definition.
const (
	maxID       = 64
	maxName     = 128 // characters
	maxTopics   = 1024
	maxConfig   = 64 << 10 // bytes of keys and values together
	maxTags     = 50
	maxTagKey   = 128
	maxTagValue = 1024
)

// problems gathers what is wrong with a request, so that all of it is told at once.
type problems []problem

type problem struct{ field, rule, fix string }

func (p *problems) add(field, rule, fix string) { *p = append(*p, problem{field, rule, fix}) }

// err is nil if there are none. The fields, rules and fixes of several are joined in the facts.
func (p problems) err() error {
	const shown = 16
	switch len(p) {
	case 0:
		return nil
	case 1:
		return rpcerr.Invalid(p[0].field, p[0].rule, p[0].fix)
	}
	var fields, rules, fixes, lines []string
	for _, x := range p[:min(len(p), shown)] {
		if !slices.Contains(fields, x.field) {
			fields = append(fields, x.field)
		}
		rules = append(rules, x.field+": "+x.rule)
		fixes = append(fixes, x.field+": "+x.fix)
		lines = append(lines, x.field+": "+x.rule+"; "+x.fix)
	}
	if more := len(p) - shown; more > 0 {
		lines = append(lines, fmt.Sprintf("and %d more", more))
	}
	return rpcerr.New(codes.InvalidArgument, rpcerr.InvalidField, strings.Join(lines, ". "), map[string]string{
		"field": strings.Join(fields, ","), "rule": strings.Join(rules, ". "), "fix": strings.Join(fixes, ". "),
	})
}

// define checks a request and makes the record that it defines, complete with defaults. The id is
// empty if none was asked for.
func define(req *turnlanev1.CreateWorkerRequest) (*storev1.WorkerRecord, error) {
	var p problems
	const alphabet = "is not 1 to 64 characters of A-Z a-z 0-9 _ -"
	if id := req.GetId(); id != "" && !validID(id) {
		p.add("id", quote(id)+" "+alphabet, "choose another id, or leave it out to get one")
	}
	switch typ := req.GetType(); {
	case typ == "":
		p.add("type", "is missing or empty", "name the worker type that handles the events")
	case !validID(typ):
		p.add("type", quote(typ)+" "+alphabet, "use the name that the handler is registered with")
	}
	if name := req.GetName(); name != "" {
		if problem := nameProblem(name); problem != "" {
			p.add("name", quote(name)+" "+problem, "choose another name, or leave it out")
		}
	}
	checkTopics(&p, req.GetTopics())
	checkOwnTopics(&p, req)
	spec := grouping.Spec{Group: req.GetGroup(), Size: req.GetGroupSize(), Index: req.GetGroupIndex()}
	checkSpec(&p, spec)
	checkConfig(&p, req.GetConfig())
	checkTags(&p, req.GetTags())
	policy := definePolicy(&p, req.GetPolicy(), req.GetTopics())
	replay := defineReplay(&p, req.GetReplay(), !spec.IsZero())
	if err := p.err(); err != nil {
		return nil, err
	}
	return &storev1.WorkerRecord{
		Id:         req.GetId(),
		Name:       req.GetName(),
		Type:       req.GetType(),
		Topics:     req.GetTopics(),
		Group:      spec.Group,
		GroupSize:  spec.Size,
		GroupIndex: spec.Index,
		Config:     req.GetConfig(),
		Tags:       req.GetTags(),
		Policy:     policy,
		Replay:     replay,
		Desired:    turnlanev1.DesiredState_DESIRED_STATE_STOPPED,
	}, nil
}

func validID(s string) bool {
	if s == "" || len(s) > maxID {
		return false
	}
	for i := range len(s) {
		c := s[i]
		switch {
		case c|0x20 >= 'a' && c|0x20 <= 'z', c >= '0' && c <= '9', c == '_', c == '-':
		default:
			return false
		}
	}
	return true
}

func nameProblem(s string) string {
	if !utf8.ValidString(s) {
		return "is not valid UTF-8"
	}
	if n := utf8.RuneCountInString(s); n > maxName {
		return fmt.Sprintf("has %d characters; at most %d are allowed", n, maxName)
	}
	for _, r := range s {
		if !unicode.IsPrint(r) {
			return fmt.Sprintf("has the character %U, which is not printable", r)
		}
	}
	return ""
}

func checkTopics(p *problems, topics []string) {
	switch n := len(topics); {
	case n == 0:
		p.add("topics", "is empty", "give the worker 1 to 1024 topics")
	case n > maxTopics:
		p.add("topics", fmt.Sprintf("has %d topics; a worker has 1 to %d", n, maxTopics), "spread them over several workers")
		return
	}
	seen := make(map[string]int, len(topics))
	for i, topic := range topics {
		field := fmt.Sprintf("topics[%d]", i)
		if err := admission.Readable(topic); err != nil {
			e, ok := errors.AsType[*event.Error](err)
			if !ok {
				e = &event.Error{Rule: err.Error()}
			}
			p.add(field, e.Rule, e.Fix)
			continue
		}
		if len(topic) > admission.MaxUserTopic && !systemTopic(topic) {
			p.add(field, fmt.Sprintf("has %d bytes; at most %d are allowed, and %d only in topics that begin with sys., dlq. or wrk.",
				len(topic), admission.MaxUserTopic, admission.MaxTopic), "shorten it")
		}
		if first, ok := seen[topic]; ok {
			p.add(field, fmt.Sprintf("%s is the same as topics[%d]", quote(topic), first), "name each topic once")
		} else {
			seen[topic] = i
		}
	}
}

// checkOwnTopics refuses the topics that the worker reads beside its definition's: it would read them
// twice.
func checkOwnTopics(p *problems, req *turnlanev1.CreateWorkerRequest) {
	if req.GetId() == "" {
		return
	}
	own := command.Topics(req.GetType(), req.GetId())
	for i, topic := range req.GetTopics() {
		if slices.Contains(own, topic) {
			p.add(fmt.Sprintf("topics[%d]", i), quote(topic)+" is a topic of the worker's own", "leave it out: the worker takes commands and redrives anyway")
		}
	}
}

func systemTopic(topic string) bool {
	return strings.HasPrefix(topic, "sys.") || strings.HasPrefix(topic, "dlq.") || strings.HasPrefix(topic, "wrk.")
}

func checkSpec(p *problems, spec grouping.Spec) {
	err := spec.Validate()
	if err == nil {
		return
	}
	all := []error{err}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		all = joined.Unwrap()
	}
	for _, err := range all {
		e, ok := errors.AsType[*grouping.FieldError](err)
		if !ok {
			e = &grouping.FieldError{Field: "group", Rule: err.Error()}
		}
		p.add(e.Field, e.Value+" is invalid: "+e.Rule, e.Fix)
	}
}

func checkConfig(p *problems, config map[string]string) {
	size := 0
	for key, value := range config {
		size += len(key) + len(value)
	}
	if size > maxConfig {
		p.add("config", fmt.Sprintf("has %d bytes of keys and values; at most %d are allowed", size, maxConfig),
			"keep large settings elsewhere and give the worker a reference")
	}
	if _, ok := config[""]; ok {
		p.add("config", "has an empty key", "name the setting")
	}
}

func checkTags(p *problems, tags map[string]string) {
	if len(tags) > maxTags {
		p.add("tags", fmt.Sprintf("has %d tags; at most %d are allowed", len(tags), maxTags), "leave some out")
	}
	for _, key := range slices.Sorted(maps.Keys(tags)) {
		field := "tags[" + quote(key) + "]"
		if key == "" {
			p.add("tags", "has an empty key", "name the tag")
		}
		if len(key) > maxTagKey {
			p.add(field, fmt.Sprintf("has a key of %d bytes; at most %d are allowed", len(key), maxTagKey), "shorten the key")
		}
		if n := len(tags[key]); n > maxTagValue {
			p.add(field, fmt.Sprintf("has a value of %d bytes; at most %d are allowed", n, maxTagValue), "shorten the value")
		}
	}
}

func defineReplay(p *problems, in *turnlanev1.Replay, member bool) *turnlanev1.Replay {
	mode, first := in.GetMode(), in.GetFirst()
	if mode == turnlanev1.ReplayMode_REPLAY_MODE_UNSPECIFIED {
		mode = turnlanev1.ReplayMode_REPLAY_MODE_CURSOR
		if member {
			mode = turnlanev1.ReplayMode_REPLAY_MODE_OFF
		}
	}
	switch mode {
	case turnlanev1.ReplayMode_REPLAY_MODE_CURSOR, turnlanev1.ReplayMode_REPLAY_MODE_OFF:
		if first != nil {
			p.add("replay.first", "is set, and only REPLAY_MODE_FIRST has a first start", "set replay.mode to REPLAY_MODE_FIRST, or leave replay.first out")
		}
		first = nil
	case turnlanev1.ReplayMode_REPLAY_MODE_FIRST:
		switch first.GetAt().(type) {
		case *turnlanev1.Start_Earliest, *turnlanev1.Start_Time, *turnlanev1.Start_Position:
			checkStart(p, "replay.first", first)
		default:
			p.add("replay.first", "is not earliest, a time or a position, and REPLAY_MODE_FIRST needs one of them",
				"set it, or use REPLAY_MODE_CURSOR to start at the tail")
		}
	default:
		p.add("replay.mode", fmt.Sprintf("%d is unknown", mode), "use REPLAY_MODE_CURSOR, REPLAY_MODE_OFF or REPLAY_MODE_FIRST")
	}
	return &turnlanev1.Replay{Mode: mode, First: first}
}

// checkStart checks a start that is set.
func checkStart(p *problems, field string, s *turnlanev1.Start) {
	switch at := s.GetAt().(type) {
	case *turnlanev1.Start_Tail:
		if !at.Tail {
			p.add(field+".tail", "is false", "set it to true, or give another start")
		}
	case *turnlanev1.Start_Earliest:
		if !at.Earliest {
			p.add(field+".earliest", "is false", "set it to true, or give another start")
		}
	case *turnlanev1.Start_Time:
		if err := at.Time.CheckValid(); err != nil {
			p.add(field+".time", "is not a time of the years 1 to 9999", "give a time such as 2026-01-31T12:00:00Z")
		} else if rule, fix := admission.StartTime(at.Time.AsTime(), time.Now()); rule != "" {
			p.add(field+".time", rule, fix)
		}
	case *turnlanev1.Start_Position:
		if _, err := event.ParsePosition(at.Position); err != nil {
			p.add(field+".position", quote(at.Position)+" is not a position", "write it as two numbers, ms-seq, such as 1700000000000-0")
		}
	default:
		p.add(field, "is not set", "give tail, earliest, a time or a position")
	}
}

func timestamp(t time.Time) *timestamppb.Timestamp { return timestamppb.New(t) }
