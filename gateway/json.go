package gateway

import (
	"fmt"
	"net/http"
	"strings"
	"time"

	"connectrpc.com/vanguard"
	"connectrpc.com/vanguard/vanguardgrpc"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protojson"
)

// JSON serves the services of a gRPC server over plain HTTP, under their own paths: a unary method is a
// POST of JSON,
//
//	POST /turnlane.v1.WorkManagerService/ListWorkers
//	Content-Type: application/json
//
//	{"page_size": 10}
//
// and errors are JSON with code, message and details. Streams speak the Connect protocol
// (application/connect+json), and browsers may speak gRPC-Web. Names are those of the .proto files;
// fields that are not set are written with their zero values, and unknown ones are refused.
//
// The server must have its services registered already; it need not serve a listener. A client that
// takes nothing from a stream loses it after writeLimit. Message sizes are bounded by maxMessage bytes.
func JSON(server *grpc.Server, maxMessage uint32, writeLimit time.Duration) (http.Handler, error) {
	codec := func(types vanguard.TypeResolver) vanguard.Codec {
		c := vanguard.NewJSONCodec(types)
		c.MarshalOptions = protojson.MarshalOptions{Resolver: types, UseProtoNames: true, EmitDefaultValues: true}
		c.UnmarshalOptions = protojson.UnmarshalOptions{Resolver: types}
		return c
	}
	transcoder, err := vanguardgrpc.NewTranscoder(server,
		vanguard.WithCodec(codec),
		vanguard.WithDefaultServiceOptions(
			vanguard.WithTargetProtocols(vanguard.ProtocolGRPC),
			vanguard.WithTargetCodecs(vanguard.CodecProto),
			vanguard.WithNoTargetCompression(),
			vanguard.WithMaxMessageBufferBytes(maxMessage),
		))
	if err != nil {
		return nil, fmt.Errorf("put JSON in front of the services: %w", err)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !streaming(r) {
			transcoder.ServeHTTP(w, r)
			return
		}
		dw := &deadlineWriter{ResponseWriter: w, control: http.NewResponseController(w), limit: writeLimit}
		defer dw.done()
		transcoder.ServeHTTP(dw, r)
	}), nil
}

// streaming reports whether the answer may be a stream.
func streaming(r *http.Request) bool {
	t := r.Header.Get("Content-Type")
	return strings.HasPrefix(t, "application/connect+") || strings.HasPrefix(t, "application/grpc")
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
