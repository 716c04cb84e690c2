package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/turnlane/turnlane/event"
	turnlanev1 "github.com/turnlane/turnlane/proto/turnlane/v1"
	"github.com/turnlane/turnlane/store"
)

// do makes a request and returns the status and the decoded JSON answer.
func (s *server) do(method, path string, headers map[string]string, body io.Reader) (int, map[string]any) {
	s.t.Helper()
	req, err := http.NewRequestWithContext(deadline(s.t), method, s.http.URL+path, body)
	if err != nil {
		s.t.Fatal(err)
	}
	for name, value := range headers {
		req.Header.Set(name, value)
	}
	return s.send(req)
}

func (s *server) send(req *http.Request) (int, map[string]any) {
	s.t.Helper()
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	var out map[string]any
	if req.Method != http.MethodHead {
		if t := resp.Header.Get("Content-Type"); t != "application/json" {
			s.t.Errorf("%s %s: content type %q", req.Method, req.URL, t)
		}
		if err := json.Unmarshal(text, &out); err != nil {
			s.t.Fatalf("%s %s: %d: %v in %q", req.Method, req.URL, resp.StatusCode, err, text)
		}
	}
	return resp.StatusCode, out
}

func binaryMode(edits ...string) map[string]string {
	h := map[string]string{"ce-specversion": "1.0", "ce-id": "1", "ce-source": "/s", "ce-type": "t"}
	for i := 0; i < len(edits); i += 2 {
		if edits[i+1] == "-" {
			delete(h, edits[i])
		} else {
			h[edits[i]] = edits[i+1]
		}
	}
	return h
}

func structured(edits ...string) map[string]string {
	return map[string]string{"Content-Type": strings.Join(append([]string{"application/cloudevents+json"}, edits...), "")}
}

const oneJSON = `{"specversion":"1.0","id":"1","source":"/s","type":"t","data":{"a" : 1}}`

func TestHTTPPublish(t *testing.T) {
	s := newServer(t)
	wire, err := proto.Marshal(numbered(1, 1)[0])
	if err != nil {
		t.Fatal(err)
	}
	wireBatch := protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), wire)
	wireBatch = append(wireBatch, wireBatch...)

	for i, c := range []struct {
		name    string
		headers map[string]string
		body    string
		n       int // events of a batch, 0 for a single one
		check   func(*testing.T, *event.Event)
	}{
		{"binary", binaryMode("Content-Type", "application/json", "ce-subject", "a%20b", "ce-n", "1"), `{"a" : 1}`, 0, func(t *testing.T, e *event.Event) {
			if e.Subject != "a b" || string(e.Data) != `{"a" : 1}` || e.DataKind != event.JSONData || len(e.Extensions) != 1 {
				t.Errorf("%+v", e)
			}
		}},
		{"binary without data", binaryMode(), "", 0, func(t *testing.T, e *event.Event) {
			if e.DataKind != event.NoData || e.DataContentType != "" {
				t.Errorf("%+v", e)
			}
		}},
		{"structured", structured(), oneJSON, 0, func(t *testing.T, e *event.Event) {
			if string(e.Data) != `{"a" : 1}` {
				t.Errorf("%+v", e)
			}
		}},
		{"structured with a charset", structured("; charset=UTF-8"), oneJSON, 0, nil},
		{"batch", map[string]string{"Content-Type": "application/cloudevents-batch+json"}, "[" + oneJSON + "," + oneJSON + "]", 2, nil},
		{"protobuf", map[string]string{"Content-Type": "application/cloudevents+protobuf"}, string(wire), 0, nil},
		{"protobuf batch", map[string]string{"Content-Type": "application/cloudevents-batch+protobuf"}, string(wireBatch), 2, nil},
		{"raw JSON", map[string]string{"Content-Type": "application/json; charset=utf-8"}, ` [1, 2] `, 0, func(t *testing.T, e *event.Event) {
			want := &event.Event{ID: e.ID, Source: RawSource, Type: RawType, DataContentType: "application/json; charset=utf-8",
				Data: []byte(` [1, 2] `), DataKind: event.JSONData}
			if !e.Equal(want) || len(e.ID) != 36 || e.ID[14] != '7' {
				t.Errorf("%+v", e)
			}
		}},
		{"raw bytes", map[string]string{"Content-Type": "application/x-www-form-urlencoded"}, "a=1\xff", 0, func(t *testing.T, e *event.Event) {
			if string(e.Data) != "a=1\xff" || e.DataContentType != "application/x-www-form-urlencoded" || e.DataKind != event.BinaryData {
				t.Errorf("%+v", e)
			}
		}},
		{"raw bytes of no type", map[string]string{"X-Other": "1"}, "\x00\x01", 0, func(t *testing.T, e *event.Event) {
			if string(e.Data) != "\x00\x01" || e.DataContentType != "" {
				t.Errorf("%+v", e)
			}
		}},
		{"the largest", binaryMode("Content-Type", "application/octet-stream"), strings.Repeat("x", 1<<20-100), 0, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			topic := fmt.Sprintf("t%d", i)
			code, out := s.do("POST", "/v1/topics/"+topic+"/events", c.headers, strings.NewReader(c.body))
			if code != http.StatusAccepted || out["topic"] != topic {
				t.Fatalf("%d: %v", code, out)
			}
			sub := s.subscribe(&turnlanev1.SubscribeRequest{Topic: topic, From: earliest(), Until: tail()})
			sub.rest()
			if c.n == 0 {
				if len(sub.ids) != 1 || out["id"] != sub.ids[0] || out["position"] != sub.covered {
					t.Errorf("answered %v, stored %v up to %s", out, sub.ids, sub.covered)
				}
			} else if list, ok := out["events"].([]any); !ok || len(list) != c.n || len(sub.ids) != c.n {
				t.Errorf("answered %v, stored %v", out, sub.ids)
			} else if last := list[c.n-1].(map[string]any); last["position"] != sub.covered || last["id"] != sub.ids[c.n-1] {
				t.Errorf("answered %v, want %s at %s", last, sub.ids[c.n-1], sub.covered)
			}
			if c.check != nil {
				page, err := s.store.Read(deadline(t), topic, event.Position{}, store.ReadLimit{})
				if err != nil {
					t.Fatal(err)
				}
				e, err := event.DecodeRecord(page.Entries[0].Record)
				if err != nil {
					t.Fatal(err)
				}
				c.check(t, e)
			}
		})
	}
}

