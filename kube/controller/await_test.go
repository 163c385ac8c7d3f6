package controller

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"weir.io/weir/internal/model"
	"weir.io/weir/kube/group"
	"weir.io/weir/kube/translate"
	"weir.io/weir/kube/v1alpha1"
)

// awaiting is a Service of a group, and the version in which its DirectorSet was written.
type awaiting struct {
	*plan
	w      *wish
	groups map[string]*compiledGroup
	begin  time.Time
}

func newAwaiting(spec v1alpha1.DirectorGroupSpec) *awaiting {
	a := &awaiting{plan: newPlan(), w: wishServedBy("web", 1, 1), begin: time.Now()}
	g := &v1alpha1.DirectorGroup{Spec: spec}
	g.Name = "edge"
	a.w.group = &translate.DirectorGroup{Of: g}
	a.w.addresses = []netip.Addr{a.w.made.services[0].VIP}
	a.of, a.byName[a.w.name()] = []*wish{a.w}, a.w
	a.groups = map[string]*compiledGroup{"edge": newCompiledGroup("edge")}
	a.written("7")
	return a
}

func (a *awaiting) written(version string) {
	a.groups["edge"].byName[a.w.name().String()] = &compiled{since: version, written: v1alpha1.CompiledService{Set: 3}}
}

// after lets the directors say what they have taken; - stands for a director that does not say.
func (a *awaiting) after(d time.Duration, taken ...string) {
	var directors []group.Candidate
	for i, version := range taken {
		c := group.Candidate{Presence: group.Presence{Node: string(rune('a' + i))}}
		if version != "-" {
			c.Taken = &group.Taken{Version: version}
			if why, is := strings.CutPrefix(version, "not:"); is {
				c.Taken = &group.Taken{Version: "99", Not: map[int32]string{3: why}}
			}
		}
		directors = append(directors, c)
	}
	a.read.staff = map[string]staff{"edge": {directors: directors}}
	a.refuse(nil)
	a.await(a.groups, a.begin.Add(d))
}

func (a *awaiting) condition() string {
	for _, c := range a.w.conditions() {
		if c.Type == translate.Forwarded {
			return string(c.Status) + " " + c.Reason + " " + c.Message
		}
	}
	return ""
}

// A Service's address is in its status when its group's directors have the Service. It waits a
// while for late directors, and if none has it, the user learns why.
func TestAwait(t *testing.T) {
	bgp := v1alpha1.DirectorGroupSpec{BGP: &v1alpha1.DirectorBGP{ASN: 65001}}
	neighbor := v1alpha1.DirectorGroupSpec{Neighbor: &v1alpha1.DirectorNeighbor{}}
	type step struct {
		after     time.Duration
		taken     []string
		forwarded bool
		condition string // how it begins; empty: there is none
	}
	answers := "b" // of a and b, for the VIP of wishServedBy
	if group.Answers("a", []string{"a", "b"}, group.VIP{Address: netip.MustParseAddr("203.0.113.1")}) {
		answers = "a"
	}
	who := func(first, other string) []string { // what the answering director says, and the other
		if answers == "a" {
			return []string{first, other}
		}
		return []string{other, first}
	}
	for name, test := range map[string]struct {
		spec  v1alpha1.DirectorGroupSpec
		steps []step
	}{
		"all have it":            {bgp, []step{{0, []string{"7", "8"}, true, "True Forwarded it is reached at 203.0.113.1"}}},
		"older ones do not say":  {bgp, []step{{0, []string{"-", "-"}, true, "True"}}},
		"they say so after it":   {bgp, []step{{0, []string{"6", ""}, false, ""}, {50 * time.Millisecond, []string{"7", "7"}, true, "True"}}},
		"one is late":            {bgp, []step{{0, []string{"6", "6"}, false, ""}, {time.Second, []string{"7", "6"}, false, ""}, {3 * time.Second, []string{"7", "6"}, true, "True"}}},
		"one does not take it":   {bgp, []step{{0, []string{"7", "not:too many"}, false, ""}, {2 * time.Second, []string{"7", "not:too many"}, true, "True"}}},
		"none takes it":          {bgp, []step{{0, []string{"6", "not:too many"}, false, ""}, {5 * time.Second, []string{"6", "not:too many"}, false, "False NotForwarded it has 203.0.113.1, but is not forwarded yet, by the directors of DirectorGroup edge: a has not said that it has it; b too many;"}, {6 * time.Second, []string{"7", "7"}, true, "True"}}},
		"who answers has it":     {neighbor, []step{{0, who("7", "6"), false, ""}, {2 * time.Second, who("7", "6"), true, "True"}}},
		"who answers is late":    {neighbor, []step{{0, who("6", "7"), false, ""}, {3 * time.Second, who("6", "7"), false, ""}, {5 * time.Second, who("6", "7"), false, "False NotForwarded"}}},
		"nobody says who has it": {v1alpha1.DirectorGroupSpec{}, []step{{0, []string{"7", "7"}, true, "True"}}},
	} {
		a := newAwaiting(test.spec)
		a.unsettled[a.w] = true
		for i, s := range test.steps {
			a.after(s.after, s.taken...)
			if got := a.condition(); a.w.forwarded != s.forwarded || len(a.w.ingress()) > 0 != s.forwarded || !strings.HasPrefix(got, s.condition) || s.condition == "" && got != "" {
				t.Errorf("%s, step %d: forwarded: %v, condition %q; want %v, %q", name, i, a.w.forwarded, got, s.forwarded, s.condition)
			}
			a.settle(nil, map[*wish]bool{})
		}
	}
}

