package main

import (
	"slices"
	"testing"
)

// Each kernel runs its own tests, or those of all kernels; a command has none.
func TestPatterns(t *testing.T) {
	p := patterns{}
	for _, given := range []string{"6.1=TestA|TestB=c", "TestC"} {
		if err := p.set(given); err != nil {
			t.Fatal(err)
		}
	}
	tests := []binary{{args: []string{"-test.v"}}, {args: []string{"-c"}, command: true}}
	for version, want := range map[string]string{"6.1": "-test.run=TestA|TestB=c", "6.12": "-test.run=TestC"} {
		got := p.on(version, tests)
		if !slices.Equal(got[0].args, []string{"-test.v", want}) || !slices.Equal(got[1].args, []string{"-c"}) {
			t.Errorf("on %s run %q and %q", version, got[0].args, got[1].args)
		}
	}
	for _, wrong := range []string{"6.1=TestD", "TestE", "6.12=("} {
		if err := p.set(wrong); err == nil {
			t.Errorf("-run %s is taken", wrong)
		}
	}
}
