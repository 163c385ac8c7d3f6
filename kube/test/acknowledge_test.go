package kube

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// condition returns the text of one of a Service's conditions; empty if it has none.
func (l *lab) condition(service, kind string) string {
	s, err := l.core.Services(namespace).Get(l.t.Context(), service, metav1.GetOptions{})
	if err != nil {
		return err.Error()
	}
	c := meta.FindStatusCondition(s.Status.Conditions, kind)
	if c == nil {
		return ""
	}
	return string(c.Status) + " " + c.Reason + " " + c.Message
}

func (l *lab) waitForCondition(service, kind, want string) {
	l.t.Helper()
	waitFor(l.t, "the condition "+kind+" of "+service+" to begin with "+want, func() bool {
		got := l.condition(service, kind)
		return got == want || want != "" && strings.HasPrefix(got, want)
	})
}

// A Service's address is in its status once directors forward it. While none does, its user learns
// why; once a new director forwards it, it is announced. Ports that are not forwarded are named,
// and a Service that is no longer a load balancer has no condition about directors.
func TestAddressWaitsForDirectors(t *testing.T) {
	const forwarded = "weir.io/Forwarded"
	l := newGroupLab(t, groupOptions{})
	l.waitForFit()
	l.controller("first")
	l.waitForStatus("node-a node-b, 1 stand by")
	l.pods("web", 1)
	l.service("web")
	l.waitForAddresses("web", vip)
	l.waitForCondition("web", forwarded, "True Forwarded it is reached at "+vip)
	l.reaches(vip, "pod1")

	// Both directors keep forwarding what they have, and get nothing new.
	for _, n := range l.nodes[:2] {
		stop(t, n.sidecar)
	}
	l.pods("late", 2)
	l.service("late")
	l.event("late", "NotForwarded", "it has 203.0.113.2, but is not forwarded yet, by the directors of DirectorGroup edge: node-a has not said that it has it; node-b has not said that it has it")
	l.waitForCondition("late", forwarded, "False NotForwarded it has 203.0.113.2")
	if got := l.addresses("late"); got != "" {
		t.Errorf("a Service that nobody forwards has %s in its status", got)
	}
	l.answered(20, "while the sidecars are away")

	// The two are silent, so the third takes their place, and forwards the Service.
	l.waitForAddresses("late", "203.0.113.2")
	l.waitForCondition("late", forwarded, "True Forwarded")
	if !strings.Contains(l.nodes[2].documents(), "203.0.113.2") {
		t.Errorf("the address is announced, and the only director has %s", l.nodes[2].documents())
	}

	_, err := l.core.Services(namespace).Patch(t.Context(), "late", types.MergePatchType, []byte(`{"spec": {"type": "ClusterIP", "loadBalancerClass": null}}`), metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	l.waitForCondition("late", forwarded, "")
}