// A batch of nothing stores nothing, and is no reason for an error; but its topic must be one.
func TestHTTPEmptyBatch(t *testing.T) {
	s := newServer(t)
	for contentType, body := range map[string]string{"application/cloudevents-batch+json": " [ ] ", "application/cloudevents-batch+protobuf": ""} {
		headers := map[string]string{"Content-Type": contentType}
		code, out := s.do("POST", "/v1/topics/t/events", headers, strings.NewReader(body))
		if list, ok := out["events"].([]any); code != http.StatusAccepted || !ok || len(list) != 0 || out["topic"] != "t" {
			t.Errorf("%s: %d: %v", contentType, code, out)
		}
		if code, out = s.do("POST", "/v1/topics/sys.t/events", headers, strings.NewReader(body)); code != http.StatusBadRequest {
			t.Errorf("%s to a topic of the system's: %d: %v", contentType, code, out)
		}
	}
	if topics, err := s.store.Topics(deadline(t), "", "", 10); err != nil || len(topics) != 0 {
		t.Errorf("there are topics %v, %v", topics, err)
	}
}

func TestHTTPRefusals(t *testing.T) {
	s := newServer(t)
	const good = "/v1/topics/t/events"
	batch := map[string]string{"Content-Type": "application/cloudevents-batch+json"}
	large := strings.Repeat("x", 1<<20+1)
	for _, c := range []struct {
		name, method, path string
		headers            map[string]string
		body               string
		code               int
		reason, field      string
	}{
		{"no such path", "GET", "/v2", nil, "", 404, "NOT_FOUND", ""},
		{"the root", "POST", "/", nil, "", 404, "NOT_FOUND", ""},
		{"no such topic", "GET", "/v1/topics/t", nil, "", 404, "NOT_FOUND", ""},
		{"a name no topic can have", "GET", "/v1/topics/a%20b", nil, "", 400, "INVALID_FIELD", "topic"},
		{"the wrong method", "GET", good, nil, "", 405, "METHOD_NOT_ALLOWED", "method"},
		{"another wrong method", "DELETE", "/v1/topics/t", nil, "", 405, "METHOD_NOT_ALLOWED", "method"},
		{"a page that is no number", "GET", "/v1/topics?page_size=x", nil, "", 400, "INVALID_FIELD", "page_size"},
		{"a negative page", "GET", "/v1/topics?page_size=-1", nil, "", 400, "INVALID_FIELD", "page_size"},
		{"a page too large", "GET", "/v1/topics?page_size=1001", nil, "", 400, "INVALID_FIELD", "page_size"},
		{"a bad prefix", "GET", "/v1/topics?prefix=%2A", nil, "", 400, "INVALID_FIELD", "prefix"},

		{"a topic with a slash", "POST", "/v1/topics/a%2Fb/events", binaryMode(), "", 400, "INVALID_FIELD", "topic"},
		{"a topic with a brace", "POST", "/v1/topics/%7Ba%7D/events", binaryMode(), "", 400, "INVALID_FIELD", "topic"},
		{"a topic of 201 bytes", "POST", "/v1/topics/" + strings.Repeat("t", 201) + "/events", binaryMode(), "", 400, "INVALID_FIELD", "topic"},
		{"a topic of the system's", "POST", "/v1/topics/sys.a/events", binaryMode(), "", 400, "INVALID_FIELD", "topic"},
		{"dead letters", "POST", "/v1/topics/dlq.a/events", binaryMode(), "", 400, "INVALID_FIELD", "topic"},

		{"no id", "POST", good, binaryMode("ce-id", "-"), "", 400, "INVALID_FIELD", "id"},
		{"no version", "POST", good, binaryMode("ce-specversion", "-"), "", 400, "INVALID_FIELD", "specversion"},
		{"an old version", "POST", good, binaryMode("ce-specversion", "0.3"), "", 400, "INVALID_FIELD", "specversion"},
		{"a subject and nothing else", "POST", good, map[string]string{"ce-subject": "a"}, "x", 400, "INVALID_FIELD", "specversion"},
		{"a bad time", "POST", good, binaryMode("ce-time", "yesterday"), "", 400, "INVALID_FIELD", "time"},
		{"a bad escape", "POST", good, binaryMode("ce-subject", "%zz"), "", 400, "INVALID_FIELD", "subject"},
		{"an extension of ours", "POST", good, binaryMode("ce-dlqreason", "x"), "", 400, "INVALID_FIELD", "dlqreason"},
		{"no JSON though it says so", "POST", good, binaryMode("Content-Type", "application/json"), "{", 400, "INVALID_FIELD", "data"},
		{"no JSON without an envelope", "POST", good, map[string]string{"Content-Type": "application/json"}, "{", 400, "INVALID_FIELD", "data"},
		{"a content type that is none", "POST", good, map[string]string{"Content-Type": "json"}, "{}", 400, "INVALID_FIELD", "datacontenttype"},
		{"too large", "POST", good, binaryMode(), large, 413, "TOO_LARGE", "body"},
		{"too large with its envelope", "POST", good, binaryMode(), large[:1<<20], 413, "TOO_LARGE", "event"},
		{"too large without one", "POST", good, map[string]string{"Content-Type": "text/plain"}, large, 413, "TOO_LARGE", "body"},

		{"nothing", "POST", good, structured(), "", 400, "INVALID_FIELD", "JSON"},
		{"two events", "POST", good, structured(), oneJSON + oneJSON, 400, "INVALID_FIELD", "JSON"},
		{"a duplicate member", "POST", good, structured(), `{"id":"1",` + oneJSON[1:], 400, "INVALID_FIELD", "id"},
		{"deep nesting", "POST", good, structured(), strings.Repeat("[", 100_000), 400, "INVALID_FIELD", "JSON"},
		{"another charset", "POST", good, structured("; charset=utf-16"), oneJSON, 415, "UNSUPPORTED_MEDIA_TYPE", "Content-Type"},
		{"another format", "POST", good, map[string]string{"Content-Type": "application/cloudevents+avro"}, "x", 415, "UNSUPPORTED_MEDIA_TYPE", "Content-Type"},
		{"XML", "POST", good, map[string]string{"Content-Type": "application/cloudevents-batch+xml"}, "x", 415, "UNSUPPORTED_MEDIA_TYPE", "Content-Type"},
		{"compressed", "POST", good, map[string]string{"Content-Type": "application/json", "Content-Encoding": "gzip"}, "x", 415, "UNSUPPORTED_MEDIA_TYPE", "Content-Encoding"},
		{"broken protobuf", "POST", good, map[string]string{"Content-Type": "application/cloudevents+protobuf"}, "\xff", 400, "INVALID_FIELD", "body"},
		{"a broken protobuf batch", "POST", good, map[string]string{"Content-Type": "application/cloudevents-batch+protobuf"}, "\x0a\x05a", 400, "INVALID_FIELD", "body"},

		{"an object under text", "POST", good, structured(), oneJSON[:1] + `"datacontenttype":"text/plain",` + oneJSON[1:], 400, "INVALID_FIELD", "data"},
		{"no batch", "POST", good, batch, oneJSON, 400, "INVALID_FIELD", "JSON"},
		{"a batch with a bad one", "POST", good, batch, "[" + oneJSON + "," + strings.Replace(oneJSON, `"/s"`, `""`, 1) + "]", 400, "INVALID_FIELD", "events[1].source"},
		{"a batch that ends early", "POST", good, batch, "[" + oneJSON, 400, "INVALID_FIELD", "JSON"},
		{"a batch with one too large", "POST", good, batch, "[" + oneJSON + "," + strings.Replace(oneJSON, `{"a" : 1}`, `"`+large+`"`, 1) + "]", 413, "TOO_LARGE", "events[1]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			code, out := s.do(c.method, c.path, c.headers, strings.NewReader(c.body))
			e, _ := out["error"].(map[string]any)
			field, _ := e["field"].(string)
			if code != c.code || e["reason"] != c.reason || field != c.field || e["message"] == "" || e["code"] == "" {
				t.Errorf("%d: %v, want %d, %s, field %q", code, out, c.code, c.reason, c.field)
			}
			if c.field != "" && c.field != "method" && (e["rule"] == "" || e["rule"] == nil) {
				t.Errorf("no rule: %v", e)
			}
		})
	}
	if topics, err := s.store.Topics(deadline(t), "", "", 10); err != nil || len(topics) != 0 {
		t.Errorf("refused requests left %v, %v", topics, err)
	}
}

