package deadletter

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/internal/admission"
	"github.com/turnlane/turnlane/internal/catalog"
	format "github.com/turnlane/turnlane/internal/deadletter"
	storev1 "github.com/turnlane/turnlane/proto/turnlane/store/v1"
	"github.com/turnlane/turnlane/store"
)

const (
	maxChunkBytes = 4 << 20 // of a chunk, or one larger letter
	// chunksPerSecond is how smooth a slow redrive is.
	chunksPerSecond = 10
)

var (
	// errDeposed ends a job here: another leader has taken it over, or this one cannot be sure that none has.
	errDeposed = errors.New("another process leads")
	// errCancelled ends a job for good.
	errCancelled = errors.New("the redrive was cancelled")
)

// job is the work on one redrive. It takes the matching dead letters in their order, chunk by chunk:
//
//	note the chunk in the record ─▶ for each target: append, remove ─▶ next
//
// Only used by one goroutine.
type job struct {
	s        *Service
	rec      *storev1.RedriveRecord
	revision uint64
	token    uint64
	leads    func() bool // whether this process still leads, by the clock

	// inHand is up to where a predecessor may have appended without removing: the job is not given up
	// before it is past it.
	inHand event.Position

	workers map[workerKey]bool // of this chunk: whether it exists
	// skipped are workers that were found missing. Their letters are passed until the job ends, also if
	// such a worker is made anew meanwhile: what the topic of the worker has stored would be above what
	// was passed, which would count as a repeat when the job is taken up again.
	skipped map[workerKey]bool

	next time.Time // when the next chunk may go
}

type workerKey struct{ typ, id string }

// parcel is a dead letter on its way.
type parcel struct {
	*letter
	target string
}

// run carries the redrive out. It returns nil when it is finished.
func (j *job) run(ctx context.Context) error {
	if err := j.takeUp(ctx); err != nil {
		return err
	}
	for {
		j.rec.Skipped = 0
		err := j.pass(ctx)
		switch {
		case err == nil, errors.Is(err, errCancelled):
			return j.finish(ctx)
		case errors.Is(err, errDeposed), errors.Is(err, store.ErrClosed), ctx.Err() != nil:
			return err
		}
		if err := j.hold(ctx, "read", err, 4); err != nil {
			return err
		}
	}
}

// takeUp makes the job this leader's.
func (j *job) takeUp(ctx context.Context) error {
	if j.rec.GetToken() > j.token {
		return errDeposed
	}
	if p, err := event.ParsePosition(j.rec.GetInHand()); err == nil {
		j.inHand = p
	}
	if j.rec.GetStartedAt() == nil {
		j.rec.StartedAt = timestamppb.Now()
	} else if err := j.recount(ctx); err != nil {
		return err
	}
	j.rec.Token = j.token
	return j.save(ctx)
}

// recount finds how many are done already: the predecessor may have ended before it could note them.
func (j *job) recount(ctx context.Context) error {
	left := uint64(0)
	err := j.s.walk(ctx, j.rec.GetTopic(), jobFilter(j.rec), until(j.rec), func(*letter) (bool, error) {
		left++
		return true, nil
	})
	if total := j.rec.GetTotal(); err == nil && left < total {
		j.rec.Done = max(j.rec.GetDone(), total-left)
	}
	return err
}

// pass goes through the topic once, from its start.
func (j *job) pass(ctx context.Context) error {
	size := min(max(int(j.rec.GetRate())/chunksPerSecond, 1), j.s.maxChunk)
	chunk, bytes := make([]parcel, 0, size), 0
	j.workers = map[workerKey]bool{}
	err := j.s.walk(ctx, j.rec.GetTopic(), jobFilter(j.rec), until(j.rec), func(l *letter) (bool, error) {
		target, err := j.target(ctx, l)
		if err != nil {
			return false, err
		}
		if target == "" {
			j.rec.Skipped++
			return true, nil
		}
		chunk, bytes = append(chunk, parcel{l, target}), bytes+len(l.record)
		if len(chunk) < size && bytes < maxChunkBytes {
			return true, nil
		}
		err = j.bring(ctx, chunk)
		clear(chunk)
		clear(j.workers)
		chunk, bytes = chunk[:0], 0
		return true, err
	})
	if err == nil && len(chunk) > 0 {
		err = j.bring(ctx, chunk)
	}
	return err
}

