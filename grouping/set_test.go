package grouping

import (
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestTheZeroSetHasEverything(t *testing.T) {
	var all Set
	if !all.All() || !all.Has(0) || !all.Has(1023) || !all.Owns(Hash("x")) || !all.Contains(NewSet(4, 1)) {
		t.Errorf("the zero set lacks something: %v", all)
	}
	all.Add(3)
	if !all.All() {
		t.Error("adding to everything made a filter")
	}
	if NewSet(4, 0, 1, 2).Contains(all) {
		t.Error("a set that lacks slot 3 contains everything")
	}
	if !NewSet(2, 0, 1).Contains(all) {
		t.Error("a set with every slot does not contain everything")
	}
}

func TestCopiesOfASetAreIndependent(t *testing.T) {
	a := NewSet(100, 1)
	b := a
	b.Add(99)
	if a.Has(99) || !b.Has(99) || !b.Has(1) {
		t.Errorf("a = %v, b = %v", a, b)
	}
}

// The model is a map.
func TestSetAgainstAModel(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	random := func(size uint32) (Set, map[uint32]bool) {
		s, m := NewSet(size), map[uint32]bool{}
		for range r.IntN(6) {
			slot := r.Uint32N(size)
			s.Add(slot)
			m[slot] = true
		}
		return s, m
	}
	for range 20_000 {
		size := 1 + r.Uint32N(130)
		s, sm := random(size)
		o, om := random(size)
		contains := true
		for slot := range om {
			contains = contains && sm[slot]
		}
		if got := s.Contains(o); got != contains {
			t.Fatalf("(%v).Contains(%v) = %v", s, o, got)
		}
		if s.Len() != len(sm) || s.Size() != size {
			t.Fatalf("%v: len %d, size %d; want %d, %d", s, s.Len(), s.Size(), len(sm), size)
		}
		slots := s.Slots()
		if !slices.IsSorted(slots) || len(slots) != len(sm) {
			t.Fatalf("slots %v of %v", slots, sm)
		}
		hash := r.Uint32()
		if s.Owns(hash) != sm[hash%size] || s.Has(size) {
			t.Fatalf("%v owns %d: %v", s, hash, s.Owns(hash))
		}
		if !NewSet(size, slots...).Equal(s) {
			t.Fatalf("%v does not survive its slots", s)
		}
	}
}

func TestSetsOfDifferentSizesAreNotMixed(t *testing.T) {
	if NewSet(4, 0, 1).Contains(NewSet(2, 0)) || NewSet(4).Equal(NewSet(8)) {
		t.Error("slots of one size were taken for those of another")
	}
	if !NewSet(4, 0, 1, 2, 3).Contains(NewSet(3, 1)) {
		t.Error("a set that lacks nothing lacks something")
	}
}

func TestSetPanicsOnABug(t *testing.T) {
	for name, f := range map[string]func(){
		"size 0":    func() { NewSet(0) },
		"size 1025": func() { NewSet(MaxSize + 1) },
		"slot 4/4":  func() { NewSet(4, 4) },
		"add 70/65": func() { s := NewSet(65); s.Add(70) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			f()
		}()
	}
}

func TestSpecValidate(t *testing.T) {
	long := strings.Repeat("g", 64)
	for _, c := range []struct {
		spec   Spec
		fields []string
	}{
		{Spec{}, nil},
		{Spec{"g", 1, 0}, nil},
		{Spec{"pairs-v2", 4, 3}, nil},
		{Spec{"A.b_c-9", 1024, 1023}, nil},
		{Spec{long, 2, 1}, nil},
		{Spec{long + "g", 2, 1}, []string{"group"}},
		{Spec{strings.Repeat("é", 1000), 2, 1}, []string{"group"}},
		{Spec{"a b", 2, 1}, []string{"group"}},
		{Spec{"a{b}", 2, 1}, []string{"group"}},
		{Spec{"a/b", 2, 1}, []string{"group"}},
		{Spec{"", 2, 1}, []string{"group"}},
		{Spec{"", 0, 1}, []string{"group", "group_size"}},
		{Spec{"g", 0, 0}, []string{"group_size"}},
		{Spec{"g", 1025, 0}, []string{"group_size"}},
		{Spec{"g", 4, 4}, []string{"group_index"}},
		{Spec{"g", 1, 4294967295}, []string{"group_index"}},
		{Spec{"*", 2000, 2000}, []string{"group", "group_size", "group_index"}},
	} {
		err := c.spec.Validate()
		var fields []string
		if joined, ok := err.(interface{ Unwrap() []error }); ok {
			for _, e := range joined.Unwrap() {
				fe, ok := errors.AsType[*FieldError](e)
				if !ok || fe.Rule == "" || fe.Fix == "" {
					t.Errorf("%v: %v does not say field, rule and fix", c.spec, e)
					continue
				}
				fields = append(fields, fe.Field)
			}
		}
		if !slices.Equal(fields, c.fields) {
			t.Errorf("%+v: problems with %v, want %v (%v)", c.spec, fields, c.fields, err)
		}
		if err != nil && len(err.Error()) > 1000 {
			t.Errorf("%d bytes of error", len(err.Error()))
		}
	}
}

// Every event has exactly one owner in a complete group.
func TestMembersSplitAllEvents(t *testing.T) {
	for _, size := range []uint32{1, 2, 3, 7, 1024} {
		for i := range 200 {
			hash, owners := Hash(strings.Repeat("x", i)), 0
			for index := range size {
				spec := Spec{"g", size, index}
				if spec.Owns(hash) != spec.Slots().Owns(hash) {
					t.Fatalf("%v and its set disagree on %d", spec, hash)
				}
				if spec.Owns(hash) {
					owners++
				}
			}
			if owners != 1 {
				t.Fatalf("%d owners among %d members", owners, size)
			}
		}
	}
	if !(Spec{}).Owns(7) || !(Spec{}).Slots().All() {
		t.Error("a worker without a group does not own everything")
	}
}

func TestCoverage(t *testing.T) {
	c := NewCoverage(5, 0, 3, 3)
	if c.Size() != 5 || c.Running() != 2 || c.Complete() || !c.Covered(3) || c.Covered(1) || c.Covered(9) {
		t.Errorf("%+v", c)
	}
	if got := c.Missing().String(); got != "1,2,4 of 5" {
		t.Errorf("missing %s", got)
	}
	full := NewCoverage(2, 1, 0)
	if !full.Complete() || full.Missing().All() || full.Missing().Len() != 0 {
		t.Errorf("full: %+v, missing %v", full, full.Missing())
	}
}

func TestWarning(t *testing.T) {
	got := Warning("pairs", []string{"trades", "quotes"}, 2, 3)
	if want := "group pairs on [trades, quotes] has 2 of 3 members running"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
