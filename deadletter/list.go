package deadletter

import (
	"context"
	"slices"
	"strings"
	"time"

	cepb "github.com/cloudevents/sdk-go/binding/format/protobuf/v2/pb"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/turnlane/turnlane/event"
	format "github.com/turnlane/turnlane/internal/deadletter"
	"github.com/turnlane/turnlane/internal/rpcerr"
	turnlanev1 "github.com/turnlane/turnlane/proto/turnlane/v1"
	"github.com/turnlane/turnlane/store"
)

const (
	// maxGroups bounds a list; what is beyond is counted together, by topic.
	maxGroups = 1000
	tooMany   = "other kinds, of which there are too many to list"

	defaultReadLimit = 100
	maxReadLimit     = 10_000
)

type groupKey struct{ topic, typ, reason, fingerprint string }

// ListDeadLetters reads all of them: its memory is bounded, its time is not.
func (s *Service) ListDeadLetters(ctx context.Context, req *turnlanev1.ListDeadLettersRequest) (*turnlanev1.ListDeadLettersResponse, error) {
	f, err := parseFilter(req.GetFilter())
	if err != nil {
		return nil, err
	}
	groups := map[groupKey]*turnlanev1.DeadLetterGroup{}
	listed := 0
	err = s.eachTopic(ctx, f, func(t store.TopicInfo) (bool, error) {
		return true, s.walk(ctx, t.Topic, f, t.Last, func(l *letter) (bool, error) {
			key := groupKey{t.Topic, l.facts.WorkerType, l.facts.Reason, l.fingerprint}
			g := groups[key]
			if g == nil && listed >= maxGroups {
				key = groupKey{topic: t.Topic}
				g = groups[key]
			}
			if g == nil {
				g = &turnlanev1.DeadLetterGroup{Topic: key.topic, Type: strings.Clone(key.typ), Reason: strings.Clone(key.reason),
					Fingerprint: key.fingerprint, FirstAt: timestamppb.New(l.at), FirstPosition: l.pos.String()}
				key.typ, key.reason = g.Type, g.Reason
				groups[key] = g
				if key.fingerprint != "" {
					listed++
				}
			}
			if g.Fingerprint == "" {
				g.Error = tooMany
			} else if g.Error != l.facts.Error {
				g.Error = strings.Clone(l.facts.Error)
			}
			g.Count++
			g.LastAt, g.LastPosition = timestamppb.New(l.at), l.pos.String()
			return true, nil
		})
	})
	if err != nil {
		return nil, rpcerr.From(err)
	}
	resp := &turnlanev1.ListDeadLettersResponse{}
	for _, g := range groups {
		resp.Groups = append(resp.Groups, g)
	}
	slices.SortFunc(resp.Groups, func(a, b *turnlanev1.DeadLetterGroup) int {
		return slices.Compare([]string{a.Topic, a.Type, a.Reason, a.Fingerprint}, []string{b.Topic, b.Type, b.Reason, b.Fingerprint})
	})
	return resp, nil
}

// ReadDeadLetters sends them by topic, each topic oldest first.
func (s *Service) ReadDeadLetters(req *turnlanev1.ReadDeadLettersRequest, stream grpc.ServerStreamingServer[turnlanev1.ReadDeadLettersResponse]) error {
	f, err := parseFilter(req.GetFilter())
	if err != nil {
		return err
	}
	left := int(req.GetLimit())
	switch {
	case left == 0:
		left = defaultReadLimit
	case left > maxReadLimit:
		return rpcerr.Invalid("limit", "is larger than 10000", "ask for less, or subscribe to the topic to read all of it")
	}
	ctx := stream.Context()
	return rpcerr.From(s.eachTopic(ctx, f, func(t store.TopicInfo) (bool, error) {
		err := s.walk(ctx, t.Topic, f, t.Last, func(l *letter) (bool, error) {
			e, err := l.proto()
			if err != nil {
				return false, err
			}
			left--
			return left > 0, stream.Send(&turnlanev1.ReadDeadLettersResponse{
				Topic: t.Topic, Position: l.pos.String(), Fingerprint: l.fingerprint, Event: e,
			})
		})
		return left > 0, err
	}))
}

// proto is the dead letter as it is shown; bytes that are no event are the data of one.
func (l *letter) proto() (*cepb.CloudEvent, error) {
	if l.dead != nil {
		if e, err := event.ToProto(l.dead); err == nil {
			return e, nil
		}
	}
	at := l.at
	if at.IsZero() {
		at = time.Unix(0, 0)
	}
	return event.ToProto(format.WrapUndecodable(l.topic, l.pos, l.record, unreadable(l.facts.Error), at))
}

type unreadable string

func (e unreadable) Error() string { return string(e) }
