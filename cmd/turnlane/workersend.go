package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/turnlane/turnlane/event"
	turnlanev1 "github.com/turnlane/turnlane/proto/turnlane/v1"
)

// sentView is a command and its reply as -o json tells them.
type sentView struct {
	ID       string     `json:"id"`
	Topic    string     `json:"topic"`
	Position string     `json:"position"`
	Reply    *replyView `json:"reply,omitempty"`
}

type replyView struct {
	ID              string `json:"id"`
	DataContentType string `json:"datacontenttype"`
	payload
	ErrorReason string `json:"error_reason"`
	Error       string `json:"error"`
}

// payload is data in JSON as CloudEvents has it: JSON as it is, text of another type as a string, and
// bytes in base64.
type payload struct {
	Data       verbatim `json:"data,omitempty"`
	DataBase64 []byte   `json:"data_base64,omitempty"`
}

func (a *app) workerSendCommand() *cobra.Command {
	var req turnlanev1.SendCommandRequest
	wait := durationFlag{max: time.Hour}
	cmd := &cobra.Command{
		Use:   "send WORKER NAME [DATA] [flags]",
		Short: "Send a command to a worker, and print the reply",
		Long: `Sends the command NAME to one worker. Commands go before events, and to a worker that is stopped they
wait until it runs, unless --fail-if-stopped is given. The position of the command is printed once it
is stored; with --wait it is the data of the reply instead.

The exit code is 1 if the command failed, and if no reply came in time; the command may still run then.
DATA is JSON, or else text, unless --datacontenttype says what it is.`,
		Example: `  turnlane worker send settler-0 recount --wait 5s
  turnlane worker send settler-0 limit '{"max":500}' --wait 5s --fail-if-stopped
  turnlane worker send settler-0 report --reply-to reports`,
		Args: arguments("WORKER", "NAME", "[DATA]"),
	}
	flags := cmd.Flags()
	flags.Var(&wait, "wait", "how long to wait for the reply, up to 1h (default not at all)")
	flags.StringVar(&req.Id, "id", "", "the command's `ID`, which the reply carries (default made up)")
	flags.BoolVar(&req.FailIfStopped, "fail-if-stopped", false, "fail at once if the worker is not started")
	flags.StringVar(&req.ReplyTo, "reply-to", "", "the `TOPIC` of the reply (default the worker's own)")
	flags.StringVar(&req.Datacontenttype, "datacontenttype", "", "the `MEDIA` type of DATA (default by what DATA is)")
	asJSON := outputFlag(flags)
	return a.verb(cmd, func(ctx context.Context, cmd *cobra.Command, args []string) error {
		if wait.Duration > 0 && req.GetReplyTo() != "" {
			return usagef("--wait and --reply-to exclude each other: whoever waits gets the reply here")
		}
		req.Worker, req.Command, req.Wait = args[0], args[1], duration(wait)
		if len(args) > 2 {
			e := event.Event{DataContentType: req.GetDatacontenttype()}
			setData(&e, args[2])
			req.Data, req.Datacontenttype = e.Data, e.DataContentType
		}
		c, err := a.dial()
		if err != nil {
			return err
		}
		defer c.Close()
		resp, err := c.Workers.SendCommand(ctx, &req)
		if err != nil {
			return c.Explain(err)
		}
		return a.printSent(resp, req.GetCommand(), asJSON())
	})
}

// printSent prints what became of a command; one that failed is an error.
func (a *app) printSent(resp *turnlanev1.SendCommandResponse, name string, asJSON bool) error {
	r := resp.GetReply()
	var failed error
	if r.GetErrorReason() != "" {
		failed = fmt.Errorf("command %s failed: %s (%s)", name, printable(strings.TrimSpace(r.GetError())), printable(r.GetErrorReason()))
	}
	var err error
	switch {
	case asJSON:
		v := sentView{ID: resp.GetId(), Topic: resp.GetTopic(), Position: resp.GetPosition()}
		if r != nil {
			v.Reply = &replyView{ID: r.GetId(), DataContentType: r.GetDatacontenttype(), payload: viewPayload(r.GetData(), r.GetDatacontenttype()),
				ErrorReason: r.GetErrorReason(), Error: r.GetError()}
		}
		err = a.printJSON(v)
	case r == nil:
		_, err = fmt.Fprintln(a.stdout, resp.GetPosition())
	case failed == nil && len(r.GetData()) > 0:
		_, err = a.stdout.Write(r.GetData())
		if err == nil && utf8.Valid(r.GetData()) && r.GetData()[len(r.GetData())-1] != '\n' {
			_, err = fmt.Fprintln(a.stdout)
		}
	}
	return errors.Join(failed, err)
}

func viewPayload(b []byte, contentType string) payload {
	switch {
	case len(b) == 0:
		return payload{}
	case event.IsJSON(contentType) && json.Valid(b) && utf8.Valid(b):
		return payload{Data: b}
	case !event.IsJSON(contentType) && utf8.Valid(b):
		var text bytes.Buffer
		if err := writeJSON(&text, string(b)); err == nil {
			return payload{Data: bytes.TrimSpace(text.Bytes())}
		}
	}
	return payload{DataBase64: b}
}
