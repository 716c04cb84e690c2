package grouping

import (
	"fmt"
	"strings"
)

// Coverage says which slots of a slot group have a running member.
type Coverage struct {
	covered Set
}

// NewCoverage returns the coverage of a group of that size, 1 to MaxSize, by members running at those
// slots.
func NewCoverage(size uint32, running ...uint32) Coverage {
	return Coverage{NewSet(size, running...)}
}

// Size returns the number of slots in the group.
func (c Coverage) Size() uint32 { return c.covered.Size() }

// Running returns the number of slots with a running member.
func (c Coverage) Running() int { return c.covered.Len() }

// Covered reports whether a member is running at the slot.
func (c Coverage) Covered(slot uint32) bool { return slot < c.Size() && c.covered.Has(slot) }

// Complete reports whether every slot has a running member.
func (c Coverage) Complete() bool { return c.Running() == int(c.Size()) }

// Missing returns the slots without a running member. The set is empty, but not the zero Set, when the
// coverage is complete.
func (c Coverage) Missing() Set {
	missing := NewSet(c.Size())
	for slot := range c.Size() {
		if !c.covered.Has(slot) {
			missing.bits[slot/64] |= 1 << (slot % 64)
		}
	}
	return missing
}

// Warning words that a slot group on those topics lacks members.
func Warning(group string, topics []string, running, size int) string {
	return fmt.Sprintf("group %s on [%s] has %d of %d members running",
		group, strings.Join(topics, ", "), running, size)
}
