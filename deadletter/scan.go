package deadletter

import (
	"context"
	"strings"
	"time"

	"github.com/turnlane/turnlane/event"
	format "github.com/turnlane/turnlane/internal/deadletter"
	"github.com/turnlane/turnlane/store"
)

// Unreadable is the reason of what lies in a topic of dead letters and cannot be read as one.
const Unreadable = "unreadable"

// pageLimit bounds what is read at once, and so the memory of every walk.
var pageLimit = store.ReadLimit{Entries: 500, Bytes: 2 << 20}

// letter is one entry of a topic of dead letters.
type letter struct {
	topic  string
	pos    event.Position
	at     time.Time // when it was stored
	record event.Record

	dead        *event.Event // nil if the record cannot be decoded
	original    *event.Event // nil if it is no dead letter
	facts       format.Facts
	fingerprint string
}

// reader decodes letters, and knows the fingerprints of errors that come again and again.
type reader struct {
	known map[[2]string]string
}

const maxKnown = 1024

func (r *reader) read(topic string, e event.Entry) *letter {
	l := &letter{topic: topic, pos: e.Pos, record: e.Record}
	var err error
	if err = e.Record.Check(); err == nil {
		l.at = e.Record.StoredAt()
		l.dead, err = event.DecodeRecord(e.Record)
	}
	if err == nil {
		l.original, l.facts, err = format.Unwrap(l.dead)
	}
	if err != nil {
		l.facts = format.Facts{Reason: Unreadable, Error: err.Error()}
	}
	key := [2]string{l.facts.Reason, l.facts.Error}
	fingerprint, ok := r.known[key]
	if !ok {
		if r.known == nil || len(r.known) >= maxKnown {
			r.known = map[[2]string]string{}
		}
		// The texts are parts of the whole event's memory.
		key = [2]string{strings.Clone(key[0]), strings.Clone(key[1])}
		fingerprint = format.Fingerprint(key[0], key[1])
		r.known[key] = fingerprint
	}
	l.fingerprint = fingerprint
	return l
}

// walk visits the dead letters of one topic that a filter takes, up to a position and oldest first,
// until visit returns false. A letter may be kept, with the page that it is a part of.
func (s *Service) walk(ctx context.Context, topic string, f filter, until event.Position, visit func(*letter) (more bool, err error)) error {
	var r reader
	after, until := f.within(until)
	for after.Less(until) {
		page, err := s.store.Read(ctx, topic, after, pageLimit)
		if err != nil {
			return err
		}
		for _, e := range page.Entries {
			if until.Less(e.Pos) {
				return nil
			}
			l := r.read(topic, e)
			if !f.matches(l) {
				continue
			}
			if more, err := visit(l); err != nil || !more {
				return err
			}
		}
		if len(page.Entries) == 0 {
			return nil
		}
		after = page.To
	}
	return nil
}

// eachTopic calls visit for the topic of a filter, or for every topic of dead letters, with its bounds.
func (s *Service) eachTopic(ctx context.Context, f filter, visit func(store.TopicInfo) (more bool, err error)) error {
	if f.topic != "" {
		b, err := s.store.Bounds(ctx, f.topic)
		if err == nil {
			_, err = visit(store.TopicInfo{Topic: f.topic, Bounds: b})
		}
		return err
	}
	const page = 1000
	for after := ""; ; {
		topics, err := s.store.Topics(ctx, format.Prefix, after, page)
		if err != nil {
			return err
		}
		for _, t := range topics {
			if more, err := visit(t); err != nil || !more {
				return err
			}
		}
		if len(topics) < page {
			return nil
		}
		after = topics[len(topics)-1].Topic
	}
}