// What no client library sends.
func TestHTTPOddRequests(t *testing.T) {
	s := newServer(t)
	post := func(body io.Reader) *http.Request {
		req, err := http.NewRequestWithContext(deadline(t), http.MethodPost, s.http.URL+"/v1/topics/t/events", body)
		if err != nil {
			t.Fatal(err)
		}
		return req
	}
	req := post(strings.NewReader("x"))
	req.Header["Content-Type"] = []string{"text/plain", "application/json"}
	if code, out := s.send(req); code != 400 {
		t.Errorf("two content types: %d %v", code, out)
	}
	req = post(strings.NewReader("x"))
	req.Header["Ce-Id"] = []string{"1", "2"}
	if code, out := s.send(req); code != 400 {
		t.Errorf("two ids: %d %v", code, out)
	}
	req = post(io.MultiReader(strings.NewReader(strings.Repeat("x", 3<<20)))) // chunked: no length to judge by
	if code, out := s.send(req); code != 413 {
		t.Errorf("too large, in chunks: %d %v", code, out)
	}
}

// failingLog fails every append in the same way.
type failingLog struct {
	store.Store
	err error
}

func (l failingLog) Append(context.Context, string, []store.Batch) ([]store.Appended, error) {
	return nil, fmt.Errorf("append: %w", l.err)
}

