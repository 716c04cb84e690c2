package gateway

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/turnlane/turnlane/internal/rpcerr"
	turnlanev1 "github.com/turnlane/turnlane/proto/turnlane/v1"
)

// fakeManager stands for another service of the same server.
type fakeManager struct {
	turnlanev1.UnimplementedWorkManagerServiceServer
}

func (fakeManager) ListWorkers(_ context.Context, req *turnlanev1.ListWorkersRequest) (*turnlanev1.ListWorkersResponse, error) {
	return &turnlanev1.ListWorkersResponse{Workers: []*turnlanev1.Worker{{Id: "w1", GroupIndex: req.GetPageSize()}}}, nil
}

func (fakeManager) GetWorker(context.Context, *turnlanev1.GetWorkerRequest) (*turnlanev1.GetWorkerResponse, error) {
	return nil, rpcerr.Invalid("worker", "is bad", "mend it")
}

// jsonServer puts JSON in front of the server's services, on a server of its own.
func jsonServer(t *testing.T, s *server, writeLimit time.Duration) *httptest.Server {
	t.Helper()
	g := grpc.NewServer()
	turnlanev1.RegisterGatewayServiceServer(g, s.g)
	turnlanev1.RegisterWorkManagerServiceServer(g, fakeManager{})
	h, err := JSON(g, MaxMessageBytes, writeLimit)
	if err != nil {
		t.Fatal(err)
	}
	front := httptest.NewUnstartedServer(h)
	front.Config.Protocols = new(http.Protocols)
	front.Config.Protocols.SetHTTP1(true)
	front.Config.Protocols.SetUnencryptedHTTP2(true)
	front.Start()
	t.Cleanup(func() { g.Stop(); front.Close() })
	return front
}

func post(t *testing.T, url, contentType, body string) (code int, answer []byte) {
	t.Helper()
	return postBy(t, http.DefaultTransport, url, contentType, body)
}

func postBy(t *testing.T, by http.RoundTripper, url, contentType, body string) (code int, answer []byte) {
	t.Helper()
	req, err := http.NewRequestWithContext(deadline(t), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", contentType)
	resp, err := by.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, text
}

func TestJSON(t *testing.T) {
	s := newServer(t)
	front := jsonServer(t, s, time.Minute)
	for _, c := range []struct {
		name, method, body string
		code               int
		want               []string
	}{
		{"another service", "WorkManagerService/ListWorkers", `{"page_size": 7}`, 200, []string{`"id":"w1"`, `"group_index":7`, `"group":""`}},
		{"camel case too", "WorkManagerService/ListWorkers", `{"pageSize": 7}`, 200, []string{`"group_index":7`}},
		{"an empty list", "GatewayService/ListTopics", `{}`, 200, []string{`"topics":[]`}},
		{"publish", "GatewayService/PublishEvents",
			`{"topic":"t","events":[{"id":"1","source":"/s","spec_version":"1.0","type":"t","text_data":"{}"}]}`, 200, []string{`"positions":["`}},
		{"a refusal", "GatewayService/PublishEvents", `{"topic":"t"}`, 400,
			[]string{`"code":"invalid_argument"`, `"message":"events: is empty; send at least one event"`, `google.rpc.ErrorInfo`, `"reason":"INVALID_FIELD"`, `"field":"events"`}},
		{"a refusal by another service", "WorkManagerService/GetWorker", `{}`, 400, []string{`"code":"invalid_argument"`, `"rule":"is bad"`}},
		{"an unknown field", "GatewayService/ListTopics", `{"page":1}`, 400, []string{`"code":"invalid_argument"`, `page`}},
		{"no JSON", "GatewayService/ListTopics", `{`, 400, []string{`"code":"invalid_argument"`}},
		{"no body", "WorkManagerService/ListWorkers", ``, 200, []string{`"id":"w1"`, `"group_index":0`}},
		{"no body where something is required", "GatewayService/GetTopic", ``, 400, []string{`"code":"invalid_argument"`, `"field":"topic"`}},
		{"blanks", "GatewayService/ListTopics", " ", 400, []string{`"code":"invalid_argument"`}},
		{"a stream", "GatewayService/Subscribe", `{"topic":"t"}`, 415, []string{`application/connect+json`, `"field":"Content-Type"`}},
		{"a stream both ways", "GatewayService/PublishStream", ``, 415, []string{`application/connect+json`}},
		{"no such method", "GatewayService/None", `{}`, 404, []string{`"reason":"NOT_FOUND"`}},
		{"no such service", "None/None", `{}`, 404, []string{`"reason":"NOT_FOUND"`}},
		{"not found", "GatewayService/GetTopic", `{"topic":"none"}`, 404, []string{`"code":"not_found"`, `"reason":"NOT_FOUND"`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			code, body := post(t, front.URL+"/turnlane.v1."+c.method, "application/json", c.body)
			plain := new(bytes.Buffer)
			if err := json.Compact(plain, body); err != nil {
				t.Fatalf("%v: %s", err, body)
			}
			if code != c.code {
				t.Errorf("status %d, want %d: %s", code, c.code, plain)
			}
			for _, want := range c.want {
				if !strings.Contains(plain.String(), want) {
					t.Errorf("%s does not contain %s", plain, want)
				}
			}
		})
	}
}

// What is not there is not there, however it is asked for.
func TestJSONOfNoMethod(t *testing.T) {
	front := jsonServer(t, newServer(t), time.Minute)
	for _, contentType := range []string{"application/json", "text/plain", "application/connect+json", "application/proto"} {
		code, body := post(t, front.URL+"/nosuch", contentType, "x")
		if code != 404 || !strings.Contains(string(body), `"reason":"NOT_FOUND"`) {
			t.Errorf("%s: %d: %s", contentType, code, body)
		}
	}
	// Nothing is also a message of protobuf.
	if code, body := post(t, front.URL+"/turnlane.v1.WorkManagerService/ListWorkers", "application/proto", ""); code != 200 {
		t.Errorf("%d: %s", code, body)
	}
}

// frames reads the envelopes of a Connect stream.
func frames(t *testing.T, r io.Reader) (messages []string, end string) {
	t.Helper()
	for {
		var head [5]byte
		if _, err := io.ReadFull(r, head[:]); err != nil {
			t.Fatalf("after %q: %v", messages, err)
		}
		body := make([]byte, binary.BigEndian.Uint32(head[1:]))
		if n, err := io.ReadFull(r, body); err != nil {
			t.Fatalf("after %q: %q: %v", head, body[:n], err)
		}
		if head[0]&2 != 0 {
			return messages, string(body)
		}
		messages = append(messages, string(body))
	}
}

func frame(body string) string {
	return string(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(body)))) + body
}

