package event

import (
	"maps"
	"math"
	"testing"

	"github.com/cloudevents/sdk-go/binding/format/protobuf/v2/pb"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

func str(s string) *pb.CloudEventAttributeValue { return toProtoValue(String(s)) }

func stamp(seconds int64, nanos int32) *pb.CloudEventAttributeValue {
	return &pb.CloudEventAttributeValue{Attr: &pb.CloudEventAttributeValue_CeTimestamp{
		CeTimestamp: &timestamppb.Timestamp{Seconds: seconds, Nanos: nanos}}}
}

func message(change func(p *pb.CloudEvent)) *pb.CloudEvent {
	p := &pb.CloudEvent{SpecVersion: "1.0", Id: "1", Source: "/s", Type: "t", Attributes: map[string]*pb.CloudEventAttributeValue{}}
	change(p)
	return p
}

func TestProtoCarriesEveryTypeBothWays(t *testing.T) {
	a, err := anypb.New(wrapperspb.String("x"))
	if err != nil {
		t.Fatal(err)
	}
	anyBytes, err := proto.Marshal(a)
	if err != nil {
		t.Fatal(err)
	}
	event := func(change func(e *Event)) *Event {
		e := valid()
		change(e)
		return e
	}
	for name, c := range map[string]struct {
		message *pb.CloudEvent
		event   *Event
	}{
		"required only": {message(func(*pb.CloudEvent) {}), valid()},
		"attributes": {
			message(func(p *pb.CloudEvent) {
				p.Attributes["subject"] = str("a")
				p.Attributes["datacontenttype"] = str("text/plain")
				p.Attributes["dataschema"] = toProtoValue(URI("urn:x"))
				p.Attributes["time"] = stamp(-1, 500_000_000)
			}),
			event(func(e *Event) {
				e.Subject, e.DataContentType, e.DataSchema, e.Time = "a", "text/plain", "urn:x", "1969-12-31T23:59:59.500Z"
			}),
		},
		"time with an offset": {
			message(func(p *pb.CloudEvent) { p.Attributes["time"] = str("2018-04-05T17:31:00+02:00") }),
			event(func(e *Event) { e.Time = "2018-04-05T17:31:00+02:00" }),
		},
		"extensions": {
			message(func(p *pb.CloudEvent) {
				maps.Copy(p.Attributes, map[string]*pb.CloudEventAttributeValue{
					"bool":   {Attr: &pb.CloudEventAttributeValue_CeBoolean{CeBoolean: false}},
					"int":    {Attr: &pb.CloudEventAttributeValue_CeInteger{CeInteger: math.MinInt32}},
					"string": {Attr: &pb.CloudEventAttributeValue_CeString{CeString: ""}},
					"bytes":  {Attr: &pb.CloudEventAttributeValue_CeBytes{CeBytes: []byte{0xFF}}},
					"uri":    {Attr: &pb.CloudEventAttributeValue_CeUri{CeUri: "urn:x"}},
					"uriref": {Attr: &pb.CloudEventAttributeValue_CeUriRef{CeUriRef: "/x"}},
					"stamp":  stamp(maxProtoSeconds, 999_999_999),
				})
			}),
			event(func(e *Event) {
				e.Extensions = []Extension{{"bool", Boolean(false)}, {"bytes", Binary([]byte{0xFF})}, {"int", Integer(math.MinInt32)},
					{"stamp", Timestamp("9999-12-31T23:59:59.999999999Z")}, {"string", String("")}, {"uri", URI("urn:x")}, {"uriref", URIRef("/x")}}
			}),
		},
		"binary": {
			message(func(p *pb.CloudEvent) { p.Data = &pb.CloudEvent_BinaryData{BinaryData: []byte("{}")} }),
			event(func(e *Event) { e.DataKind, e.Data = BinaryData, []byte("{}") }),
		},
		"empty binary": {
			message(func(p *pb.CloudEvent) { p.Data = &pb.CloudEvent_BinaryData{BinaryData: []byte{}} }),
			event(func(e *Event) { e.DataKind, e.Data = BinaryData, []byte{} }),
		},
		"JSON": {
			message(func(p *pb.CloudEvent) { p.Data = &pb.CloudEvent_TextData{TextData: ` {"a":1} `} }),
			event(func(e *Event) { e.DataKind, e.Data = JSONData, []byte(` {"a":1} `) }),
		},
		"text that is not JSON": {
			message(func(p *pb.CloudEvent) { p.Data = &pb.CloudEvent_TextData{TextData: `<a>`} }),
			event(func(e *Event) { e.DataKind, e.Data = TextData, []byte(`<a>`) }),
		},
		"empty text": {
			message(func(p *pb.CloudEvent) { p.Data = &pb.CloudEvent_TextData{} }),
			event(func(e *Event) { e.DataKind, e.Data = TextData, []byte{} }),
		},
		"JSON under another type": {
			message(func(p *pb.CloudEvent) {
				p.Attributes["datacontenttype"] = str("text/plain")
				p.Data = &pb.CloudEvent_TextData{TextData: `{}`}
			}),
			event(func(e *Event) { e.DataContentType, e.DataKind, e.Data = "text/plain", TextData, []byte(`{}`) }),
		},
		"message": {
			message(func(p *pb.CloudEvent) { p.Data = &pb.CloudEvent_ProtoData{ProtoData: a} }),
			event(func(e *Event) { e.DataKind, e.Data = ProtoData, anyBytes }),
		},
		"empty message": {
			message(func(p *pb.CloudEvent) { p.Data = &pb.CloudEvent_ProtoData{ProtoData: &anypb.Any{}} }),
			event(func(e *Event) { e.DataKind, e.Data = ProtoData, []byte{} }),
		},
	} {
		t.Run(name, func(t *testing.T) {
			e, err := FromProto(c.message)
			if err != nil {
				t.Fatal(err)
			}
			if !e.Equal(c.event) {
				t.Fatalf("got  %+v\nwant %+v", e, c.event)
			}
			if err := e.Validate(); err != nil {
				t.Error(err)
			}
			p, err := ToProto(e)
			if err != nil {
				t.Fatal(err)
			}
			wire, err := proto.Marshal(p)
			if err != nil {
				t.Fatal(err)
			}
			arrived := new(pb.CloudEvent)
			if err := proto.Unmarshal(wire, arrived); err != nil {
				t.Fatal(err)
			}
			if !proto.Equal(arrived, c.message) {
				t.Errorf("got  %v\nwant %v", arrived, c.message)
			}
		})
	}
}

func TestFromProtoAlsoTakes(t *testing.T) {
	e, err := FromProto(message(func(p *pb.CloudEvent) {
		p.Attributes["dataschema"] = str("urn:x")
		p.Attributes["time"] = str("2018-04-05T17:31:00Z")
	}))
	if err != nil || e.DataSchema != "urn:x" || e.Time != "2018-04-05T17:31:00Z" {
		t.Errorf("got %+v, %v", e, err)
	}
}

func TestFromProtoRefuses(t *testing.T) {
	attribute := func(name string, v *pb.CloudEventAttributeValue) *pb.CloudEvent {
		return message(func(p *pb.CloudEvent) { p.Attributes[name] = v })
	}
	for name, c := range map[string]struct {
		message     *pb.CloudEvent
		field, rule string
	}{
		"unknown field": {message(func(p *pb.CloudEvent) { p.ProtoReflect().SetUnknown([]byte{0x78, 1}) }),
			"event", "has the field number 15, which io.cloudevents.v1.CloudEvent does not have"},
		"unknown in a value": {message(func(p *pb.CloudEvent) {
			p.Attributes["subject"] = str("x")
			p.Attributes["subject"].ProtoReflect().SetUnknown([]byte{0x78, 1})
		}), "subject", "has the field number 15"},
		"unknown in a time": {message(func(p *pb.CloudEvent) {
			p.Attributes["time"] = stamp(0, 0)
			p.Attributes["time"].GetCeTimestamp().ProtoReflect().SetUnknown([]byte{0x78, 1})
		}), "time", "has the field number 15"},
		"nothing":              {nil, "event", "not set"},
		"no version":           {message(func(p *pb.CloudEvent) { p.SpecVersion = "" }), "spec_version", "missing"},
		"version 0.3":          {message(func(p *pb.CloudEvent) { p.SpecVersion = "0.3" }), "specversion", "not supported"},
		"no id":                {message(func(p *pb.CloudEvent) { p.Id = "" }), "id", "missing"},
		"no source":            {message(func(p *pb.CloudEvent) { p.Source = "" }), "source", "missing"},
		"no type":              {message(func(p *pb.CloudEvent) { p.Type = "" }), "type", "missing"},
		"bad source":           {message(func(p *pb.CloudEvent) { p.Source = "a b" }), "source", "URI reference"},
		"id as attribute":      {attribute("id", str("x")), "id", "CloudEvents defines it"},
		"version as attribute": {attribute("specversion", str("1.0")), "specversion", "CloudEvents defines it"},
		"data as attribute":    {attribute("data", str("x")), "data", "CloudEvents defines it"},
		"bad name":             {attribute("a-b", str("x")), `"a-b"`, "attribute name"},
		"nil value":            {attribute("x", nil), "x", "no value"},
		"unset value":          {attribute("x", &pb.CloudEventAttributeValue{}), "x", "no value"},
		"unset subject":        {attribute("subject", &pb.CloudEventAttributeValue{}), "subject", "no value"},
		"empty subject":        {attribute("subject", str("")), "subject", "present but empty"},
		"integer subject":      {attribute("subject", toProtoValue(Integer(1))), "subject", "given as integer"},
		"uri subject":          {attribute("subject", toProtoValue(URI("urn:x"))), "subject", "given as uri"},
		"schema reference":     {attribute("dataschema", toProtoValue(URIRef("urn:x"))), "dataschema", "given as uri-reference"},
		"relative schema":      {attribute("dataschema", toProtoValue(URI("/x"))), "dataschema", "absolute URI"},
		"time text":            {attribute("time", str("now")), "time", "RFC 3339"},
		"time too late":        {attribute("time", stamp(maxProtoSeconds+1, 0)), "time", "years 1 to 9999"},
		"time too early":       {attribute("time", stamp(minProtoSeconds-1, 0)), "time", "years 1 to 9999"},
		"negative nanos":       {attribute("time", stamp(0, -1)), "time", "nanoseconds"},
		"too many nanos":       {attribute("x", stamp(0, 1_000_000_000)), "x", "nanoseconds"},
		"bad uri":              {attribute("x", toProtoValue(URI("x"))), "x", "absolute URI"},
		"bad text":             {attribute("x", str("\x01")), "x", "U+0001"},
		"broken text data":     {message(func(p *pb.CloudEvent) { p.Data = &pb.CloudEvent_TextData{TextData: "\xff"} }), "data", "UTF-8"},
		"no proto data":        {message(func(p *pb.CloudEvent) { p.Data = &pb.CloudEvent_ProtoData{} }), "proto_data", "not set"},
	} {
		t.Run(name, func(t *testing.T) {
			e, err := FromProto(c.message)
			if e != nil {
				t.Errorf("got event %+v", e)
			}
			wantInvalid(t, err, c.field, c.rule)
		})
	}
}

func TestToProtoRefusesWhatCannotBeMarshalled(t *testing.T) {
	for name, c := range map[string]struct {
		change      func(e *Event)
		field, rule string
	}{
		"id":        {func(e *Event) { e.ID = "\xff" }, "id", "UTF-8"},
		"subject":   {func(e *Event) { e.Subject = "\xff" }, "subject", "UTF-8"},
		"extension": {func(e *Event) { e.SetExtension("x", URI("\xff")) }, "x", "absolute URI"},
		"name":      {func(e *Event) { e.SetExtension("\xff", URI("urn:x")) }, `"\xff"`, "attribute name"},
		"no value":  {func(e *Event) { e.Extensions = []Extension{{Name: "x"}} }, "x", "no value"},
		"text":      {func(e *Event) { e.DataKind, e.Data = TextData, []byte{0xFF} }, "data", "UTF-8"},
		"JSON":      {func(e *Event) { e.DataKind, e.Data = JSONData, []byte{0xFF} }, "data", "JSON"},
		"message":   {func(e *Event) { e.DataKind, e.Data = ProtoData, []byte{0xFF} }, "data", "Any"},
		"kind":      {func(e *Event) { e.DataKind = 77 }, "data", "kind 77"},
	} {
		t.Run(name, func(t *testing.T) {
			e := valid()
			c.change(e)
			p, err := ToProto(e)
			if p != nil {
				t.Errorf("got %v", p)
			}
			wantInvalid(t, err, c.field, c.rule)
		})
	}
	_, err := ToProto(nil)
	wantInvalid(t, err, "event", "nil")
}

func TestTimestampExtensionThatProtobufCannotHoldKeepsItsText(t *testing.T) {
	e := valid()
	e.SetExtension("x", Timestamp("2018-04-05T17:31:00+02:00"))
	p, err := ToProto(e)
	if err != nil {
		t.Fatal(err)
	}
	again, err := FromProto(p)
	if v, _ := again.Extension("x"); err != nil || v != String("2018-04-05T17:31:00+02:00") {
		t.Errorf("got %v %v", v, err)
	}
}
