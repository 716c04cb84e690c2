package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	turnlanev1 "github.com/turnlane/turnlane/proto/turnlane/v1"
)

// fateView is what became of an event at one worker, as -o json tells it.
type fateView struct {
	Topic              string `json:"topic"`
	Position           string `json:"position"`
	Held               bool   `json:"held"` // the topic still has the event
	WorkerID           string `json:"worker_id"`
	WorkerName         string `json:"worker_name"`
	Fate               string `json:"fate"`
	Attempt            uint32 `json:"attempt"`
	RetryAt            string `json:"retry_at"`
	Error              string `json:"error"`
	HeldUp             string `json:"held_up"`
	DeadLetterTopic    string `json:"dead_letter_topic"`
	DeadLetterPosition string `json:"dead_letter_position"`
}

func (a *app) eventCommand() *cobra.Command {
	var req turnlanev1.GetEventStatusRequest
	cmd := &cobra.Command{
		Use:   "event TOPIC POSITION [flags]",
		Short: "Tell what became of an event",
		Long: `Tells for each worker that reads TOPIC what became of the event at POSITION there:
  WAITING    it will come; what holds the worker up is told
  IN_TURN    the handler has it
  RETRYING   an attempt failed, and another one will come
  DONE       the worker is past it
  DEAD       it was given up, and is a dead letter
  FILTERED   it belongs to another slot of the group
  SKIPPED    it came before the worker began, and never will
  PASSED     it lies before the place where the worker began anew, by a seek or since it replays nothing:
             it was handled before that, or passed over`,
		Example: `  turnlane event trades 1700000000000-0
  turnlane event trades 1700000000000-0 --worker settler-0 -o json | jq -r .fate`,
		Args: arguments("TOPIC", "POSITION"),
	}
	cmd.Flags().StringVar(&req.Worker, "worker", "", "only at this `WORKER`, an id or a name")
	asJSON := outputFlag(cmd.Flags())
	return a.verb(cmd, func(ctx context.Context, _ *cobra.Command, args []string) error {
		c, err := a.dial()
		if err != nil {
			return err
		}
		defer c.Close()
		req.Topic, req.Position, req.PageSize = args[0], args[1], 1000
		t := a.newTable("WORKER", "NAME", "FATE", "ATTEMPT", "RETRY AT", "DEAD LETTER", "ERROR", "HELD UP")
		var held, incomplete bool
		workers := 0
		for {
			resp, err := c.Workers.GetEventStatus(ctx, &req)
			if err != nil {
				return t.end(c.Explain(err))
			}
			held, incomplete = resp.GetHeld(), incomplete || resp.GetIncomplete()
			for _, w := range resp.GetWorkers() {
				workers++
				v := viewFate(&req, held, w)
				if asJSON() {
					if err := a.printJSON(v); err != nil {
						return err
					}
					continue
				}
				t.row(v.WorkerID, v.WorkerName, v.Fate, v.attempt(), v.RetryAt, v.deadLetter(), v.Error, v.HeldUp)
			}
			if req.PageToken = resp.GetNextPageToken(); req.PageToken == "" {
				break
			}
		}
		if incomplete {
			a.warn("not all dead letters could be looked through: what is DONE may be DEAD")
		}
		if !held {
			a.warn("the topic does not hold the event any more")
		}
		switch {
		case workers == 0:
			a.warn(fmt.Sprintf("no worker reads topic %s", req.GetTopic()))
			return nil
		case asJSON():
			return nil
		}
		return t.end(nil)
	})
}

func viewFate(req *turnlanev1.GetEventStatusRequest, held bool, w *turnlanev1.EventAtWorker) fateView {
	return fateView{
		Topic: req.GetTopic(), Position: req.GetPosition(), Held: held,
		WorkerID: w.GetWorkerId(), WorkerName: w.GetWorkerName(),
		Fate:    strings.TrimPrefix(w.GetFate().String(), "EVENT_FATE_"),
		Attempt: w.GetAttempt(), RetryAt: timeText(w.GetRetryAt()), Error: w.GetError(), HeldUp: w.GetHeldUp(),
		DeadLetterTopic: w.GetDeadLetterTopic(), DeadLetterPosition: w.GetDeadLetterPosition(),
	}
}

func (v fateView) attempt() string {
	if v.Attempt == 0 {
		return ""
	}
	return strconv.FormatUint(uint64(v.Attempt), 10)
}

func (v fateView) deadLetter() string {
	if v.DeadLetterTopic == "" {
		return ""
	}
	return v.DeadLetterTopic + " " + v.DeadLetterPosition
}
