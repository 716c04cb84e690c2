package gateway

import (
	"errors"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"

	cloudevents "github.com/cloudevents/sdk-go/binding/format/protobuf/v2/pb"
	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/internal/admission"
	"github.com/turnlane/turnlane/internal/tracing"
)

// Attributes of the envelope that a body without one gets.
const (
	RawSource = "/turnlane/http"
	RawType   = "turnlane.http"
)

const (
	protoMediaType      = "application/cloudevents+protobuf"
	protoBatchMediaType = "application/cloudevents-batch+protobuf"
)

// httpPublish publishes what a POST carries, as the CloudEvents HTTP protocol binding says:
//
//   - binary mode, with the attributes in ce- headers;
//   - structured mode, application/cloudevents+json or +protobuf;
//   - batched mode, application/cloudevents-batch+json or +protobuf, stored all or nothing.
//
// A message without an envelope, which is one with no ce- header at all and another content type, gets
// one: a UUIDv7 as id, RawSource, RawType, and the Content-Type as datacontenttype. Nothing else is
// added, and the data is the body's bytes as they are.
//
// The answer is 202 with id, topic and position; for a batch, with topic and an id and position for
// each of events. An empty batch is no mistake: nothing is stored, and the list is empty.
func (g *Gateway) httpPublish(w http.ResponseWriter, r *http.Request) {
	topic := r.PathValue("topic")
	if err := g.admitTopic(r.Context(), topic); err != nil { // before the body is read
		g.refuseHTTP(w, err)
		return
	}
	events, batch, err := g.readEvents(w, r)
	if err != nil {
		g.refuseHTTP(w, err)
		return
	}
	ctx := r.Context()
	if g.tracer != nil {
		ctx = tracing.FromHeader(ctx, r.Header)
	}
	var positions []event.Position
	if len(events) > 0 {
		if positions, err = g.publish(ctx, topic, events); err != nil {
			failPublish(w, err)
			return
		}
	}
	type stored struct {
		ID       string         `json:"id"`
		Topic    string         `json:"topic,omitempty"`
		Position event.Position `json:"position"`
	}
	if !batch {
		writeJSON(w, http.StatusAccepted, stored{events[0].ID, topic, positions[0]})
		return
	}
	out := struct {
		Topic  string   `json:"topic"`
		Events []stored `json:"events"`
	}{topic, make([]stored, len(events))}
	for i, e := range events {
		out.Events[i] = stored{ID: e.ID, Position: positions[i]}
	}
	writeJSON(w, http.StatusAccepted, out)
}

func (g *Gateway) refuseHTTP(w http.ResponseWriter, err error) {
	g.instruments.refuse(err)
	failPublish(w, err)
}

// statusError is an error with an HTTP status of its own.
type statusError struct {
	status int
	reason string
	err    *event.Error
}

func (e *statusError) Error() string { return e.err.Error() }
func (e *statusError) Unwrap() error { return e.err }

func failPublish(w http.ResponseWriter, err error) {
	var own *statusError
	var size *admission.SizeError
	switch {
	case errors.As(err, &size):
		own = &statusError{http.StatusRequestEntityTooLarge, "TOO_LARGE", size.Err}
	case !errors.As(err, &own):
		fail(w, err)
		return
	}
	writeError(w, own.status, httpError{Code: codeName(codes.InvalidArgument), Reason: own.reason,
		Message: own.err.Field + ": " + own.err.Rule + "; " + own.err.Fix, Field: own.err.Field, Rule: own.err.Rule, Fix: own.err.Fix})
}

// readEvents decodes a request. It reads no more of the body than the limit of its mode.
func (g *Gateway) readEvents(w http.ResponseWriter, r *http.Request) (events []*event.Event, batch bool, err error) {
	mediaType, err := checkHeaders(r.Header)
	if err != nil {
		return nil, false, err
	}
	// JSON may take six bytes for one of data, base64 and protobuf much less.
	limit := 6*g.cfg.MaxEventBytes + 64<<10
	mode := event.HTTPMode(r.Header)
	switch mode {
	case event.BinaryMode, event.RawMode:
		limit = g.cfg.MaxEventBytes
	case event.BatchMode:
		batch, limit = true, 2*g.cfg.MaxBatchBytes
	case event.UnsupportedMode:
		switch mediaType {
		case protoMediaType:
		case protoBatchMediaType:
			batch, limit = true, 2*g.cfg.MaxBatchBytes
		default:
			return nil, false, unsupported("Content-Type", "is "+strconv.Quote(mediaType)+", a CloudEvents format that is not spoken here",
				"use application/cloudevents+json, application/cloudevents-batch+json, or ce- headers")
		}
	}
	body, err := readBody(w, r, limit)
	if err != nil {
		return nil, batch, err
	}
	switch mode {
	case event.StructuredMode:
		e, err := event.ParseJSON(body)
		return []*event.Event{e}, false, err
	case event.BatchMode:
		events, err := event.ParseJSONBatch(body)
		return events, true, batchError(err)
	case event.UnsupportedMode:
		events, err := parseProto(body, batch)
		return events, batch, err
	case event.RawMode:
		if !hasEnvelope(r.Header) {
			e, err := wrap(r.Header, body)
			return []*event.Event{e}, false, err
		}
	}
	e, err := event.FromHTTP(r.Header, body)
	return []*event.Event{e}, false, err
}

