package gateway

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"
	"time"

	"connectrpc.com/connect"
	"connectrpc.com/vanguard"
	"connectrpc.com/vanguard/vanguardgrpc"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/turnlane/turnlane/internal/rpcerr"
)

// JSON serves the services of a gRPC server over plain HTTP, under their own paths: a unary method is a
// POST of JSON,
//
//	POST /turnlane.v1.WorkManagerService/ListWorkers
//	Content-Type: application/json
//
//	{"page_size": 10}
//
// where no body at all is the same as {}, and errors are JSON with code, message and details. Streams speak the Connect protocol
// (application/connect+json), and browsers may speak gRPC-Web; a stream in both directions needs HTTP/2,
// which an http.Server speaks without TLS if its Protocols say so. Names are those of the .proto files;
// fields that are not set are written with their zero values, and unknown ones are refused.
//
// The server must have its services registered already; it need not serve a listener. A client that
// takes nothing from a stream loses it after writeLimit. Message sizes are bounded by maxMessage bytes.
func JSON(server *grpc.Server, maxMessage uint32, writeLimit time.Duration) (http.Handler, error) {
	codec := func(types vanguard.TypeResolver) vanguard.Codec {
		c := vanguard.NewJSONCodec(types)
		c.MarshalOptions = protojson.MarshalOptions{Resolver: types, UseProtoNames: true, EmitDefaultValues: true}
		c.UnmarshalOptions = protojson.UnmarshalOptions{Resolver: types}
		return strictCodec{c}
	}
	transcoder, err := vanguardgrpc.NewTranscoder(server,
		vanguard.WithCodec(codec),
		vanguard.WithUnknownHandler(http.HandlerFunc(noMethod)),
		vanguard.WithDefaultServiceOptions(
			vanguard.WithTargetProtocols(vanguard.ProtocolGRPC),
			vanguard.WithTargetCodecs(vanguard.CodecProto),
			vanguard.WithNoTargetCompression(),
			vanguard.WithMaxMessageBufferBytes(maxMessage),
		))
	if err != nil {
		return nil, fmt.Errorf("put JSON in front of the services: %w", err)
	}
	methods := make(map[string]grpc.MethodInfo) // by path
	for service, info := range server.GetServiceInfo() {
		for _, method := range info.Methods {
			methods["/"+service+"/"+method.Name] = method
		}
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		method, found := methods[r.URL.Path]
		if !found {
			noMethod(w, r)
			return
		}
		if !streaming(r) {
			if plain(w, r, method) {
				transcoder.ServeHTTP(w, r)
			}
			return
		}
		dw := &deadlineWriter{ResponseWriter: w, control: http.NewResponseController(w), limit: writeLimit}
		defer dw.done()
		transcoder.ServeHTTP(dw, r)
	}), nil
}

// strictCodec tells clients that what cannot be read is their mistake.
type strictCodec struct{ *vanguard.JSONCodec }

func (c strictCodec) Unmarshal(b []byte, m proto.Message) error {
	err := c.JSONCodec.Unmarshal(b, m)
	if err == nil {
		return nil
	}
	// Of the text only the parser's own words are kept: it varies its white space.
	rule := "is not the JSON of " + string(m.ProtoReflect().Descriptor().Name()) + ": " +
		strings.Join(strings.Fields(strings.TrimPrefix(strings.ReplaceAll(err.Error(), "\u00a0", " "), "proto:")), " ")
	const fix = "correct it; the .proto files say which fields there are"
	e := connect.NewError(connect.CodeInvalidArgument, errors.New("body: "+rule+"; "+fix))
	detail, err := connect.NewErrorDetail(&errdetails.ErrorInfo{Reason: rpcerr.InvalidField, Domain: rpcerr.Domain,
		Metadata: map[string]string{"field": "body", "rule": rule, "fix": fix}})
	if err == nil {
		e.AddDetail(detail)
	}
	return e
}

