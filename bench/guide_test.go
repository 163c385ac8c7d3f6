package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The guide names only existing scenarios and checks, and links only to headings that the documents
// have.
func TestGuide(t *testing.T) {
	for name := range guide.Remarks {
		if !slices.ContainsFunc(scenarios, func(s scenario) bool { return s.name == name }) {
			t.Errorf("there are remarks on the scenario %q, which there is not", name)
		}
	}
	for name, link := range guide.Reasons {
		if !slices.ContainsFunc(checks, func(c check) bool { return c.name == name }) {
			t.Errorf("there is a reason of the check %q, which there is not", name)
		}
		file, heading, _ := strings.Cut(link, "#")
		text, err := os.ReadFile(filepath.Join("../docs/results", file))
		if err != nil {
			t.Fatal(err)
		}
		words := strings.ReplaceAll(regexp.QuoteMeta(heading), "-", "[ -]")
		if found, err := regexp.Match("(?mi)^#+ "+words+"$", text); err != nil || !found {
			t.Errorf("%s leads to %s, where no heading is called so (%v)", name, link, err)
		}
	}
}

var paper = regexp.MustCompile(`\b[Pp]aper\b|\bHNLB\b`)

// Where figures are quoted, their source is named.
func TestQuotedFiguresHaveASource(t *testing.T) {
	for _, s := range scenarios {
		quotes := paper.MatchString(strings.Join(s.notes, "\n"))
		named := slices.ContainsFunc(guide.Remarks[s.name], func(remark string) bool {
			return slices.ContainsFunc([]string{lee, takahashi, hnlb, kogias}, func(source string) bool { return strings.Contains(remark, strings.TrimSuffix(source, ", section IV")) })
		})
		if quotes != named {
			t.Errorf("%s quotes a paper: %v; it is named: %v", s.name, quotes, named)
		}
	}
}
