// Package pebblestore is the embedded store: one Pebble database, in a directory or in memory.
//
// Writes of every kind go through one committer goroutine. It takes all that waits, decides each write
// in the order of arrival (so that fences, conditions and positions need no lock and have no race),
// puts the result in one Pebble batch, applies it, and builds the next while the former syncs. After
// the sync the writes are published: readers see them, bells ring, callers return. Readers never go
// through the committer; of a topic they see what was published, of the rest what is in the database
// once it is synced.
//
// Keys, by their first byte (all numbers big-endian):
//
//	00 "format"                               the version of this layout
//	01                                        counters: the last revision and the last topic id
//	10 name                                   a topic's facts; kept when the topic is deleted
//	11 topic(8) ms(8) seq(8)                  an entry: the record
//	12 topic(8) ms(8) seq(8)                  the block of entries that ends there: count, bytes, times
//	13 topic(8) worker                        the highest token of a worker in a topic
//	14 topic(8) len(2) worker input           the last turn of a worker and input topic
//	20 key                                    a registry record
//	30 worker                                 an owner record
//	31 name                                   a leader lease
//	40 len(2) worker kind(1) …                what a worker's commits left
//
// A topic has another number in each incarnation, so what is left of a deleted one is never met again.
package pebblestore
