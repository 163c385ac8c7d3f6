package node

import (
	"testing"
	"time"

	"weir.io/weir/kube/v1alpha1"
)

func groupOf(drain v1alpha1.Duration, directors ...string) *v1alpha1.DirectorGroup {
	g := &v1alpha1.DirectorGroup{}
	g.Name, g.Spec.Drain, g.Spec.Interfaces, g.Spec.SNATPorts = "edge", &drain, []string{"eth0"}, "1024-29999"
	for _, d := range directors {
		g.Status.Directors = append(g.Status.Directors, v1alpha1.Director{Node: d})
	}
	return g
}

// What a node is follows from the group's status, and from what it was before.
func TestRole(t *testing.T) {
	with, without := groupOf("10s", "a", "b"), groupOf("10s", "b")
	type step struct {
		at     int // seconds
		group  *v1alpha1.DirectorGroup
		want   state
		drains bool
	}
	for name, steps := range map[string][]step{
		"it is a director":                       {{0, with, active, false}, {100, with, active, false}},
		"it is one no more":                      {{0, with, active, false}, {50, without, draining, true}, {59, without, draining, false}, {60, without, standby, false}},
		"its group is no more":                   {{0, with, active, false}, {50, nil, draining, true}, {59, nil, draining, false}, {60, nil, standby, false}},
		"it is one again while it drains":        {{0, with, active, false}, {50, without, draining, true}, {55, with, active, false}, {70, with, active, false}},
		"it is one again, and then not":          {{0, with, active, false}, {1, without, draining, true}, {20, without, standby, false}, {21, with, active, false}, {22, without, draining, true}},
		"a process finds what one before it had": {{0, without, draining, false}, {9, without, draining, false}, {10, without, standby, false}},
	} {
		var r role
		begin := time.Now()
		for i, s := range steps {
			drains := r.is(s.group, "a", begin.Add(time.Duration(s.at)*time.Second))
			if r.state != s.want || drains != s.drains || r.group == nil {
				t.Errorf("%s: in step %d it is %d, and begins to drain: %v; want %d, %v", name, i, r.state, drains, s.want, s.drains)
			}
		}
	}
	if d := drainOf(&v1alpha1.DirectorGroup{}); d != time.Minute {
		t.Errorf("a group that says nothing drains for %v", d)
	}
}

// A director whose process begins again stays one; a node is not made one without.
func TestUnfit(t *testing.T) {
	for _, test := range []struct {
		state  state
		silent time.Duration
		unfit  bool
	}{{active, 0, false}, {active, 14 * time.Second, false}, {active, 15 * time.Second, true}, {standby, 0, true}, {draining, time.Second, true}} {
		r := role{state: test.state}
		if got := r.unfit(test.silent); (got != "") != test.unfit {
			t.Errorf("in state %d, and silent for %v, it is unfit because %q", test.state, test.silent, got)
		}
	}
}
