// Package flights is the example that adds up real input: 20,000 flights through a slot group of four
// workers, each with the books of the airports that fall to it, compared figure by figure with an
// answer that was computed elsewhere.
package flights

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/turnlane/turnlane"
	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/examples/flights/data"
	"github.com/turnlane/turnlane/internal/client"
	turnlanev1 "github.com/turnlane/turnlane/proto/turnlane/v1"
)

const (
	topic      = "flights"
	group      = "flights"
	workerType = "flights"
	members    = 4
	slowMember = members - 1 // it has the most flights
	batch      = 500
)

// ErrFailed is returned by Run when the figures differ, after they were printed.
var ErrFailed = errors.New("flights: FAIL")

// Options say how the example is run. The zero value is a quick run that prints nothing.
type Options struct {
	// Out gets the progress, the tables, and PASS or FAIL. Default: nobody.
	Out io.Writer
	// Terminal says that Out is a terminal, on which a line can be written over.
	Terminal bool
	// Slow makes one of the members crawl until the others are done, so that its lane overflows.
	Slow bool
	// Patience is how long nothing may happen before the run fails. Default 30 s.
	Patience time.Duration
	// Logger is for the server. Default: errors to standard error.
	Logger *slog.Logger
}

// Run starts a server in memory that hosts the worker type, runs the flights through it, and compares
// the books. It blocks until it is done and everything that it started has ended.
func Run(ctx context.Context, o Options) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if o.Out == nil {
		o.Out = io.Discard
	}
	if o.Patience <= 0 {
		o.Patience = 30 * time.Second
	}
	if o.Logger == nil {
		// Warnings are a matter of course while the members of a group start one after the other.
		o.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	}
	want, err := data.Expected()
	if err != nil {
		return err
	}
	events, err := data.Events()
	if err != nil {
		return err
	}
	r := &run{Options: o, events: events, want: want, hurry: make(chan struct{})}
	r.ledgers.slow = r.slow

	srv, err := turnlane.NewServer(turnlane.Config{GRPCAddr: "127.0.0.1:0", HTTPAddr: "127.0.0.1:0", Logger: o.Logger})
	if err != nil {
		return err
	}
	srv.Handle(workerType, r.ledgers.open)

	serving, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- srv.Run(serving) }()
	select {
	case <-srv.Ready():
	case err := <-ended:
		if ctx.Err() != nil {
			return ctx.Err() // it was over before it began
		}
		return fmt.Errorf("start the server: %w", err)
	}
	err = r.against(ctx, srv.GRPCAddr())
	stop()
	if e := <-ended; err == nil && ctx.Err() == nil {
		err = e
	}
	return err
}

// run is one pass of all flights.
type run struct {
	Options
	events  []*event.Event
	want    data.Answer
	ledgers ledgers
	hurry   chan struct{} // closed when the slow member need not be slow any more
	client  *client.Client
	workers [members]string // ids
}

func (r *run) slow(member uint32) <-chan struct{} {
	if r.Slow && member == slowMember {
		return r.hurry
	}
	return nil
}

func (r *run) against(ctx context.Context, addr string) error {
	c, err := client.Dial(addr)
	if err != nil {
		return err
	}
	defer c.Close()
	r.client = c
	if err := r.hire(ctx); err != nil {
		return err
	}
	fmt.Fprintf(r.Out, "%d flights of 2001 from %d airports, split by airport over a slot group of %d\n",
		len(r.events), len(r.want.Airports), members)

	begin := time.Now()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	published := make(chan error, 1)
	go func() { published <- r.publish(ctx) }()
	overflow, err := r.watch(ctx, published)
	if err != nil {
		return err
	}
	took := time.Since(begin)

	fmt.Fprintf(r.Out, "%d flights in %.1f s\n", sum(r.ledgers.perMember()), took.Seconds())
	if overflow != "" {
		fmt.Fprintln(r.Out, overflow)
	}
	fmt.Fprintln(r.Out)
	if err := table(r.Out, r.ledgers.all()); err != nil {
		return err
	}
	fmt.Fprintln(r.Out)
	return r.judge()
}

