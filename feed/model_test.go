package feed

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"sort"
	"strconv"
	"testing"
	"time"

	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/grouping"
)

// The model runs a topic and some feeds against a log that grows, is trimmed, deleted, re-created and
// goes back, and whose spans are lost, repeated, filtered and delayed. A reader per feed checks, entry
// by entry: what it gets belongs to it, follows what it had, and skips nothing that it owns, unless a
// gap has told exactly that range.
//
// TURNLANE_MODEL_STEPS and TURNLANE_MODEL_SEED choose how long and which way.
func TestModel(t *testing.T) {
	steps, seed := 200_000, uint64(time.Now().UnixNano())
	if testing.Short() {
		steps = 20_000
	}
	if s := os.Getenv("TURNLANE_MODEL_STEPS"); s != "" {
		steps, _ = strconv.Atoi(s)
	}
	if s := os.Getenv("TURNLANE_MODEL_SEED"); s != "" {
		seed, _ = strconv.ParseUint(s, 10, 64)
	}
	t.Logf("TURNLANE_MODEL_STEPS=%d TURNLANE_MODEL_SEED=%d", steps, seed)
	seen, err := runModel(seed, steps)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", seen)
	for what, n := range map[string]int{"offered": seen.offered, "left": seen.left, "live": seen.live,
		"trimmed": seen.gaps[Trimmed], "incarnation": seen.gaps[Incarnation],
		"regressed": seen.gaps[Regressed], "undecodable": seen.gaps[Undecodable], "restarts": seen.restarts, "bad": seen.bad} {
		if n == 0 && steps >= 20_000 {
			t.Errorf("%d steps, and never %s", steps, what)
		}
	}
}

// Every check is needed: without it, the model finds a loss, a repeat, a disorder or a feed that never
// becomes live.
func TestModelFailsWithoutAnyOfTheChecks(t *testing.T) {
	defer func() { disabled = 0 }()
	for c := check(1); c < checkEnd; c <<= 1 {
		disabled = c
		var err error
		seed := uint64(1)
		for ; seed <= 40 && err == nil; seed++ {
			_, err = runModel(seed, 10_000)
		}
		if err == nil {
			t.Errorf("without check %b, 40 runs of 10,000 steps found nothing wrong", c)
		} else {
			t.Logf("check %b, seed %d: %v", c, seed-1, err)
		}
	}
}

type seen struct {
	offered, left, live, restarts, bad int
	gaps                               [5]int
}

func runModel(seed uint64, steps int) (seen, error) {
	var total seen
	r := rand.New(rand.NewPCG(seed, 1))
	for done := 0; done < steps; {
		n := min(100+r.IntN(500), steps-done)
		w := newWorld(r, &total)
		if err := w.run(n); err != nil {
			return total, fmt.Errorf("seed %d, after %d steps: %w", seed, done, err)
		}
		done += n
	}
	return total, nil
}

type modelEntry struct {
	event.Entry
	id   uint64
	hash uint32
	bad  bool
	cut  bool // lost when the log went back: may be read if the read came before, must not be missed
}

type world struct {
	r    *rand.Rand
	seen *seen
	err  error

	// the log
	incarnation string
	incarnated  int
	history     map[string][]modelEntry // all that was ever there, in order
	last        event.Position
	removed     event.Position
	highest     event.Position // that anybody can have seen
	cut         bool
	ids         uint64

	// what serves it: reads of the log's end, or a gateway that pushes spans by itself
	topic   *Topic
	remote  bool
	cursor  event.Position // of the gateway
	gateway string         // incarnation that the cursor is in
	slotSet uint64
	slots   []grouping.Set // of the slot set, unless it is 0
	tail    *read
	readers []*reader
}

// read is a read under way: its answer is fixed, and arrives some steps later.
type read struct {
	ask  Ask
	span event.Span
	log  Bounds
}

func newWorld(r *rand.Rand, s *seen) *world {
	w := &world{r: r, seen: s, history: map[string][]modelEntry{}, remote: r.IntN(2) == 0}
	if r.IntN(4) > 0 {
		w.create()
		w.append(1 + r.IntN(20))
	}
	w.cursor, w.gateway = w.last, w.incarnation
	w.topic = NewTopic(w.last, w.incarnation, nil)
	for range 1 + r.IntN(6) {
		w.open(w.randomStart())
	}
	return w
}

func (w *world) run(steps int) error {
	for range steps {
		w.step()
		if w.err != nil {
			return w.err
		}
	}
	if w.r.IntN(4) == 0 {
		w.goBack()
	}
	return w.quiesce()
}

