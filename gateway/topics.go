package gateway

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/internal/admission"
	"github.com/turnlane/turnlane/internal/catalog"
	"github.com/turnlane/turnlane/internal/rpcerr"
	storev1 "github.com/turnlane/turnlane/proto/turnlane/store/v1"
	turnlanev1 "github.com/turnlane/turnlane/proto/turnlane/v1"
	"github.com/turnlane/turnlane/store"
)

const (
	defaultTopicPage = 100
	maxTopicPage     = 1000
	// maxAgeSeconds is the longest age that can be set: 10,000 days.
	maxAgeSeconds = 10_000 * 24 * 3600
)

// ListTopics is part of turnlane.v1.GatewayService.
func (g *Gateway) ListTopics(ctx context.Context, req *turnlanev1.ListTopicsRequest) (*turnlanev1.ListTopicsResponse, error) {
	size := int(req.GetPageSize())
	switch {
	case size == 0:
		size = defaultTopicPage
	case size > maxTopicPage:
		return nil, rpcerr.Invalid("page_size", strconv.Itoa(size)+" is more than "+strconv.Itoa(maxTopicPage), "ask for less, and for the next page with next_page_token")
	}
	for _, f := range []struct{ field, value string }{{"page_token", req.GetPageToken()}, {"prefix", req.GetPrefix()}} {
		if f.value == "" {
			continue
		}
		if err := admission.Readable(f.value); err != nil {
			var e *event.Error
			errors.As(err, &e)
			return nil, rpcerr.Invalid(f.field, e.Rule, e.Fix)
		}
	}
	infos, err := g.cfg.Store.Topics(ctx, req.GetPrefix(), req.GetPageToken(), size)
	if err != nil {
		return nil, rpcerr.From(err)
	}
	resp := &turnlanev1.ListTopicsResponse{Topics: make([]*turnlanev1.Topic, len(infos))}
	if len(infos) == 0 {
		return resp, nil
	}
	last := infos[len(infos)-1].Topic
	settings, err := g.settingsUpTo(ctx, req.GetPrefix(), req.GetPageToken(), last)
	if err != nil {
		return nil, rpcerr.From(err)
	}
	for i, info := range infos {
		resp.Topics[i] = g.topic(info, settings[info.Topic])
	}
	if len(infos) == size {
		resp.NextPageToken = last
	}
	return resp, nil
}

// settingsUpTo returns the settings of topics with a prefix, after one name and up to another.
func (g *Gateway) settingsUpTo(ctx context.Context, prefix, after, last string) (map[string]*storev1.TopicRecord, error) {
	settings := make(map[string]*storev1.TopicRecord)
	if after != "" {
		after = catalog.TopicKey(after)
	}
	for {
		items, err := g.cfg.Store.List(ctx, catalog.TopicKey(prefix), after, listPage)
		if err != nil {
			return nil, err
		}
		for _, item := range items {
			after = item.Key
			topic := strings.TrimPrefix(item.Key, catalog.TopicPrefix)
			if topic > last {
				return settings, nil
			}
			if record, err := catalog.Decode(item, &storev1.TopicRecord{}); err == nil {
				settings[topic] = record
			}
		}
		if len(items) < listPage {
			return settings, nil
		}
	}
}

// GetTopic is part of turnlane.v1.GatewayService.
func (g *Gateway) GetTopic(ctx context.Context, req *turnlanev1.GetTopicRequest) (*turnlanev1.GetTopicResponse, error) {
	topic, err := g.getTopic(ctx, req.GetTopic())
	if err != nil {
		return nil, err
	}
	return &turnlanev1.GetTopicResponse{Topic: topic}, nil
}

func (g *Gateway) getTopic(ctx context.Context, name string) (*turnlanev1.Topic, error) {
	if err := admission.Readable(name); err != nil {
		return nil, rpcerr.From(err)
	}
	bounds, err := g.cfg.Store.Bounds(ctx, name)
	if err != nil {
		return nil, rpcerr.From(err)
	}
	var record *storev1.TopicRecord
	item, err := g.cfg.Store.Get(ctx, catalog.TopicKey(name))
	switch {
	case err == nil:
		if record, err = catalog.Decode(item, &storev1.TopicRecord{}); err != nil {
			g.cfg.Logger.Error("a topic's settings cannot be read; the defaults hold", "topic", name, "error", err)
			record = nil
		}
	case !errors.Is(err, store.ErrNotFound):
		return nil, rpcerr.From(err)
	case bounds.Incarnation == "":
		return nil, rpcerr.New(codes.NotFound, rpcerr.NotFound,
			"topic "+name+": there is none of that name; it comes into being with its first event", map[string]string{"topic": name})
	}
	return g.topic(store.TopicInfo{Topic: name, Bounds: bounds}, record), nil
}

// SetTopic is part of turnlane.v1.GatewayService.
func (g *Gateway) SetTopic(ctx context.Context, req *turnlanev1.SetTopicRequest) (*turnlanev1.SetTopicResponse, error) {
	if err := admission.Readable(req.GetTopic()); err != nil {
		return nil, rpcerr.From(err)
	}
	record := &storev1.TopicRecord{MaxBytes: req.GetRetention().GetMaxBytes()}
	if d := req.GetRetention().GetMaxAge(); d != nil {
		const field = "retention.max_age"
		switch {
		case d.CheckValid() != nil:
			return nil, rpcerr.Invalid(field, "is not a valid duration", "give seconds, such as 3600s")
		case d.GetSeconds() < 0 || d.GetNanos() < 0:
			return nil, rpcerr.Invalid(field, d.AsDuration().String()+" is negative", "give at least 1s, or leave it out for the default")
		case d.GetNanos() != 0:
			return nil, rpcerr.Invalid(field, d.AsDuration().String()+" is not a whole number of seconds", "round it to seconds, at least 1s")
		case d.GetSeconds() > maxAgeSeconds:
			return nil, rpcerr.Invalid(field, "is more than 10,000 days", "give at most 864000000s")
		}
		record.MaxAgeSeconds = uint64(d.GetSeconds())
	}
	change, err := catalog.Put(catalog.TopicKey(req.GetTopic()), record, store.Any)
	if err == nil {
		_, err = g.cfg.Store.Txn(ctx, change)
	}
	if err != nil {
		return nil, rpcerr.From(err)
	}
	topic, err := g.getTopic(ctx, req.GetTopic())
	if err != nil {
		return nil, err
	}
	return &turnlanev1.SetTopicResponse{Topic: topic}, nil
}

// topic is a topic as the services show it, with the limits that hold for it.
func (g *Gateway) topic(info store.TopicInfo, record *storev1.TopicRecord) *turnlanev1.Topic {
	l := g.retention.limitsFor(info.Topic, record)
	t := &turnlanev1.Topic{
		Topic:       info.Topic,
		Entries:     info.Entries,
		Bytes:       info.Bytes,
		Incarnation: info.Incarnation,
		Removed:     positionText(info.Removed),
		Retention:   &turnlanev1.Retention{MaxBytes: l.maxBytes, MaxAge: durationpb.New(l.maxAge.Truncate(time.Second))},
	}
	if !info.First.IsZero() { // else it is empty, and Last is gone too
		t.First, t.Last = positionText(info.First), positionText(info.Last)
	}
	return t
}

// positionText is "" for the zero position.
func positionText(p event.Position) string {
	if p.IsZero() {
		return ""
	}
	return p.String()
}
