package main

import (
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/turnlane/turnlane/internal/client"
	turnlanev1 "github.com/turnlane/turnlane/proto/turnlane/v1"
)

// workerView is a worker as -o json tells it: flat, every member always there but topic_status.
type workerView struct {
	ID          string            `json:"id"`
	Name        string            `json:"name"`
	Type        string            `json:"type"`
	Topics      []string          `json:"topics"`
	Group       string            `json:"group"`
	GroupSize   uint32            `json:"group_size"`
	GroupIndex  uint32            `json:"group_index"`
	Config      map[string]string `json:"config"`
	Tags        map[string]string `json:"tags"`
	Desired     string            `json:"desired"`
	State       string            `json:"state"`
	Reason      string            `json:"reason"`
	Pod         string            `json:"pod"`
	Token       uint64            `json:"token"`
	Run         uint64            `json:"run"`
	Revision    uint64            `json:"revision"`
	Paused      bool              `json:"paused"`
	PauseReason string            `json:"pause_reason"`
	Progress    string            `json:"progress"`
	CreatedAt   string            `json:"created_at"`
	UpdatedAt   string            `json:"updated_at"`
	Replay      string            `json:"replay"`
	Policy      policyView        `json:"policy"`
	TopicStatus []topicStatusView `json:"topic_status,omitempty"`
}

// policyView has durations as the flags of worker create take them.
type policyView struct {
	HandlerTimeout  string `json:"handler_timeout"`
	HandlerGrace    string `json:"handler_grace"`
	MaxAttempts     uint32 `json:"max_attempts"`
	MaxCrashes      uint32 `json:"max_crashes"`
	Backoff         string `json:"backoff"`
	MaxBackoff      string `json:"max_backoff"`
	OnExhausted     string `json:"on_exhausted"`
	DeadLetterTopic string `json:"dead_letter_topic"`
}

type topicStatusView struct {
	Topic      string `json:"topic"`
	Cursor     string `json:"cursor"`
	Head       string `json:"head"`
	LagEntries uint64 `json:"lag_entries"`
	LagTime    string `json:"lag_time"`
	LaneEvents uint32 `json:"lane_events"`
	LaneBytes  uint64 `json:"lane_bytes"`
	Feed       string `json:"feed"`
	Examined   uint64 `json:"examined"`
	Owned      uint64 `json:"owned"`
	Filtered   uint64 `json:"filtered"`
	Gaps       uint64 `json:"gaps"`
	InTurn     string `json:"in_turn"`
	Attempt    uint32 `json:"attempt"`
	RetryAt    string `json:"retry_at"`
}

