package kube

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"weir.io/weir/internal/model"
	"weir.io/weir/kube/v1alpha1"
)

func (c *cluster) deleteResource(plural, namespace, name string) {
	c.t.Helper()
	err := c.core.RESTClient().Delete().AbsPath("/apis/weir.io/v1alpha1").NamespaceIfScoped(namespace, namespace != "").Resource(plural).Name(name).Do(c.t.Context()).Error()
	if err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) makeResource(head, name, spec string) {
	c.t.Helper()
	if _, _, err := c.make(fmt.Sprintf("%s%s}", replaceName(head, name), spec)); err != nil {
		c.t.Fatal(err)
	}
}

// resource reads a custom resource; false: it cannot be read.
func (c *cluster) resource(plural, namespace, name string, into any) bool {
	text, err := c.core.RESTClient().Get().AbsPath("/apis/weir.io/v1alpha1").NamespaceIfScoped(namespace, namespace != "").Resource(plural).Name(name).Do(c.t.Context()).Raw()
	return err == nil && json.Unmarshal(text, into) == nil
}

// waitForPool waits until a pool's status says how many of its addresses are assigned, and a
// reason.
func (c *cluster) waitForPool(name, reason string, assigned int64) {
	c.t.Helper()
	waitFor(c.t, fmt.Sprintf("AddressPool %s to be %s with %d addresses assigned", name, reason, assigned), func() bool {
		var p v1alpha1.AddressPool
		if !c.resource(v1alpha1.AddressPools, "", name, &p) {
			return false
		}
		ready := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.Ready)
		return ready != nil && ready.Reason == reason && ready.ObservedGeneration == p.Generation && p.Status.Assigned == assigned
	})
}

func (c *cluster) waitForPolicy(name, reason string, services int64) {
	c.t.Helper()
	waitFor(c.t, fmt.Sprintf("ServicePolicy %s to be %s for %d Services", name, reason, services), func() bool {
		var p v1alpha1.ServicePolicy
		if !c.resource(v1alpha1.ServicePolicies, namespace, name, &p) {
			return false
		}
		ready := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.Ready)
		return ready != nil && ready.Reason == reason && p.Status.Services == services
	})
}

// waitForService waits until a service of the director's set meets a condition.
func (l *lab) waitForService(name, what string, is func(s model.Service) bool) {
	l.t.Helper()
	waitFor(l.t, fmt.Sprintf("the director's service %s to have %s", name, what), func() bool {
		set, err := l.api.Set(l.t.Context(), "kube")
		if err != nil {
			return false
		}
		for _, s := range set.Services {
			if s.Name == name {
				return is(s)
			}
		}
		return false
	})
}

// Pools and policies come, clash, change and go while the controller runs: Services follow them,
// keep the addresses that they have, and each object's status says what became of it.
func TestPoolsAndPolicies(t *testing.T) {
	l := newLab(t)
	l.config = l.write("resources.yaml", fmt.Sprintf("mode: nat\nbackends: pods\nlease: {duration: 4s}\ndirectors:\n- socket: %s\n", filepath.Join(l.director.Dir(), "director.sock")))
	l.controller("one")
	labelled := func(key, value string) func(*corev1.Service) {
		return func(s *corev1.Service) { s.Labels = map[string]string{key: value} }
	}

	// Without any pool there is no address; with one there is.
	l.pods("web", 1, 2)
	l.service("web", labelled("app", "web"))
	l.event("web", "NoAddress", "there is no pool to take an address from")
	l.makeResource(poolHead, "public", "{addresses: [203.0.113.1-203.0.113.2]}")
	l.waitForAddresses("web", "203.0.113.1")
	l.reaches("203.0.113.1", "pod1", "pod2")
	l.waitForPool("public", v1alpha1.ReasonInUse, 1)

	// A pool that has an address of an older one, or ends before it begins, is not used. Both may
	// be made in the same second, so its name sorts later, too.
	l.makeResource(poolHead, "rival", "{addresses: [203.0.113.2-203.0.113.9]}")
	l.waitForPool("rival", v1alpha1.ReasonOverlap, 0)
	l.makeResource(poolHead, "backwards", "{addresses: [203.0.113.9-203.0.113.8]}")
	l.waitForPool("backwards", v1alpha1.ReasonInvalid, 0)

	// A pool with a higher priority is used first, by the Services that it selects.
	l.makeResource(poolHead, "gold", "{addresses: [203.0.113.100], priority: 1, serviceSelector: {matchLabels: {tier: gold}}, namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: default}}}")
	l.waitForPool("gold", v1alpha1.ReasonInUse, 0)
	l.pods("dear", 3)
	l.service("dear", labelled("tier", "gold"))
	l.waitForAddresses("dear", "203.0.113.100")
	l.pods("cheap", 3)
	l.service("cheap")
	l.waitForAddresses("cheap", "203.0.113.2")
	l.waitForPool("gold", v1alpha1.ReasonInUse, 1)
	l.waitForPool("public", v1alpha1.ReasonInUse, 2)
	l.reaches("203.0.113.100", "pod3")

	// A policy changes how the Services that it selects are forwarded, and no others.
	l.makeResource(policyHead, "slow", "{selector: {matchLabels: {app: web}}, policy: round-robin, drain: 90s}")
	l.waitForService("default/web/80-tcp", "policy round-robin", func(s model.Service) bool { return s.Policy == model.RoundRobin && s.Retention.String() == "1m30s" })
	l.waitForService("default/dear/80-tcp", "policy maglev", func(s model.Service) bool { return s.Policy == model.Maglev && s.Retention == model.DefaultRetention })
	l.waitForPolicy("slow", v1alpha1.ReasonInUse, 1)
	l.reaches("203.0.113.1", "pod1", "pod2")
	l.makeResource(policyHead, "tunnel", "{selector: {}, mode: l2dsr, priority: 9}")
	l.waitForPolicy("tunnel", v1alpha1.ReasonInvalid, 0) // these backends are pods
	l.deleteResource("servicepolicies", namespace, "slow")
	l.waitForService("default/web/80-tcp", "policy maglev again", func(s model.Service) bool { return s.Policy == model.Maglev && s.Retention == model.DefaultRetention })

	// A pool that goes, or no longer selects a Service, takes no address away, and a pool that
	// waited for its addresses is used.
	l.deleteResource("addresspools", "", "public")
	l.waitForPool("rival", v1alpha1.ReasonInUse, 1)
	l.event("web", "NoAddress", "it keeps 203.0.113.1, which no pool has any more")
	patch := []byte(`{"metadata": {"labels": {"tier": null}}}`)
	if _, err := l.core.Services(namespace).Patch(t.Context(), "dear", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	l.pods("dear", 1)
	l.waitForSet("default/cheap/80-tcp=pod3 default/dear/80-tcp=pod1 default/web/80-tcp=pod1,pod2")
	for service, address := range map[string]string{"web": "203.0.113.1", "cheap": "203.0.113.2", "dear": "203.0.113.100"} {
		if got := l.addresses(service); got != address {
			t.Errorf("%s had %s and has %s", service, address, got)
		}
	}
	l.reaches("203.0.113.1", "pod1", "pod2")
}