// target is the topic that a dead letter's event goes to, "" if it stays where it is.
func (j *job) target(ctx context.Context, l *letter) (string, error) {
	if l.original == nil || l.facts.Reason == format.Undecodable {
		return "", nil
	}
	if to := j.rec.GetTo(); to != "" {
		return to, nil
	}
	key := workerKey{l.facts.WorkerType, l.facts.WorkerID}
	if !typeForm.MatchString(key.typ) || !typeForm.MatchString(key.id) || j.skipped[key] {
		return "", nil
	}
	exists, known := j.workers[key]
	if !known {
		item, err := j.s.store.Get(ctx, catalog.WorkerKey(key.id))
		var w *storev1.WorkerRecord
		if err == nil {
			w, err = catalog.DecodeWorker(item)
		}
		switch {
		case errors.Is(err, store.ErrNotFound), errors.Is(err, store.ErrCorrupt):
		case err != nil:
			return "", fmt.Errorf("look up worker %s: %w", key.id, err)
		default:
			exists = !w.GetDeleted() && w.GetType() == key.typ
		}
		j.workers[key] = exists
	}
	if !exists {
		j.skipped[key] = true
		return "", nil
	}
	return format.RedriveTopic(key.typ, key.id), nil
}

// bring takes the dead letters of a chunk to where they go.
func (j *job) bring(ctx context.Context, chunk []parcel) error {
	last := chunk[len(chunk)-1].pos
	if last.Less(j.inHand) {
		last = j.inHand
	}
	j.rec.InHand = last.String()
	if err := j.save(ctx); err != nil {
		return err
	}
	if j.rec.GetCancelled() && j.inHand.Less(chunk[0].pos) {
		return errCancelled
	}
	if !sleep(ctx, time.Until(j.next)) {
		return context.Cause(ctx)
	}
	j.next = time.Now().Add(time.Duration(len(chunk)) * time.Second / time.Duration(j.rec.GetRate()))

	var targets []string
	byTarget := map[string][]*letter{}
	for _, p := range chunk {
		if byTarget[p.target] == nil {
			targets = append(targets, p.target)
		}
		byTarget[p.target] = append(byTarget[p.target], p.letter)
	}
	for _, target := range targets {
		letters := byTarget[target]
		if err := j.append(ctx, target, letters); err != nil {
			return err
		}
		if err := j.remove(ctx, letters); err != nil {
			return err
		}
		j.rec.Done += uint64(len(letters))
		j.s.meter.redriven.Add(ctx, int64(len(letters)))
	}
	return nil
}

// append stores the events at a target, however often it takes.
func (j *job) append(ctx context.Context, target string, letters []*letter) error {
	now := time.Now()
	batches := make([]store.Batch, len(letters))
	for i, l := range letters {
		e := l.original
		if j.rec.GetTo() == "" {
			e = format.Redrive(l.original, l.facts)
		}
		batches[i] = store.Batch{
			Records: []event.Record{admission.Encode(e, now)},
			Turn:    format.RedriveMark(j.token, j.rec.GetNumber(), l.topic, l.pos),
		}
	}
	// stored says that some of it may be stored already, so that the job cannot end here.
	stored := !j.inHand.Less(letters[0].pos)
	for n := 0; ; n++ {
		if !j.leads() {
			return errDeposed
		}
		fates, err := j.s.store.Append(ctx, target, batches)
		for _, fate := range fates {
			stored = stored || fate.Err == nil
			if err == nil {
				err = fate.Err
			}
		}
		if err == nil {
			j.rec.Trouble = "" // noted with the next chunk
			return nil
		}
		stored = stored || errors.Is(err, store.ErrOutcomeUnknown)
		if err := j.hold(ctx, "append to "+target, err, n); err != nil {
			return err
		}
		if j.rec.GetCancelled() && !stored {
			return errCancelled
		}
	}
}

