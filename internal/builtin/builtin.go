// Package builtin is the worker types that every runtime has: echo and marker, which forward what they
// get, and probe, which does what an event tells it to. They serve demonstrations, checks and bug
// reports.
package builtin

import (
	"encoding/json"
	"fmt"

	"github.com/turnlane/turnlane/actor"
	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/internal/admission"
)

// Names of the built-in worker types.
const (
	Echo   = "echo"
	Marker = "marker"
	Probe  = "probe"
)

// Types returns the built-in worker types by name. Probes report through pub.
func Types(pub actor.Publisher) map[string]actor.Factory {
	return map[string]actor.Factory{
		Echo:   newEcho,
		Marker: newMarker,
		Probe:  func(w *actor.Worker) (actor.Handler, error) { return newProbe(w, pub) },
	}
}

// outConfig is the key of the config that names the topic to publish to.
const outConfig = "out"

// outTopic returns the topic that a worker is to publish to. Without a fallback the config must name it.
func outTopic(w *actor.Worker, fallback string) (string, error) {
	out := w.Config[outConfig]
	if out == "" {
		out = fallback
	}
	if out == "" {
		return "", fmt.Errorf("config %q is missing or empty: a worker of type %s needs the topic to publish to; create it with --config %s=TOPIC",
			outConfig, w.Type, outConfig)
	}
	if err := admission.Topic(out, admission.User); err != nil {
		return "", fmt.Errorf("config %q: %w", outConfig, err)
	}
	return out, nil
}

func jsonEvent(kind, subject string, data any) *event.Event {
	text, err := json.Marshal(data)
	if err != nil {
		panic("builtin: " + err.Error()) // only strings, numbers and booleans are given
	}
	return &event.Event{
		Type:            kind,
		Subject:         subject,
		DataContentType: "application/json",
		Data:            text,
		DataKind:        event.JSONData,
	}
}
