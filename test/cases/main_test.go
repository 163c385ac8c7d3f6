package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Every test that a case names exists.
func TestCasesNameTests(t *testing.T) {
	faults, err := read(list)
	if err != nil {
		t.Fatal(err)
	}
	if len(faults) < 10 {
		t.Fatalf("there are %d cases", len(faults))
	}
	for _, f := range faults {
		files, err := filepath.Glob(filepath.Join("..", "..", f.pkg, "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		name, _, _ := strings.Cut(f.test, "/")
		found := false
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			found = found || strings.Contains(string(text), "func "+name+"(t *testing.T)") || strings.Contains(string(text), "func "+name+"(f *testing.F)")
		}
		if !found {
			t.Errorf("%s: there is no %s in %s", f.number, f.test, f.pkg)
		}
	}
}

func TestReadRefusesShortLines(t *testing.T) {
	if _, err := read("A1 ./test TestX\n"); err == nil || !strings.HasPrefix(err.Error(), "cases.txt:1: has 3 columns") {
		t.Errorf("a line without what is right gives %v", err)
	}
}
