package main

import (
	"fmt"
	"io"
	"strings"

	"weir.io/weir/lab/record"
)

// lacks are the scenarios of a complete run that are missing in a record.
func lacks(r *record.Record) (names []string) {
	for _, s := range scenarios {
		if s.when == always && r.Scenario(s.name) == nil {
			names = append(names, s.name)
		}
	}
	return names
}

// headOfPart begins the document of some scenarios: it says how this document is made, not the one
// of all scenarios.
func headOfPart(document string) func(io.Writer, *record.Record, string) {
	return func(w io.Writer, r *record.Record, source string) {
		var names []string
		for _, s := range r.Scenarios {
			names = append(names, s.Name)
		}
		fmt.Fprintf(w, "# Benchmarks: %s\n\n"+
			"Generated from `%s`; do not edit. The record and this document are made with\n\n"+
			"```sh\nbin/bench run %s --rounds %d --out %s\nbin/bench report --out %s %s\n```\n\n",
			strings.Join(names, " and "), source, strings.Join(names, " "), r.Settings.Rounds, source, document, source)
	}
}
