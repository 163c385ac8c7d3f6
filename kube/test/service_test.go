package kube

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/model"
)

// One Service's life, and that of others beside it.
func TestServices(t *testing.T) {
	l := newLab(t)
	l.removeGatewayAPI() // the controller does not need it
	first := l.controller("first")

	// A Service gets the first address, and its pods answer there.
	l.pods("web", 1, 2)
	l.service("web")
	l.waitForAddresses("web", "203.0.113.1")
	l.reaches("203.0.113.1", "pod1", "pod2")
	l.event("web", "AddressAssigned", "203.0.113.1")

	// A terminating pod gets no new connections, a new one does.
	l.pods("web", 1, -2, 3)
	l.waitForSet("default/web/80-tcp=pod1,pod3")
	l.reaches("203.0.113.1", "pod1", "pod3")
	waitFor(t, "twenty answers in a row without pod2", func() bool {
		for range 20 {
			if pod, err := l.ask("203.0.113.1"); err != nil || pod == "pod2" {
				return false
			}
		}
		return true
	})

	// An address in another owner's set is refused: an event tells that Service why, and others are
	// forwarded.
	const taken = `{"services": [{"name": "own", "vip": "203.0.113.2", "protocol": "tcp", "port": "80", "mode": "nat", "snat": true, "backends": [{"address": "10.2.0.21", "port": 8080}]}]}`
	if _, err := l.api.PutSet(t.Context(), "team", api.SetText{JSON: true, Text: []byte(taken)}, api.Condition{}); err != nil {
		t.Fatal(err)
	}
	l.pods("shop", 2)
	l.service("shop")
	l.event("shop", "NotForwarded", "team")
	l.pods("web", 3)
	l.waitForSet("default/web/80-tcp=pod3")
	if got := l.addresses("shop"); got != "" {
		t.Errorf("a Service that is not forwarded has %s in its status", got)
	}
	if _, err := l.api.PutSet(t.Context(), "team", api.SetText{JSON: true, Text: []byte(`{"services": []}`)}, api.Condition{}); err != nil {
		t.Fatal(err)
	}
	l.waitForAddresses("shop", "203.0.113.2")
	l.reaches("203.0.113.2", "pod2")

	// No address is left, until one is released.
	l.pods("late", 1)
	l.service("late")
	l.event("late", "NoAddress", "no IPv4 address is free in the pools that it may use: public")
	l.deleteService("web")
	l.waitForAddresses("late", "203.0.113.1")
	l.reaches("203.0.113.1", "pod1")

	// The next controller catches up with changes while none ran; unchanged requests keep what they
	// have.
	stop(t, first)
	l.deleteService("shop")
	l.pods("late", 2)
	second := l.controller("second")
	l.waitForSet("default/late/80-tcp=pod2")
	waitFor(t, "the address of the Service that is gone to be released", func() bool { return l.claims() == "203.0.113.1=late" })
	l.waitForAddresses("late", "203.0.113.1")

	// Another controller waits for the Lease, and takes over when its holder is lost.
	l.controller("third")
	stop(t, second)
	l.pods("late", 3)
	l.waitForSet("default/late/80-tcp=pod3")
	l.reaches("203.0.113.1", "pod3")

	// Without an API server everything goes on; with it again, so does the controller.
	l.stopServer()
	for range 20 {
		if pod, err := l.ask("203.0.113.1"); err != nil || pod != "pod3" {
			t.Fatalf("without an API server %q answers, error %v", pod, err)
		}
	}
	l.startServer()
	waitFor(t, "the API server to be ready again", l.ready)
	l.pods("late", 1, 3)
	l.waitForSet("default/late/80-tcp=pod1,pod3")

	// A Service that is no longer a load balancer gives its address back.
	_, err := l.core.Services(namespace).Patch(t.Context(), "late", types.MergePatchType, []byte(`{"spec": {"type": "ClusterIP", "loadBalancerClass": null}}`), metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	l.waitForSet("")
	waitFor(t, "all addresses to be released", func() bool { return l.claims() == "" })
	l.waitForAddresses("late", "")
}

// A Service with spec.loadBalancerSourceRanges is only for clients in these ranges.
func TestSourceRanges(t *testing.T) {
	l := newLab(t)
	l.controller("one")
	l.pods("web", 1)
	l.service("web", func(s *corev1.Service) { s.Spec.LoadBalancerSourceRanges = []string{"192.0.2.0/24", "10.0.0.0/24"} })
	l.waitForAddresses("web", "203.0.113.1")
	l.reaches("203.0.113.1", "pod1")

	become := func(text string) {
		t.Helper()
		patch := fmt.Appendf(nil, `{"spec": {"loadBalancerSourceRanges": [%q]}}`, text)
		if _, err := l.core.Services(namespace).Patch(t.Context(), "web", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		l.waitForService("default/web/80-tcp", "the source range "+text, func(s model.Service) bool {
			return slices.Equal(s.SourceRanges, []netip.Prefix{netip.MustParsePrefix(text)})
		})
	}
	become("192.0.2.0/24")
	if pod, err := l.ask("203.0.113.1"); err == nil {
		t.Errorf("%s answers a client that is in no source range", pod)
	}
	become("10.0.0.2/32")
	l.reaches("203.0.113.1", "pod1")
}
