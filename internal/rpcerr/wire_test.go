package rpcerr

import (
	"context"
	"net"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	turnlanev1 "github.com/turnlane/turnlane/proto/turnlane/v1"
)

// sent is a client's codec whose requests are bytes as they are.
type sent struct{ encoding.CodecV2 }

func (s sent) Marshal(v any) (mem.BufferSlice, error) {
	if b, ok := v.([]byte); ok {
		return mem.BufferSlice{mem.SliceBuffer(b)}, nil
	}
	return s.CodecV2.Marshal(v)
}

type services struct {
	turnlanev1.UnimplementedWorkManagerServiceServer
	turnlanev1.UnimplementedGatewayServiceServer
}

func (services) GetWorker(context.Context, *turnlanev1.GetWorkerRequest) (*turnlanev1.GetWorkerResponse, error) {
	return &turnlanev1.GetWorkerResponse{}, nil
}

func (services) Subscribe(*turnlanev1.SubscribeRequest, turnlanev1.GatewayService_SubscribeServer) error {
	return nil
}

func (services) PublishStream(stream turnlanev1.GatewayService_PublishStreamServer) error {
	for {
		if _, err := stream.Recv(); err != nil {
			return err
		}
		if err := stream.Send(&turnlanev1.PublishStreamResponse{}); err != nil {
			return err
		}
	}
}

// field appends a field of bytes.
func field(b []byte, number protowire.Number, content []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, number, protowire.BytesType), content)
}

func TestServerTellsWhatIsWrongOnTheWire(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(ServerOptions()...)
	turnlanev1.RegisterWorkManagerServiceServer(server, services{})
	turnlanev1.RegisterGatewayServiceServer(server, services{})
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(l) }()
	defer func() { server.Stop(); <-done }()
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(sent{encoding.GetCodecV2("proto")})))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()

	good, err := proto.Marshal(&turnlanev1.GetWorkerRequest{Worker: "w"})
	if err != nil {
		t.Fatal(err)
	}
	event := field(nil, 1, []byte("\xff")) // id
	text := field(field(nil, 1, []byte("1")), 7, []byte("\xc0"))
	attribute := field(nil, 5, field(field(nil, 1, []byte("subject")), 2, field(nil, 3, []byte("\xff"))))
	const worker, publish, subscribe = "WorkManagerService/GetWorker", "GatewayService/PublishStream", "GatewayService/Subscribe"
	for _, c := range []struct {
		name, method string
		body         []byte
		field, rule  string // none if all is well
	}{
		{"good", worker, good, "", ""},
		{"nothing", worker, []byte{}, "", ""},
		{"an unknown field", worker, field(nil, 99, []byte("x")), "", ""},
		{"a string that is not UTF-8", worker, field(nil, 1, []byte("\xff")), "worker", "not valid UTF-8"},
		{"garbage", worker, []byte("\xff\xff\xff"), "message", "broken at byte 0"},
		{"a message cut short", worker, []byte("\x0a\x05ab"), "worker", "broken at its end"},
		{"on a stream of responses", subscribe, field(nil, 1, []byte("\xff")), "topic", "not valid UTF-8"},
		{"an id", publish, field(field(nil, 2, text[:3]), 2, event), "events[1].id", "not valid UTF-8"},
		{"text data", publish, field(nil, 2, text), "events[0].text_data", "not valid UTF-8"},
		{"an attribute", publish, field(nil, 2, attribute), "events[0].attributes[0].value.ce_string", "not valid UTF-8"},
	} {
		t.Run(c.name, func(t *testing.T) {
			stream, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/turnlane.v1."+c.method)
			if err != nil {
				t.Fatal(err)
			}
			if err := stream.SendMsg(c.body); err != nil {
				t.Fatal(err)
			}
			if err := stream.CloseSend(); err != nil {
				t.Fatal(err)
			}
			err = stream.RecvMsg(new(turnlanev1.GetWorkerResponse))
			if c.field == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			facts := Info(err).GetMetadata()
			if status.Code(err) != codes.InvalidArgument || Reason(err) != InvalidField || facts["field"] != c.field || !strings.Contains(facts["rule"], c.rule) || facts["fix"] == "" {
				t.Errorf("got %v with %v", err, facts)
			}
		})
	}
}

func FuzzWireFault(f *testing.F) {
	f.Add([]byte("\x12\x03\x0a\x01\xff"))
	f.Fuzz(func(t *testing.T, b []byte) {
		m := new(turnlanev1.PublishStreamRequest)
		path, rule := wireFault(m.ProtoReflect().Descriptor(), b, 0)
		if err := proto.Unmarshal(b, m); err == nil && rule != "" {
			t.Errorf("%x can be read, but %s %s", b, path, rule)
		}
	})
}
