package workmanager

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"

	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/internal/command"
	"github.com/turnlane/turnlane/internal/rpcerr"
	turnlanev1 "github.com/turnlane/turnlane/proto/turnlane/v1"
	"github.com/turnlane/turnlane/store"
)

const (
	maxWait      = time.Hour
	maxCommandID = 256 // bytes
)

// Follower reads topics as they grow.
type Follower interface {
	// Follow calls each with the events of a topic in their order, from those on that are stored after it
	// returned, until each returns false or closing is called, which must be done. each must not block.
	Follow(ctx context.Context, topic string, each func(event.Entry) bool) (closing func(), err error)
}

// SendCommand stores a command on the topic of its worker, and waits for the reply if it is asked to.
// The reader of the replies is there before the command is, so that no reply is missed.
func (m *Manager) SendCommand(ctx context.Context, req *turnlanev1.SendCommandRequest) (*turnlanev1.SendCommandResponse, error) {
	if err := checkCommand(req); err != nil {
		return nil, err
	}
	w, err := m.find(ctx, req.GetWorker())
	if err != nil {
		return nil, err
	}
	wait := req.GetWait().AsDuration()
	switch {
	case m.cfg.Publisher == nil:
		return nil, rpcerr.New(codes.FailedPrecondition, rpcerr.NoCommands, "this process publishes nothing, so that it takes no commands; ask another one", nil)
	case wait > 0 && m.cfg.Follower == nil:
		return nil, rpcerr.New(codes.FailedPrecondition, rpcerr.NoCommands, "this process reads no replies; send the command without wait, and read them on "+
			command.ReplyTopic(w.GetType(), w.GetId()), nil)
	}
	if req.GetFailIfStopped() {
		if err := m.checkTakesCommands(ctx, w); err != nil {
			return nil, err
		}
	}
	now := time.Now()
	c := command.Command{ID: req.GetId(), Name: req.GetCommand(), ContentType: req.GetDatacontenttype(), ReplyTo: req.GetReplyTo()}
	if c.ID == "" {
		c.ID = uuid.Must(uuid.NewV7()).String()
	}
	c.Correlation = c.ID
	if len(req.GetData()) > 0 {
		c.Data = req.GetData()
	}
	if c.ContentType == "" && c.Data != nil {
		c.ContentType = "application/json"
	}
	if c.ReplyTo == "" {
		c.ReplyTo = command.ReplyTopic(w.GetType(), w.GetId())
	}
	resp := &turnlanev1.SendCommandResponse{Id: c.ID, Topic: command.Topic(w.GetType(), w.GetId())}
	if wait == 0 {
		resp.Position, err = m.publishCommand(ctx, resp.GetTopic(), command.Request(c, now))
		return resp, err
	}
	c.Deadline = now.Add(wait)
	answered, correlation := make(chan command.Answer, 1), []byte(c.Correlation)
	sending, cancel := context.WithDeadline(ctx, c.Deadline)
	defer cancel()
	closing, err := m.cfg.Follower.Follow(sending, c.ReplyTo, func(entry event.Entry) bool {
		if !bytes.Contains(entry.Record, correlation) {
			return true // without decoding it: many may wait for replies of one worker
		}
		e, err := event.DecodeRecord(entry.Record)
		if err != nil {
			return true
		}
		a, ok := command.ParseReply(e)
		if !ok || a.Correlation != c.Correlation {
			return true
		}
		select {
		case answered <- a:
		default:
		}
		return false
	})
	if err != nil {
		return nil, rpcerr.From(fmt.Errorf("read the replies on %s: %w", c.ReplyTo, err))
	}
	defer closing()
	if resp.Position, err = m.publishCommand(sending, resp.GetTopic(), command.Request(c, now)); err != nil {
		return nil, err
	}
	timer := time.NewTimer(time.Until(c.Deadline))
	defer timer.Stop()
	select {
	case a := <-answered:
		resp.Reply = &turnlanev1.CommandReply{Id: a.ID, Data: a.Data, Datacontenttype: a.ContentType, ErrorReason: a.Reason, Error: a.Error}
		if a.Reason != "" {
			resp.Reply.Data = nil
		}
		return resp, nil
	case <-timer.C:
		return nil, m.unanswered(ctx, w, req, resp, c.ReplyTo)
	case <-m.ending:
		return nil, rpcerr.New(codes.Unavailable, rpcerr.ShuttingDown,
			"this process stops and waits for no reply any more; "+whereIs(resp, c.ReplyTo), whereFacts(resp, c.ReplyTo))
	case <-ctx.Done():
		return nil, rpcerr.From(context.Cause(ctx))
	}
}

// EndWaiting makes calls that wait for the reply to a command return, now and from now on. It is for
// the end of the process, so that they do not hold it up for as long as they would wait.
func (m *Manager) EndWaiting() { m.endOnce.Do(func() { close(m.ending) }) }

