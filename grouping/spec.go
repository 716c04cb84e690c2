package grouping

import (
	"errors"
	"fmt"
	"strconv"
)

// MaxSize is the largest number of slots in a group.
const MaxSize = 1024

const maxGroupName = 64

// Spec says which slot of which group a member owns. The zero Spec is no group at all: its worker owns
// every event of its topics. A Spec never changes during a worker's life.
type Spec struct {
	Group string
	Size  uint32 // slots in the group, 1 to MaxSize
	Index uint32 // the member's own slot, below Size
}

// IsZero reports whether there is no group.
func (s Spec) IsZero() bool { return s == Spec{} }

// Owns reports whether the member owns events with that slot hash.
func (s Spec) Owns(hash uint32) bool { return s.Size == 0 || Slot(hash, s.Size) == s.Index }

// Slots returns the set with the member's one slot, and the zero Set, which is everything, for no group.
func (s Spec) Slots() Set {
	if s.Size == 0 {
		return Set{}
	}
	return NewSet(s.Size, s.Index)
}

// String returns "group/index of size", or "no group".
func (s Spec) String() string {
	if s.IsZero() {
		return "no group"
	}
	return fmt.Sprintf("%s/%d of %d", s.Group, s.Index, s.Size)
}

// Validate checks the rules for groups and returns every problem, each a *FieldError, joined.
func (s Spec) Validate() error {
	if s.IsZero() {
		return nil
	}
	var problems []error
	if s.Group == "" {
		problems = append(problems, &FieldError{"group", `""`,
			"group, group_size and group_index are set together or not at all",
			"name the group, or leave out group_size and group_index"})
	} else if !validName(s.Group) {
		problems = append(problems, &FieldError{"group", fmt.Sprintf("%q", clip(s.Group)),
			"a group name is 1 to 64 characters of A-Z a-z 0-9 _ . -", "choose another name"})
	}
	if s.Size == 0 || s.Size > MaxSize {
		problems = append(problems, &FieldError{"group_size", strconv.FormatUint(uint64(s.Size), 10),
			fmt.Sprintf("a group has 1 to %d slots", MaxSize), "set it to the number of members"})
	}
	if s.Size > 0 && s.Index >= s.Size {
		problems = append(problems, &FieldError{"group_index", strconv.FormatUint(uint64(s.Index), 10),
			fmt.Sprintf("an index is below group_size, here %d", s.Size),
			fmt.Sprintf("use 0 to %d", s.Size-1)})
	}
	return errors.Join(problems...)
}

// FieldError says which field of a Spec breaks which rule, and what to do about it.
type FieldError struct {
	Field string // group, group_size or group_index
	Value string
	Rule  string
	Fix   string
}

func (e *FieldError) Error() string {
	return fmt.Sprintf("%s: %s is invalid: %s; %s", e.Field, e.Value, e.Rule, e.Fix)
}

func validName(s string) bool {
	if s == "" || len(s) > maxGroupName {
		return false
	}
	for i := range len(s) {
		c := s[i]
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '_', c == '.', c == '-':
		default:
			return false
		}
	}
	return true
}

// clip keeps hostile names from filling an error message.
func clip(s string) string {
	if len(s) <= 2*maxGroupName {
		return s
	}
	return s[:2*maxGroupName] + "…"
}
