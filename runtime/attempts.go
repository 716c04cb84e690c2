package runtime

import (
	"slices"
	"time"

	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/store"
)

// attempt is what is known of one event of a lane that failed, or that is started under a mark. It goes
// into the store by itself before anything is done that rests on it, and out of it in the commit that
// moves the cursor past the event.
type attempt struct {
	store.Attempt      // without the topic
	stored        bool // the store may have a record of it
	dirty         bool // the store is to get it as it is now
}

func (k *attempt) empty() bool { return k.Attempts == 0 && k.Crashes == 0 && !k.Started }

// next is what a lane does once the store has what is known of the event in hand.
//
//	a turn failed ─────────────▶ retry:  the event waits in its lane, and the pause begins
//	it was the last attempt ───▶ giveUp: a dead letter, or what the policy says
//	an event to be marked ─────▶ begin:  the turn, before anything else of the worker
type next struct {
	what  step
	t     *turn
	delay time.Duration
	sent  bool // a commit with it is under way
}

type step uint8

const (
	nothing step = iota
	retry
	giveUp
	beginMarked
)

// knownLocked returns what is known of an event, nil if nothing is.
func (l *lane) knownLocked(pos event.Position) *attempt {
	if i, ok := l.findLocked(pos); ok {
		return &l.known[i]
	}
	return nil
}

// noteLocked returns what is known of an event, to be added to. The result holds until the next call.
func (l *lane) noteLocked(pos event.Position) *attempt {
	i, ok := l.findLocked(pos)
	if !ok {
		l.known = slices.Insert(l.known, i, attempt{Attempt: store.Attempt{Position: pos}})
	}
	return &l.known[i]
}

func (l *lane) findLocked(pos event.Position) (int, bool) {
	if len(l.known) == 0 { // nearly always
		return 0, false
	}
	return slices.BinarySearchFunc(l.known, pos, func(k attempt, pos event.Position) int { return k.Position.Compare(pos) })
}

// forgetLocked has the record of an event removed.
func (l *lane) forgetLocked(pos event.Position) {
	if i, ok := l.findLocked(pos); ok {
		if l.known[i].stored {
			l.gone = append(l.gone, pos)
		}
		l.known = slices.Delete(l.known, i, i+1)
	}
}

// unmarkLocked takes note that an event is out of the handler's hands. It reports whether the store is
// to be told at once, since the event would else be blamed for the end of the process.
func (l *lane) unmarkLocked(pos event.Position) bool {
	k := l.knownLocked(pos)
	if k == nil || !k.Started {
		return false
	}
	k.Started, k.dirty = false, true
	l.markDirtyLocked()
	return true
}

// changesLocked returns what the store is to be told of the lane's attempts in the commit that moves its
// cursor to a position, and takes it for told.
func (l *lane) changesLocked(at event.Position, out []store.Attempt) []store.Attempt {
	if len(l.known) == 0 && len(l.gone) == 0 {
		return out
	}
	topic := l.topic
	for _, pos := range l.gone {
		out = append(out, store.Attempt{Topic: topic, Position: pos})
	}
	l.gone = nil
	kept := l.known[:0]
	for _, k := range l.known {
		switch {
		case !at.Less(k.Position), k.dirty && k.empty():
			if k.stored {
				out = append(out, store.Attempt{Topic: topic, Position: k.Position})
			}
			continue
		case k.dirty:
			k.dirty, k.stored = false, true
			told := k.Attempt
			told.Topic = topic
			out = append(out, told)
		}
		kept = append(kept, k)
	}
	clear(l.known[len(kept):])
	if l.known = kept; len(kept) == 0 {
		l.known = nil
	}
	return out
}

// tellAgainLocked takes back that the store was told.
func (l *lane) tellAgainLocked(told []store.Attempt) {
	for i := range l.known {
		l.known[i].dirty = true
	}
	for _, t := range told {
		if t.Topic != l.topic {
			continue
		}
		if _, ok := l.findLocked(t.Position); !ok {
			l.gone = append(l.gone, t.Position)
		}
	}
	if l.next.what != nothing {
		l.next.sent = false
	}
}

// recall takes over what the store knows of events at or after the activation's beginnings. An event
// with a mark was in the handler's hands when the process ended. Attempts are those of the worker's run,
// whichever activation made them; a pause by the policy that somebody ended leaves none.
func (a *activation) recall(data store.WorkerData, begins []begin, paused bool, now time.Time) {
	lanes := make(map[string]*lane, len(a.lanes))
	for i := range a.lanes {
		lanes[a.lanes[i].topic] = &a.lanes[i]
	}
	incarnations := make(map[string]string, len(data.Cursors))
	for _, c := range data.Cursors {
		incarnations[c.Topic] = c.Incarnation
	}
	for _, rec := range data.Attempts {
		l := lanes[rec.Topic]
		if l == nil || data.Start.Run != a.start.Run && l.kind == topicLane {
			continue
		}
		b := begins[l.index]
		k := attempt{Attempt: rec, stored: data.Start == a.start, dirty: data.Start != a.start}
		k.Topic = ""
		if k.Started {
			k.Started, k.dirty = false, true
			if !data.Handover {
				k.Crashes++
				k.LastFailed, k.Error = now, crashText
				if k.FirstFailed.IsZero() {
					k.FirstFailed = now
				}
			}
		}
		over := !b.after.Less(k.Position) || incarnations[rec.Topic] != "" && incarnations[rec.Topic] != b.incarnation
		if over || paused && k.GivenUp != "" && a.policy().exhausted == onPause {
			if k.stored {
				l.gone = append(l.gone, k.Position)
			}
			continue
		}
		l.known = append(l.known, k)
	}
	for i := range a.lanes {
		slices.SortFunc(a.lanes[i].known, func(x, y attempt) int { return x.Position.Compare(y.Position) })
	}
}

const crashText = "the process ended while the handler had the event"

// cutLocked forgets all events of the lane's former log, but for what the one in hand needs.
func (l *lane) cutLocked() {
	l.cuts++
	if n := len(l.known); n > 0 {
		l.old = l.known[n-1]
		l.old.stored = false
	}
	for _, k := range l.known {
		if k.stored || k.dirty {
			l.gone = append(l.gone, k.Position)
		}
	}
	l.known = nil
}

// lastWordsLocked is changesLocked for the commit by which an activation ends in order: no event is in the
// handler's hands any more.
func (l *lane) lastWordsLocked(at event.Position, out []store.Attempt) []store.Attempt {
	for i := range l.known {
		l.known[i].dirty = l.known[i].dirty || l.known[i].Started
		l.known[i].Started = false
	}
	return l.changesLocked(at, out)
}
