package report

import (
	"fmt"
	"io"
	"regexp"
	"strings"

	"weir.io/weir/lab/record"
)

// Guide is the text of a document that is not in records: it is the same for all of them.
type Guide struct {
	Scenarios []string            // all of them: a record may be older than one of them
	Remarks   map[string][]string // how to read a scenario, in markdown
	Events    map[string][]string // quantities of a scenario whose values are of one event each
	Reasons   map[string]string   // a link to the reason why a check is missed, if it is known
	// Head writes the text before the checks, and Method the text after them, of a document that is
	// not about a machine; nil: the text of a benchmark.
	Head, Method func(w io.Writer, r *record.Record, source string)
}

// checks writes the table of targets. A check links to its table, and a missed one to the reason.
func (g Guide) checks(w io.Writer, r *record.Record) {
	fmt.Fprintf(w, "## Checks\n\n%s.\n\n", record.Tally(r.Checks))
	t := checks(r)
	var explained, unexplained bool
	for i, c := range r.Checks {
		if c.Verdict() == record.Missed {
			link := g.Reasons[c.Name]
			explained, unexplained = explained || link != "", unexplained || link == ""
			t.rows[i][0] = linked(t.rows[i][0], link)
		}
		if s := r.Scenario(c.Scenario); s != nil && measures(s, c.Quantity) {
			t.rows[i][1] = linked(c.Name, "#"+anchor(title(s, c.Quantity)))
		}
	}
	t.markdown(w)
	if explained {
		fmt.Fprint(w, "MISSED leads to what stands in the way. ")
	}
	if unexplained {
		fmt.Fprint(w, "Where MISSED leads nowhere, nobody has found it yet. ")
	}
	fmt.Fprint(w, "A check's name leads to its table.\n\n")
}

// absent says which scenarios are missing in the record; empty: none.
func (g Guide) absent(r *record.Record) string {
	var names []string
	for _, name := range g.Scenarios {
		if r.Scenario(name) == nil {
			names = append(names, name)
		}
	}
	return strings.Join(names, ", ")
}

func measures(s *record.Scenario, quantity string) bool {
	for _, m := range s.Measurements {
		if m.Quantity.Name == quantity {
			return true
		}
	}
	return false
}

// title is the heading of a quantity's table.
func title(s *record.Scenario, quantity string) string { return s.Name + ": " + quantity }

func linked(text, to string) string {
	if to == "" {
		return text
	}
	return "[" + text + "](" + to + ")"
}

var notInAnchors = regexp.MustCompile(`[^a-z0-9 _-]+`)

// anchor is the anchor of a heading, as GitHub, GitLab and Gitea make it from plain words.
func anchor(heading string) string {
	return strings.ReplaceAll(notInAnchors.ReplaceAllString(strings.ToLower(heading), ""), " ", "-")
}
