// Package event is the event model: CloudEvents 1.0 events, their strict codecs (JSON, JSON batch,
// HTTP binary mode, protobuf and the stored record), and their places in a topic.
//
// It is pure: no goroutine, no clock, no input or output.
package event

// Event is a CloudEvents 1.0 event. Strings that CloudEvents calls optional are absent when empty,
// since the specification has no empty value for any of them. Nothing is added or rewritten on the
// way through a codec: the time keeps its text, the data its bytes, the extensions their types.
type Event struct {
	ID     string // required, not empty
	Source string // required, a URI reference, not empty
	Type   string // required, not empty

	Subject         string // optional
	Time            string // optional, RFC 3339 text exactly as it was given
	DataContentType string // optional, RFC 2046 media type
	DataSchema      string // optional, an absolute URI

	// Extensions are sorted by name, each name once. Use Extension and SetExtension.
	Extensions []Extension

	// Data is the payload as DataKind says. It is nil when DataKind is NoData; empty data that is
	// present is an empty, non-nil slice.
	Data     []byte
	DataKind DataKind

	// unknown holds the fields of a stored record that this program does not know, as they stood.
	unknown string
}

// DataKind says how an event's data was given, so that it leaves in the same shape.
type DataKind uint8

// The shapes of data.
const (
	NoData     DataKind = iota // the event has no data
	JSONData                   // Data is one JSON value, its bytes as they were given
	TextData                   // Data is UTF-8 text, carried as a JSON string or protobuf text_data
	BinaryData                 // Data is bytes, carried as data_base64 or protobuf binary_data
	ProtoData                  // Data is a marshalled google.protobuf.Any, protobuf proto_data
)

// RoutingKey is what the slot rule hashes: the subject if there is one, else the id.
func (e *Event) RoutingKey() string {
	if e.Subject != "" {
		return e.Subject
	}
	return e.ID
}