func (w *world) step() {
	r := w.r
	switch n := r.IntN(100); {
	case n < 22:
		if w.incarnation == "" {
			w.create()
		}
		w.append(1 + r.IntN(3))
	case n < 44:
		w.serveLive()
	case n < 60:
		w.pick().drain(1 + r.IntN(laneSize))
	case n < 93:
		w.pick().work()
	case n == 93:
		w.rarely()
	case n < 96:
		w.changeSlots()
	case n == 96 && w.remote:
		// The connection was lost: the gateway goes on further up, or begins again further down.
		if r.IntN(2) == 0 {
			w.cursor, w.gateway = w.last, w.incarnation
		} else if es := w.log(); len(es) > 0 && w.gateway == w.incarnation {
			w.cursor = minPosition(w.cursor, es[r.IntN(len(es))].Pos)
		}
	case n == 97:
		w.pick().restart()
	case n == 98:
		if len(w.readers) < 6 {
			w.open(w.randomStart())
		}
	default:
		w.pick().observe()
	}
	w.topic.TakeLeft(func(*Feed) { w.seen.left++ })
	w.topic.TakeBad(func(event.Entry) { w.seen.bad++ })
}

// rarely does what happens to logs, but not to all of them.
func (w *world) rarely() {
	switch n := w.r.IntN(12); {
	case n < 3:
		w.trim()
	case n < 5:
		w.goBack()
	case n == 5:
		w.recreate()
	}
}

// quiesce lets everybody catch up, and then nobody may miss anything.
func (w *world) quiesce() error {
	w.slotSet = 0
	for round := 0; ; round++ {
		if round == 2000 {
			return fmt.Errorf("after %d rounds some feed is not live: %s", round, w.describe())
		}
		w.tail = nil
		w.serveLive()
		w.serveLive()
		w.announceSlots()
		all := w.topic.Head() == w.last
		for _, r := range w.readers {
			r.drain(laneSize)
			r.page = nil
			if r.feed.State() != Live {
				all = false
				if !r.tryLive() && !w.topic.Recent(r.feed) {
					r.beginPage()
					r.finishPage()
				}
			}
		}
		if w.err != nil {
			return w.err
		}
		if all {
			break
		}
	}
	for _, r := range w.readers {
		r.observe()
		pos, incarnation := w.topic.Position(r.feed)
		if pos != w.last || incarnation != w.incarnation {
			w.fail("%s stands at %s in %q, the log ends at %s in %q", r, pos, incarnation, w.last, w.incarnation)
		}
		r.count()
	}
	return w.err
}

func (w *world) log() []modelEntry { return w.history[w.incarnation] }

func (w *world) bounds() Bounds { return Bounds{w.incarnation, w.last, w.removed} }

func (w *world) create() {
	w.incarnated++
	w.incarnation = fmt.Sprintf("i%d", w.incarnated)
	w.last, w.removed = event.Position{}, event.Position{}
	if w.r.IntN(2) == 0 {
		w.last = w.highest // a store that never gives a position twice
	}
}

// recreate deletes the topic, and maybe it is created again before anybody looks.
func (w *world) recreate() {
	w.incarnation, w.last, w.removed = "", event.Position{}, event.Position{}
	if w.r.IntN(2) == 0 {
		w.create()
		w.append(w.r.IntN(5))
	}
}

func (w *world) append(n int) {
	// After the log went back, an append lifts it above whatever was seen, unless nobody saw more.
	base := w.last
	if base.Less(w.highest) && w.somebodyIsAbove(base) {
		base = w.highest
	}
	for range n {
		base = event.Position{Ms: base.Ms + uint64(w.r.IntN(2)), Seq: base.Seq + 1 + uint64(w.r.IntN(3))}
		w.ids++
		e := modelEntry{id: w.ids, hash: w.r.Uint32(), bad: w.r.IntN(60) == 0}
		e.Entry = event.Entry{Pos: base, Record: newRecord(e.hash, e.id)}
		if e.bad {
			e.Record[0] = 99
		}
		w.history[w.incarnation] = append(w.history[w.incarnation], e)
	}
	w.last = base
	w.highest = maxPosition(w.highest, base)
}

func (w *world) somebodyIsAbove(pos event.Position) bool {
	if w.tail != nil || pos.Less(w.topic.Head()) || pos.Less(w.cursor) {
		return true
	}
	for _, r := range w.readers {
		if at, _ := w.topic.Position(r.feed); pos.Less(at) || r.page != nil || pos.Less(r.last) {
			return true
		}
	}
	for _, e := range w.log() {
		if e.cut { // its position is taken in the history
			return true
		}
	}
	return false
}

