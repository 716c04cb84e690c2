package rpcerr

import (
	"context"
	"strconv"
	"unicode/utf8"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	grpcproto "google.golang.org/grpc/encoding/proto" // registers the codec too
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// ServerOptions make a gRPC server answer a request that cannot be read as what it is, bad input: code
// INVALID_ARGUMENT, reason INVALID_FIELD, with the field and the rule.
//
// By itself a server answers INTERNAL, and already on the wire before an interceptor could see the error.
// So the codec takes every request, and leaves in a bad one, which is otherwise empty, an unknown field
// that says what is wrong with it; interceptors look for that before a handler sees the request.
func ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ForceServerCodecV2(wireCodec{encoding.GetCodecV2(grpcproto.Name)}),
		grpc.ChainUnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			if err := complaint(req); err != nil {
				return nil, err
			}
			return handler(ctx, req)
		}),
		grpc.ChainStreamInterceptor(func(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
			return handler(srv, wireStream{stream})
		}),
	}
}

// wireCodec is the codec of protobuf, except that it marks what it cannot read.
type wireCodec struct{ encoding.CodecV2 }

func (c wireCodec) Unmarshal(data mem.BufferSlice, v any) error {
	err := c.CodecV2.Unmarshal(data, v)
	m, ok := v.(proto.Message)
	if err == nil || !ok {
		return err
	}
	field, rule := wireFault(m.ProtoReflect().Descriptor(), data.Materialize(), 0)
	if field == "" {
		field = "message"
	}
	if rule == "" {
		rule = "is not the protobuf message " + string(m.ProtoReflect().Descriptor().FullName())
	}
	proto.Reset(m)
	mark := protowire.AppendTag(nil, complaintField, protowire.BytesType)
	mark = protowire.AppendBytes(mark, protowire.AppendString(protowire.AppendString(nil, field), rule))
	m.ProtoReflect().SetUnknown(mark)
	return nil
}

// wireStream refuses marked requests.
type wireStream struct{ grpc.ServerStream }

func (s wireStream) RecvMsg(v any) error {
	if err := s.ServerStream.RecvMsg(v); err != nil {
		return err
	}
	return complaint(v)
}

// complaintField is the greatest field number. A client that sends it only spoils its own request.
const complaintField protowire.Number = protowire.MaxValidNumber

// complaint is the error that the codec left in a request.
func complaint(v any) error {
	m, ok := v.(proto.Message)
	if !ok {
		return nil
	}
	unknown := m.ProtoReflect().GetUnknown()
	if len(unknown) == 0 {
		return nil
	}
	number, kind, n := protowire.ConsumeTag(unknown)
	if number != complaintField || kind != protowire.BytesType {
		return nil
	}
	content, _ := protowire.ConsumeBytes(unknown[n:])
	field, n := protowire.ConsumeString(content)
	if n < 0 {
		return nil
	}
	rule, n := protowire.ConsumeString(content[n:])
	if n < 0 {
		return nil
	}
	return Invalid(field, rule, "send the message as the .proto files say, with text in UTF-8")
}

const maxWireDepth = 100

// wireFault finds what is wrong with the bytes of a message: the path to the field, "" for the message
// itself, and the rule, "" if there is nothing to find.
func wireFault(md protoreflect.MessageDescriptor, b []byte, depth int) (path, rule string) {
	index := make(map[protowire.Number]int)
	for at := 0; len(b) > at; {
		number, kind, n := protowire.ConsumeTag(b[at:])
		if n < 0 {
			return "", "is broken at byte " + strconv.Itoa(at) + ", where a field should begin"
		}
		fd := md.Fields().ByNumber(number)
		name := strconv.Itoa(int(number))
		if fd != nil {
			name = string(fd.Name())
			if fd.Cardinality() == protoreflect.Repeated {
				name += "[" + strconv.Itoa(index[number]) + "]"
				index[number]++
			}
		}
		size := protowire.ConsumeFieldValue(number, kind, b[at+n:])
		if size < 0 {
			return name, "is broken at its end: it is cut, or its length is wrong"
		}
		if fd != nil && kind == protowire.BytesType {
			content, _ := protowire.ConsumeBytes(b[at+n:])
			switch {
			case fd.Kind() == protoreflect.StringKind && !utf8.Valid(content):
				return name, "is not valid UTF-8"
			case fd.Kind() == protoreflect.MessageKind && depth < maxWireDepth:
				if inner, rule := wireFault(fd.Message(), content, depth+1); rule != "" {
					if inner != "" {
						name += "." + inner
					}
					return name, rule
				}
			}
		}
		at += n + size
	}
	return "", ""
}
