package workmanager

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"google.golang.org/grpc/codes"

	"github.com/turnlane/turnlane/internal/catalog"
	"github.com/turnlane/turnlane/internal/rpcerr"
	storev1 "github.com/turnlane/turnlane/proto/turnlane/store/v1"
	"github.com/turnlane/turnlane/store"
)

// A started member of a group claims its slot on each of its topics, in the same step that stores its
// desired state; so of two members that want one slot, or that want a group of different sizes, one
// meets a conflict, however the calls run beside each other. Claims end with the desired state.

// claims are the changes that claim a worker's slots, or the error that says who has them.
func (m *Manager) claims(ctx context.Context, w record) ([]store.Change, error) {
	var changes []store.Change
	for _, topic := range claimed(w) {
		g, revision, err := m.group(ctx, w.GetGroup(), topic)
		if err != nil {
			return nil, err
		}
		if err := m.clear(ctx, g, w, topic); err != nil {
			return nil, err
		}
		g.GroupSize = w.GetGroupSize()
		if g.Members == nil {
			g.Members = map[uint32]string{}
		}
		g.Members[w.GetGroupIndex()] = w.GetId()
		put, err := catalog.Put(catalog.GroupKey(w.GetGroup(), topic), g, revision)
		if err != nil {
			return nil, err
		}
		changes = append(changes, put)
	}
	return changes, nil
}

// releases are the changes that end a worker's claims.
func (m *Manager) releases(ctx context.Context, w record) ([]store.Change, error) {
	var changes []store.Change
	for _, topic := range claimed(w) {
		g, revision, err := m.group(ctx, w.GetGroup(), topic)
		if err != nil {
			return nil, err
		}
		if g.GetMembers()[w.GetGroupIndex()] != w.GetId() {
			continue
		}
		delete(g.Members, w.GetGroupIndex())
		change, err := storeGroup(w.GetGroup(), topic, g, revision)
		if err != nil {
			return nil, err
		}
		changes = append(changes, change)
	}
	return changes, nil
}

// storeGroup is the change that stores a group's claims on a topic, or removes them when none is left.
func storeGroup(group, topic string, g *storev1.GroupRecord, revision uint64) (store.Change, error) {
	key := catalog.GroupKey(group, topic)
	if len(g.GetMembers()) == 0 {
		return store.Change{Key: key, Delete: true, If: revision}, nil
	}
	return catalog.Put(key, g, revision)
}

// claimed are the topics on which a worker has a slot.
func claimed(w record) []string {
	if w.GetGroup() == "" {
		return nil
	}
	return w.GetTopics()
}

// group reads the claims of a group on a topic, empty if there are none.
func (m *Manager) group(ctx context.Context, group, topic string) (*storev1.GroupRecord, uint64, error) {
	item, err := m.store.Get(ctx, catalog.GroupKey(group, topic))
	if errors.Is(err, store.ErrNotFound) {
		return &storev1.GroupRecord{}, store.Absent, nil
	}
	g := &storev1.GroupRecord{}
	if err == nil {
		g, err = catalog.Decode(item, g)
	}
	if errors.Is(err, store.ErrCorrupt) {
		return m.rebuild(ctx, group, topic, item.Revision)
	}
	return g, item.Revision, err
}

// rebuild makes the claims of a group on a topic anew from the workers that want to run there.
func (m *Manager) rebuild(ctx context.Context, group, topic string, revision uint64) (*storev1.GroupRecord, uint64, error) {
	if revision == 0 {
		revision = store.Any // the store could not even tell
	}
	g := &storev1.GroupRecord{Members: map[uint32]string{}}
	err := m.scan(ctx, "", func(w record) bool {
		if w.wanted() && w.GetGroup() == group && slices.Contains(w.GetTopics(), topic) {
			g.GroupSize = w.GetGroupSize()
			g.Members[w.GetGroupIndex()] = w.GetId()
		}
		return true
	})
	m.log.Warn("the claims of a group could not be read and were made anew", "group", group, "topic", topic)
	return g, revision, err
}

// clear makes room for a worker in the claims, or says which other member is in its way. A claim of a
// worker that does not want to run there is no obstacle.
func (m *Manager) clear(ctx context.Context, g *storev1.GroupRecord, w record, topic string) error {
	index := w.GetGroupIndex()
	if g.GetGroupSize() == w.GetGroupSize() {
		other := g.GetMembers()[index]
		if other == "" || other == w.GetId() {
			return nil
		}
		name, holds, err := m.holds(ctx, other, w.GetGroup(), topic)
		if err != nil || !holds {
			return err
		}
		return inTheWay(rpcerr.SlotTaken, w, topic, other, name,
			fmt.Sprintf("slot %d is taken by", index), "stop that worker first, or start this one under another group or index")
	}
	for _, slot := range slices.Sorted(maps.Keys(g.GetMembers())) {
		other := g.GetMembers()[slot]
		if other == w.GetId() {
			delete(g.Members, slot)
			continue
		}
		name, holds, err := m.holds(ctx, other, w.GetGroup(), topic)
		if err != nil {
			return err
		}
		if holds {
			return inTheWay(rpcerr.GroupSizeConflict, w, topic, other, name,
				fmt.Sprintf("its size would be %d, and it is %d for", w.GetGroupSize(), g.GetGroupSize()),
				"stop the members of the other size first, or use a new group name beside it")
		}
		delete(g.Members, slot)
	}
	return nil
}

// holds tells whether a worker has a right to its claim: it wants to run as a member of the group on
// the topic. One whose record is broken may be running, so it keeps the claim.
func (m *Manager) holds(ctx context.Context, id, group, topic string) (name string, ok bool, err error) {
	w, err := m.get(ctx, id)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return "", false, nil
	case errors.Is(err, store.ErrCorrupt):
		return "", true, nil
	case err != nil:
		return "", false, err
	}
	return w.GetName(), !w.GetDeleted() && w.wanted() && w.GetGroup() == group && slices.Contains(w.GetTopics(), topic), nil
}

func inTheWay(reason string, w record, topic, other, name, what, fix string) error {
	who := "worker " + other
	if name != "" {
		who += " (" + quote(name) + ")"
	}
	return rpcerr.New(codes.FailedPrecondition, reason,
		fmt.Sprintf("group %s on %s: %s %s, which is started; %s", w.GetGroup(), topic, what, who, fix),
		map[string]string{
			"worker": other, "worker_name": name, "group": w.GetGroup(), "topic": topic,
			"group_size": strconv.Itoa(int(w.GetGroupSize())), "group_index": strconv.Itoa(int(w.GetGroupIndex())),
		})
}
