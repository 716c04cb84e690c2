package scaling

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/turnlane/turnlane/event"
	turnlanev1 "github.com/turnlane/turnlane/proto/turnlane/v1"
)

// order: the events of a subject are handled by one member, in the order in which they were published.
func order(ctx context.Context, b *bench) (lines, problems []string, err error) {
	const subjects, each, size = 20, 30, 3
	topic, out := b.topic("in"), b.topic("out")
	marks, err := b.collect(ctx, out)
	if err != nil {
		return nil, nil, err
	}
	defer marks.close()
	group := b.unique("order")
	if _, err := b.hire(ctx, members(group, size, topic, out)...); err != nil {
		return nil, nil, err
	}
	var events []*event.Event
	want := make(map[string][]string) // ids by subject
	subjectOf := make(map[string]string)
	for range each {
		for s := range subjects {
			e := newEvent(fmt.Sprintf("subject-%d", s))
			events = append(events, e)
			want[e.Subject] = append(want[e.Subject], e.ID)
			subjectOf[e.ID] = e.Subject
		}
	}
	if err := b.publish(ctx, topic, events); err != nil {
		return nil, nil, err
	}
	got, err := marks.all(ctx, len(events), b.Options)
	if err != nil {
		return nil, nil, err
	}
	problems = append(b.onceEach(got, events, group, size), b.strangers(got, events)...)
	handled := make(map[string][]string)
	for _, m := range got {
		handled[subjectOf[m.EventID]] = append(handled[subjectOf[m.EventID]], m.EventID)
	}
	inOrder := 0
	for s := range subjects {
		subject := fmt.Sprintf("subject-%d", s)
		if slices.Equal(handled[subject], want[subject]) {
			inOrder++
		} else {
			problems = append(problems, "the events of "+subject+" are not handled in their order")
		}
	}
	return []string{fmt.Sprintf("order: %d events of %d subjects -> %d marker(s); %d of %d subjects in order",
		len(events), subjects, len(got), inOrder, subjects)}, problems, nil
}

// overload: a worker that is stuck in a turn while more comes than its lane holds delays nobody else,
// and gets everything afterwards, in order.
func overload(ctx context.Context, b *bench) (lines, problems []string, err error) {
	// How long the first turn takes is a guess at what the others need at the most. On a machine that
	// is too busy for the first guess the second one decides.
	for _, pause := range []time.Duration{2 * time.Second, 15 * time.Second} {
		var late bool
		lines, problems, late, err = overloadFor(ctx, b, pause)
		if err != nil || !late {
			return lines, problems, err
		}
	}
	return lines, append(problems, "the other worker had not got everything when the slow one's first turn ended"), nil
}

func overloadFor(ctx context.Context, b *bench, pause time.Duration) (lines, problems []string, late bool, err error) {
	const n, laneLimit = 2_500, 1024
	part := fmt.Sprint(pause)
	topic, fastOut, slowOut := b.topic("in-"+part), b.topic("fast-"+part), b.topic("slow-"+part)
	fast, err := b.collect(ctx, fastOut)
	if err != nil {
		return nil, nil, false, err
	}
	defer fast.close()
	slow, err := b.collect(ctx, slowOut)
	if err != nil {
		return nil, nil, false, err
	}
	defer slow.close()
	hired, err := b.hire(ctx,
		job{label: "slow-" + part, kind: "probe", topic: topic, out: slowOut},
		job{label: "fast-" + part, topic: topic, out: fastOut})
	if err != nil {
		return nil, nil, false, err
	}
	events := newEvents(n)
	events[0].Data = fmt.Appendf(nil, `{"do":[{"sleep_ms":%d}]}`, pause.Milliseconds())
	events[0].DataKind, events[0].DataContentType = event.JSONData, "application/json"
	if err := b.publish(ctx, topic, events); err != nil {
		return nil, nil, false, err
	}
	if err := fast.await(ctx, n, b.Patience); err != nil {
		return nil, nil, false, err
	}
	status, err := b.Workers.GetWorker(ctx, &turnlanev1.GetWorkerRequest{Worker: hired[0].id})
	if err != nil {
		return nil, nil, false, b.Explain(err)
	}
	late = slow.count() > 0

	fastGot, err := fast.all(ctx, n, b.Options)
	if err != nil {
		return nil, nil, false, err
	}
	slowGot, err := slow.all(ctx, n, Options{Quiet: b.Quiet, Patience: b.Patience + pause})
	if err != nil {
		return nil, nil, false, err
	}
	for _, w := range []struct {
		name string
		got  []mark
	}{{"the other worker", fastGot}, {"the slow worker", slowGot}} {
		if problem := differs(w.got, events); problem != "" {
			problems = append(problems, w.name+": "+problem)
		}
	}
	var lane uint32
	for _, t := range status.GetWorker().GetTopicStatus() {
		lane = t.GetLaneEvents()
		if !late && t.GetFeed() == turnlanev1.FeedState_FEED_STATE_LIVE {
			problems = append(problems, "the slow worker's feed is live although its lane is full")
		}
	}
	if lane > laneLimit {
		problems = append(problems, fmt.Sprintf("the slow worker's lane holds %d events, more than %d", lane, laneLimit))
	}
	return []string{
		fmt.Sprintf("overload: %d events -> %d marker(s) while another worker was in its first turn, with %d of them in its lane", n, len(fastGot), lane),
		fmt.Sprintf("  afterwards it caught up: %d report(s)", len(slowGot)),
	}, problems, late, nil
}

// differs tells how marks differ from one for each event, in their order.
func differs(got []mark, events []*event.Event) string {
	for i, m := range got {
		if i >= len(events) || m.EventID != events[i].ID {
			return fmt.Sprintf("the event it handled as number %d is not the one published as such", i+1)
		}
		if m.Outcome != "" && m.Outcome != "done" {
			return fmt.Sprintf("event number %d ended with %s", i+1, m.Outcome)
		}
	}
	if len(got) < len(events) {
		return fmt.Sprintf("it got %d of %d events", len(got), len(events))
	}
	return ""
}
