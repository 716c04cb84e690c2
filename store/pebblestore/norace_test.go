//go:build !race

package pebblestore_test

const underRace = false
