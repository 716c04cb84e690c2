//go:build race

package workmanager_test

// many workers are fewer here: the store checks every step of its own under the race detector.
const manyWorkers = 1_000