// remove takes the dead letters of stored events away, however often it takes.
func (j *job) remove(ctx context.Context, letters []*letter) error {
	positions := make([]event.Position, len(letters))
	for i, l := range letters {
		positions[i] = l.pos
	}
	for n := 0; ; n++ {
		if _, err := j.s.store.Remove(ctx, j.rec.GetTopic(), positions...); err == nil {
			j.rec.Trouble = ""
			return nil
		} else if err := j.hold(ctx, "remove from "+j.rec.GetTopic(), err, n); err != nil {
			return err
		}
	}
}

// hold waits after a failure, and notes it in the record. It returns an error if the job cannot go on.
func (j *job) hold(ctx context.Context, what string, err error, n int) error {
	switch {
	case errors.Is(err, store.ErrStaleToken):
		return errDeposed
	case errors.Is(err, store.ErrClosed), ctx.Err() != nil:
		return err
	}
	if n%16 == 0 {
		j.s.log.Warn("a redrive is held up; trying again", "topic", j.rec.GetTopic(), "id", j.rec.GetId(), "doing", what, "error", err)
	}
	j.rec.Trouble = what + ": " + err.Error()
	if err := j.saveOnce(ctx); errors.Is(err, errDeposed) {
		return err
	}
	if !sleep(ctx, min(50*time.Millisecond<<min(n, 7), 5*time.Second)) {
		return context.Cause(ctx)
	}
	return nil
}

// finish notes the end.
func (j *job) finish(ctx context.Context) error {
	j.rec.Finished, j.rec.FinishedAt, j.rec.InHand, j.rec.Trouble = true, timestamppb.Now(), "", ""
	if err := j.save(ctx); err != nil {
		return err
	}
	j.s.log.Info("redrive ended", "topic", j.rec.GetTopic(), "id", j.rec.GetId(), "total", j.rec.GetTotal(),
		"done", j.rec.GetDone(), "skipped", j.rec.GetSkipped(), "cancelled", j.rec.GetCancelled())
	return nil
}

// save stores the record, however often it takes.
func (j *job) save(ctx context.Context) error {
	for n := 0; ; n++ {
		err := j.saveOnce(ctx)
		if err == nil || errors.Is(err, errDeposed) || errors.Is(err, store.ErrClosed) {
			return err
		}
		if n%16 == 0 && ctx.Err() == nil {
			j.s.log.Warn("the progress of a redrive cannot be noted; trying again", "topic", j.rec.GetTopic(), "id", j.rec.GetId(), "error", err)
		}
		if !sleep(ctx, min(50*time.Millisecond<<min(n, 7), 5*time.Second)) {
			return context.Cause(ctx)
		}
	}
}

// saveOnce stores the record if it is still this leader's, with the wish of others that it be cancelled.
func (j *job) saveOnce(ctx context.Context) error {
	for {
		if !j.leads() {
			return errDeposed
		}
		change, err := catalog.Put(catalog.RedriveKey(j.rec.GetTopic()), j.rec, j.revision)
		if err != nil {
			return err
		}
		revisions, err := j.s.store.Txn(ctx, change)
		if err == nil {
			j.revision = revisions[0]
			return nil
		}
		if !errors.Is(err, store.ErrConflict) {
			return err // one that happened all the same is met as a conflict next time
		}
		now, revision, err := j.s.record(ctx, j.rec.GetTopic())
		if err != nil {
			return err
		}
		if now.GetId() != j.rec.GetId() || now.GetFinished() && !j.rec.GetFinished() || now.GetToken() > j.token {
			return errDeposed
		}
		j.revision = revision
		j.rec.Cancelled = j.rec.GetCancelled() || now.GetCancelled()
	}
}
