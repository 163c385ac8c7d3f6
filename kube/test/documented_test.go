package kube

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
)

var (
	namedTest = regexp.MustCompile("`(Test[A-Z][A-Za-z]+)`")
	aTest     = regexp.MustCompile(`(?m)^func (Test[A-Z][A-Za-z]+)\(`)
)

// docs/results/kubernetes-tests.md names the tests that show its claims, and each of them exists.
func TestNamedTestsAreThere(t *testing.T) {
	var there []string
	for _, where := range []string{"*_test.go", "../*/*_test.go", "../cmd/*/*_test.go", "../../test/*_test.go", "../../internal/*/*_test.go", "../../cmd/*/*_test.go"} {
		files, err := filepath.Glob(where)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			for _, found := range aTest.FindAllSubmatch(read(t, file), -1) {
				there = append(there, string(found[1]))
			}
		}
	}
	named := namedTest.FindAllSubmatch(read(t, "../../docs/results/kubernetes-tests.md"), -1)
	if len(named) < 20 {
		t.Errorf("docs/results/kubernetes-tests.md names %d tests", len(named))
	}
	for _, found := range named {
		if name := string(found[1]); !slices.Contains(there, name) {
			t.Errorf("docs/results/kubernetes-tests.md names %s, which is not there", name)
		}
	}
}

func read(t *testing.T, file string) []byte {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return text
}
