package deadletter

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/internal/admission"
	"github.com/turnlane/turnlane/internal/catalog"
	"github.com/turnlane/turnlane/internal/rpcerr"
	storev1 "github.com/turnlane/turnlane/proto/turnlane/store/v1"
	turnlanev1 "github.com/turnlane/turnlane/proto/turnlane/v1"
	"github.com/turnlane/turnlane/store"
)

const (
	defaultRate = 100
	maxRate     = 1_000_000
	// followEvery is how often a caller's stream looks at the record.
	followEvery = 100 * time.Millisecond
)

// Redrive records a redrive for the leader to carry out, and follows it.
func (s *Service) Redrive(req *turnlanev1.RedriveRequest, stream grpc.ServerStreamingServer[turnlanev1.RedriveResponse]) error {
	f, err := parseFilter(req.GetFilter())
	if err != nil {
		return err
	}
	rate := req.GetRate()
	switch {
	case f.topic == "":
		return rpcerr.Invalid("filter.topic", "is missing: dead letters are brought back topic by topic", `name one; "turnlane dlq list" shows them`)
	case rate == 0:
		rate = defaultRate
	case rate > maxRate:
		return rpcerr.Invalid("rate", "is larger than 1000000", "give events per second, such as 100")
	}
	if to := req.GetTo(); to != "" {
		if err := admission.Topic(to, admission.User); err != nil {
			if e, ok := errors.AsType[*event.Error](err); ok {
				return rpcerr.Invalid("to", e.Rule, e.Fix)
			}
			return rpcerr.From(err)
		}
	}
	ctx := stream.Context()
	bounds, err := s.store.Bounds(ctx, f.topic)
	if err != nil {
		return rpcerr.From(err)
	}
	want := &storev1.RedriveRecord{Topic: f.topic, Type: f.typ, Fingerprint: f.fingerprint, To: req.GetTo(), Rate: rate,
		UntilMs: bounds.Last.Ms, UntilSeq: bounds.Last.Seq}
	if !f.position.IsZero() {
		want.Position = f.position.String()
	}
	if req.GetDryRun() {
		done, skipped, err := s.foresee(ctx, want)
		if err != nil {
			return rpcerr.From(err)
		}
		return stream.Send(&turnlanev1.RedriveResponse{Total: done + skipped, Done: done, Skipped: skipped, Finished: true})
	}
	rec, err := s.begin(ctx, want)
	if err != nil {
		return rpcerr.From(err)
	}
	if rec == nil { // there is nothing to do
		return stream.Send(&turnlanev1.RedriveResponse{Finished: true})
	}
	return s.follow(ctx, rec, stream.Send)
}

// foresee counts what a redrive would do now.
func (s *Service) foresee(ctx context.Context, rec *storev1.RedriveRecord) (done, skipped uint64, err error) {
	j := &job{s: s, rec: rec, skipped: map[workerKey]bool{}, workers: map[workerKey]bool{}}
	err = s.walk(ctx, rec.GetTopic(), jobFilter(rec), until(rec), func(l *letter) (bool, error) {
		target, err := j.target(ctx, l)
		switch {
		case err != nil:
			return false, err
		case target == "":
			skipped++
		default:
			done++
		}
		return true, nil
	})
	return done, skipped, err
}

// record reads the redrive of a topic, nil if there never was one.
func (s *Service) record(ctx context.Context, topic string) (*storev1.RedriveRecord, uint64, error) {
	item, err := s.store.Get(ctx, catalog.RedriveKey(topic))
	if errors.Is(err, store.ErrNotFound) {
		return nil, store.Absent, nil
	}
	if err != nil {
		return nil, 0, err
	}
	rec, err := catalog.Decode(item, &storev1.RedriveRecord{})
	if errors.Is(err, store.ErrCorrupt) {
		// Nobody can go on with it. Numbers go on, since they follow the clock.
		s.log.Error("the record of a redrive cannot be read, and is taken for one that has ended", "topic", topic, "error", err)
		return nil, item.Revision, nil
	}
	return rec, item.Revision, err
}

