package controller

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"weir.io/weir/internal/model"
	"weir.io/weir/kube/group"
	"weir.io/weir/kube/translate"
	"weir.io/weir/kube/v1alpha1"
)

// portsOf gives a Service a number of ports, each with a node port.
func portsOf(w *wish, n int) {
	first := w.made.services[0]
	w.made.services, w.made.ports = nil, nil
	for i := range n {
		for _, vip := range []netip.Addr{first.VIP, netip.MustParseAddr("2001:db8::1")} {
			s := first
			s.VIP, s.Port = vip, model.PortRange{First: uint16(80 + i), Last: uint16(80 + i)}
			w.made.services = append(w.made.services, s)
		}
		w.made.ports = append(w.made.ports, v1alpha1.ServiceNodePort{Protocol: "tcp", Port: int32(80 + i), NodePort: int32(30080 + i)})
	}
}

// The oldest Services have their node ports while there is room for what these need, in directors
// beside Services themselves, and in agents. The others are told; a Service that gets room later
// has its node ports then.
func TestFitNodePorts(t *testing.T) {
	p := newPlan()
	g := &translate.DirectorGroup{Of: &v1alpha1.DirectorGroup{Spec: v1alpha1.DirectorGroupSpec{Directors: 3, NodePorts: &v1alpha1.DirectorNodePorts{}}}}
	g.Of.Name, p.read.groups = "edge", []*translate.DirectorGroup{g}
	for i, ports := range []int{300, 400, 10} { // in each of two families
		w := wishServedBy(fmt.Sprint("s", i), i, 1)
		w.group = g
		portsOf(w, ports)
		p.of = append(p.of, w)
	}
	fits := func(what, want, says string) {
		t.Helper()
		p.revision++
		p.unsettled = map[*wish]bool{}
		p.fitNodePorts()
		var got []string
		said := ""
		for _, w := range p.of {
			got = append(got, fmt.Sprint(len(w.ports)))
			for _, problem := range w.problems[fitting] {
				said += problem.Message
			}
		}
		if text := strings.Join(got, " "); text != want || !strings.Contains(said, says) || (said == "") != (says == "") {
			t.Errorf("%s: they have %s node ports and are told %q, want %s and %q", what, text, said, want, says)
		}
	}
	// 300 x 2 x 3 = 1800, 400 x 2 x 3 = 2400, 10 x 2 x 3 = 60
	fits("three directors", "300 0 10", "agents know 4096 at most")
	if !p.unsettled[p.of[0]] || !p.unsettled[p.of[1]] {
		t.Error("whose ports have changed nobody looks at")
	}
	fits("the same", "300 0 10", "agents know 4096 at most")
	if len(p.unsettled) > 0 {
		t.Error("without a change somebody is looked at")
	}
	g.Of.Spec.Directors = 2
	fits("two directors", "300 400 10", "")
	g.Of.Spec.Limits = &v1alpha1.DirectorLimits{Services: 1420 + 620}
	fits("few services", "300 0 10", "no room for more in spec.limits.services of DirectorGroup edge")
	g.Of.Spec.NodePorts = nil
	for _, w := range p.of {
		w.made.ports = nil
	}
	fits("none", "0 0 0", "")
}

// A change of node ports alone makes a new revision of a Service, and no new generation.
func TestNodePortsAreWritten(t *testing.T) {
	now := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	g := newCompiledGroup("edge")
	w := wishServedBy("web", 1, 2)
	pass := func() *compiled {
		t.Helper()
		if refused := g.want([]*wish{w}); len(refused) > 0 {
			t.Fatal(refused[0].why)
		}
		if err := g.set(time.Second, nowhere, now); err != nil {
			t.Fatal(err)
		}
		return g.byName["x/web"]
	}
	first := pass()
	g.changedObjects()
	w.ports = []v1alpha1.ServiceNodePort{{Protocol: "tcp", Port: 80, NodePort: 30080}}
	second := pass()
	if second.written.Revision != first.written.Revision+1 || len(second.written.NodePorts) != 1 || !sameDocuments(first.documents, second.documents) {
		t.Errorf("it is written as %+v, and was %+v", second.written, first.written)
	}
	if g.changedObjects() == "" {
		t.Error("no object is written")
	}
	if pass(); g.changedObjects() != "" {
		t.Error("it is written without a change")
	}
}

// The condition of a group says which directors do not have node ports, and why.
func TestNodePortsCondition(t *testing.T) {
	g := &v1alpha1.DirectorGroup{Spec: v1alpha1.DirectorGroupSpec{NodePorts: &v1alpha1.DirectorNodePorts{}}}
	c, wanted := nodePortsOf(g, staff{directors: []group.Candidate{{Presence: group.Presence{Node: "a"}}, {Presence: group.Presence{Node: "b"}}}})
	if !wanted || c.Status != "True" || c.Reason != v1alpha1.ReasonTaken {
		t.Errorf("it says %+v, %v", c, wanted)
	}
	c, _ = nodePortsOf(g, staff{directors: []group.Candidate{{Presence: group.Presence{Node: "a"}}, {Presence: group.Presence{Node: "b", NodePorts: "the node has no address"}}}})
	if c.Status != "False" || c.Reason != v1alpha1.ReasonNotTaken || c.Message != "1 of 2 directors have not all: b: the node has no address" {
		t.Errorf("it says %+v", c)
	}
	c, _ = nodePortsOf(g, staff{})
	if c.Status != "False" || c.Reason != v1alpha1.ReasonNotTaken || c.Message != "the group has no directors" {
		t.Errorf("without directors it says %+v", c)
	}
	if _, wanted := nodePortsOf(&v1alpha1.DirectorGroup{}, staff{}); wanted {
		t.Error("a group without node ports says something of them")
	}
}