// checkHeaders refuses what would be read wrongly, and returns the media type in lower case.
func checkHeaders(h http.Header) (mediaType string, err error) {
	if encoding := h.Get("Content-Encoding"); encoding != "" && !strings.EqualFold(encoding, "identity") {
		return "", unsupported("Content-Encoding", "is "+strconv.Quote(encoding), "send the body as it is, without compression")
	}
	values := h.Values("Content-Type")
	if len(values) > 1 {
		return "", &event.Error{Field: "Content-Type", Rule: "is given more than once", Fix: "give it once"}
	}
	if len(values) == 0 {
		return "", nil
	}
	mediaType, parameters, err := mime.ParseMediaType(values[0])
	if err != nil || !strings.HasPrefix(mediaType, "application/cloudevents") {
		return mediaType, nil //nolint:nilerr // the decoder judges what becomes the datacontenttype
	}
	if charset := parameters["charset"]; charset != "" && !strings.EqualFold(charset, "utf-8") && !strings.EqualFold(charset, "us-ascii") {
		return "", unsupported("Content-Type", "has charset "+strconv.Quote(charset), "send UTF-8")
	}
	return mediaType, nil
}

func unsupported(field, rule, fix string) error {
	return &statusError{http.StatusUnsupportedMediaType, "UNSUPPORTED_MEDIA_TYPE", &event.Error{Field: field, Rule: rule, Fix: fix}}
}

func readBody(w http.ResponseWriter, r *http.Request, limit int) ([]byte, error) {
	tooLarge := &statusError{http.StatusRequestEntityTooLarge, "TOO_LARGE", &event.Error{Field: "body",
		Rule: "has more than the " + strconv.Itoa(limit) + " bytes that are allowed here",
		Fix:  "make the data smaller, or split the batch"}}
	if r.ContentLength > int64(limit) {
		return nil, tooLarge
	}
	reader := http.MaxBytesReader(w, r.Body, int64(limit))
	var body []byte
	var err error
	if n := r.ContentLength; n > 0 {
		body = make([]byte, n)
		_, err = io.ReadFull(reader, body)
	} else {
		body, err = io.ReadAll(reader)
	}
	var over *http.MaxBytesError
	switch {
	case errors.As(err, &over):
		return nil, tooLarge
	case err != nil:
		return nil, &event.Error{Field: "body", Rule: "cannot be read to its end", Fix: "send all of it"}
	}
	return body, nil
}

func hasEnvelope(h http.Header) bool {
	for name := range h {
		if len(name) >= 3 && strings.EqualFold(name[:3], "ce-") {
			return true
		}
	}
	return false
}

// wrap gives a body an envelope: it becomes what the same message with ce- headers would be.
func wrap(h http.Header, body []byte) (*event.Event, error) {
	id, err := uuid.NewV7()
	if err != nil {
		return nil, err
	}
	headers := http.Header{
		"Ce-Specversion": {event.SpecVersion}, "Ce-Id": {id.String()}, "Ce-Source": {RawSource}, "Ce-Type": {RawType},
	}
	if t := h.Values("Content-Type"); len(t) > 0 {
		headers["Content-Type"] = t
	}
	return event.FromHTTP(headers, body)
}

func parseProto(body []byte, batch bool) ([]*event.Event, error) {
	broken := &event.Error{Field: "body", Rule: "is not the protobuf message that the Content-Type says", Fix: "send an io.cloudevents.v1 message"}
	if batch {
		messages, ok := splitBatch(body)
		if !ok {
			return nil, broken
		}
		return fromProto(messages)
	}
	var m cloudevents.CloudEvent
	if proto.Unmarshal(body, &m) != nil {
		return nil, broken
	}
	return fromProto([]*cloudevents.CloudEvent{&m})
}

// splitBatch reads an io.cloudevents.v1.CloudEventBatch, whose events are field 1.
func splitBatch(body []byte) (events []*cloudevents.CloudEvent, ok bool) {
	for len(body) > 0 {
		field, kind, n := protowire.ConsumeTag(body)
		if n < 0 {
			return nil, false
		}
		body = body[n:]
		if field == 1 && kind == protowire.BytesType {
			message, n := protowire.ConsumeBytes(body)
			e := new(cloudevents.CloudEvent)
			if n < 0 || proto.Unmarshal(message, e) != nil {
				return nil, false
			}
			events, body = append(events, e), body[n:]
			continue
		}
		if n = protowire.ConsumeFieldValue(field, kind, body); n < 0 {
			return nil, false
		}
		body = body[n:]
	}
	return events, true
}

// batchError puts the index of a bad event, with which the decoder's error begins, into the field.
func batchError(err error) error {
	var e *event.Error
	if !errors.As(err, &e) {
		return err
	}
	prefix, _, _ := strings.Cut(err.Error(), ": ")
	if number, ok := strings.CutPrefix(prefix, "events["); ok {
		if i, convErr := strconv.Atoi(strings.TrimSuffix(number, "]")); convErr == nil {
			return atIndex(i, e)
		}
	}
	return err
}