// begin stores a redrive, or finds the same one under way. It returns nil if no dead letter matches.
func (s *Service) begin(ctx context.Context, want *storev1.RedriveRecord) (*storev1.RedriveRecord, error) {
	unlock, err := s.topics.lock(ctx, want.GetTopic())
	if err != nil {
		return nil, err
	}
	defer unlock()
	for {
		old, revision, err := s.record(ctx, want.GetTopic())
		if err != nil {
			return nil, err
		}
		if old != nil && !old.GetFinished() {
			if sameRedrive(old, want) {
				return old, nil
			}
			return nil, errUnderWay(old)
		}
		want.Total = 0
		if err := s.walk(ctx, want.GetTopic(), jobFilter(want), until(want), func(*letter) (bool, error) {
			want.Total++
			return true, nil
		}); err != nil || want.GetTotal() == 0 {
			return nil, err
		}
		id, err := uuid.NewV7()
		if err != nil {
			return nil, fmt.Errorf("make an id: %w", err)
		}
		want.Id = id.String()
		want.Number = max(old.GetNumber()+1, uint64(max(0, time.Now().UnixMilli())))
		change, err := catalog.Put(catalog.RedriveKey(want.GetTopic()), want, revision)
		if err != nil {
			return nil, err
		}
		switch _, err := s.store.Txn(ctx, change); {
		case errors.Is(err, store.ErrConflict):
			continue // somebody else was faster: see who
		case err != nil:
			return nil, err
		}
		s.log.Info("redrive begins", "topic", want.GetTopic(), "id", want.GetId(), "type", want.GetType(),
			"fingerprint", want.GetFingerprint(), "to", want.GetTo(), "total", want.GetTotal(), "rate", want.GetRate())
		return want, nil
	}
}

// sameRedrive tells a caller who comes back from one who wants something else.
func sameRedrive(a, b *storev1.RedriveRecord) bool {
	return !a.GetCancelled() && a.GetType() == b.GetType() && a.GetFingerprint() == b.GetFingerprint() &&
		a.GetTo() == b.GetTo() && a.GetPosition() == b.GetPosition() && a.GetRate() == b.GetRate()
}

// follow sends how far a redrive is until it has finished.
func (s *Service) follow(ctx context.Context, rec *storev1.RedriveRecord, send func(*turnlanev1.RedriveResponse) error) error {
	id := rec.GetId()
	sent := ""
	for {
		r := &turnlanev1.RedriveResponse{Id: id, Total: rec.GetTotal(), Done: rec.GetDone(), Skipped: rec.GetSkipped(),
			Finished: rec.GetFinished(), Cancelled: rec.GetCancelled(), Trouble: rec.GetTrouble()}
		if now := r.String(); now != sent {
			if err := send(r); err != nil {
				return err
			}
			sent = now
		}
		if rec.GetFinished() {
			return nil
		}
		timer := time.NewTimer(followEvery)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return rpcerr.From(context.Cause(ctx))
		case <-s.stopping:
			timer.Stop()
			return errShutdown()
		}
		now, _, err := s.record(ctx, rec.GetTopic())
		switch {
		case err != nil:
			return rpcerr.From(err)
		case now.GetId() == id:
			rec = now
		default:
			// It ended, and another one began, since the last look.
			return rpcerr.New(codes.Aborted, rpcerr.Conflict, "the redrive has ended, and another one has begun: its last numbers are not known", map[string]string{"id": id})
		}
	}
}

// CancelRedrive marks the redrive; whoever is at it ends it.
func (s *Service) CancelRedrive(ctx context.Context, req *turnlanev1.CancelRedriveRequest) (*turnlanev1.CancelRedriveResponse, error) {
	if err := checkTopic("topic", req.GetTopic()); err != nil {
		return nil, err
	}
	for {
		rec, revision, err := s.record(ctx, req.GetTopic())
		if err != nil {
			return nil, rpcerr.From(err)
		}
		if rec == nil || rec.GetFinished() {
			return &turnlanev1.CancelRedriveResponse{}, nil
		}
		if !rec.GetCancelled() {
			rec.Cancelled = true
			change, err := catalog.Put(catalog.RedriveKey(rec.GetTopic()), rec, revision)
			if err != nil {
				return nil, rpcerr.From(err)
			}
			switch _, err := s.store.Txn(ctx, change); {
			case errors.Is(err, store.ErrConflict):
				continue
			case err != nil:
				return nil, rpcerr.From(err)
			}
			s.log.Info("redrive is cancelled", "topic", rec.GetTopic(), "id", rec.GetId())
		}
		return &turnlanev1.CancelRedriveResponse{Id: rec.GetId()}, nil
	}
}

func jobFilter(rec *storev1.RedriveRecord) filter {
	f := filter{topic: rec.GetTopic(), typ: rec.GetType(), fingerprint: rec.GetFingerprint()}
	if p, err := event.ParsePosition(rec.GetPosition()); err == nil {
		f.position = p
	}
	return f
}

func until(rec *storev1.RedriveRecord) event.Position {
	return event.Position{Ms: rec.GetUntilMs(), Seq: rec.GetUntilSeq()}
}
