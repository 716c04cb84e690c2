package scaling

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/grouping"
	"github.com/turnlane/turnlane/internal/client"
	turnlanev1 "github.com/turnlane/turnlane/proto/turnlane/v1"
)

const (
	clearTimeout = 15 * time.Second
	perBatch     = 250
)

// bench is what one phase works with: names that are new for this run, and the workers to delete.
type bench struct {
	*client.Client
	Options
	phase string
	run   string
	hired []*worker
}

// worker is a worker that the phase made.
type worker struct {
	id    string
	label string // its name but for what makes that unique
	group string
	index uint32
}

func newBench(c *client.Client, o Options, phase string) *bench {
	return &bench{Client: c, Options: o, phase: phase, run: strings.ReplaceAll(uuid.NewString(), "-", "")[:12]}
}

// topic returns the name of a topic of this run.
func (b *bench) topic(part string) string { return "scaling." + b.run + "." + b.phase + "." + part }

// unique makes a group name that no other run has.
func (b *bench) unique(group string) string { return group + "." + b.run }

// job describes a worker to make. Without a size it is a dedicated one.
type job struct {
	label       string
	kind        string // marker if empty
	topic, out  string
	group       string
	size, index uint32
}

// members describes all members of a group, which share the topics.
func members(group string, size uint32, topic, out string) []job {
	jobs := make([]job, size)
	for i := range jobs {
		jobs[i] = job{label: fmt.Sprintf("%s/%d", group, i), topic: topic, out: out, group: group, size: size, index: uint32(i)}
	}
	return jobs
}

// hire creates and starts workers. Once it has returned they miss nothing that is published on their
// topic.
func (b *bench) hire(ctx context.Context, jobs ...job) (hired []*worker, err error) {
	for _, j := range jobs {
		if j.kind == "" {
			j.kind = "marker"
		}
		w := &worker{id: uuid.NewString(), label: j.label, group: j.group, index: j.index}
		b.hired = append(b.hired, w) // beforehand: an answer can be lost, and the worker be there
		hired = append(hired, w)
		_, err := b.Workers.CreateWorker(ctx, &turnlanev1.CreateWorkerRequest{
			Id:         w.id,
			Name:       j.label + " " + w.id[:8],
			Type:       j.kind,
			Topics:     []string{j.topic},
			Group:      j.group,
			GroupSize:  j.size,
			GroupIndex: j.index,
			Config:     map[string]string{"out": j.out},
			Tags:       map[string]string{"demo": "scaling", "run": b.run},
		})
		if err != nil {
			return nil, fmt.Errorf("create %s: %w", j.label, b.Explain(err))
		}
		if _, err := b.start(ctx, w); err != nil {
			return nil, err
		}
	}
	return hired, nil
}

func (b *bench) start(ctx context.Context, w *worker) (warnings []string, err error) {
	resp, err := b.Workers.StartWorker(ctx, &turnlanev1.StartWorkerRequest{Worker: w.id})
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", w.label, b.Explain(err))
	}
	return resp.GetWarnings(), nil
}

// warned checks that the start of a worker, which can be repeated, warns of what it should and of
// nothing else. A busy server may need a while until all members run.
func (b *bench) warned(ctx context.Context, w *worker, want ...string) (problems []string, err error) {
	for begin := time.Now(); ; {
		warnings, err := b.start(ctx, w)
		if err != nil || slices.Equal(warnings, want) {
			return nil, err
		}
		if time.Since(begin) > b.Patience {
			return []string{fmt.Sprintf("the start of %s warns %q, want %q", w.label, warnings, want)}, nil
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (b *bench) stop(ctx context.Context, workers ...*worker) error {
	for _, w := range workers {
		if _, err := b.Workers.StopWorker(ctx, &turnlanev1.StopWorkerRequest{Worker: w.id}); err != nil {
			return fmt.Errorf("stop %s: %w", w.label, b.Explain(err))
		}
	}
	return nil
}

// clear deletes the workers, also when ctx has ended.
func (b *bench) clear(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), clearTimeout)
	defer cancel()
	var problems []error
	for _, w := range b.hired {
		_, err := b.Workers.DeleteWorker(ctx, &turnlanev1.DeleteWorkerRequest{Worker: w.id})
		if err != nil && status.Code(err) != codes.NotFound {
			problems = append(problems, fmt.Errorf("delete %s (id %s): %w", w.label, w.id, b.Explain(err)))
		}
	}
	b.hired = nil
	return errors.Join(problems...)
}

// states tells of the workers that are not running, for the reader of a failure.
func (b *bench) states(ctx context.Context) (lines []string) {
	for _, w := range b.hired {
		resp, err := b.Workers.GetWorker(ctx, &turnlanev1.GetWorkerRequest{Worker: w.id})
		if err != nil {
			lines = append(lines, fmt.Sprintf("look at %s: %s", w.label, b.Explain(err)))
			continue
		}
		if got := resp.GetWorker(); got.GetState() != turnlanev1.WorkerState_WORKER_STATE_RUNNING {
			lines = append(lines, fmt.Sprintf("%s is %s %s", w.label, strings.TrimPrefix(got.GetState().String(), "WORKER_STATE_"), got.GetReason()))
		}
	}
	return lines
}

// named finds one of the workers by its id.
func (b *bench) named(id string) (*worker, bool) {
	for _, w := range b.hired {
		if w.id == id {
			return w, true
		}
	}
	return nil, false
}

func (b *bench) publish(ctx context.Context, topic string, events []*event.Event) error {
	for from := 0; from < len(events); from += perBatch {
		if _, err := b.Publish(ctx, topic, events[from:min(from+perBatch, len(events))]...); err != nil {
			return fmt.Errorf("publish: %w", err)
		}
	}
	return nil
}

// newEvent makes an event. Its id is random from the first character on, so that eight tell it apart.
func newEvent(subject string) *event.Event {
	return &event.Event{ID: uuid.NewString(), Source: "/turnlane/examples/scaling", Type: "scaling.event", Subject: subject}
}

func newEvents(n int) []*event.Event {
	events := make([]*event.Event, n)
	for i := range events {
		events[i] = newEvent("")
	}
	return events
}

// slotOf is where an event belongs in a group of that size.
func slotOf(e *event.Event, size uint32) uint32 {
	return grouping.Slot(grouping.Hash(e.RoutingKey()), size)
}

// onePerSlot draws events until there is one for each slot, and returns them in the order of slots.
func onePerSlot(size uint32, draw func() *event.Event) []*event.Event {
	events := make([]*event.Event, size)
	for missing := size; missing > 0; {
		e := draw()
		if slot := slotOf(e, size); events[slot] == nil {
			events[slot] = e
			missing--
		}
	}
	return events
}
