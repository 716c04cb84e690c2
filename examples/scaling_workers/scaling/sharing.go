package scaling

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/turnlane/turnlane/event"
)

// fanOut: every dedicated worker on a topic gets every event.
func fanOut(ctx context.Context, b *bench) (lines, problems []string, err error) {
	topic, out := b.topic("in"), b.topic("out")
	marks, err := b.collect(ctx, out)
	if err != nil {
		return nil, nil, err
	}
	defer marks.close()
	var jobs []job
	for i := range 3 {
		jobs = append(jobs, job{label: fmt.Sprintf("fanout-%d", i), topic: topic, out: out})
	}
	hired, err := b.hire(ctx, jobs...)
	if err != nil {
		return nil, nil, err
	}
	e := newEvent("")
	if err := b.publish(ctx, topic, []*event.Event{e}); err != nil {
		return nil, nil, err
	}
	got, err := marks.all(ctx, len(hired), b.Options)
	if err != nil {
		return nil, nil, err
	}
	var from []string
	for _, w := range hired {
		switch n := count(got, func(m mark) bool { return m.WorkerID == w.id && m.EventID == e.ID }); n {
		case 0:
			problems = append(problems, w.label+" did not get the event")
		case 1:
			from = append(from, w.label)
		default:
			from = append(from, w.label)
			problems = append(problems, fmt.Sprintf("%s got the event %d times", w.label, n))
		}
	}
	problems = append(problems, b.strangers(got, []*event.Event{e})...)
	line := fmt.Sprintf("fan-out: 1 event -> %d marker(s) from %d worker(s) (%s)", len(got), len(from), strings.Join(from, ", "))
	return []string{line}, problems, nil
}

// exactlyOne: of workers that share a topic, one gets each event: the one that the subject falls to.
func exactlyOne(ctx context.Context, b *bench) (lines, problems []string, err error) {
	jobs := members(b.unique("part"), 3, b.topic("in"), b.topic("out"))
	for i := range jobs {
		jobs[i].label = fmt.Sprintf("part-%d", i)
	}
	return onePerMember(ctx, b, jobs, onePerSlot(3, func() *event.Event { return newEvent("account-" + uuid.NewString()) }))
}

// slotGroup: without a subject it is the id that says who gets an event.
func slotGroup(ctx context.Context, b *bench) (lines, problems []string, err error) {
	jobs := members("scaling-demo", 3, b.topic("in"), b.topic("out"))
	return onePerMember(ctx, b, jobs, onePerSlot(3, func() *event.Event { return newEvent("") }))
}

// onePerMember gives a slot group one event for each member, the i-th for the i-th.
func onePerMember(ctx context.Context, b *bench, jobs []job, events []*event.Event) (lines, problems []string, err error) {
	topic, out := jobs[0].topic, jobs[0].out
	marks, err := b.collect(ctx, out)
	if err != nil {
		return nil, nil, err
	}
	defer marks.close()
	hired, err := b.hire(ctx, jobs...)
	if err != nil {
		return nil, nil, err
	}
	if problems, err = b.warned(ctx, hired[len(hired)-1]); err != nil {
		return nil, nil, err
	}
	if err := b.publish(ctx, topic, events); err != nil {
		return nil, nil, err
	}
	got, err := marks.all(ctx, len(events), b.Options)
	if err != nil {
		return nil, nil, err
	}
	problems = append(problems, b.onceEach(got, events, hired[0].group, uint32(len(hired)))...)
	problems = append(problems, b.strangers(got, events)...)

	var counts, handled []string
	for _, e := range events {
		counts = append(counts, strconv.Itoa(count(got, func(m mark) bool { return m.EventID == e.ID })))
	}
	for _, w := range hired {
		var ids []string
		for _, m := range got {
			if m.WorkerID == w.id {
				ids = append(ids, short(m.EventID))
			}
		}
		if ids == nil {
			ids = []string{"nothing"}
		}
		handled = append(handled, w.label+" handled "+strings.Join(ids, " and "))
	}
	return []string{
		fmt.Sprintf("%s: %d events -> %d marker(s); per-event counts [%s]", b.phase, len(events), len(got), strings.Join(counts, ", ")),
		"  " + strings.Join(handled, ", "),
	}, problems, nil
}

// onceEach finds the events that did not get exactly one marker from a group of that size, from the
// member that they belong to.
func (b *bench) onceEach(got []mark, events []*event.Event, group string, size uint32) (problems []string) {
	byEvent := make(map[string][]mark)
	for _, m := range got {
		if m.Group == group {
			byEvent[m.EventID] = append(byEvent[m.EventID], m)
		}
	}
	for _, e := range events {
		marks, slot := byEvent[e.ID], slotOf(e, size)
		if len(marks) != 1 {
			problems = append(problems, fmt.Sprintf("event %s, of slot %d of %d of group %s, has %d markers", short(e.ID), slot, size, group, len(marks)))
			continue
		}
		w, known := b.named(marks[0].WorkerID)
		if !known || w.group != group || w.index != slot || marks[0].GroupIndex != slot {
			problems = append(problems, fmt.Sprintf("event %s is of slot %d of %d of group %s, and member %d got it", short(e.ID), slot, size, group, marks[0].GroupIndex))
		}
	}
	return cut(problems)
}

// strangers finds markers of workers that are not this phase's, and for events that are not.
func (b *bench) strangers(got []mark, events []*event.Event) (problems []string) {
	ids := make(map[string]bool, len(events))
	for _, e := range events {
		ids[e.ID] = true
	}
	for _, m := range got {
		if _, ok := b.named(m.WorkerID); !ok {
			problems = append(problems, "a marker of the unknown worker "+m.WorkerID)
		}
		if !ids[m.EventID] {
			problems = append(problems, "a marker for the unknown event "+m.EventID)
		}
	}
	return cut(problems)
}

func count(marks []mark, which func(mark) bool) (n int) {
	for _, m := range marks {
		if which(m) {
			n++
		}
	}
	return n
}

func short(id string) string { return id[:min(8, len(id))] }

// cut keeps a failure readable.
func cut(problems []string) []string {
	const shown = 5
	if more := len(problems) - shown; more > 0 {
		return append(slices.Clip(problems[:shown]), fmt.Sprintf("and %d more of the kind", more))
	}
	return problems
}
