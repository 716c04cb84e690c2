package archtest

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const root = "../.."

// walk gives every file of the repository, by its path from the root.
func walk(t *testing.T, visit func(path string)) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, path)
		if d.IsDir() && (rel == ".git" || rel == "bin" || d.Name() == "node_modules") {
			return filepath.SkipDir
		}
		if !d.IsDir() {
			visit(rel)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

var testFunc = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark|Example)\w*)\(`)

func testNames(t *testing.T) map[string]bool {
	names := make(map[string]bool)
	walk(t, func(path string) {
		if strings.HasSuffix(path, "_test.go") || strings.Contains(path, "storetest") {
			for _, m := range testFunc.FindAllStringSubmatch(read(t, path), -1) {
				names[m[1]] = true
			}
		}
	})
	return names
}

var quotedTest = regexp.MustCompile("`((?:Test|Fuzz|Benchmark|Example)\\w+)(?:/[^`]*)?`")

func TestGuaranteesNameTestsThatExist(t *testing.T) {
	names := testNames(t)
	found := 0
	for _, m := range quotedTest.FindAllStringSubmatch(read(t, "docs/guarantees.md"), -1) {
		found++
		if !names[m[1]] {
			t.Errorf("docs/guarantees.md names %s, and there is no such test", m[1])
		}
	}
	if found == 0 {
		t.Error("docs/guarantees.md names no test")
	}
}

var link = regexp.MustCompile(`\]\(([^)#:\s]+)(?:#[^)]*)?\)`)

func TestLinksInDocumentsLeadSomewhere(t *testing.T) {
	walk(t, func(path string) {
		if !strings.HasSuffix(path, ".md") {
			return
		}
		for _, m := range link.FindAllStringSubmatch(read(t, path), -1) {
			target := filepath.Join(root, filepath.Dir(path), m[1])
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s links to %s: %v", path, m[1], err)
			}
		}
	})
}

var backquoted = regexp.MustCompile("`((?:[a-z_]+/)+[a-z_]*(?:\\.[a-z]+)?)`")

func TestPathsInDocumentsExist(t *testing.T) {
	for _, doc := range []string{"README.md", "docs/ARCHITECTURE.md", "docs/guarantees.md"} {
		for _, m := range backquoted.FindAllStringSubmatch(read(t, doc), -1) {
			first, _, _ := strings.Cut(m[1], "/")
			if _, err := os.Stat(filepath.Join(root, first)); err != nil {
				continue // not a path of this repository
			}
			if _, err := os.Stat(filepath.Join(root, m[1])); err != nil {
				t.Errorf("%s names %s: %v", doc, m[1], err)
			}
		}
	}
}

var makeTarget = regexp.MustCompile(`make ([a-z-]+)`)

func TestMakeTargetsInDocumentsExist(t *testing.T) {
	makefile := read(t, "Makefile")
	for _, doc := range []string{"README.md", "docs/ARCHITECTURE.md", ".ci/run"} {
		text := read(t, doc)
		for _, m := range makeTarget.FindAllStringSubmatch(text, -1) {
			if !regexp.MustCompile(`(?m)^`+m[1]+`:`).MatchString(makefile) && strings.Contains(text, "`make "+m[1]) {
				t.Errorf("%s names make %s, and the Makefile has no such target", doc, m[1])
			}
		}
	}
}
