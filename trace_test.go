package turnlane_test

import (
	"context"
	"slices"
	"testing"

	cloudevents "github.com/cloudevents/sdk-go/binding/format/protobuf/v2/pb"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	turnlanev1 "github.com/turnlane/turnlane/proto/turnlane/v1"
)

// The trace of a publisher goes on through the spans of the publish call and of the turn, into the
// output.
func TestATraceGoesThroughATurn(t *testing.T) {
	recorder := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder))
	defer provider.Shutdown(context.Background())
	cfg := config()
	cfg.TracerProvider = provider
	s := newSystem(t, cfg, nil)
	s.startWorker(&turnlanev1.CreateWorkerRequest{Id: "w", Type: "echo", Topics: []string{"in"}, Config: map[string]string{"out": "out"}})
	out := s.subscribe("out")

	const traceID, spanID = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
	e := textEvent("1")
	e.Attributes = map[string]*cloudevents.CloudEventAttributeValue{
		"traceparent": {Attr: &cloudevents.CloudEventAttributeValue_CeString{CeString: "00-" + traceID + "-" + spanID + "-01"}}}
	s.publish("in", e)
	got, err := out.Recv()
	if err != nil {
		t.Fatal(err)
	}
	parent := got.GetBatch().GetEvents()[0].GetEvent().GetAttributes()["traceparent"].GetCeString()

	var names []string
	for _, span := range recorder.Ended() {
		names = append(names, span.Name())
		if span.SpanContext().TraceID().String() != traceID || span.Parent().SpanID().String() != spanID {
			t.Errorf("span %s is in trace %s, below %s", span.Name(), span.SpanContext().TraceID(), span.Parent().SpanID())
		}
		if want := "00-" + traceID + "-" + span.SpanContext().SpanID().String() + "-01"; span.Name() == "process in" && parent != want {
			t.Errorf("the output belongs to %s, want %s", parent, want)
		}
	}
	slices.Sort(names)
	if !slices.Equal(names, []string{"process in", "publish in"}) {
		t.Errorf("spans %v", names)
	}
}
