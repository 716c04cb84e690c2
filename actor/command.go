package actor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/turnlane/turnlane/event"
)

// Commander is an optional interface of a Handler: it answers commands, which are sent to one worker by
// name. Commands is called once, when the handler is made.
//
// A command is a turn like any other, with outputs and state; commands go before the worker's events, one
// turn at a time. It has exactly one reply, which is stored with the turn's outputs:
//
//   - what the CommandFunc returns;
//   - its error, with the reason FAILED or the one of a CommandError; the command is not tried again, and
//     what the turn published or changed in the state is dropped. That holds for Permanent and Drop too;
//   - after RetryAfter, a panic, a Goexit or a passed deadline the command is tried again like an event,
//     and when its attempts are used up the last error is the reply, and the command is given up on like
//     an event;
//   - UNKNOWN_COMMAND for a name that Commands does not have, or a handler without any.
//
// A handler that sends a command to its own worker and waits for the reply waits for itself: no turn begins
// before the present one has ended, so the wait ends with the turn's deadline. Wait with the turn's context.
type Commander interface {
	Commands() Commands
}

// Commands are the commands of a handler by name, [A-Za-z0-9._-]{1,128}.
type Commands map[string]CommandFunc

// CommandFunc does one command. The command is the turn's event; its type is the name. Command makes one
// of a function with types.
type CommandFunc func(ctx context.Context, turn *Turn) (Reply, error)

// Reply is the answer to a command. The zero Reply answers without data.
type Reply struct {
	Data []byte
	// ContentType of the data. If it is "" and the data are JSON it is application/json.
	ContentType string
}

// CommandError is an error of a command with a reason of the handler's own, for programs to look at.
type CommandError struct {
	Reason string // [A-Z][A-Z0-9_]{0,63}, such as NO_SUCH_ACCOUNT
	Err    error
}

// Error returns the text of Err.
func (e *CommandError) Error() string {
	if e.Err == nil {
		return e.Reason
	}
	return e.Err.Error()
}

// Unwrap returns Err.
func (e *CommandError) Unwrap() error { return e.Err }

// InvalidCommand is the reason of a CommandError for data that cannot be read.
const InvalidCommand = "INVALID_COMMAND"

// Command makes a CommandFunc of a function with types: the command's data are read as the JSON of a Req,
// strictly, and the result is answered as JSON. A command without data gives the zero Req. Data that are
// not the JSON of a Req are answered with INVALID_COMMAND and what is wrong with them.
func Command[Req, Resp any](f func(ctx context.Context, turn *Turn, req Req) (Resp, error)) CommandFunc {
	return func(ctx context.Context, turn *Turn) (Reply, error) {
		var req Req
		if err := readJSON(turn.Event(), &req); err != nil {
			return Reply{}, &CommandError{InvalidCommand, err}
		}
		resp, err := f(ctx, turn, req)
		if err != nil {
			return Reply{}, err
		}
		data, err := json.Marshal(resp)
		if err != nil {
			return Reply{}, fmt.Errorf("the reply cannot be written as JSON: %w", err)
		}
		return Reply{Data: data, ContentType: "application/json"}, nil
	}
}

// readJSON reads an event's data, which must be one JSON value with no member that the type does not have.
func readJSON(e *event.Event, into any) error {
	if e.DataKind == event.NoData || len(e.Data) == 0 {
		return nil
	}
	d := json.NewDecoder(bytes.NewReader(e.Data))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
			err = errors.New("the JSON ends too early")
		}
		return fmt.Errorf("data of command %s: %w", e.Type, err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("data of command %s: there is more after the JSON value", e.Type)
	}
	return nil
}
