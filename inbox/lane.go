package inbox

import "github.com/turnlane/turnlane/event"

// lane is a FIFO in two slices: in is appended to, out is taken from, and they are swapped when out is
// used up, so that a lane in use allocates nothing.
type lane struct {
	in, out []event.Entry
	first   int // of out, the first not taken

	bytes    int
	fresh    int // at the end of the lane, entries whose bytes are not the lane's own
	former   int // at the head of the lane, entries of a former log
	next     int32
	state    laneState
	priority bool
	paused   bool // not served
	refused  bool // an Offer was cut short, or Room was false, since there was last room
	promised bool // Room was true, and nothing was offered since
}

// laneState: an idle lane has nothing to serve, or is paused. One that is paused while it is queued
// becomes idle when its time comes.
//
//	idle ──Offer──▶ queued ──Next──▶ taken ──Done──▶ idle, or queued
//	                  ▲                │
//	                  └─Resume── held ◀┘Hold
type laneState uint8

const (
	idle laneState = iota
	queued
	taken
	held
)

func (l *lane) len() int { return len(l.out) - l.first + len(l.in) }

func (l *lane) at(i int) *event.Entry {
	if n := len(l.out) - l.first; i >= n {
		return &l.in[i-n]
	}
	return &l.out[l.first+i]
}

func (l *lane) pop() event.Entry {
	if l.first == len(l.out) {
		l.in, l.out, l.first = l.out[:0], l.in, 0
	}
	e := l.out[l.first]
	l.out[l.first] = event.Entry{} // the buffer it points to is free to go
	l.first++
	return e
}

// unpop undoes the latest pop. Its bytes become the lane's own: they may wait for long.
func (l *lane) unpop(e event.Entry) {
	e.Record = append(event.Record(nil), e.Record...)
	l.first--
	l.out[l.first] = e
}

const chunkBytes = 64 << 10

// settle copies the bytes of fresh entries, many into one chunk. A lane gives up its oldest chunk
// before it needs much of a newer one, so what is pinned stays near what is counted.
func (l *lane) settle() {
	n := l.len()
	fresh := min(l.fresh, n)
	l.fresh = 0
	if fresh == 0 {
		return
	}
	size := 0
	for i := n - fresh; i < n; i++ {
		size += len(l.at(i).Record)
	}
	var chunk []byte
	for i := n - fresh; i < n; i++ {
		e := l.at(i)
		if need := len(e.Record); cap(chunk)-len(chunk) < need {
			chunk = make([]byte, 0, max(need, min(size, chunkBytes)))
		}
		from := len(chunk)
		chunk = append(chunk, e.Record...)
		size -= len(e.Record)
		e.Record = event.Record(chunk[from:len(chunk):len(chunk)])
	}
}