func viewWorker(w *turnlanev1.Worker) workerView {
	v := workerView{
		ID: w.GetId(), Name: w.GetName(), Type: w.GetType(), Topics: w.GetTopics(),
		Group: w.GetGroup(), GroupSize: w.GetGroupSize(), GroupIndex: w.GetGroupIndex(),
		Config: w.GetConfig(), Tags: w.GetTags(),
		Desired: desiredName(w.GetDesired()), State: stateName(w.GetState()), Reason: w.GetReason(),
		Paused: w.GetPaused(), PauseReason: w.GetPauseReason(), Progress: w.GetProgress(), Revision: w.GetRevision(),
		Pod: w.GetPod(), Token: w.GetToken(), Run: w.GetRun(),
		CreatedAt: timeText(w.GetCreatedAt()), UpdatedAt: timeText(w.GetUpdatedAt()),
		Replay: replayName(w.GetReplay()),
		Policy: policyView{
			HandlerTimeout:  durationText(w.GetPolicy().GetHandlerTimeout()),
			HandlerGrace:    durationText(w.GetPolicy().GetHandlerGrace()),
			MaxAttempts:     w.GetPolicy().GetMaxAttempts(),
			MaxCrashes:      w.GetPolicy().GetMaxCrashes(),
			Backoff:         durationText(w.GetPolicy().GetBackoff()),
			MaxBackoff:      durationText(w.GetPolicy().GetMaxBackoff()),
			OnExhausted:     exhaustedName(w.GetPolicy().GetOnExhausted()),
			DeadLetterTopic: w.GetPolicy().GetDeadLetterTopic(),
		},
	}
	if v.Topics == nil {
		v.Topics = []string{}
	}
	if v.Config == nil {
		v.Config = map[string]string{}
	}
	if v.Tags == nil {
		v.Tags = map[string]string{}
	}
	for _, t := range w.GetTopicStatus() {
		v.TopicStatus = append(v.TopicStatus, topicStatusView{
			Topic: t.GetTopic(), Cursor: t.GetCursor(), Head: t.GetHead(),
			LagEntries: t.GetLagEntries(), LagTime: durationText(t.GetLagTime()),
			LaneEvents: t.GetLaneEvents(), LaneBytes: t.GetLaneBytes(), Feed: feedName(t.GetFeed()),
			Examined: t.GetExamined(), Owned: t.GetOwned(), Filtered: t.GetFiltered(), Gaps: t.GetGaps(),
			InTurn: t.GetInTurn(), Attempt: t.GetAttempt(), RetryAt: timeText(t.GetRetryAt()),
		})
	}
	return v
}

// slot is "group/index of size", empty for a dedicated worker.
func (v workerView) slot() string {
	if v.Group == "" {
		return ""
	}
	return fmt.Sprintf("%s/%d of %d", v.Group, v.GroupIndex, v.GroupSize)
}

// why is the reason of the state, and that of a pause.
func (v workerView) why() string {
	if !v.Paused {
		return v.Reason
	}
	text := "paused"
	if v.PauseReason != "" {
		text += ": " + v.PauseReason
	}
	if v.Reason != "" {
		text = v.Reason + "; " + text
	}
	return text
}

// exhausted is what becomes of an event that is given up.
func (v policyView) exhausted() string {
	if v.DeadLetterTopic != "" {
		return v.OnExhausted + " to " + v.DeadLetterTopic
	}
	return v.OnExhausted
}

// inTurn is the event in hand, and how it fares.
func (v topicStatusView) inTurn() string {
	switch {
	case v.InTurn == "":
		return ""
	case v.RetryAt != "":
		return fmt.Sprintf("%s (failed %d times, again at %s)", v.InTurn, v.Attempt, v.RetryAt)
	case v.Attempt > 1:
		return fmt.Sprintf("%s (attempt %d)", v.InTurn, v.Attempt)
	}
	return v.InTurn
}

func stateName(s turnlanev1.WorkerState) string {
	return strings.TrimPrefix(s.String(), "WORKER_STATE_")
}

func desiredName(s turnlanev1.DesiredState) string {
	return strings.TrimPrefix(s.String(), "DESIRED_STATE_")
}

func feedName(s turnlanev1.FeedState) string {
	if s == turnlanev1.FeedState_FEED_STATE_UNSPECIFIED {
		return ""
	}
	return strings.TrimPrefix(s.String(), "FEED_STATE_")
}

// replayName is the value of --replay.
func replayName(r *turnlanev1.Replay) string {
	switch r.GetMode() {
	case turnlanev1.ReplayMode_REPLAY_MODE_CURSOR:
		return "cursor"
	case turnlanev1.ReplayMode_REPLAY_MODE_OFF:
		return "off"
	case turnlanev1.ReplayMode_REPLAY_MODE_FIRST:
		return client.FormatStart(r.GetFirst())
	}
	return ""
}

func timeText(t *timestamppb.Timestamp) string {
	if t == nil {
		return ""
	}
	return t.AsTime().Format(time.RFC3339Nano)
}

func durationText(d *durationpb.Duration) string {
	if d == nil {
		return ""
	}
	return shortDuration(d.AsDuration())
}
