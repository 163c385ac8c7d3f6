package controller

import (
	"strings"
	"testing"

	"weir.io/weir/internal/model"
	"weir.io/weir/kube/group"
	"weir.io/weir/kube/v1alpha1"
)

// Services of others are in a LoadBalancer's way, if a director would not forward both, unless it
// names their owner and has the same ports.
func TestAdoption(t *testing.T) {
	b := newBalancers(t)
	w := b.add("web", v1alpha1.LoadBalancerStatus{})
	b.pass()
	services, problems := w.balancer.Services(w.chosen.Options, w.addresses)
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	w.made.services = services
	for name, test := range map[string]struct {
		adopt, owner string
		fixed        bool
		change       func(*model.Service)
		taken        int
		want         string // is in its way
	}{
		"the same":          {"", "ops", false, func(*model.Service) {}, 0, "vlan:7 10.0.0.1 tcp port 80 is of service x of owner ops in director n: remove it there, or take it over with spec.adopt: ops"},
		"it is taken over":  {"ops", "ops", false, func(*model.Service) {}, 1, ""},
		"it is another's":   {"ops", "dev", false, func(*model.Service) {}, 0, "take it over with spec.adopt: dev"},
		"it is the file's":  {"file", "file", true, func(*model.Service) {}, 0, "take it out of the director's file"},
		"another segment":   {"", "ops", false, func(s *model.Service) { s.Segment.ID = 8 }, 0, ""},
		"another port":      {"", "ops", false, func(s *model.Service) { s.Port = model.PortRange{First: 81, Last: 81} }, 0, ""},
		"another protocol":  {"", "ops", false, func(s *model.Service) { s.Protocol = model.UDP }, 0, ""},
		"a range around it": {"", "ops", false, func(s *model.Service) { s.Port = model.PortRange{First: 80, Last: 90} }, 0, ""},
		"all ports":         {"ops", "ops", false, func(s *model.Service) { s.Port = model.PortRange{} }, 0, ""},
	} {
		s := services[0]
		s.Name = "x"
		test.change(&s)
		w.balancer.Of.Spec.Adopt = test.adopt
		a := w.adoptionFrom([]group.Candidate{{Presence: group.Presence{Node: "n"}, Others: group.Others{Services: []group.Other{{Owner: test.owner, Fixed: test.fixed, Document: model.Document{Service: s}}}}}})
		if len(a.before) != test.taken || !strings.Contains(a.obstacle, test.want) || test.want == "" && a.obstacle != "" {
			t.Errorf("%s: %d are taken over, and in its way is %q", name, len(a.before), a.obstacle)
		}
	}
	w.balancer.Of.Spec.Adopt = "ops"
	if a := w.adoptionFrom([]group.Candidate{{Presence: group.Presence{Node: "n"}, Others: group.Others{Missing: 3}}}); !strings.Contains(a.obstacle, "director n has 3 services of others without room") {
		t.Errorf("what is not reported is taken over: %q", a.obstacle)
	}
}
