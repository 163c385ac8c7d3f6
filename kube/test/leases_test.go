package kube

import (
	"fmt"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/tools/clientcmd"

	"weir.io/weir/kube/v1alpha1"
	"weir.io/weir/lab/netlab"
)

// leasesOf returns a client for a namespace's Leases with a kubeconfig's token.
func (c *cluster) leasesOf(namespace, kubeconfig string) coordinationv1client.LeaseInterface {
	c.t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		c.t.Fatal(err)
	}
	config.Dial = c.host.DialContext
	client, err := coordinationv1client.NewForConfig(config)
	if err != nil {
		c.t.Fatal(err)
	}
	return client.Leases(namespace)
}

// The token of a director, or of an agent's sidecar, can write only the Lease of its own node, or
// pod: not another director's, nor the lease of the leading controller. The policy does not check
// other clients, and without it RBAC allows all Leases.
func TestDirectorsWriteTheirOwnLeases(t *testing.T) {
	needsAPIServer(t)
	c := newCluster(t, netlab.ForTest(t).Host("control"))
	c.applyResources()
	c.makeSystem()
	if _, _, err := c.make("{apiVersion: v1, kind: Namespace, metadata: {name: shop}}"); err != nil {
		t.Fatal(err)
	}
	c.applyChart("--values", "testdata/chart/groups.values.yaml", "--set", "agent.enabled=true")
	c.applyChart("--namespace", "shop", "--values", "testdata/chart/pods.values.yaml")
	for _, name := range []string{"node-a", "node-b.example.org"} {
		if _, err := c.core.Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	a := c.podOn("node-a", "weir-system", "weir-kube-director", "edge-x")
	b := c.podOn("node-b.example.org", "weir-system", "weir-kube-director", "edge-y")
	agent := c.podOn("node-a", "weir-system", "weir-kube-agent", "agent-x")
	shop := c.podOn("node-a", "shop", "weir-kube-pod", "shop-x")
	lease := func(name, group string) *coordinationv1.Lease {
		return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1alpha1.LabelGroup: group}}}
	}
	// The API server takes a moment to enforce a policy.
	for _, p := range []*corev1.Pod{a, agent, shop} {
		client := c.leasesOf(p.Namespace, c.podKubeconfig(p))
		waitFor(t, "the policy for "+p.Name+" to be in force", func() bool {
			_, err := client.Create(t.Context(), lease(fmt.Sprint("probe-", time.Now().UnixNano()), "edge"), metav1.CreateOptions{})
			if err != nil && !apierrors.IsForbidden(err) {
				t.Log(err)
			}
			return apierrors.IsForbidden(err)
		})
	}
	if _, err := c.coordination.Leases("weir-system").Create(t.Context(), lease("weir-kube", ""), metav1.CreateOptions{}); err != nil {
		t.Fatalf("who is no director may not write a Lease: %v", err)
	}
	for _, test := range []struct {
		who         *corev1.Pod
		name, group string
		allowed     bool
	}{
		{a, "weir.edge.node-a", "edge", true},
		{a, "weir.flat.node-a", "flat", true}, // a node may be in several groups
		{a, "weir.edge.node-a", "edge", true}, // again: an update
		{a, "weir.edge.node-b.example.org", "edge", false},
		{b, "weir.edge.node-b.example.org", "edge", true},
		{a, "weir.edge.node-b.example.org", "edge", false}, // this Lease exists now
		{b, "weir.edge.node-a", "edge", false},
		{a, "weir.flat.node-a", "edge", false}, // its group differs from its name
		{a, "weir.edge.node-a", "", false},
		{a, "weir-kube", "", false}, // the controllers' lease
		{a, "weir.edge.invented", "edge", false},
		{agent, "weir-agent.node-a", "", true},
		{agent, "weir-agent.node-b.example.org", "", false},
		{agent, "weir.edge.node-a", "edge", false}, // the director's of the same node
		{a, "weir-agent.node-a", "", false},        // the agent's of the same node
		{shop, "weir.shop.shop-x", "shop", true},
		{shop, "weir.shop.shop-y", "shop", false},
		{shop, "weir.shop.node-a", "shop", false},
	} {
		client, object := c.leasesOf(test.who.Namespace, c.podKubeconfig(test.who)), lease(test.name, test.group)
		_, err := client.Create(t.Context(), object, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			object, err = client.Get(t.Context(), test.name, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			object.Labels = map[string]string{v1alpha1.LabelGroup: test.group}
			_, err = client.Update(t.Context(), object, metav1.UpdateOptions{})
		}
		if test.allowed && err != nil || !test.allowed && (!apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "is not that of the")) {
			t.Errorf("%s writes Lease %s of group %q and is answered by %v, allowed: %v", test.who.Name, test.name, test.group, err, test.allowed)
		}
	}
	// A token that is bound to no Pod names no node, and may write no Lease.
	nobody := c.leasesOf("weir-system", c.kubeconfig("weir-system", "weir-kube-director"))
	if _, err := nobody.Create(t.Context(), lease("weir.edge.node-a", "edge"), metav1.CreateOptions{}); !apierrors.IsForbidden(err) && !apierrors.IsAlreadyExists(err) {
		t.Errorf("a token that says no node is answered by %v", err)
	}
	if _, err := nobody.Create(t.Context(), lease("weir.edge.", "edge"), metav1.CreateOptions{}); err == nil {
		t.Error("a token that says no node writes a Lease")
	}
	if text, err := render(t, "--values", "testdata/chart/groups.values.yaml", "--set", "director.ownLeases=false"); err != nil || strings.Contains(text, "ValidatingAdmissionPolicy") {
		t.Errorf("with director.ownLeases=false the chart has a policy, error %v", err)
	}
}
