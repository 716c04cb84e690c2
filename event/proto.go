package event

import (
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/cloudevents/sdk-go/binding/format/protobuf/v2/pb"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// FromProto reads an event in the protobuf event format. The event shares binary data with p.
//
// Optional attributes and extensions are in the attributes map: subject and datacontenttype as
// ce_string, dataschema as ce_uri or ce_string, time as ce_timestamp or, to keep text that a protobuf
// timestamp cannot hold, as ce_string. A ce_timestamp becomes text in UTC with as few groups of three
// fraction digits as it needs.
//
// The data becomes BinaryData or ProtoData as the message says; text_data is JSONData when
// datacontenttype is JSON or absent and the text is valid JSON, else TextData.
//
// Fields that the format does not have are refused, since they would be lost; inside proto_data they are
// the payload's own affair. What is given twice on the wire, such as a name in the attributes map or a
// field, has been settled before FromProto sees it, by the rule of protobuf: the last one counts.
func FromProto(p *pb.CloudEvent) (*Event, error) {
	if p == nil {
		return nil, invalid("event", "is not set", "send a CloudEvent")
	}
	if err := checkUnknown("event", p); err != nil {
		return nil, err
	}
	if p.SpecVersion == "" {
		return nil, invalid("spec_version", "is missing or empty, and it is required", `use "1.0"`)
	}
	if err := checkSpecVersion(p.SpecVersion); err != nil {
		return nil, err
	}
	e := &Event{ID: p.Id, Source: p.Source, Type: p.Type}
	for name, attr := range p.Attributes {
		if err := e.setFromProto(name, attr); err != nil {
			return nil, err
		}
	}
	if err := e.sortExtensions(); err != nil {
		return nil, err
	}
	if err := e.validateAttributes(); err != nil {
		return nil, err
	}
	if err := e.setProtoData(p); err != nil {
		return nil, err
	}
	return e, nil
}

// checkUnknown refuses a message with fields that its type does not have.
func checkUnknown(field string, m proto.Message) error {
	unknown := m.ProtoReflect().GetUnknown()
	if len(unknown) == 0 {
		return nil
	}
	name := string(m.ProtoReflect().Descriptor().FullName())
	number, _, n := protowire.ConsumeTag(unknown)
	if n < 0 {
		return invalid(field, "has bytes that are no field of "+name, "marshal it again")
	}
	return invalid(field, "has the field number "+strconv.Itoa(int(number))+", which "+name+" does not have",
		"leave it out, or move its content into an attribute or the data")
}

func (e *Event) setFromProto(name string, attr *pb.CloudEventAttributeValue) error {
	v, err := fromProtoValue(fieldName(name), attr)
	if err != nil {
		return err
	}
	var field *string
	accepted := v.kind == StringKind
	switch name {
	case "subject":
		field = &e.Subject
	case "datacontenttype":
		field = &e.DataContentType
	case "dataschema":
		field = &e.DataSchema
		accepted = accepted || v.kind == URIKind
	case "time":
		field = &e.Time
		accepted = accepted || v.kind == TimestampKind
	default:
		if err := checkExtensionName(name); err != nil {
			return err
		}
		e.Extensions = append(e.Extensions, Extension{name, v})
		return nil
	}
	switch {
	case !accepted:
		return invalid(name, "is given as "+v.kind.String(), "give it as ce_string, or dataschema as ce_uri and time as ce_timestamp")
	case v.text == "":
		return presentEmpty(name)
	}
	*field = v.text
	return nil
}

func fromProtoValue(field string, attr *pb.CloudEventAttributeValue) (Value, error) {
	if attr != nil {
		if err := checkUnknown(field, attr); err != nil {
			return Value{}, err
		}
	}
	switch a := attr.GetAttr().(type) {
	case *pb.CloudEventAttributeValue_CeBoolean:
		return Boolean(a.CeBoolean), nil
	case *pb.CloudEventAttributeValue_CeInteger:
		return Integer(a.CeInteger), nil
	case *pb.CloudEventAttributeValue_CeString:
		return String(a.CeString), nil
	case *pb.CloudEventAttributeValue_CeBytes:
		return Binary(a.CeBytes), nil
	case *pb.CloudEventAttributeValue_CeUri:
		return URI(a.CeUri), nil
	case *pb.CloudEventAttributeValue_CeUriRef:
		return URIRef(a.CeUriRef), nil
	case *pb.CloudEventAttributeValue_CeTimestamp:
		if err := checkUnknown(field, a.CeTimestamp); err != nil {
			return Value{}, err
		}
		text, problem := protoTimestampText(a.CeTimestamp.GetSeconds(), a.CeTimestamp.GetNanos())
		if problem != "" {
			return Value{}, invalid(field, "is not a protobuf timestamp: "+problem,
				"give seconds from "+strconv.FormatInt(minProtoSeconds, 10)+" to "+strconv.FormatInt(maxProtoSeconds, 10)+" and nanos from 0 to 999999999")
		}
		return Timestamp(text), nil
	}
	return Value{}, invalid(field, "has no value", "set one of the ce_ fields, or leave the attribute out")
}

func (e *Event) setProtoData(p *pb.CloudEvent) error {
	switch d := p.Data.(type) {
	case *pb.CloudEvent_BinaryData:
		e.Data, e.DataKind = d.BinaryData, BinaryData
	case *pb.CloudEvent_TextData:
		e.Data, e.DataKind = []byte(d.TextData), TextData
		if !utf8.Valid(e.Data) {
			return e.validateData()
		}
		if IsJSON(e.DataContentType) && checkJSON(e.Data) == nil {
			e.DataKind = JSONData
		}
	case *pb.CloudEvent_ProtoData:
		if d.ProtoData == nil {
			return invalid("proto_data", "is not set", "set it, or leave the data out")
		}
		data, err := proto.MarshalOptions{Deterministic: true}.Marshal(d.ProtoData)
		if err != nil {
			return invalid("proto_data", "cannot be marshalled: "+quote(err.Error()), "send a well-formed google.protobuf.Any")
		}
		e.Data, e.DataKind = data, ProtoData
	}
	if e.DataKind != NoData && e.Data == nil {
		e.Data = []byte{}
	}
	return nil
}

// ToProto returns e in the protobuf event format; FromProto gives the same event back, except that
// JSONData under a datacontenttype that is not JSON becomes TextData, and a Timestamp extension that
// a protobuf timestamp cannot hold becomes a String of the same text. Binary data is shared.
//
// Nothing is added. The result can always be marshalled: text that is not UTF-8 is an *Error. Other
// rules are not checked again.
func ToProto(e *Event) (*pb.CloudEvent, error) {
	if e == nil {
		return nil, invalid("event", "is nil", "pass an event")
	}
	for _, a := range [...]struct{ name, value string }{
		{"id", e.ID}, {"source", e.Source}, {"type", e.Type}, {"subject", e.Subject}, {"time", e.Time},
		{"datacontenttype", e.DataContentType}, {"dataschema", e.DataSchema},
	} {
		if !utf8.ValidString(a.value) {
			return nil, checkString(a.name, a.value)
		}
	}
	p := &pb.CloudEvent{Id: e.ID, Source: e.Source, SpecVersion: SpecVersion, Type: e.Type}
	p.Attributes = make(map[string]*pb.CloudEventAttributeValue, 4+len(e.Extensions))
	if e.Subject != "" {
		p.Attributes["subject"] = toProtoValue(String(e.Subject))
	}
	if e.Time != "" {
		p.Attributes["time"] = toProtoValue(Timestamp(e.Time))
	}
	if e.DataContentType != "" {
		p.Attributes["datacontenttype"] = toProtoValue(String(e.DataContentType))
	}
	if e.DataSchema != "" {
		p.Attributes["dataschema"] = toProtoValue(URI(e.DataSchema))
	}
	for _, x := range e.Extensions {
		if err := checkExtensionName(x.Name); err != nil {
			return nil, err
		}
		if x.Value.kind == NoKind || x.Value.kind != BinaryKind && !utf8.ValidString(x.Value.text) {
			return nil, checkValue(x.Name, x.Value)
		}
		p.Attributes[x.Name] = toProtoValue(x.Value)
	}
	if err := toProtoData(p, e); err != nil {
		return nil, err
	}
	return p, nil
}

func toProtoValue(v Value) *pb.CloudEventAttributeValue {
	switch v.kind {
	case BooleanKind:
		return &pb.CloudEventAttributeValue{Attr: &pb.CloudEventAttributeValue_CeBoolean{CeBoolean: v.num != 0}}
	case IntegerKind:
		return &pb.CloudEventAttributeValue{Attr: &pb.CloudEventAttributeValue_CeInteger{CeInteger: v.num}}
	case BinaryKind:
		return &pb.CloudEventAttributeValue{Attr: &pb.CloudEventAttributeValue_CeBytes{CeBytes: []byte(v.text)}}
	case URIKind:
		return &pb.CloudEventAttributeValue{Attr: &pb.CloudEventAttributeValue_CeUri{CeUri: v.text}}
	case URIRefKind:
		return &pb.CloudEventAttributeValue{Attr: &pb.CloudEventAttributeValue_CeUriRef{CeUriRef: v.text}}
	case TimestampKind:
		if seconds, nanos, ok := protoTimestamp(v.text); ok {
			return &pb.CloudEventAttributeValue{Attr: &pb.CloudEventAttributeValue_CeTimestamp{
				CeTimestamp: &timestamppb.Timestamp{Seconds: seconds, Nanos: nanos}}}
		}
	}
	return &pb.CloudEventAttributeValue{Attr: &pb.CloudEventAttributeValue_CeString{CeString: v.text}}
}

func toProtoData(p *pb.CloudEvent, e *Event) error {
	switch e.DataKind {
	case NoData:
	case JSONData, TextData:
		if !utf8.Valid(e.Data) {
			return e.validateData()
		}
		p.Data = &pb.CloudEvent_TextData{TextData: string(e.Data)}
	case BinaryData:
		p.Data = &pb.CloudEvent_BinaryData{BinaryData: e.Data}
	case ProtoData:
		a := new(anypb.Any)
		if err := proto.Unmarshal(e.Data, a); err != nil {
			return invalid("data", "is not a marshalled google.protobuf.Any: "+quote(err.Error()), "marshal an Any, or use BinaryData")
		}
		p.Data = &pb.CloudEvent_ProtoData{ProtoData: a}
	default:
		return e.validateData()
	}
	return nil
}

// anyValue returns the value field of a marshalled google.protobuf.Any, and false if it is none.
func anyValue(b []byte) (value []byte, ok bool) {
	value = []byte{}
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return nil, false
		}
		m := protowire.ConsumeFieldValue(num, typ, b[n:])
		if m < 0 {
			return nil, false
		}
		if typ == protowire.BytesType {
			content, _ := protowire.ConsumeBytes(b[n:])
			switch num {
			case 1:
				if !utf8.Valid(content) {
					return nil, false
				}
			case 2:
				value = slices.Clip(content)
			}
		}
		b = b[n+m:]
	}
	return value, true
}
