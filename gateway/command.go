package gateway

import (
	"context"
	"fmt"
	"strings"

	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/internal/admission"
	"github.com/turnlane/turnlane/internal/command"
)

// Commands tells which workers there are to send commands to.
type Commands interface {
	// Exists reports whether there is a worker of that type and id. It may be a moment late to know of
	// one that is gone, but not of one that is new.
	Exists(ctx context.Context, typ, id string) (bool, error)
}

// admitTopic reports whether a user may write to a topic: any that is not kept for Turnlane, and the
// topic of the commands to a worker that exists.
func (g *Gateway) admitTopic(ctx context.Context, topic string) error {
	if !command.Reserved(topic) {
		return admission.Topic(topic, admission.User)
	}
	if err := admission.Readable(topic); err != nil {
		return err
	}
	typ, kind, id, ok := command.ParseTopic(topic)
	switch {
	case !ok:
		return &event.Error{Field: "topic", Rule: quote(topic) + " begins with wrk., which is kept for the topics of workers, and is none of them",
			Fix: "publish commands to wrk.<type>.command.<worker id>, and other events to a topic that does not begin with wrk."}
	case kind != command.Commands:
		return &event.Error{Field: "topic", Rule: quote(topic) + " is written by Turnlane itself",
			Fix: "publish commands to " + command.Topic(typ, id) + ", and other events to a topic that does not begin with wrk."}
	case g.cfg.Commands == nil:
		return &event.Error{Field: "topic", Rule: quote(topic) + " is for commands to a worker, and none are taken here",
			Fix: "send the command with the workmanager's SendCommand"}
	}
	exists, err := g.cfg.Commands.Exists(ctx, typ, id)
	if err != nil {
		return fmt.Errorf("look for worker %s of topic %s: %w", id, topic, err)
	}
	if !exists {
		return &event.Error{Field: "topic", Rule: quote(topic) + " is for commands to a worker of type " + typ + " with the id " + id + ", and there is none",
			Fix: "check type and id; a worker's name does not do here"}
	}
	return nil
}

// checkCommands reports whether events that a user sends to a topic make commands, if it is one of them.
func checkCommands(topic string, events []*event.Event) error {
	if !command.Reserved(topic) {
		return nil
	}
	typ, _, id, _ := command.ParseTopic(topic)
	for i, e := range events {
		if e == nil {
			continue // told by what comes next
		}
		if _, err := command.Parse(e, typ, id); err != nil {
			if len(events) > 1 {
				err = atIndex(i, err)
			}
			return err
		}
	}
	return nil
}

func quote(s string) string {
	const most = 64
	if len(s) > most {
		s = s[:most] + "…"
	}
	return `"` + strings.ToValidUTF8(s, "") + `"`
}