func (w *world) trim() {
	if es := w.log(); len(es) > 0 {
		w.removed = maxPosition(w.removed, minPosition(es[w.r.IntN(len(es))].Pos, w.last))
	}
}

func (w *world) goBack() {
	es := w.log()
	if len(es) == 0 {
		return
	}
	to := maxPosition(es[max(0, len(es)-1-w.r.IntN(6))].Pos, w.removed)
	if !to.Less(w.last) {
		return
	}
	for i := range es {
		if to.Less(es[i].Pos) {
			es[i].cut = true
			w.cut = true
		}
	}
	w.last = to
	w.gateway = "?" // a gateway sees that, and says so
}

// read returns what the log holds after a position, as a store does.
func (w *world) read(after event.Position, limit int) event.Span {
	span := event.Span{From: after, To: maxPosition(after, w.last)}
	for _, e := range w.log() {
		if e.cut || !w.removed.Less(e.Pos) || !after.Less(e.Pos) {
			continue
		}
		if len(span.Entries) == limit {
			span.To = span.Entries[limit-1].Pos
			break
		}
		span.Entries = append(span.Entries, e.Entry)
	}
	span.Examined = len(span.Entries)
	return span
}

// filter leaves in a span what the slot set lets through.
func (w *world) filter(span event.Span) event.Span {
	if w.slotSet == 0 {
		return span
	}
	span.SlotSet = w.slotSet
	var kept []event.Entry
	for _, e := range span.Entries {
		for _, set := range w.slots {
			if e.Record.Check() != nil || set.Owns(e.Record.Hash()) {
				kept = append(kept, e)
				break
			}
		}
	}
	span.Entries = kept
	return span
}

func (w *world) changeSlots() {
	if !w.remote {
		return
	}
	if w.slotSet++; w.r.IntN(3) == 0 {
		w.slotSet += 2 // forgets nothing, jumps
	}
	w.slots = []grouping.Set{grouping.NewSet(4, w.r.Uint32N(4), w.r.Uint32N(4)), grouping.NewSet(3, w.r.Uint32N(3))}
	w.topic.SetSlots(w.slotSet, w.slots...)
	w.announceSlots()
}

// announceSlots says at once which slot set comes next, also on a quiet topic.
func (w *world) announceSlots() {
	if w.remote && w.gateway == w.incarnation {
		w.topic.Push(event.Span{From: w.cursor, To: w.cursor, SlotSet: w.slotSet})
	}
}

// serveLive does one step of what keeps live feeds going.
func (w *world) serveLive() {
	if w.remote {
		if w.gateway != w.incarnation || w.last.Less(w.cursor) || w.last.Less(w.topic.Head()) {
			w.topic.Meet(w.topic.Ask(), w.bounds())
			w.cursor, w.gateway = w.last, w.incarnation
			return
		}
		from := maxPosition(w.cursor, w.removed)
		span := w.filter(w.read(from, 1+w.r.IntN(8)))
		w.cursor = span.To
		if w.incarnation == w.topic.Incarnation() {
			w.topic.Push(span)
		} else if w.topic.Meet(w.topic.Ask(), w.bounds()) {
			w.topic.Push(span)
		}
		return
	}
	if w.tail == nil {
		ask := w.topic.Ask()
		w.tail = &read{ask, w.read(ask.After, 1+w.r.IntN(8)), w.bounds()}
		return
	}
	answer := w.tail
	w.tail = nil
	w.topic.PushRead(answer.ask, answer.span, answer.log)
}

func (w *world) pick() *reader { return w.readers[w.r.IntN(len(w.readers))] }

// randomStart is the tail, or any place at or below it.
func (w *world) randomStart() Config {
	c := Config{After: w.last, Incarnation: w.incarnation, InLog: true}
	if es := w.log(); len(es) > 0 && w.r.IntN(2) == 0 {
		c.After, c.InLog = minPosition(es[w.r.IntN(len(es))].Pos, w.last), false
	}
	if w.r.IntN(16) == 0 { // somebody wants to begin where the log has not come to yet
		c.After, c.InLog = event.Position{Ms: w.last.Ms, Seq: w.last.Seq + 1 + uint64(w.r.IntN(5))}, false
		w.highest = maxPosition(w.highest, c.After)
	}
	switch w.r.IntN(4) {
	case 0:
		c.Slots = grouping.NewSet(4, w.r.Uint32N(4))
	case 1:
		c.Slots = grouping.NewSet(4, w.r.Uint32N(4), w.r.Uint32N(4))
	case 2:
		c.Slots = grouping.NewSet(3, w.r.Uint32N(3))
	}
	return c
}