// A Service keeps what it has while directors do not have its change. In the modes in which nodes
// take packets by the status, it waits for no director.
func TestAwaitKeeps(t *testing.T) {
	a := newAwaiting(v1alpha1.DirectorGroupSpec{BGP: &v1alpha1.DirectorBGP{ASN: 65001}})
	a.unsettled[a.w] = true
	a.after(0, "7")
	a.w.service.Status = a.w.status()
	a.written("9")
	a.unsettled[a.w] = true
	a.after(time.Second, "8")
	if got := a.condition(); a.w.forwarded || len(a.w.ingress()) != 1 || !strings.HasPrefix(got, "True") {
		t.Errorf("while another port is awaited it has the addresses %v, and says %q", a.w.ingress(), got)
	}
	a.after(7*time.Second, "8")
	if got := a.condition(); len(a.w.ingress()) != 1 || !strings.HasPrefix(got, "False NotForwarded") {
		t.Errorf("when it was awaited for long it has the addresses %v, and says %q", a.w.ingress(), got)
	}
	a.after(8*time.Second, "9")
	if got := a.condition(); !a.w.forwarded || !strings.HasPrefix(got, "True") {
		t.Errorf("when it is there it says %q", got)
	}

	a.w.made.services[0].Mode = model.L2DSR
	a.written("10")
	a.unsettled[a.w] = true
	if a.after(9*time.Second, "9"); !a.w.forwarded {
		t.Error("in l2dsr nodes wait for the status, and the status for directors")
	}
}

// A Service's condition says what is wrong with it, and goes when the Service is not ours any more.
func TestConditions(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*wish)
		want   string
	}{
		"it is forwarded":        {func(*wish) {}, "True Forwarded it is reached at 203.0.113.1"},
		"it has no address":      {func(w *wish) { w.addresses = nil; w.problem(assigning, translate.NoAddress, "no pool has one") }, "False NoAddress no pool has one"},
		"it cannot be forwarded": {func(w *wish) { w.made.services = nil; w.problem(forwarding, translate.Unsupported, "no node port") }, "False Unsupported no node port"},
		"it is refused": {func(w *wish) {
			w.forwarded = false
			w.problem(accepting, translate.NotForward, "DirectorGroup edge has no directors")
		}, "False NotForwarded DirectorGroup edge has no directors"},
		"nothing serves it": {func(w *wish) {
			w.made.services[0].Backends = nil
			w.problem(forwarding, translate.NoBackends, "nothing serves port 80")
		}, "False NoBackends nothing serves port 80"},
	} {
		w := wishServedBy("web", 1, 1)
		w.addresses, w.forwarded = []netip.Addr{netip.MustParseAddr("203.0.113.1")}, true
		others := metav1.Condition{Type: "example.org/Known", Status: metav1.ConditionTrue, Reason: "Known"}
		w.service.Status.Conditions = []metav1.Condition{others}
		w.service.Spec.Ports = []corev1.ServicePort{{Port: 80}, {Port: 9, Protocol: "DCCP"}}
		test.change(w)
		got := map[string]string{}
		for _, c := range w.conditions() {
			got[c.Type] = string(c.Status) + " " + c.Reason + " " + c.Message
		}
		if got[translate.Forwarded] != test.want || !strings.HasPrefix(got[corev1.LoadBalancerPortsError], "True LoadBalancerMixedProtocolNotSupported port 9: DCCP") || got[others.Type] == "" {
			t.Errorf("%s: the conditions are %q, want %q", name, got, test.want)
		}
		w.service.Status = w.status()
		w.service.Spec.Ports = w.service.Spec.Ports[:1]
		if w.service.Status = w.status(); len(w.service.Status.Conditions) != 2 {
			t.Errorf("%s: without the wrong port the conditions are %v", name, w.service.Status.Conditions)
		}
		if after := left(w.service); after == nil || len(after.Status.Conditions) != 1 || left(after) != nil {
			t.Errorf("%s: when it is not ours any more its conditions are %v", name, after)
		}
	}
}