func noMethod(w http.ResponseWriter, _ *http.Request) {
	writeError(w, http.StatusNotFound, httpError{Code: codeName(codes.NotFound), Reason: rpcerr.NotFound,
		Message: "there is no such service or method; its path is that of gRPC, such as /turnlane.v1.GatewayService/ListTopics"})
}

// streaming reports whether the answer may be a stream.
func streaming(r *http.Request) bool {
	t := r.Header.Get("Content-Type")
	return strings.HasPrefix(t, "application/connect+") || strings.HasPrefix(t, "application/grpc")
}

// plain prepares a unary call. Clients need not know that the header that marks it as one of the Connect
// protocol exists, nor that an empty request is {}. What is no call is answered here, and the result is
// false.
func plain(w http.ResponseWriter, r *http.Request, method grpc.MethodInfo) bool {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		writeError(w, http.StatusMethodNotAllowed, httpError{Code: codeName(codes.Unimplemented), Reason: "METHOD_NOT_ALLOWED",
			Message: "methods of services take POST", Field: "method", Rule: "must be POST", Fix: "use POST with a JSON body, {} if it is empty"})
		return false
	}
	if method.IsClientStream || method.IsServerStream {
		writeError(w, http.StatusUnsupportedMediaType, httpError{Code: codeName(codes.InvalidArgument), Reason: "UNSUPPORTED_MEDIA_TYPE",
			Message: method.Name + " is a stream: it takes application/connect+json", Field: "Content-Type",
			Rule: "must be application/connect+json, as the method is a stream",
			Fix:  "set it, and speak the Connect protocol: each message after a byte of flags and four bytes of length"})
		return false
	}
	mediaType, parameters, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	charset := parameters["charset"]
	if err != nil || mediaType != "application/json" && mediaType != "application/proto" || charset != "" && !strings.EqualFold(charset, "utf-8") {
		writeError(w, http.StatusUnsupportedMediaType, httpError{Code: codeName(codes.InvalidArgument), Reason: "UNSUPPORTED_MEDIA_TYPE",
			Message: "methods of services take application/json", Field: "Content-Type", Rule: "must be application/json", Fix: "set it, and send JSON in UTF-8"})
		return false
	}
	r.Header["Content-Type"] = []string{mediaType}
	r.Header.Set("Connect-Protocol-Version", "1")
	if mediaType == "application/json" && r.Header.Get("Content-Encoding") == "" {
		fillEmpty(r)
	}
	return true
}

// fillEmpty makes an empty body the JSON of an empty message. It blocks until the body begins or ends.
func fillEmpty(r *http.Request) {
	body := bufio.NewReader(r.Body)
	if _, err := body.Peek(1); errors.Is(err, io.EOF) {
		body.Reset(strings.NewReader("{}"))
		r.ContentLength = 2
		r.Header.Del("Content-Length")
	}
	r.Body = struct {
		io.Reader
		io.Closer
	}{body, r.Body}
}

// deadlineWriter gives every write of a stream its own deadline. A write that a client blocks would
// otherwise never end: unlike on a gRPC connection, nothing interrupts it when the handler returns.
type deadlineWriter struct {
	http.ResponseWriter
	control *http.ResponseController
	limit   time.Duration
	failed  bool
}

func (w *deadlineWriter) Write(p []byte) (int, error) {
	w.extend()
	n, err := w.ResponseWriter.Write(p)
	w.failed = w.failed || err != nil
	return n, err
}

// Flush makes it an http.Flusher.
func (w *deadlineWriter) Flush() {
	w.extend()
	w.failed = w.control.Flush() != nil || w.failed
}

// Unwrap makes it work with http.ResponseController.
func (w *deadlineWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *deadlineWriter) extend() {
	_ = w.control.SetWriteDeadline(time.Now().Add(w.limit)) // a test's recorder has none
}

// done leaves the connection to its next request, unless it is of no use any more.
func (w *deadlineWriter) done() {
	if !w.failed {
		_ = w.control.SetWriteDeadline(time.Time{})
	}
}
