package event

// Entry is one stored record and its place. The record's bytes may be a slice of a larger read buffer:
// whoever keeps an entry for longer than the call that brought it decides whether to copy them.
type Entry struct {
	Pos    Position
	Record Record
}

// Span is a stretch of one topic's log: a page, a push and a wire batch are all this one thing. It
// covers (From, To] and holds every entry in that range that the reader is entitled to, in order.
// Positions are not dense, so only From shows whether something lies between two spans.
type Span struct {
	From, To Position
	Entries  []Entry
	// Examined counts the log's entries in (From, To], also those that a filter left out.
	Examined int
	// SlotSet numbers the slot set that the span was filtered by; 0 means unfiltered.
	SlotSet uint64
}