func TestJSONStream(t *testing.T) {
	s := newServer(t)
	front := jsonServer(t, s, time.Minute)
	p := s.publish("t", 0, 3)
	_, body := post(t, front.URL+"/turnlane.v1.GatewayService/Subscribe", "application/connect+json",
		frame(`{"topic":"t","from":{"earliest":true},"until":{"tail":true}}`))
	messages, end := frames(t, bytes.NewReader(body))
	if len(messages) != 2 || !strings.Contains(messages[0], `"started"`) || !strings.Contains(messages[1], p[2]) {
		t.Errorf("got %q", messages)
	}
	if strings.Contains(end, "error") {
		t.Errorf("the end is %s", end)
	}
	_, body = post(t, front.URL+"/turnlane.v1.GatewayService/Subscribe", "application/connect+json", frame(`{"topic":""}`))
	if messages, end = frames(t, bytes.NewReader(body)); len(messages) != 0 || !strings.Contains(end, "invalid_argument") || !strings.Contains(end, "INVALID_FIELD") {
		t.Errorf("got %q and %s", messages, end)
	}

	http2 := &http.Transport{Protocols: new(http.Protocols)}
	http2.Protocols.SetUnencryptedHTTP2(true)
	defer http2.CloseIdleConnections()
	_, body = postBy(t, http2, front.URL+"/turnlane.v1.GatewayService/PublishStream", "application/connect+json",
		frame(`{"topic":"t","events":[{"id":"3","source":"/s","spec_version":"1.0","type":"t"}]}`)+frame(`{"topic":"t"}`))
	if messages, end = frames(t, bytes.NewReader(body)); len(messages) != 2 || !strings.Contains(messages[1], "INVALID_FIELD") || strings.Contains(end, "error") {
		t.Errorf("got %q and %s", messages, end)
	}
}

// A client that keeps its connection and reads nothing neither holds the stream for ever nor the end of
// the gateway.
func TestJSONStreamStalled(t *testing.T) {
	s := newServer(t, func(c *Config) { c.StallAfter = 100 * time.Millisecond })
	front := jsonServer(t, s, 300*time.Millisecond)
	conn, err := net.Dial("tcp", front.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	request := frame(`{"topic":"t","from":{"earliest":true}}`)
	if _, err := io.WriteString(conn, "POST /turnlane.v1.GatewayService/Subscribe HTTP/1.1\r\nHost: x\r\n"+
		"Content-Type: application/connect+json\r\nTransfer-Encoding: chunked\r\n\r\n"+
		fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(request), request)); err != nil {
		t.Fatal(err)
	}
	if _, err := bufio.NewReaderSize(conn, 16).ReadByte(); err != nil {
		t.Fatal(err)
	}
	big := numbered(0, 4000)
	for _, e := range big {
		e.Attributes = nil
		e.Id += strings.Repeat("x", 2000)
	}
	if _, err := s.client.PublishEvents(deadline(t), &turnlanev1.PublishEventsRequest{Topic: "t", Events: big}); err != nil {
		t.Fatal(err)
	}
	for s.g.instruments.stalled.Load() == 0 || s.g.instruments.subscribers.Load() > 0 {
		runtime.Gosched()
	}
}