func (l failingLog) Check(context.Context) error { return l.err }

func TestHTTPStoreErrors(t *testing.T) {
	for _, c := range []struct {
		err    error
		code   int
		reason string
	}{
		{store.ErrUnavailable, 503, "STORE_UNAVAILABLE"},
		{store.ErrClosed, 503, "STORE_UNAVAILABLE"},
		{store.ErrExhausted, 429, "STORE_EXHAUSTED"},
		{store.ErrOutcomeUnknown, 500, "OUTCOME_UNKNOWN"},
		{errors.New("a bug"), 500, "INTERNAL"},
	} {
		s := newServer(t, func(cfg *Config) { cfg.Store = failingLog{cfg.Store, c.err} })
		code, out := s.do("POST", "/v1/topics/t/events", binaryMode(), nil)
		if e := out["error"].(map[string]any); code != c.code || e["reason"] != c.reason {
			t.Errorf("%v: %d %v", c.err, code, out)
		}
	}
}

func TestHTTPTopics(t *testing.T) {
	s := newServer(t)
	for i := range 5 {
		s.publish(fmt.Sprintf("t%d", i), 0, i+1)
	}
	var names []string
	for path := "/v1/topics?page_size=2"; ; {
		code, out := s.do("GET", path, nil, nil)
		if code != 200 {
			t.Fatal(out)
		}
		for i, topic := range out["topics"].([]any) {
			topic := topic.(map[string]any)
			names = append(names, topic["topic"].(string))
			if n := len(names); topic["entries"] != float64(n) || topic["first"] == "" || topic["max_bytes"] != float64(1<<30) {
				t.Errorf("%d: %v", i, topic)
			}
		}
		token, more := out["next_page_token"]
		if !more {
			break
		}
		path = fmt.Sprintf("/v1/topics?page_size=2&page_token=%s", token)
	}
	if got := strings.Join(names, " "); got != "t0 t1 t2 t3 t4" {
		t.Errorf("pages give %s", got)
	}
	if code, out := s.do("GET", "/v1/topics/t3", nil, nil); code != 200 || out["entries"] != 4.0 || out["topic"] != "t3" {
		t.Errorf("%d %v", code, out)
	}
	if code, _ := s.do("HEAD", "/v1/topics/t3", nil, nil); code != 200 {
		t.Errorf("HEAD: %d", code)
	}
}

