package main

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"weir.io/weir/bench/policies"
	"weir.io/weir/lab/record"
)

// costs is a scenario in which iptables and l2dsr cost that much in each round, with one flow and
// with many.
func costs(iptables, l2dsr []float64) *record.Scenario {
	s := &record.Scenario{Name: "flows"}
	for _, flows := range []int{1, manyFlows} {
		for i := range iptables {
			s.Add("iptables", flowsAt(flows), record.Cost, iptables[i])
			for _, mode := range stateless {
				s.Add(mode.Name, flowsAt(flows), record.Cost, l2dsr[i])
			}
		}
	}
	return s
}

func judged(t *testing.T, s *record.Scenario, name string) record.Check {
	t.Helper()
	all := judge(&record.Record{Scenarios: []record.Scenario{*s}})
	i := slices.IndexFunc(all, func(c record.Check) bool { return c.Name == name })
	if i < 0 {
		t.Fatalf("there is no check %s among %v", name, all)
	}
	return all[i]
}

// A cost is a difference. When noise makes it negative, so is its ratio, which is less
// than any limit.
func TestNoiseMeetsNoTarget(t *testing.T) {
	for _, test := range []struct {
		name      string
		iptables  []float64
		l2dsr     []float64
		dnat      record.Verdict // of iptables to l2dsr
		flat      record.Verdict // of many flows to one
		dnatValue float64
	}{
		{"quiet", []float64{1500, 1510, 1490}, []float64{100, 100, 100}, record.Met, record.Met, 15},
		{"too slow", []float64{500, 510, 490}, []float64{100, 100, 100}, record.Missed, record.Met, 5},
		{"one round of noise", []float64{1500, 1500, 1500}, []float64{100, -5, 100}, record.TooNoisy, record.TooNoisy, 15},
		{"nothing", []float64{1500, 1500, 1500}, []float64{100, 0, 100}, record.TooNoisy, record.TooNoisy, 15},
		{"both negative", []float64{-1500, -1500}, []float64{-100, -100}, record.TooNoisy, record.TooNoisy, 15},
	} {
		s := costs(test.iptables, test.l2dsr)
		dnat, flat := judged(t, s, "cost_dnat_vs_weir_1flow"), judged(t, s, "cost_1mflows_vs_1flow")
		if dnat.Verdict() != test.dnat || flat.Verdict() != test.flat || float64(dnat.Value) != test.dnatValue {
			t.Errorf("%s: %v and %v, want %s (%g) and %s", test.name, dnat, flat, test.dnat, test.dnatValue, test.flat)
		}
		if dnat.OK != (test.dnat == record.Met) || (dnat.Note != "") != (test.dnat == record.TooNoisy) {
			t.Errorf("%s: ok is %v with the note %q", test.name, dnat.OK, dnat.Note)
		}
	}
	noisy := judged(t, costs([]float64{1500, 1500}, []float64{-5, 100}), "cost_dnat_vs_weir_1flow")
	if want := "cost of l2dsr is not above 0 in 1 of 2 rounds"; noisy.Note != want {
		t.Errorf("the note is %q, want %q", noisy.Note, want)
	}
}

// A check that was not measured has neither missed its target nor met it, and says what is missing.
func TestNotMeasured(t *testing.T) {
	s := &record.Scenario{Name: "flows"}
	s.Add("iptables", flowsAt(1), record.Cost, 1500)
	s.Add("l2dsr", flowsAt(1), record.Cost, 100)
	if c := judged(t, s, "cost_dnat_vs_weir_1flow"); c.Verdict() != record.Met {
		t.Errorf("what was measured is %v", c)
	}
	c := judged(t, s, "cost_dnat_vs_weir_1mflows")
	if c.Verdict() != record.NotMeasured || c.OK || c.Note != "there is no cost of iptables with flows=1000000" {
		t.Errorf("what was not measured is %v with the note %q", c, c.Note)
	}
}

// A scenario that broke meets no target, but a failure that it saw counts as missed.
func TestABrokenScenarioMeetsNothing(t *testing.T) {
	s := &record.Scenario{Name: "churn", Error: "a frame came to the wrong backend"}
	for _, two := range []bool{false, true} {
		s.Add(l2dsr.Name, churnAt(two, swapInterval), misdirected, 3)
		s.Add(l2dsr.Name, churnAt(two, swapInterval), lostPackets, 0)
	}
	if c := judged(t, s, "swap_misdirected"); c.Verdict() != record.Missed || c.Value != 3 {
		t.Errorf("3 misdirected packets are %v", c)
	}
	if c := judged(t, s, "swap_lost"); c.Verdict() != record.NotMeasured || c.Note == "" {
		t.Errorf("0 lost packets before it broke are %v", c)
	}
}

var elsewhere = regexp.MustCompile(`^the same\b|\bthe same (with|of|at)\b|\b(that rate|through it|as above)\b`)

// A check names an existing scenario and a quantity of it, has a name of its own, knows in which
// direction its target lies, and can be read without the check before it.
func TestChecksAreComplete(t *testing.T) {
	names := map[string]bool{}
	targets := map[string]float64{}
	for _, c := range slices.Concat(checks, alternates, simulated) {
		if first, again := targets[c.name]; again && slices.ContainsFunc(alternates, func(a check) bool { return a.name == c.name }) {
			delete(names, c.name)
			if first != c.target {
				t.Errorf("the check %q has the targets %g and %g", c.name, first, c.target)
			}
		}
		targets[c.name] = c.target
		known := slices.Contains(policies.Names(), c.scenario) || slices.ContainsFunc(scenarios, func(s scenario) bool { return s.name == c.scenario })
		if !known || names[c.name] || c.value == nil || c.relation != "<=" && c.relation != ">=" || c.quantity.Name == "" {
			t.Errorf("the check %q of scenario %q is not complete, or not the only one", c.name, c.scenario)
		}
		if c.what == "" || elsewhere.MatchString(c.what) || strings.HasSuffix(c.what, ".") {
			t.Errorf("the check %q does not say by itself what it is: %q", c.name, c.what)
		}
		names[c.name] = true
		// A scenario that measured nothing says so, and misses no target.
		if j := c.judge(&record.Scenario{Name: c.scenario}); j.Verdict() != record.NotMeasured || j.Note == "" {
			t.Errorf("%s is %v of a scenario that measured nothing (%q)", c.name, j, j.Note)
		}
	}
}

// A check that two scenarios answer appears once, whichever of them ran.
func TestAlternates(t *testing.T) {
	first, second := record.Scenario{Name: "syn"}, record.Scenario{Name: "bypass"}
	for _, test := range []struct {
		ran  []record.Scenario
		from string
	}{{[]record.Scenario{first}, "syn"}, {[]record.Scenario{second}, "bypass"}, {[]record.Scenario{second, first}, "syn"}} {
		var from []string
		for _, c := range judge(&record.Record{Scenarios: test.ran}) {
			if c.Name == "syn_vs_dnat" {
				from = append(from, c.Scenario)
			}
		}
		if !slices.Equal(from, []string{test.from}) {
			t.Errorf("after %d scenarios the check is of %v, want %s", len(test.ran), from, test.from)
		}
	}
}
