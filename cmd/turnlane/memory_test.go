package main

import "testing"

func TestTheMemoryLimitLeavesRoomForWhatIsInUse(t *testing.T) {
	for _, c := range []struct {
		live, stacks uint64
		want         int64
	}{
		{0, 0, 256 << 20},
		{20 << 20, 2 << 20, 256 << 20},
		{96 << 20, 0, 256 << 20},
		{128 << 20, 0, 320 << 20},
		{400 << 20, 100 << 20, 960 << 20},
	} {
		got := memoryLimit(c.live, c.stacks)
		if got != c.want {
			t.Errorf("%d MiB in use and %d MiB of stacks: %d MiB, want %d", c.live>>20, c.stacks>>20, got>>20, c.want>>20)
		}
	}
}
