package scaling

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"

	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/grouping"
	"github.com/turnlane/turnlane/internal/client"
	turnlanev1 "github.com/turnlane/turnlane/proto/turnlane/v1"
)

const someEvents = 60

// missingSlot: the events of a slot without a member go to nobody, and the server says so.
func missingSlot(ctx context.Context, b *bench) (lines, problems []string, err error) {
	const size = 3
	topic, out, group := b.topic("in"), b.topic("out"), b.unique("missing")
	marks, err := b.collect(ctx, out)
	if err != nil {
		return nil, nil, err
	}
	defer marks.close()
	jobs := members(group, size, topic, out)
	hired, err := b.hire(ctx, jobs[:size-1]...)
	if err != nil {
		return nil, nil, err
	}
	warning := grouping.Warning(group, []string{topic}, size-1, size)
	if problems, err = b.warned(ctx, hired[len(hired)-1], warning); err != nil {
		return nil, nil, err
	}
	problems = append(problems, b.coverage(ctx, group, topic, warning)...)

	var owned, nobodys []*event.Event
	events := append(newEvents(someEvents), onePerSlot(size, func() *event.Event { return newEvent("") })...)
	for _, e := range events {
		if slotOf(e, size) == size-1 {
			nobodys = append(nobodys, e)
		} else {
			owned = append(owned, e)
		}
	}
	if err := b.publish(ctx, topic, events); err != nil {
		return nil, nil, err
	}
	got, err := marks.all(ctx, len(owned), b.Options)
	if err != nil {
		return nil, nil, err
	}
	problems = append(problems, b.onceEach(got, owned, group, size)...)
	problems = append(problems, b.strangers(got, owned)...)
	first := len(got)

	// The missing member comes: it gets what is published from now on, and nothing from before.
	last, err := b.hire(ctx, jobs[size-1])
	if err != nil {
		return nil, nil, err
	}
	wrong, err := b.warned(ctx, last[0])
	if err != nil {
		return nil, nil, err
	}
	problems = append(problems, wrong...)
	problems = append(problems, b.coverage(ctx, group, topic, "")...)
	more := onePerSlot(size, func() *event.Event { return newEvent("") })
	if err := b.publish(ctx, topic, more); err != nil {
		return nil, nil, err
	}
	got, err = marks.all(ctx, first+len(more), b.Options)
	if err != nil {
		return nil, nil, err
	}
	problems = append(problems, b.onceEach(got[first:], more, group, size)...)
	problems = append(problems, b.strangers(got[first:], more)...)
	return []string{
		fmt.Sprintf("missing-slot: %d events -> %d marker(s), %d to nobody with 2 of 3 members; %d events -> %d marker(s) with 3 of 3",
			len(events), first, len(nobodys), len(more), len(got)-first),
		"  warned: " + warning,
	}, problems, nil
}

// coverage checks what the server shows of a group.
func (b *bench) coverage(ctx context.Context, group, topic, warning string) (problems []string) {
	resp, err := b.Workers.GetGroup(ctx, &turnlanev1.GetGroupRequest{Group: group})
	if err != nil {
		return []string{"look at the group: " + b.Explain(err).Error()}
	}
	for _, t := range resp.GetTopics() {
		if t.GetTopic() != topic {
			continue
		}
		if t.GetWarning() != warning {
			return []string{fmt.Sprintf("the group shows the warning %q, want %q", t.GetWarning(), warning)}
		}
		return nil
	}
	return []string{fmt.Sprintf("the group does not show topic %s", topic)}
}

// reshard: a group is stopped and its name used again by members of another size.
func reshard(ctx context.Context, b *bench) (lines, problems []string, err error) {
	topic, out, group := b.topic("in"), b.topic("out"), b.unique("reshard")
	marks, err := b.collect(ctx, out)
	if err != nil {
		return nil, nil, err
	}
	defer marks.close()
	var counts [2]int
	var old []*worker
	total := 0
	for round, size := range []uint32{3, 5} {
		hired, err := b.hire(ctx, members(group, size, topic, out)...)
		if err != nil {
			return nil, nil, err
		}
		wrong, err := b.warned(ctx, hired[len(hired)-1])
		if err != nil {
			return nil, nil, err
		}
		problems = append(problems, wrong...)
		events := append(newEvents(someEvents), onePerSlot(size, func() *event.Event { return newEvent("") })...)
		if err := b.publish(ctx, topic, events); err != nil {
			return nil, nil, err
		}
		got, err := marks.all(ctx, total+len(events), b.Options)
		if err != nil {
			return nil, nil, err
		}
		problems = append(problems, b.onceEach(got[total:], events, group, size)...)
		problems = append(problems, b.strangers(got[total:], events)...)
		counts[round], total = len(got)-total, len(got)
		if round == 0 {
			old = hired
			if err := b.stop(ctx, old...); err != nil {
				return nil, nil, err
			}
		}
	}
	// Two sizes at once would give events to two members, or to none.
	_, err = b.start(ctx, old[0])
	if e, ok := errors.AsType[*client.Error](err); !ok || e.Code != codes.FailedPrecondition {
		problems = append(problems, fmt.Sprintf("a member of the old size may start beside the new ones: %v", err))
	}
	return []string{fmt.Sprintf("reshard: %d marker(s) from 3 members; stopped; %d marker(s) from 5 of the same group; an old one may not start",
		counts[0], counts[1])}, problems, nil
}

// sideBySide: two groups of different names and sizes share a topic, and each gets everything.
func sideBySide(ctx context.Context, b *bench) (lines, problems []string, err error) {
	topic, out := b.topic("in"), b.topic("out")
	marks, err := b.collect(ctx, out)
	if err != nil {
		return nil, nil, err
	}
	defer marks.close()
	groups := []struct {
		name string
		size uint32
	}{{b.unique("g"), 3}, {b.unique("g-v2"), 5}}
	for _, g := range groups {
		if _, err := b.hire(ctx, members(g.name, g.size, topic, out)...); err != nil {
			return nil, nil, err
		}
	}
	events := newEvents(someEvents)
	if err := b.publish(ctx, topic, events); err != nil {
		return nil, nil, err
	}
	got, err := marks.all(ctx, len(groups)*len(events), b.Options)
	if err != nil {
		return nil, nil, err
	}
	for _, g := range groups {
		problems = append(problems, b.onceEach(got, events, g.name, g.size)...)
	}
	problems = append(problems, b.strangers(got, events)...)
	if want := len(groups) * len(events); len(got) != want {
		problems = append(problems, fmt.Sprintf("%d markers, want %d", len(got), want))
	}
	return []string{fmt.Sprintf("side-by-side: %d events -> %d marker(s): each once by g (3 members) and once by g-v2 (5 members)",
		len(events), len(got))}, problems, nil
}
