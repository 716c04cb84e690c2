package grouping

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/twmb/murmur3"
)

// The vectors were computed apart from this project; whoever reads a topic in another language can
// check against the same file.
func TestHashAndSlotMatchThePinnedVectors(t *testing.T) {
	text, err := os.ReadFile("testdata/slot_vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Sizes   []uint32
		Vectors []struct {
			Key, Hash string
			FNV       string `json:"fnv1a32"`
			Slots     []uint32
		}
	}
	if err := json.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	if len(file.Vectors) < 16 || len(file.Sizes) < 9 {
		t.Fatalf("%d vectors of %d sizes: the file is cut short", len(file.Vectors), len(file.Sizes))
	}
	for _, v := range file.Vectors {
		hash := Hash(v.Key)
		if got := fmt.Sprintf("%08x", hash); got != v.Hash {
			t.Errorf("Hash(%q) = %s, want %s", v.Key, got, v.Hash)
		}
		for i, size := range file.Sizes {
			if got := Slot(hash, size); got != v.Slots[i] {
				t.Errorf("slot of %q in %d = %d, want %d", v.Key, size, got, v.Slots[i])
			}
		}
	}
}

func TestHashIsFNVFinishedByMurmur(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for range 10_000 {
		key := make([]byte, r.IntN(100))
		for i := range key {
			key[i] = byte(r.Uint32()) // any bytes, not only UTF-8
		}
		h := fnv.New32a()
		h.Write(key)
		if got, want := Hash(string(key)), murmur3.SeedSum32(h.Sum32(), nil); got != want {
			t.Fatalf("Hash(%q) = %08x, want %08x", key, got, want)
		}
	}
}

func TestHashTakesBytesAsTheyAre(t *testing.T) {
	for _, pair := range [][2]string{{"a", "A"}, {"a", " a"}, {"a", "a\x00"}, {"\u00e9", "e\u0301"}, {"\xff", "\ufffd"}} {
		if Hash(pair[0]) == Hash(pair[1]) {
			t.Errorf("%q and %q have one hash", pair[0], pair[1])
		}
	}
}

func TestSlotsAreSpreadEvenly(t *testing.T) {
	const keys, size = 64_000, 64
	var counts [size]int
	for i := range keys {
		counts[Slot(Hash(fmt.Sprintf("k%d", i)), size)]++
	}
	for slot, n := range counts {
		if n < keys/size*8/10 || n > keys/size*12/10 {
			t.Errorf("slot %d has %d of %d sequential keys", slot, n, keys)
		}
	}
}

func BenchmarkHash(b *testing.B) {
	for _, n := range []int{16, 36} {
		key := strings.Repeat("k", n)
		b.Run(fmt.Sprintf("bytes=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			var sum uint32
			for b.Loop() {
				sum += Hash(key)
			}
			_ = sum
		})
	}
}
