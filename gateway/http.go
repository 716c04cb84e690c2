package gateway

import (
	"encoding/json"
	"net/http"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/turnlane/turnlane/internal/rpcerr"
	turnlanev1 "github.com/turnlane/turnlane/proto/turnlane/v1"
)

// HTTP serves
//
//	POST /v1/topics/{topic}/events   publish, see the file httppublish.go
//	GET  /v1/topics                  ?prefix= &page_size= &page_token=
//	GET  /v1/topics/{topic}
//
// Answers and errors are JSON; an error is
//
//	{"error": {"code": "INVALID_ARGUMENT", "reason": "INVALID_FIELD", "message": …, "field": …, "rule": …, "fix": …}}
//
// where code and reason are those of the gRPC services.
func (g *Gateway) HTTP() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/v1/topics", g.only(http.MethodGet, g.httpListTopics))
	mux.HandleFunc("/v1/topics/{topic}", g.only(http.MethodGet, g.httpGetTopic))
	mux.HandleFunc("/v1/topics/{topic}/events", g.only(http.MethodPost, g.httpPublish))
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		writeError(w, http.StatusNotFound, httpError{Code: codeName(codes.NotFound), Reason: rpcerr.NotFound,
			Message: "there is nothing at this path; publish with POST /v1/topics/{topic}/events, list with GET /v1/topics"})
	})
	return mux
}

// only lets one method through, and HEAD where there is GET.
func (g *Gateway) only(method string, h http.HandlerFunc) http.HandlerFunc {
	allow := method
	if method == http.MethodGet {
		allow += ", HEAD"
	}
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Method == method || r.Method == http.MethodHead && method == http.MethodGet {
			h(w, r)
			return
		}
		w.Header().Set("Allow", allow)
		writeError(w, http.StatusMethodNotAllowed, httpError{Code: codeName(codes.Unimplemented), Reason: "METHOD_NOT_ALLOWED",
			Message: "this path takes " + allow, Field: "method", Rule: "must be " + allow, Fix: "use " + method})
	}
}

func (g *Gateway) httpListTopics(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	req := &turnlanev1.ListTopicsRequest{PageToken: q.Get("page_token"), Prefix: q.Get("prefix")}
	if s := q.Get("page_size"); s != "" {
		if err := json.Unmarshal([]byte(s), &req.PageSize); err != nil {
			fail(w, rpcerr.Invalid("page_size", "is not a number from 1 to 1000", "give such a number, or leave it out for 100"))
			return
		}
	}
	resp, err := g.ListTopics(r.Context(), req)
	if err != nil {
		fail(w, err)
		return
	}
	out := struct {
		Topics        []topicJSON `json:"topics"`
		NextPageToken string      `json:"next_page_token,omitempty"`
	}{make([]topicJSON, len(resp.GetTopics())), resp.GetNextPageToken()}
	for i, t := range resp.GetTopics() {
		out.Topics[i] = newTopicJSON(t)
	}
	writeJSON(w, http.StatusOK, out)
}

func (g *Gateway) httpGetTopic(w http.ResponseWriter, r *http.Request) {
	topic, err := g.getTopic(r.Context(), r.PathValue("topic"))
	if err != nil {
		fail(w, err)
		return
	}
	writeJSON(w, http.StatusOK, newTopicJSON(topic))
}

// topicJSON is a topic with numbers as JSON numbers, which protobuf's mapping makes strings.
type topicJSON struct {
	Topic         string `json:"topic"`
	Entries       uint64 `json:"entries"`
	Bytes         uint64 `json:"bytes"`
	First         string `json:"first"`
	Last          string `json:"last"`
	Removed       string `json:"removed"`
	Incarnation   string `json:"incarnation"`
	MaxBytes      uint64 `json:"max_bytes"`
	MaxAgeSeconds int64  `json:"max_age_seconds"`
}

func newTopicJSON(t *turnlanev1.Topic) topicJSON {
	return topicJSON{
		Topic: t.GetTopic(), Entries: t.GetEntries(), Bytes: t.GetBytes(), First: t.GetFirst(), Last: t.GetLast(),
		Removed: t.GetRemoved(), Incarnation: t.GetIncarnation(),
		MaxBytes: t.GetRetention().GetMaxBytes(), MaxAgeSeconds: t.GetRetention().GetMaxAge().GetSeconds(),
	}
}

// httpError is the body of an error.
type httpError struct {
	Code    string `json:"code"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
	Field   string `json:"field,omitempty"`
	Rule    string `json:"rule,omitempty"`
	Fix     string `json:"fix,omitempty"`
}

// fail answers with an error of the services or of a lower layer.
func fail(w http.ResponseWriter, err error) {
	err = rpcerr.From(err)
	s := status.Convert(err)
	e := httpError{Code: codeName(s.Code()), Message: s.Message(), Reason: rpcerr.Internal}
	if info := rpcerr.Info(err); info != nil {
		m := info.GetMetadata()
		e.Reason, e.Field, e.Rule, e.Fix = info.GetReason(), m["field"], m["rule"], m["fix"]
	}
	code := http.StatusInternalServerError // also for an outcome that is open: it is no refusal
	switch s.Code() {
	case codes.InvalidArgument:
		code = http.StatusBadRequest
	case codes.NotFound:
		code = http.StatusNotFound
	case codes.AlreadyExists, codes.Aborted, codes.FailedPrecondition:
		code = http.StatusConflict
	case codes.ResourceExhausted:
		code = http.StatusTooManyRequests
	case codes.Unavailable:
		code = http.StatusServiceUnavailable
	case codes.DeadlineExceeded:
		code, e.Reason = http.StatusGatewayTimeout, "DEADLINE_EXCEEDED"
	case codes.Canceled:
		code, e.Reason = http.StatusServiceUnavailable, "CANCELLED"
	}
	if code == http.StatusServiceUnavailable || code == http.StatusTooManyRequests {
		w.Header().Set("Retry-After", "1")
	}
	writeError(w, code, e)
}

// codeName is a code as gRPC spells it, such as INVALID_ARGUMENT.
func codeName(c codes.Code) string {
	switch c {
	case codes.InvalidArgument:
		return "INVALID_ARGUMENT"
	case codes.NotFound:
		return "NOT_FOUND"
	case codes.AlreadyExists:
		return "ALREADY_EXISTS"
	case codes.FailedPrecondition:
		return "FAILED_PRECONDITION"
	case codes.ResourceExhausted:
		return "RESOURCE_EXHAUSTED"
	case codes.DeadlineExceeded:
		return "DEADLINE_EXCEEDED"
	case codes.DataLoss:
		return "DATA_LOSS"
	case codes.Canceled:
		return "CANCELLED"
	}
	return strings.ToUpper(c.String()) // one word
}

func writeError(w http.ResponseWriter, code int, e httpError) {
	writeJSON(w, code, struct {
		Error httpError `json:"error"`
	}{e})
}

func writeJSON(w http.ResponseWriter, code int, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		body, code = []byte(`{"error":{"code":"INTERNAL","reason":"INTERNAL","message":"the answer cannot be written as JSON"}}`), http.StatusInternalServerError
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	_, _ = w.Write(append(body, '\n')) // a client that went away does not matter
}
