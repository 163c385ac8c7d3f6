package controller

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"weir.io/weir/kube/group"
	"weir.io/weir/kube/translate"
	"weir.io/weir/kube/v1alpha1"
)

// What was found about a way stays until directors have looked at the next pod of the node, and
// goes with the last pod; the next controller continues from it.
func TestWays(t *testing.T) {
	n1, n2 := translate.Place{Node: "n1"}, translate.Place{Node: "n2"}
	a, b, c := netip.MustParseAddrPort("10.1.0.1:80"), netip.MustParseAddrPort("10.1.0.2:80"), netip.MustParseAddrPort("10.2.0.1:80")
	says := func(node string, ways map[string]string) group.Candidate {
		return group.Candidate{Presence: group.Presence{Node: node, Ways: ways}}
	}
	var w *ways
	for _, step := range []struct {
		name      string
		pods      map[translate.Place][]netip.AddrPort
		directors []group.Candidate
		found     string
		status    string
	}{
		{"asked for the first time", map[translate.Place][]netip.AddrPort{n1: {b, a}}, nil, "map[]", "n1 10.1.0.1:80 " + translate.NotLooked},
		{"one of two directors has looked", map[translate.Place][]netip.AddrPort{n1: {a, b}}, []group.Candidate{says("d", map[string]string{a.String(): ""}), says("e", nil)},
			"map[]", "n1 10.1.0.1:80 " + translate.NotLooked},
		{"both have", map[translate.Place][]netip.AddrPort{n1: {a, b}}, []group.Candidate{says("d", map[string]string{a.String(): ""}), says("e", map[string]string{a.String(): ""})},
			"map[{n1 IPv4}:]", "n1 10.1.0.1:80 "},
		{"the pod is gone, and another is asked about", map[translate.Place][]netip.AddrPort{n1: {b}, n2: {c}}, []group.Candidate{says("d", map[string]string{a.String(): ""}), says("e", nil)},
			"map[{n1 IPv4}:]", "n1 10.1.0.2:80 ; n2 10.2.0.1:80 " + translate.NotLooked},
		{"one director says what is in the way", map[translate.Place][]netip.AddrPort{n1: {b}, n2: {c}}, []group.Candidate{says("d", nil), says("e", map[string]string{b.String(): "a tunnel", c.String(): ""})},
			"map[{n1 IPv4}:director e: a tunnel]", "n1 10.1.0.2:80 director e: a tunnel; n2 10.2.0.1:80 " + translate.NotLooked},
		{"no directors", map[translate.Place][]netip.AddrPort{n1: {b}, n2: {c}}, nil,
			"map[{n1 IPv4}:director e: a tunnel]", "n1 10.1.0.2:80 director e: a tunnel; n2 10.2.0.1:80 " + translate.NotLooked},
		{"no pod there any more", map[translate.Place][]netip.AddrPort{n2: {c}}, nil, "map[]", "n2 10.2.0.1:80 " + translate.NotLooked},
	} {
		if w == nil {
			w = newWays(&v1alpha1.DirectorGroup{})
		} else { // as the next process reads it
			g := &v1alpha1.DirectorGroup{}
			g.Status.Ways = w.status()
			w = newWays(g)
		}
		w.hear(step.directors)
		w.ask(step.pods)
		status := ""
		for i, way := range w.status() {
			if i > 0 {
				status += "; "
			}
			status += way.Node + " " + way.Pod + " " + way.Problem
		}
		if found := fmt.Sprint(w.found); found != step.found || status != step.status {
			t.Errorf("%s: found is %s, and the status %q; want %s, %q", step.name, found, status, step.found, step.status)
		}
	}
}

// An agent that is silent, or does not run, is known to have been there; Leases of other namespaces
// do not count.
func TestAgents(t *testing.T) {
	h := newHeard()
	store := cache.NewSharedIndexInformer(nil, &coordinationv1.Lease{}, 0, nil)
	now := time.Now()
	for _, one := range []struct {
		namespace, node, unfit string
		silent                 time.Duration
	}{{"weir-system", "runs", "", 5 * time.Second}, {"weir-system", "silent", "", 16 * time.Second}, {"weir-system", "stopped", "weir agent does not run", 0}, {"other", "forged", "", 0}} {
		l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: one.namespace, Name: one.node,
			Annotations: map[string]string{group.AnnotationAgent: group.AgentPresence{Node: one.node, Unfit: one.unfit}.String()}}}
		if err := store.GetStore().Add(l); err != nil {
			t.Fatal(err)
		}
		h.at[key(l)] = now.Add(-one.silent)
	}
	by, next := h.agents(store, "weir-system", now)
	want := map[string]translate.Agent{"runs": translate.AgentRuns, "silent": translate.AgentSilent, "stopped": translate.AgentSilent}
	if fmt.Sprint(by) != fmt.Sprint(want) || !next.Equal(now.Add(10*time.Second)) {
		t.Errorf("known are %v, and one is silent in %v; want %v, and 10s", by, next.Sub(now), want)
	}
}
