//go:build race

package pebblestore_test

// underRace: the race detector multiplies memory.
const underRace = true
