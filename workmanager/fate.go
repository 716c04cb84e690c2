package workmanager

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"

	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/grouping"
	"github.com/turnlane/turnlane/internal/admission"
	"github.com/turnlane/turnlane/internal/command"
	"github.com/turnlane/turnlane/internal/rpcerr"
	storev1 "github.com/turnlane/turnlane/proto/turnlane/store/v1"
	turnlanev1 "github.com/turnlane/turnlane/proto/turnlane/v1"
	"github.com/turnlane/turnlane/store"
)

// Short names for fates.
const (
	waiting  = turnlanev1.EventFate_EVENT_FATE_WAITING
	inTurn   = turnlanev1.EventFate_EVENT_FATE_IN_TURN
	retrying = turnlanev1.EventFate_EVENT_FATE_RETRYING
	done     = turnlanev1.EventFate_EVENT_FATE_DONE
	filtered = turnlanev1.EventFate_EVENT_FATE_FILTERED
	dead     = turnlanev1.EventFate_EVENT_FATE_DEAD
	skipped  = turnlanev1.EventFate_EVENT_FATE_SKIPPED
	passed   = turnlanev1.EventFate_EVENT_FATE_PASSED
)

// GetEventStatus tells what became of an event at each worker that reads its topic. Nothing is kept for
// it: it follows from the workers' starts, cursors and attempts, from the slots, from the dead letters,
// and, for workers that run in this process, from what their activations know.
func (m *Manager) GetEventStatus(ctx context.Context, req *turnlanev1.GetEventStatusRequest) (*turnlanev1.GetEventStatusResponse, error) {
	q, err := m.askFate(ctx, req)
	if err != nil {
		return nil, err
	}
	readers, next, err := m.readers(ctx, q, req.GetWorker())
	if err != nil {
		return nil, err
	}
	seen, err := m.observeAll(ctx, readers, false)
	if err != nil {
		return nil, err
	}
	resp := &turnlanev1.GetEventStatusResponse{Held: q.entry != nil, NextPageToken: next, Workers: make([]*turnlanev1.EventAtWorker, len(readers))}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(parallelReads)
	for i, w := range readers {
		g.Go(func() (err error) {
			resp.Workers[i], err = m.fate(gctx, q, w, seen[i])
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, rpcerr.From(err)
	}
	if resp.Incomplete, err = m.findDead(ctx, q, readers, resp.GetWorkers()); err != nil {
		return nil, rpcerr.From(err)
	}
	return resp, nil
}

// fateQuery is the event that is asked for.
type fateQuery struct {
	topic string
	pos   event.Position
	entry *event.Entry // nil if the topic does not hold it any more
	after string       // ids of workers up to it were on former pages
	size  int
}

// askFate checks a request and reads its event.
func (m *Manager) askFate(ctx context.Context, req *turnlanev1.GetEventStatusRequest) (*fateQuery, error) {
	var p problems
	q := &fateQuery{topic: req.GetTopic(), size: int(req.GetPageSize())}
	if err := admission.Readable(q.topic); err != nil {
		e, ok := errors.AsType[*event.Error](err)
		if !ok {
			e = &event.Error{Rule: err.Error()}
		}
		p.add("topic", e.Rule, e.Fix)
	}
	var err error
	if q.pos, err = event.ParsePosition(req.GetPosition()); err != nil {
		p.add("position", quote(req.GetPosition())+" is not a position", "write it as two numbers, ms-seq, such as 1700000000000-0")
	}
	switch {
	case q.size == 0:
		q.size = defaultListSize
	case q.size > maxListSize:
		p.add("page_size", fmt.Sprintf("%d is more than %d", q.size, maxListSize), "ask for less, and for further pages by next_page_token")
	}
	after, err := base64.RawURLEncoding.DecodeString(req.GetPageToken())
	if q.after = string(after); err != nil || len(after) > 0 && !validID(q.after) {
		p.add("page_token", "is not one that was given out", "use next_page_token of the page before, or leave it out")
	}
	if err := p.err(); err != nil {
		return nil, err
	}
	page, err := m.store.Read(ctx, q.topic, q.pos.Prev(), store.ReadLimit{Entries: 1})
	if err != nil {
		return nil, rpcerr.From(fmt.Errorf("read topic %s: %w", q.topic, err))
	}
	if len(page.Entries) > 0 && page.Entries[0].Pos == q.pos {
		q.entry = &page.Entries[0]
	}
	if q.entry == nil && (page.Bounds.Incarnation == "" || page.Bounds.Removed.Less(q.pos)) {
		return nil, rpcerr.New(codes.NotFound, rpcerr.NotFound,
			fmt.Sprintf("topic %s has no event at %s, and never had; check topic and position", q.topic, q.pos),
			map[string]string{"topic": q.topic, "position": q.pos.String()})
	}
	return q, nil
}

// readers are the workers that read the event's topic, a page of them.
func (m *Manager) readers(ctx context.Context, q *fateQuery, ref string) (list []record, next string, err error) {
	if ref != "" {
		w, err := m.find(ctx, ref)
		if err == nil && !reads(w, q.topic) {
			err = rpcerr.Invalid("worker", fmt.Sprintf("%s does not read topic %s", quote(ref), q.topic), "name a worker that does, or none for all that do")
		}
		return []record{w}, "", err
	}
	err = m.scan(ctx, q.after, func(w record) bool {
		if !reads(w, q.topic) {
			return true
		}
		if len(list) == q.size {
			next = base64.RawURLEncoding.EncodeToString([]byte(list[q.size-1].GetId()))
			return false
		}
		list = append(list, w)
		return true
	})
	return list, next, rpcerr.From(err)
}

func reads(w record, topic string) bool {
	return slices.Contains(w.GetTopics(), topic) || isLane(w, topic)
}

// fate is what became of the event at one worker, but for dead letters.
//
//	                 lowest         anew              cursor
//	  SKIPPED          │   PASSED     │     DONE         │    IN_TURN, RETRYING, WAITING
//	─────── positions ─┴──────────────┴──────────────────┴───────────────────────────────▶
//
// lowest is where the worker began lowest, anew where it began the last time other than by going on.
func (m *Manager) fate(ctx context.Context, q *fateQuery, w record, seen observation) (*turnlanev1.EventAtWorker, error) {
	f := &turnlanev1.EventAtWorker{WorkerId: w.GetId(), WorkerName: w.GetName()}
	lane := isLane(w, q.topic)
	if w.GetGroup() != "" && !lane && q.entry != nil && q.entry.Record.Check() == nil &&
		grouping.Slot(q.entry.Record.Hash(), w.GetGroupSize()) != w.GetGroupIndex() {
		f.Fate = filtered
		return f, nil
	}
	data, err := m.store.Load(ctx, w.GetId())
	if err != nil {
		return nil, fmt.Errorf("read the cursors of worker %s: %w", w.GetId(), err)
	}
	start, cursor := startOn(w, q.topic), event.Position{}
	begun := start != nil && !start.GetSpent()
	if start != nil {
		cursor = event.Position{Ms: start.GetMs(), Seq: start.GetSeq()}
	}
	if lane || data.Start.Run == w.GetRun() {
		for _, c := range data.Cursors {
			if c.Topic == q.topic && (cursor.Less(c.Position) || !lane) {
				cursor, begun = c.Position, true
			}
		}
	}
	live := m.liveOn(w, q.topic)
	if at, err := event.ParsePosition(live.GetCursor()); live != nil && err == nil {
		cursor, begun = at, true
	}
	switch {
	case !begun && start == nil:
		f.Fate = waiting // it was never started, and its first start decides
		f.HeldUp = "the worker was never started: where it begins is not decided"
		if w.GetReplay().GetMode() != turnlanev1.ReplayMode_REPLAY_MODE_FIRST {
			f.Fate, f.HeldUp = skipped, "the worker was never started: it will begin at the tail"
		}
		return f, nil
	case !cursor.Less(q.pos):
		switch {
		case start != nil && !lowest(start).Less(q.pos):
			f.Fate = skipped
		case start != nil && !anew(start).Less(q.pos):
			f.Fate = passed
		default:
			f.Fate = done
		}
		return f, nil
	case start.GetSpent() && !w.wanted():
		f.Fate, f.HeldUp = skipped, "the worker is STOPPED and replays nothing: it will begin at the tail"
		return f, nil
	}
	f.Fate = waiting
	for _, a := range data.Attempts {
		if a.Topic == q.topic && a.Position == q.pos && (lane || data.Start.Run == w.GetRun()) {
			f.Attempt, f.Error = a.Attempts, a.Error
			if a.Attempts > 0 {
				f.Fate = retrying
			}
		}
	}
	if at, err := event.ParsePosition(live.GetInTurn()); live != nil && err == nil {
		switch {
		case q.pos.Less(at):
			f.Fate = inTurn // over, and its outputs are on their way
		case q.pos == at && live.GetRetryAt() != nil:
			f.Fate, f.Attempt, f.RetryAt = retrying, max(f.GetAttempt(), live.GetAttempt()), live.GetRetryAt()
		case q.pos == at:
			f.Fate, f.Attempt = inTurn, live.GetAttempt()
		}
	}
	f.HeldUp = heldUp(w, seen, lane)
	if f.GetHeldUp() != "" && f.GetFate() == retrying && live == nil {
		f.Fate = waiting
	}
	return f, nil
}

// heldUp says why a worker takes no events at the moment, if it does not.
func heldUp(w record, seen observation, lane bool) string {
	switch {
	case seen.state != running && seen.reason != "":
		return "the worker is " + stateName(seen.state) + ": " + seen.reason
	case seen.state != running:
		return "the worker is " + stateName(seen.state)
	case w.GetPaused() && !lane && w.GetPauseReason() != "":
		return "the worker is paused: " + w.GetPauseReason()
	case w.GetPaused() && !lane:
		return "the worker is paused"
	}
	return ""
}

// startOn is where the record says that a topic begins, nil if it does not.
func startOn(w record, topic string) *storev1.TopicStart {
	for _, s := range w.GetStarts() {
		if s.GetTopic() == topic {
			return s
		}
	}
	return nil
}

// liveOn is what the activation of a worker knows of a topic, nil if it does not run in this process.
func (m *Manager) liveOn(w record, topic string) *turnlanev1.WorkerTopic {
	if m.cfg.Inspector == nil {
		return nil
	}
	facts, _ := m.cfg.Inspector.Inspect(w.GetId())
	for _, f := range facts {
		if f.GetTopic() == topic {
			return f
		}
	}
	return nil
}

// maxDeadLetters bounds the dead letters that one call looks through, of each of their topics.
const maxDeadLetters = 50_000

// findDead looks for the event among the dead letters of the workers that are past it. It begins where
// the event was stored, as no dead letter is older than its event.
func (m *Manager) findDead(ctx context.Context, q *fateQuery, readers []record, fates []*turnlanev1.EventAtWorker) (incomplete bool, err error) {
	wanted := map[string]map[string]*turnlanev1.EventAtWorker{} // by topic of dead letters, by worker
	for i, f := range fates {
		if f.GetFate() != done && f.GetFate() != passed {
			continue
		}
		topic := deadLetterTopic(readers[i], q.topic)
		if topic == "" {
			continue
		}
		if wanted[topic] == nil {
			wanted[topic] = map[string]*turnlanev1.EventAtWorker{}
		}
		wanted[topic][f.GetWorkerId()] = f
	}
	const clocks = time.Minute // between processes that stored the event and the dead letter
	stored := time.UnixMilli(int64(min(q.pos.Ms, 1<<52)))
	if q.entry != nil && q.entry.Record.Check() == nil {
		stored = q.entry.Record.StoredAt()
	}
	for topic, workers := range wanted {
		after, err := m.store.Before(ctx, topic, stored.Add(-clocks))
		if err != nil {
			return false, fmt.Errorf("look for dead letters on %s: %w", topic, err)
		}
		for looked := 0; ; {
			page, err := m.store.Read(ctx, topic, after, store.ReadLimit{})
			if err != nil {
				return false, fmt.Errorf("look for dead letters on %s: %w", topic, err)
			}
			for _, entry := range page.Entries {
				worker, why, ok := deadLetterOf(entry.Record, q.topic, q.pos)
				if f := workers[worker]; ok && f != nil { // the latest one counts
					f.Fate, f.DeadLetterTopic, f.DeadLetterPosition, f.Error = dead, topic, entry.Pos.String(), why
				}
			}
			looked += len(page.Entries)
			if after = page.To; len(page.Entries) == 0 || !after.Less(page.Bounds.Last) {
				break
			}
			if looked >= maxDeadLetters {
				incomplete = true
				break
			}
		}
	}
	return incomplete, nil
}

// deadLetterTopic is where a worker's dead letters of a topic are, "" for nowhere.
func deadLetterTopic(w record, topic string) string {
	switch own := w.GetPolicy().GetDeadLetterTopic(); {
	case strings.HasPrefix(topic, "dlq."):
		return ""
	case own != "":
		return own
	case command.Reserved(topic):
		return command.DeadLetterTopic(w.GetType())
	}
	return "dlq." + topic
}

// deadLetterOf reads from a dead letter of an event which worker gave it up, and why.
func deadLetterOf(r event.Record, topic string, pos event.Position) (worker, why string, ok bool) {
	if r.Check() != nil {
		return "", "", false
	}
	e, err := event.DecodeRecord(r)
	if err != nil {
		return "", "", false
	}
	text := func(name string) string {
		v, _ := e.Extension(name)
		return v.String()
	}
	if text("dlqtopic") != topic || text("dlqposition") != pos.String() {
		return "", "", false
	}
	if why = text("dlqerror"); why == "" {
		why = text("dlqreason")
	}
	return text("dlqworker"), why, true
}
