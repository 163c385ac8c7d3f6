package main

import (
	"slices"
	"testing"
)

// Long scenarios run only when named, or in a smoke run; those that need minutes of building run
// only when named.
func TestWhenScenariosRun(t *testing.T) {
	pretend(t, []scenario{{name: "a"}, {name: "long", when: named}, {name: "built", when: apart}})
	for _, test := range []struct {
		names []string
		smoke bool
		want  []string
	}{
		{nil, false, []string{"a"}},
		{nil, true, []string{"a", "long"}},
		{[]string{"built"}, false, []string{"built"}},
		{[]string{"built", "a"}, true, []string{"a", "built"}},
	} {
		var got []string
		for _, s := range choose(test.names, test.smoke) {
			got = append(got, s.name)
		}
		if !slices.Equal(got, test.want) {
			t.Errorf("run %v with --smoke=%v runs %v, want %v", test.names, test.smoke, got, test.want)
		}
	}
}