func (m *Manager) publishCommand(ctx context.Context, topic string, e *event.Event) (string, error) {
	positions, err := m.cfg.Publisher.Publish(ctx, topic, e)
	switch {
	case errors.Is(err, store.ErrOutcomeUnknown):
		return "", rpcerr.New(codes.Unknown, rpcerr.OutcomeUnknown,
			fmt.Sprintf("the command may or may not be stored on %s, so that it may run: %v; look for a reply with correlationid %s before sending it again", topic, err, e.ID),
			map[string]string{"id": e.ID, "topic": topic})
	case err != nil:
		return "", rpcerr.From(err)
	case len(positions) != 1:
		return "", rpcerr.From(fmt.Errorf("the store gave %d positions for one command", len(positions)))
	}
	return positions[0].String(), nil
}

func checkCommand(req *turnlanev1.SendCommandRequest) error {
	var p problems
	add := func(err error, field string) {
		if err == nil {
			return
		}
		if e, ok := errors.AsType[*event.Error](err); ok {
			p.add(field, e.Rule, e.Fix)
			return
		}
		p.add(field, err.Error(), "")
	}
	add(command.CheckName(req.GetCommand()), "command")
	if n := len(req.GetId()); n > maxCommandID {
		p.add("id", fmt.Sprintf("has %d bytes; at most %d are allowed", n, maxCommandID), "shorten it, or leave it out to get one")
	}
	probe := event.Event{ID: "1", Source: command.Source, Type: "t", DataContentType: req.GetDatacontenttype()}
	if id := req.GetId(); id != "" {
		probe.ID = id
	}
	if err := probe.Validate(); err != nil {
		if e, ok := errors.AsType[*event.Error](err); ok {
			add(err, e.Field)
		}
	}
	if len(req.GetData()) > 0 && event.IsJSON(req.GetDatacontenttype()) && !json.Valid(req.GetData()) {
		p.add("data", "is not JSON, which datacontenttype says that it is", "send JSON, or set datacontenttype, for example to text/plain or application/octet-stream")
	}
	if in := req.GetWait(); in != nil {
		if d := in.AsDuration(); in.CheckValid() != nil || d < 0 || d > maxWait {
			p.add("wait", fmt.Sprintf("%s is out of range", d), fmt.Sprintf("set up to %s, or leave it out to wait for nothing", maxWait))
		} else if d > 0 && req.GetReplyTo() != "" {
			p.add("reply_to", "is set, and so is wait: the call waits on the worker's own topic of replies", "leave one of them out")
		}
	}
	if topic := req.GetReplyTo(); topic != "" {
		add(command.CheckReplyTo(topic), "reply_to")
	}
	return p.err()
}

// checkTakesCommands is an error if a command would wait for somebody to start the worker.
func (m *Manager) checkTakesCommands(ctx context.Context, w record) error {
	state, reason := stopped, ""
	if w.wanted() {
		seen, err := m.observeOne(ctx, w)
		if err != nil {
			return err
		}
		if seen.state != failed {
			return nil
		}
		state, reason = failed, ": "+seen.reason
	}
	return rpcerr.New(codes.FailedPrecondition, rpcerr.WorkerStopped,
		fmt.Sprintf("worker %s is %s%s, and the command was not to wait for it; nothing was sent: start the worker, or let the command wait", w.GetId(), stateName(state), reason),
		map[string]string{"worker": w.GetId(), "state": stateName(state)})
}

// unanswered says why there may be no reply yet.
func (m *Manager) unanswered(ctx context.Context, w record, req *turnlanev1.SendCommandRequest, resp *turnlanev1.SendCommandResponse, replies string) error {
	why := ""
	facts := whereFacts(resp, replies)
	facts["worker"] = w.GetId()
	if now, err := m.existing(ctx, w.GetId()); err == nil {
		if seen, err := m.observeOne(ctx, now); err == nil {
			facts["state"] = stateName(seen.state)
			if seen.state != running {
				why = ", which is " + stateName(seen.state)
				if seen.reason != "" {
					why += " (" + seen.reason + ")"
				}
			}
		}
	} else if rpcerr.Reason(err) == rpcerr.NotFound {
		why = ", which was deleted meanwhile"
	}
	return rpcerr.New(codes.DeadlineExceeded, rpcerr.NoReply,
		fmt.Sprintf("no reply to command %s came within %s from worker %s%s; %s",
			req.GetCommand(), req.GetWait().AsDuration(), w.GetId(), why, whereIs(resp, replies)), facts)
}

func whereIs(resp *turnlanev1.SendCommandResponse, replies string) string {
	return fmt.Sprintf("the command is stored at %s of %s and may still run: look for the reply with correlationid %s on %s",
		resp.GetPosition(), resp.GetTopic(), resp.GetId(), replies)
}

func whereFacts(resp *turnlanev1.SendCommandResponse, replies string) map[string]string {
	return map[string]string{"id": resp.GetId(), "topic": resp.GetTopic(), "position": resp.GetPosition(), "reply_topic": replies}
}