func (w *world) open(c Config) {
	r := &reader{w: w, start: c.After, last: c.After, incarnation: c.Incarnation}
	c.Sink, c.OnGap = r, r.gap
	r.feed = w.topic.Add(c)
	w.readers = append(w.readers, r)
}

func (w *world) fail(format string, args ...any) {
	if w.err == nil {
		w.err = fmt.Errorf(format, args...)
	}
}

func (w *world) describe() string {
	s := fmt.Sprintf("log %q %s..%s, head %s in %q;", w.incarnation, w.removed, w.last, w.topic.Head(), w.topic.Incarnation())
	for _, r := range w.readers {
		pos, incarnation := w.topic.Position(r.feed)
		s += fmt.Sprintf(" %v at %s in %q;", r.feed.State(), pos, incarnation)
	}
	return s
}

const laneSize = 4

// reader is the sink of one feed, and knows what the feed must bring.
type reader struct {
	w           *world
	feed        *Feed
	start, last event.Position // last is up to where everything is accounted for
	incarnation string
	lane        int
	gaps        int
	broken      int // entries that it was told it can't read
	page        *read
	offered     uint64
}

func (r *reader) Room() bool { return r.lane <= laneSize/2 }

func (r *reader) Offer(entries []event.Entry) int {
	if r.feed.State() == Closed {
		r.w.fail("%s was offered entries after it was closed", r)
	}
	if len(entries) == 0 {
		r.w.fail("%s was offered nothing", r)
	}
	if r.incarnation == "" {
		_, r.incarnation = r.w.topic.Position(r.feed)
	}
	taken := min(len(entries), laneSize-r.lane)
	for _, e := range entries[:taken] {
		r.take(e)
	}
	r.lane += taken
	return taken
}

func (r *reader) take(e event.Entry) {
	r.w.seen.offered++
	r.offered++
	if e.Record.Check() != nil {
		r.w.fail("%s was offered a bad record at %s", r, e.Pos)
		return
	}
	es := r.w.history[r.incarnation]
	i := sort.Search(len(es), func(i int) bool { return !es[i].Pos.Less(e.Pos) })
	if i == len(es) || es[i].Pos != e.Pos || es[i].id != recordID(e.Record) {
		r.w.fail("%s got %s, which is not in the log %q", r, e.Pos, r.incarnation)
		return
	}
	if !r.feed.Slots().Owns(es[i].hash) {
		r.w.fail("%s got %s, which it does not own", r, e.Pos)
	}
	if !r.last.Less(e.Pos) {
		r.w.fail("%s got %s after %s: repeated or out of order", r, e.Pos, r.last)
	}
	r.missesNothingUpTo(e.Pos.Prev())
	r.last = e.Pos
}

// missesNothingUpTo checks that no owned entry, nor one that can't be read, lies in (last, pos].
func (r *reader) missesNothingUpTo(pos event.Position) {
	es := r.w.history[r.incarnation]
	i := sort.Search(len(es), func(i int) bool { return r.last.Less(es[i].Pos) })
	for ; i < len(es) && !pos.Less(es[i].Pos); i++ {
		if e := es[i]; !e.cut && (e.bad || r.feed.Slots().Owns(e.hash)) {
			r.w.fail("%s passed %s at %s without getting it", r, e.Pos, pos)
			return
		}
	}
}

func (r *reader) gap(g Gap) {
	r.w.seen.gaps[g.Kind]++
	if g.Kind == Undecodable {
		r.broken++
	} else {
		r.gaps++
	}
	if r.incarnation != "" && g.Incarnation != r.incarnation {
		r.w.fail("%s: %s in log %q", r, g, g.Incarnation)
	}
	if r.incarnation == "" {
		r.incarnation = g.Incarnation
	}
	if g.Kind != Regressed && g.First.Less(r.last) {
		r.w.fail("%s: %s, which begins before what was delivered", r, g)
	}
	if g.Kind != Regressed {
		r.missesNothingUpTo(g.First.Prev()) // what lies before the gap was delivered
	}
	switch g.Kind {
	case Undecodable:
		es := r.w.history[g.Incarnation]
		i := sort.Search(len(es), func(i int) bool { return !es[i].Pos.Less(g.First) })
		if i == len(es) || es[i].Pos != g.First || g.Last != g.First || !es[i].bad || !r.last.Less(g.First) {
			r.w.fail("%s: %s after %s, where no bad entry is to be told", r, g, r.last)
		}
		r.last = g.Last
	case Trimmed:
		if g.Incarnation == r.w.incarnation && r.w.removed.Less(g.Last) {
			r.w.fail("%s: %s, but only %s and before was removed", r, g, r.w.removed)
		}
		r.last = g.Last
	case Incarnation:
		if r.incarnation == g.Next {
			r.w.fail("%s: %s from %q to itself", r, g, g.Next)
		}
		r.last = g.After
	case Regressed:
		es := r.w.history[g.Incarnation]
		for _, e := range es {
			if g.After.Less(e.Pos) && !g.Last.Less(e.Pos) && !e.cut && e.Pos.Less(r.last) {
				r.w.fail("%s: %s, but %s is still there", r, g, e.Pos)
			}
		}
		r.last = g.After
	}
	r.incarnation = g.Next
}

