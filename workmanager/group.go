package workmanager

import (
	"context"
	"fmt"
	"slices"

	"google.golang.org/grpc/codes"

	"github.com/turnlane/turnlane/grouping"
	"github.com/turnlane/turnlane/internal/catalog"
	"github.com/turnlane/turnlane/internal/rpcerr"
	storev1 "github.com/turnlane/turnlane/proto/turnlane/store/v1"
	turnlanev1 "github.com/turnlane/turnlane/proto/turnlane/v1"
	"github.com/turnlane/turnlane/store"
)

// warnings says of which topics of a worker its group does not cover every slot, now. Topics that are
// covered alike stand together.
func (m *Manager) warnings(ctx context.Context, w record) ([]string, error) {
	if w.GetGroup() == "" {
		return nil, nil
	}
	groups := map[string]*storev1.GroupRecord{}
	prefix := catalog.GroupKey(w.GetGroup(), "")
	err := m.pages(ctx, prefix, "", func(items []store.Item) error {
		for _, item := range items {
			if g, err := catalog.Decode(item, &storev1.GroupRecord{}); err == nil {
				groups[item.Key[len(prefix):]] = g
			}
		}
		return nil
	})
	if err != nil {
		return nil, rpcerr.From(err)
	}
	var ids []string
	for _, topic := range w.GetTopics() {
		for _, id := range groups[topic].GetMembers() {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	ids = slices.Compact(ids)
	owners, err := m.store.Owners(ctx, ids)
	if err != nil {
		return nil, rpcerr.From(fmt.Errorf("read the owners of the group's members: %w", err))
	}
	runs := make(map[string]bool, len(ids))
	for i, o := range owners {
		runs[ids[i]] = o.Live && o.State == ownerRunning
	}
	var sum summary
	for _, topic := range w.GetTopics() {
		g, size, count := groups[topic], w.GetGroupSize(), 0
		if n := g.GetGroupSize(); n > 0 {
			size = n
		}
		for _, id := range g.GetMembers() {
			if runs[id] {
				count++
			}
		}
		sum.add(topic, count, int(size))
	}
	return sum.warnings(w.GetGroup()), nil
}

// summary gathers topics by how a group covers them, in the order in which they come.
type summary []covered

type covered struct {
	running, size int
	topics        []string
}

func (s *summary) add(topic string, running, size int) {
	for i, c := range *s {
		if c.running == running && c.size == size {
			(*s)[i].topics = append(c.topics, topic)
			return
		}
	}
	*s = append(*s, covered{running, size, []string{topic}})
}

func (s summary) warnings(group string) []string {
	var lines []string
	for _, c := range s {
		if c.running < c.size {
			lines = append(lines, grouping.Warning(group, c.topics, c.running, c.size))
		}
	}
	return lines
}

// GetGroup shows which worker has which slot of a group, per topic. It reads the whole catalog.
func (m *Manager) GetGroup(ctx context.Context, req *turnlanev1.GetGroupRequest) (*turnlanev1.GetGroupResponse, error) {
	group := req.GetGroup()
	if group == "" {
		return nil, rpcerr.Invalid("group", "is missing or empty", "name a group")
	}
	if err := (grouping.Spec{Group: group, Size: 1}).Validate(); err != nil {
		return nil, rpcerr.Invalid("group", quote(group)+" cannot be the name of a group: a group name is 1 to 64 characters of A-Z a-z 0-9 _ . -", "check the name")
	}
	var members []record
	err := m.scan(ctx, "", func(w record) bool {
		if w.GetGroup() == group {
			members = append(members, w)
		}
		return true
	})
	if err != nil {
		return nil, rpcerr.From(err)
	}
	if len(members) == 0 {
		return nil, rpcerr.New(codes.NotFound, rpcerr.NotFound, "no worker is a member of group "+group+"; check the name",
			map[string]string{"group": group})
	}
	seen, err := m.observeAll(ctx, members, true)
	if err != nil {
		return nil, err
	}
	byTopic := map[string][]int{}
	for i, w := range members {
		for _, topic := range w.GetTopics() {
			byTopic[topic] = append(byTopic[topic], i)
		}
	}
	resp := &turnlanev1.GetGroupResponse{Group: group}
	for topic, on := range byTopic {
		resp.Topics = append(resp.Topics, coverage(group, topic, on, members, seen))
	}
	slices.SortFunc(resp.Topics, func(a, b *turnlanev1.GroupCoverage) int {
		if a.GetTopic() < b.GetTopic() {
			return -1
		}
		return 1
	})
	return resp, nil
}

// coverage fills the slots of a group on a topic. The started members say how many there are; if none
// is started, the youngest one does. Of several stopped members of one slot the youngest is shown.
func coverage(group, topic string, on []int, members []record, seen []observation) *turnlanev1.GroupCoverage {
	on = slices.Clone(on)
	slices.SortStableFunc(on, func(a, b int) int { // started ones first, then young ones
		x, y := members[a], members[b]
		switch {
		case x.wanted() != y.wanted():
			if x.wanted() {
				return -1
			}
			return 1
		}
		return y.GetCreatedAt().AsTime().Compare(x.GetCreatedAt().AsTime())
	})
	size := members[on[0]].GetGroupSize()
	c := &turnlanev1.GroupCoverage{Topic: topic, GroupSize: size, Slots: make([]*turnlanev1.GroupSlot, size)}
	for slot := range c.Slots {
		c.Slots[slot] = &turnlanev1.GroupSlot{Slot: uint32(slot)}
	}
	for _, i := range on {
		w := members[i]
		if w.GetGroupSize() != size || c.Slots[w.GetGroupIndex()].GetWorkerId() != "" {
			continue
		}
		slot := c.Slots[w.GetGroupIndex()]
		slot.WorkerId, slot.WorkerName, slot.Pod, slot.State = w.GetId(), w.GetName(), seen[i].pod, seen[i].state
		if seen[i].state == running {
			c.Running++
		}
	}
	if c.Running < size {
		c.Warning = grouping.Warning(group, []string{topic}, int(c.Running), int(size))
	}
	return c
}