// hire creates and starts the members. Where a worker starts reading is fixed before StartWorker
// returns, so they miss nothing of what is published afterwards.
func (r *run) hire(ctx context.Context) error {
	for i := range r.workers {
		created, err := r.client.Workers.CreateWorker(ctx, &turnlanev1.CreateWorkerRequest{
			Name:       fmt.Sprintf("flights-%d", i),
			Type:       workerType,
			Topics:     []string{topic},
			Group:      group,
			GroupSize:  members,
			GroupIndex: uint32(i),
			Replay:     &turnlanev1.Replay{Mode: turnlanev1.ReplayMode_REPLAY_MODE_CURSOR},
		})
		if err != nil {
			return fmt.Errorf("create member %d: %w", i, r.client.Explain(err))
		}
		r.workers[i] = created.GetWorker().GetId()
		if _, err := r.client.Workers.StartWorker(ctx, &turnlanev1.StartWorkerRequest{Worker: r.workers[i]}); err != nil {
			return fmt.Errorf("start member %d: %w", i, r.client.Explain(err))
		}
	}
	return nil
}

func (r *run) publish(ctx context.Context) error {
	for from := 0; from < len(r.events); from += batch {
		to := min(from+batch, len(r.events))
		if _, err := r.client.Publish(ctx, topic, r.events[from:to]...); err != nil {
			return fmt.Errorf("publish flights %d to %d: %w", from+1, to, err)
		}
	}
	return nil
}

// watch follows the run to its end: everything is published and every member's cursor is at the head
// of the topic, so that nothing more can come. It returns what was seen of the slow member's lane.
func (r *run) watch(ctx context.Context, published <-chan error) (overflow string, err error) {
	p := progress{out: r.Out, terminal: r.Terminal}
	defer p.clear()
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	var last [members]int
	moved := time.Now()
	for {
		select {
		case <-ctx.Done():
			return "", ctx.Err()
		case err := <-published:
			if err != nil {
				return "", err
			}
			published = nil // all are
		case <-look.C:
		}
		now := r.ledgers.perMember()
		if now != last {
			last, moved = now, time.Now()
		}
		p.show(now, len(r.events))
		if time.Since(moved) > r.Patience {
			return "", fmt.Errorf("nothing happened for %s, with %d of %d flights handled; per slot %v, want %v: is the server's log quiet?",
				r.Patience, sum(now), len(r.events), now, r.want.EventsOfSlot)
		}
		if published != nil {
			continue
		}
		if r.Slow && overflow == "" {
			if overflow, err = r.relieve(ctx, now); err != nil {
				return "", err
			}
		}
		if sum(now) >= len(r.events) {
			if done, err := r.atHead(ctx); done || err != nil {
				return overflow, err
			}
		}
	}
}

// relieve lets the slow member hurry once the others have all of theirs, and tells how its lane was.
func (r *run) relieve(ctx context.Context, now [members]int) (string, error) {
	for i, want := range r.want.EventsOfSlot {
		if i != slowMember && now[i] < want {
			return "", nil
		}
	}
	status, err := r.status(ctx, slowMember)
	if err != nil {
		return "", err
	}
	waiting := r.want.EventsOfSlot[slowMember] - r.ledgers.perMember()[slowMember]
	lane := int(status.GetLaneEvents())
	close(r.hurry)
	if status.GetFeed() == turnlanev1.FeedState_FEED_STATE_LIVE || lane >= waiting {
		return "", fmt.Errorf("the lane of the slow member did not overflow: %d flights in it of %d waiting, its feed is %s", lane, waiting, status.GetFeed())
	}
	return fmt.Sprintf("member %d crawled: with the others done, %d flights waited for it, %d of them in its lane; it caught up from the log",
		slowMember, waiting, lane), nil
}

func (r *run) status(ctx context.Context, member int) (*turnlanev1.WorkerTopic, error) {
	got, err := r.client.Workers.GetWorker(ctx, &turnlanev1.GetWorkerRequest{Worker: r.workers[member]})
	if err != nil {
		return nil, fmt.Errorf("look at member %d: %w", member, r.client.Explain(err))
	}
	for _, s := range got.GetWorker().GetTopicStatus() {
		if s.GetTopic() == topic {
			return s, nil
		}
	}
	return nil, fmt.Errorf("look at member %d: the server tells nothing of topic %s", member, topic)
}

func (r *run) atHead(ctx context.Context) (bool, error) {
	for i := range r.workers {
		s, err := r.status(ctx, i)
		if err != nil || s.GetCursor() != s.GetHead() {
			return false, err
		}
	}
	return true, nil
}

func (r *run) judge() error {
	differences := compare(r.ledgers.all(), r.want)
	for i, d := range differences {
		if i == maxDifferences {
			fmt.Fprintf(r.Out, "and %d more differences\n", len(differences)-i)
			break
		}
		fmt.Fprintln(r.Out, d)
	}
	if len(differences) > 0 {
		fmt.Fprintln(r.Out, "flights: FAIL")
		return ErrFailed
	}
	fmt.Fprintln(r.Out, "flights: PASS")
	return nil
}
