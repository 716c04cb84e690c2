// Package catalog is the layout of the registry: which key holds what, and how it is written.
package catalog

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"

	storev1 "github.com/turnlane/turnlane/proto/turnlane/store/v1"
	"github.com/turnlane/turnlane/store"
)

// Prefixes of the registry's keys. Names are from alphabets without "/", but for worker names, which
// come last in their key.
const (
	WorkerPrefix = "worker/" // worker/<id>: WorkerRecord
	NamePrefix   = "name/"   // name/<name>: the id, as it is
	GroupPrefix  = "group/"  // group/<group>/<topic>: GroupRecord
	PlacePrefix  = "place/"  // place/<session>/<worker id>: Placement
	TopicPrefix  = "topic/"  // topic/<topic>: TopicRecord

	RedrivePrefix = "redrive/" // redrive/<topic of dead letters>: RedriveRecord
)

// WorkerKey is the key of a worker's record.
func WorkerKey(id string) string { return WorkerPrefix + id }

// NameKey is the key that reserves a worker's name.
func NameKey(name string) string { return NamePrefix + name }

// GroupKey is the key of the claims of a group on a topic.
func GroupKey(group, topic string) string { return GroupPrefix + group + "/" + topic }

// PlaceKey is the key of a placement.
func PlaceKey(session, worker string) string { return PlacePrefix + session + "/" + worker }

// SessionPlaces is the prefix of all placements of a session.
func SessionPlaces(session string) string { return PlacePrefix + session + "/" }

// TopicKey is the key of a topic's settings.
func TopicKey(topic string) string { return TopicPrefix + topic }

// RedriveKey is the key of the redrive of a topic of dead letters.
func RedriveKey(topic string) string { return RedrivePrefix + topic }

// Put is a change that writes a message under a key on a condition.
func Put(key string, m proto.Message, condition uint64) (store.Change, error) {
	value, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		return store.Change{}, fmt.Errorf("encode %s: %w", key, err)
	}
	return store.Change{Key: key, Value: value, If: condition}, nil
}

// Decode reads the message of an item; an item that cannot be read gives store.ErrCorrupt.
func Decode[M proto.Message](item store.Item, m M) (M, error) {
	if item.Err != nil {
		return m, item.Err
	}
	if err := proto.Unmarshal(item.Value, m); err != nil {
		return m, fmt.Errorf("%w: record %s: %w", store.ErrCorrupt, item.Key, err)
	}
	return m, nil
}

// DecodeWorker reads a worker's record and checks that it is the one that its key says.
func DecodeWorker(item store.Item) (*storev1.WorkerRecord, error) {
	w, err := Decode(item, &storev1.WorkerRecord{})
	if err == nil && WorkerKey(w.GetId()) != item.Key {
		err = fmt.Errorf("%w: record %s: it says that its id is %q", store.ErrCorrupt, item.Key, w.GetId())
	}
	return w, err
}

// SplitPlace takes a placement's key apart.
func SplitPlace(key string) (session, worker string, ok bool) {
	rest, ok := strings.CutPrefix(key, PlacePrefix)
	if !ok {
		return "", "", false
	}
	return strings.Cut(rest, "/")
}
