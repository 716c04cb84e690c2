package deadletter

import (
	"context"

	"google.golang.org/grpc/codes"

	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/internal/rpcerr"
	storev1 "github.com/turnlane/turnlane/proto/turnlane/store/v1"
	turnlanev1 "github.com/turnlane/turnlane/proto/turnlane/v1"
	"github.com/turnlane/turnlane/store"
)

// purgeStep is how many are removed at once.
const purgeStep = 500

// PurgeDeadLetters removes what was there when it began. If it fails in the middle, what it removed is
// removed, and the same call goes on with the rest.
func (s *Service) PurgeDeadLetters(ctx context.Context, req *turnlanev1.PurgeDeadLettersRequest) (*turnlanev1.PurgeDeadLettersResponse, error) {
	f, err := parseFilter(req.GetFilter())
	switch {
	case err != nil:
		return nil, err
	case f == filter{}:
		return nil, rpcerr.Invalid("filter", "is empty, which would remove every dead letter there is",
			"name a topic, a worker type or a fingerprint")
	}
	resp := &turnlanev1.PurgeDeadLettersResponse{}
	err = s.eachTopic(ctx, f, func(t store.TopicInfo) (bool, error) {
		n, err := s.purge(ctx, t, f)
		resp.Removed += uint64(n)
		return true, err
	})
	if resp.Removed > 0 {
		s.meter.purged.Add(context.WithoutCancel(ctx), int64(resp.Removed))
		s.log.Info("dead letters purged", "removed", resp.Removed, "topic", f.topic, "type", f.typ, "fingerprint", f.fingerprint)
	}
	if err != nil {
		return nil, rpcerr.From(err)
	}
	return resp, nil
}

func (s *Service) purge(ctx context.Context, t store.TopicInfo, f filter) (removed int, err error) {
	unlock, err := s.topics.lock(ctx, t.Topic)
	if err != nil {
		return 0, err
	}
	defer unlock()
	rec, _, err := s.record(ctx, t.Topic)
	if err != nil {
		return 0, err
	}
	if rec != nil && !rec.GetFinished() {
		return 0, errUnderWay(rec)
	}
	var goes []event.Position
	remove := func() error {
		n, err := s.store.Remove(ctx, t.Topic, goes...)
		removed, goes = removed+n, goes[:0]
		return err
	}
	err = s.walk(ctx, t.Topic, f, t.Last, func(l *letter) (bool, error) {
		if goes = append(goes, l.pos); len(goes) < purgeStep {
			return true, nil
		}
		return true, remove()
	})
	if err == nil && len(goes) > 0 {
		err = remove()
	}
	return removed, err
}

func errUnderWay(rec *storev1.RedriveRecord) error {
	return rpcerr.New(codes.FailedPrecondition, rpcerr.RedriveUnderWay,
		"a redrive of "+rec.GetTopic()+" is under way; wait for its end, or cancel it", map[string]string{
			"topic": rec.GetTopic(), "id": rec.GetId(), "type": rec.GetType(), "fingerprint": rec.GetFingerprint(), "to": rec.GetTo(),
		})
}
