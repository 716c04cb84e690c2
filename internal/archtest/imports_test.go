package archtest

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"path"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/turnlane/turnlane"

// rows are the layers, top first. A package may import packages of lower rows only, never of its own
// or of a higher one. The longest pattern that matches a package's path decides; "/..." takes in what
// lies below.
var rows = [][]string{
	{"cmd/...", "examples/..."},
	{"."},
	{"runtime", "gateway", "workmanager", "deadletter", "internal/client/..."},
	{"internal/...", "actor/actortest"},
	{"store/...", "actor", "feed", "delivery", "schedule"},
	{"inbox", "cursors", "grouping"},
	{"event"},
	{"proto/..."},
}

// within lists the arrows inside one row that are meant: the internal packages that serve the others.
var within = map[string][]string{
	"proto/turnlane/store/v1":  {"proto/turnlane/v1"},
	"store/pebblestore":        {"store"},
	"store/storetest":          {"store"},
	"actor/actortest":          {"internal/admission"},
	"cmd/turnlane":             {"examples/flights/flights", "examples/scaling_workers/scaling"},
	"examples/flights":         {"examples/flights/flights"},
	"examples/flights/flights": {"examples/flights/data"},
	"examples/scaling_workers": {"examples/scaling_workers/scaling"},
}

// pure packages have no goroutine, no clock of their own, no store, no logger.
var pure = []string{"event", "grouping", "inbox", "cursors", "feed", "delivery", "schedule"}

var impure = []string{"context", "log", "log/slog", "net", "os", "os/exec", "database/sql", "math/rand", "testing"}

type pkg struct {
	ImportPath string
	Name       string
	Doc        string
	GoFiles    []string
	Imports    []string
}

func packages(t *testing.T) []pkg {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Name,Doc,GoFiles,Imports", module+"/...")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var all []pkg
	for dec := json.NewDecoder(strings.NewReader(string(out))); dec.More(); {
		var p pkg
		if err := dec.Decode(&p); err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
	if len(all) < 10 {
		t.Fatalf("go list found %d packages only", len(all))
	}
	return all
}

func short(importPath string) string {
	if importPath == module {
		return "."
	}
	return strings.TrimPrefix(importPath, module+"/")
}

func ours(importPath string) bool {
	return importPath == module || strings.HasPrefix(importPath, module+"/")
}

func rowOf(p string) (int, error) {
	best, length := -1, -1
	for i, row := range rows {
		for _, pattern := range row {
			dir, below := strings.CutSuffix(pattern, "/...")
			if p == dir || below && strings.HasPrefix(p, dir+"/") {
				if len(pattern) > length {
					best, length = i, len(pattern)
				}
			}
		}
	}
	if best < 0 {
		return 0, fmt.Errorf("package %s stands in no row: add it to rows", p)
	}
	return best, nil
}

func TestImportsGoDownOnly(t *testing.T) {
	for _, p := range packages(t) {
		from := short(p.ImportPath)
		row, err := rowOf(from)
		if err != nil {
			t.Error(err)
			continue
		}
		for _, imp := range p.Imports {
			if !ours(imp) {
				continue
			}
			to := short(imp)
			target, err := rowOf(to)
			switch {
			case err != nil:
				t.Error(err)
			case slices.Contains(within[from], to):
			case strings.HasPrefix(from, "internal/") && strings.HasPrefix(to, "internal/") && leaf(to):
			case target <= row:
				t.Errorf("%s imports %s, which is not below it", from, to)
			case strings.HasPrefix(to, "store/") && from != "." && !strings.HasPrefix(from, "cmd/"):
				t.Errorf("%s imports the store implementation %s: only cmd and the root package may", from, to)
			}
		}
	}
}

// leaf tells the internal packages that import no other internal package but leaves, and so may be
// used by the others of their row.
func leaf(p string) bool {
	return slices.Contains([]string{"internal/catalog", "internal/lifecycle", "internal/rpcerr", "internal/admission", "internal/metrics", "internal/deadletter", "internal/command"}, p)
}

func TestPurePackagesHaveNoWorld(t *testing.T) {
	for _, p := range packages(t) {
		if !slices.Contains(pure, short(p.ImportPath)) {
			continue
		}
		for _, imp := range p.Imports {
			if slices.Contains(impure, imp) {
				t.Errorf("%s is pure and imports %s", short(p.ImportPath), imp)
			}
		}
	}
}

func TestEveryPackageSaysWhatItIsFor(t *testing.T) {
	for _, p := range packages(t) {
		name := short(p.ImportPath)
		if strings.HasPrefix(name, "proto/") || len(p.GoFiles) == 0 {
			continue
		}
		want := "Package " + p.Name + " "
		if p.Name == "main" {
			want = "Command " + path.Base(p.ImportPath) + " "
		}
		if !strings.HasPrefix(p.Doc, want) {
			t.Errorf("%s: its comment starts %q, want %q", name, p.Doc, want+"…")
		}
	}
}
