package kube

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// sharing makes a Service share its address by a key, and have one port of it.
func sharing(key string, port int32) func(*corev1.Service) {
	return func(s *corev1.Service) {
		s.Annotations = map[string]string{"weir.io/sharing-key": key}
		s.Spec.Ports[0].Port = port
	}
}

// Services with the same key share an address but no port of it, across restarts and whichever of
// them leaves.
func TestSharing(t *testing.T) {
	l := newLab(t)
	first := l.controller("first")
	for i, name := range []string{"web", "admin", "rival"} {
		l.pods(name, i+1)
	}
	l.service("web", sharing("shop", 80))
	l.waitForAddresses("web", "203.0.113.1")
	l.service("admin", sharing("shop", 81))
	l.waitForAddresses("admin", "203.0.113.1")
	l.service("rival", sharing("shop", 80))
	l.waitForAddresses("rival", "203.0.113.2")
	l.reaches("203.0.113.1", "pod1")
	l.reaches("203.0.113.1:81", "pod2")
	l.reaches("203.0.113.2", "pod3")

	// A Service that wants a port that another one has may not keep the address, and no other
	// Service loses it.
	l.pods("late", 1)
	l.service("late", sharing("other", 80))
	l.event("late", "NoAddress", "no IPv4 address is free")
	patch := []byte(`[{"op": "replace", "path": "/spec/ports/0/port", "value": 80}]`)
	if _, err := l.core.Services(namespace).Patch(t.Context(), "admin", types.JSONPatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	l.event("admin", "NoAddress", "it cannot keep 203.0.113.1, which is shared with default/web, which has port 80/TCP of it")
	l.waitForSet("default/rival/80-tcp=pod3 default/web/80-tcp=pod1")
	l.waitForAddresses("admin", "")
	patch = []byte(`[{"op": "replace", "path": "/spec/ports/0/port", "value": 82}]`)
	if _, err := l.core.Services(namespace).Patch(t.Context(), "admin", types.JSONPatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	l.waitForAddresses("admin", "203.0.113.1")
	l.reaches("203.0.113.1:82", "pod2")

	// The first holder of the address goes while no controller runs.
	stop(t, first)
	l.deleteService("web")
	l.controller("second")
	l.waitForSet("default/admin/82-tcp=pod2 default/rival/80-tcp=pod3")
	l.waitForAddresses("admin", "203.0.113.1")
	l.service("web", sharing("shop", 80))
	l.waitForAddresses("web", "203.0.113.1")
	l.reaches("203.0.113.1", "pod1")
	l.reaches("203.0.113.1:82", "pod2")

	// The last holder takes the claim with it, and others may have the address.
	l.deleteService("web")
	l.deleteService("admin")
	l.waitForAddresses("late", "203.0.113.1")
}
