package feed

import (
	"fmt"
	"testing"

	"github.com/turnlane/turnlane/event"
	"github.com/turnlane/turnlane/grouping"
)

// countSink takes everything.
type countSink struct{ n int }

func (s *countSink) Offer(entries []event.Entry) int { s.n += len(entries); return len(entries) }
func (s *countSink) Room() bool                      { return true }

// benchSpans pushes spans of 100 events and reports the cost per event.
func benchSpans(b *testing.B, topic *Topic) {
	const batch = 100
	entries := make([]event.Entry, batch)
	for i := range entries {
		entries[i].Record = newRecord(grouping.Hash(fmt.Sprintf("key-%d", i*7919)), uint64(i))
	}
	seq := uint64(0)
	b.ReportAllocs()
	for b.Loop() {
		from := event.Position{Seq: seq}
		for i := range entries {
			seq++
			entries[i].Pos = event.Position{Seq: seq}
		}
		topic.Push(event.Span{From: from, To: event.Position{Seq: seq}, Entries: entries, Examined: batch})
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/batch, "ns/event")
}

func BenchmarkPushUnfiltered(b *testing.B) {
	for _, n := range []int{1, 100} {
		b.Run(fmt.Sprintf("sinks=%d", n), func(b *testing.B) {
			topic := NewTopic(event.Position{}, "i", nil)
			for range n {
				topic.TryLive(topic.Add(Config{Incarnation: "i", InLog: true, Sink: &countSink{}}))
			}
			benchSpans(b, topic)
		})
	}
}

// The cost of an event is that of its owner, however many members the group has.
func BenchmarkPushGroup(b *testing.B) {
	for _, n := range []uint32{1, 4, 64, 1024} {
		b.Run(fmt.Sprintf("members=%d", n), func(b *testing.B) {
			topic := NewTopic(event.Position{}, "i", nil)
			for slot := range n {
				topic.TryLive(topic.Add(Config{Incarnation: "i", InLog: true, Sink: &countSink{}, Slots: grouping.NewSet(n, slot)}))
			}
			benchSpans(b, topic)
		})
	}
}

// A group with one member running, and one feed that counts what the missing members would get.
func BenchmarkPushUncovered(b *testing.B) {
	topic := NewTopic(event.Position{}, "i", nil)
	coverage := grouping.NewCoverage(1024, 7)
	for _, slots := range []grouping.Set{grouping.NewSet(1024, 7), coverage.Missing()} {
		topic.TryLive(topic.Add(Config{Incarnation: "i", InLog: true, Sink: &countSink{}, Slots: slots}))
	}
	benchSpans(b, topic)
}

// A feed leaves live and comes back through the recent spans, once per round.
func BenchmarkHandOver(b *testing.B) {
	topic := NewTopic(event.Position{}, "i", nil)
	topic.TryLive(topic.Add(Config{Incarnation: "i", InLog: true, Sink: &countSink{}}))
	slow := &brake{}
	feed := topic.Add(Config{Incarnation: "i", InLog: true, Sink: slow})
	topic.TryLive(feed)
	entries := []event.Entry{{Record: newRecord(1, 1)}, {Record: newRecord(2, 2)}}
	seq := uint64(0)
	b.ReportAllocs()
	for b.Loop() {
		slow.full = true
		from := event.Position{Seq: seq}
		fresh := []event.Entry{{Pos: event.Position{Seq: seq + 1}, Record: entries[0].Record},
			{Pos: event.Position{Seq: seq + 2}, Record: entries[1].Record}}
		seq += 2
		topic.Push(event.Span{From: from, To: event.Position{Seq: seq}, Entries: fresh, Examined: 2})
		slow.full = false
		topic.TakeLeft(func(*Feed) {})
		if !topic.Recent(feed) || !topic.TryLive(feed) {
			b.Fatal("the feed did not come back")
		}
	}
}

// brake takes one entry at a time while it is full.
type brake struct{ full bool }

func (s *brake) Offer(entries []event.Entry) int {
	if s.full {
		return 1
	}
	return len(entries)
}
func (s *brake) Room() bool { return !s.full }
