package main

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"

	"weir.io/weir/lab/record"
)

// written is the path of a record in which l2dsr and a reference take that long, a little longer in
// each round.
func written(t *testing.T, name, scenario string, l2dsr, redirect float64) string {
	t.Helper()
	r := &record.Record{Format: record.Format, Scenarios: []record.Scenario{{Name: scenario}}}
	for i := range 9 {
		r.Scenarios[0].Add("l2dsr", nil, runTime, l2dsr*(1+float64(i)/1000))
		r.Scenarios[0].Add("redirect", nil, record.Cost, redirect*(1+float64(i)/1000))
	}
	path := filepath.Join(t.TempDir(), name)
	if err := r.Write(path); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestCompare(t *testing.T) {
	old, slow := written(t, "old.json", "program", 100, 10), written(t, "slow.json", "program", 110, 10)
	machine, other := written(t, "machine.json", "program", 100, 20), written(t, "other.json", "flows", 100, 10)
	for _, test := range []struct {
		args []string
		code int
		says []string
	}{
		{[]string{old, slow}, 0, []string{"slower"}},
		{[]string{old, slow, "--fail-if-slower", "5"}, 1, []string{"1 measurement is slower by more than 5 %"}},
		{[]string{old, slow, "--fail-if-slower", "5%"}, 1, []string{"1 measurement is slower by more than 5 %"}},
		{[]string{old, slow, "--fail-if-slower", "15 %"}, 0, nil},
		{[]string{old, machine, "--fail-if-slower", "5"}, 0, []string{"1 measurement of a reference (redirect, reflect, swap, direct) got slower by more than 5 %"}},
		{[]string{old, machine}, 0, nil},
		{[]string{old, other}, 1, []string{"the records have no measurement in common"}},
		{[]string{old, other, "--json"}, 1, []string{"the records have no measurement in common"}},
		{[]string{old, slow, "--fail-if-slower", "few"}, 1, []string{"not a percentage of 0 or more, such as 5 or 5%"}},
		{[]string{old, slow, "--fail-if-slower", "-5"}, 1, []string{"not a percentage of 0 or more"}},
		{[]string{old, slow, "--fail-if-slower", "NaN"}, 1, []string{"not a percentage of 0 or more"}},
	} {
		var out bytes.Buffer
		code := execute(t.Context(), append([]string{"compare"}, test.args...), &out, &out)
		if code != test.code {
			t.Errorf("%v: exit status %d, want %d: %s", test.args, code, test.code, &out)
		}
		for _, want := range test.says {
			if !strings.Contains(out.String(), want) {
				t.Errorf("%v does not say %q: %s", test.args, want, &out)
			}
		}
	}
}

// Help and document name every reference, so that users know what is compared with what.
func TestReferencesAreNamed(t *testing.T) {
	var help bytes.Buffer
	execute(t.Context(), []string{"compare", "--help"}, &help, &help)
	for _, name := range record.References() {
		if !strings.Contains(help.String(), name) {
			t.Errorf("the help of compare does not name the reference %s:\n%s", name, &help)
		}
	}
}