func (r *reader) drain(n int) { r.lane = max(0, r.lane-n) }

// work does one step of catching up.
func (r *reader) work() {
	switch {
	case r.feed.State() != CatchingUp:
	case r.page != nil && r.w.r.IntN(3) > 0:
		r.finishPage()
	case r.tryLive():
	case r.w.r.IntN(2) == 0 && r.w.topic.Recent(r.feed):
	default:
		r.beginPage()
	}
}

func (r *reader) tryLive() bool {
	if r.w.topic.TryLive(r.feed) {
		r.w.seen.live++
		if !r.Room() {
			r.w.fail("%s went live with a lane more than half full", r)
		}
		return true
	}
	return false
}

func (r *reader) beginPage() {
	ask := r.w.topic.AskFor(r.feed)
	span := r.w.read(ask.After, 1+r.w.r.IntN(8))
	if r.w.remote && r.w.r.IntN(2) == 0 {
		span = r.w.filter(span)
	}
	r.page = &read{ask, span, r.w.bounds()}
}

func (r *reader) finishPage() {
	p := r.page
	r.page = nil
	r.w.topic.Page(r.feed, p.ask, p.span, p.log)
}

// restart closes the feed and opens another where it stood, as a worker does from its cursor.
func (r *reader) restart() {
	r.observe()
	w := r.w
	w.seen.restarts++
	pos, incarnation := w.topic.Position(r.feed)
	w.topic.Remove(r.feed)
	w.topic.Remove(r.feed)
	if p, i := w.topic.Position(r.feed); p != pos || i != incarnation {
		w.fail("%s moved when it was closed", r)
	}
	for i, other := range w.readers {
		if other == r {
			w.readers = append(w.readers[:i:i], w.readers[i+1:]...)
		}
	}
	w.open(Config{After: pos, Incarnation: incarnation, Slots: r.feed.Slots()})
}

// observe checks that the feed's position covers only what was delivered.
func (r *reader) observe() {
	pos, incarnation := r.w.topic.Position(r.feed)
	if pos.Less(r.last) && incarnation == r.incarnation {
		r.w.fail("%s stands at %s, but got %s", r, pos, r.last)
	}
	if incarnation == r.incarnation || r.incarnation == "" {
		was := r.incarnation
		r.incarnation = incarnation
		r.missesNothingUpTo(pos)
		r.incarnation = was
	}
}

// count compares the feed's accounts with the log.
func (r *reader) count() {
	c := r.w.topic.Counters(r.feed)
	if c.Owned != r.offered || c.Gaps != uint64(r.gaps+r.broken) || c.Filtered != c.Examined-c.Owned {
		r.w.fail("%s counts %+v, but took %d entries and saw %d gaps", r, c, r.offered, r.gaps+r.broken)
	}
	if r.gaps > 0 || r.w.cut || r.w.remote || r.incarnation != r.w.incarnation {
		return
	}
	var examined uint64
	for _, e := range r.w.log() {
		if r.start.Less(e.Pos) && !e.bad {
			examined++
		}
	}
	if c.Examined != examined {
		r.w.fail("%s counts %d examined since %s, the log has %d", r, c.Examined, r.start, examined)
	}
}

func (r *reader) String() string {
	return fmt.Sprintf("%s feed of %s from %s", r.feed.State(), r.feed.Slots(), r.start)
}

func newRecord(hash uint32, id uint64) event.Record {
	b := make([]byte, 13+8)
	b[0] = 1
	binary.BigEndian.PutUint32(b[1:], hash)
	binary.BigEndian.PutUint64(b[13:], id)
	return b
}

func recordID(r event.Record) uint64 { return binary.BigEndian.Uint64(r[13:]) }

func maxPosition(a, b event.Position) event.Position {
	if a.Less(b) {
		return b
	}
	return a
}

func minPosition(a, b event.Position) event.Position {
	if a.Less(b) {
		return a
	}
	return b
}