func TestHealth(t *testing.T) {
	get := func(h http.Handler) (int, string) {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
		return w.Code, strings.TrimSpace(w.Body.String())
	}
	if code, body := get(Livez()); code != 200 || body != `{"alive":true}` {
		t.Error(code, body)
	}
	s := newServer(t)
	s.subscribe(&turnlanev1.SubscribeRequest{Topic: "t"}) // the fan-out has begun
	if code, body := get(Readyz(s.g.Checks()...)); code != 200 || body != `{"ready":true,"checks":{"fanout":"ok","gateway":"ok","store":"ok"}}` {
		t.Error(code, body)
	}
	s.g.Shutdown()
	failing := append(s.g.Checks(), Check{"other", func(context.Context) error { return errors.New("not yet") }})
	code, body := get(Readyz(failing...))
	if code != 503 || !strings.Contains(body, `"ready":false`) || !strings.Contains(body, `"other":"not yet"`) || !strings.Contains(body, "shutting down") {
		t.Error(code, body)
	}
}

// FuzzHTTPPublish: whatever comes, the answer is JSON and no server error, and what is accepted is
// there.
func FuzzHTTPPublish(f *testing.F) {
	f.Add("application/cloudevents+json", "", []byte(oneJSON))
	f.Add("application/cloudevents-batch+json", "", []byte("["+oneJSON+"]"))
	f.Add("application/cloudevents+protobuf", "", []byte("\x0a\x011\x12\x02/s\x1a\x031.0\x22\x01t"))
	f.Add("application/cloudevents-batch+protobuf", "", []byte("\x0a\x01"))
	f.Add("application/json", "1", []byte("{}"))
	f.Add("text/plain; charset=\"", "%", []byte("x"))
	s := newServer(f)
	handler := s.g.HTTP()
	f.Fuzz(func(t *testing.T, contentType, id string, body []byte) {
		r := httptest.NewRequest(http.MethodPost, "/v1/topics/t/events", bytes.NewReader(body))
		r.Header["Content-Type"] = []string{contentType}
		if id != "" {
			for name, value := range binaryMode("ce-id", id) {
				r.Header.Set(name, value)
			}
		}
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		if !json.Valid(w.Body.Bytes()) {
			t.Fatalf("%d: %q", w.Code, w.Body)
		}
		switch w.Code {
		case 202, 400, 413, 415:
		default:
			t.Fatalf("status %d: %s", w.Code, w.Body)
		}
	})
}
