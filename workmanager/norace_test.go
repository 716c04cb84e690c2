//go:build !race

package workmanager_test

const manyWorkers = 10_000
