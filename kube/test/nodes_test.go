package kube

import (
	"fmt"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"weir.io/weir/lab/netlab"
)

// Nodes are backends: each has a real kube-proxy, which passes connections to a Service's address
// (l2dsr) or node port (nat) to one of the node's own pods, and answers the director's checks. The
// pod's address is one of the node's, as if the pod had no network of its own. With
// externalTrafficPolicy Local and l2dsr the pod sees the client.
func TestNodes(t *testing.T) {
	l := newLab(t)
	for i, host := range l.servers {
		host.Route("default", "10.2.0.11")
		l.node(host, i+1, podAddress(i+1))
	}
	l.config = l.write("nodes.yaml", fmt.Sprintf(`mode: l2dsr
backends: nodes
node-health: true
lease: {namespace: weir-system, name: weir-kube, duration: 15s}
pools:
- name: public
  addresses: [203.0.113.1-203.0.113.2]
directors:
- socket: %s
`, filepath.Join(l.director.Dir(), "director.sock")))
	l.controller("one")

	local := func(s *corev1.Service) { s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal }
	l.podsOnNodes("direct", 1, 2)
	l.service("direct", local)
	l.waitForAddresses("direct", "203.0.113.1")
	l.waitForSet("default/direct/80-tcp=node1,node2")
	l.reaches("203.0.113.1", "pod1", "pod2")
	if pod, seen, err := l.askSeen("203.0.113.1"); err != nil || seen != "10.0.0.2" {
		t.Errorf("in l2dsr %s sees %s, error %v; the client is 10.0.0.2", pod, seen, err)
	}

	l.podsOnNodes("through", 2, 3)
	l.service("through", local, func(s *corev1.Service) { s.Annotations = map[string]string{"weir.io/mode": "nat"} })
	l.waitForAddresses("through", "203.0.113.2")
	l.reaches("203.0.113.2", "pod2", "pod3")
	if pod, seen, err := l.askSeen("203.0.113.2"); err != nil || seen != "10.2.0.16" {
		t.Errorf("in nat %s sees %s, error %v; the director's address is 10.2.0.16", pod, seen, err)
	}
	l.event("through", "Unsupported", "pods see a director's address")

	// The pods move: so does the traffic.
	l.podsOnNodes("direct", 3)
	l.waitForSet("default/direct/80-tcp=node3 default/through/80-tcp=node2,node3")
	waitFor(t, "pod3 alone to answer", func() bool {
		for range 20 {
			if pod, err := l.ask("203.0.113.1"); err != nil || pod != "pod3" {
				return false
			}
		}
		return true
	})

	// With Cluster each node is a backend; kube-proxy then passes connections on to a pod's node. A
	// leaving node is drained.
	node, err := l.core.Nodes().Get(t.Context(), "node1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: "ToBeDeletedByClusterAutoscaler", Effect: corev1.TaintEffectNoSchedule})
	if _, err := l.core.Nodes().Update(t.Context(), node, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	l.deleteService("through")
	l.service("through")
	l.waitForSet("default/direct/80-tcp=node3 default/through/80-tcp=node2,node3")
}

// node makes a host one of the cluster's nodes, at an address, with a pod and a real kube-proxy. It
// returns the kube-proxy.
func (l *lab) node(host *netlab.Host, i int, address string) *netlab.Command {
	l.t.Helper()
	name := fmt.Sprintf("node%d", i)
	host.Address("lo", nodePod(i)+"/32")
	node, err := l.core.Nodes().Create(l.t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil {
		l.t.Fatal(err)
	}
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address}}
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	if _, err := l.core.Nodes().UpdateStatus(l.t.Context(), node, metav1.UpdateOptions{}); err != nil {
		l.t.Fatal(err)
	}
	return l.startProxy(host, name)
}

// startProxy starts the kube-proxy of a node.
func (l *lab) startProxy(host *netlab.Host, name string) *netlab.Command {
	l.t.Helper()
	config := l.writeKubeconfig(name, "https://"+controlAddress+":6443", adminToken)
	return start(l.t, host, filepath.Join(host.Dir(), "kube-proxy.log"), proxy, "--proxy-mode", "nftables", "--kubeconfig", config, "--hostname-override", name,
		"--conntrack-max-per-core", "0", "--conntrack-tcp-timeout-established", "0s", "--conntrack-tcp-timeout-close-wait", "0s",
		"--cluster-cidr", "10.244.0.0/16", "--nodeport-addresses", "10.2.0.0/24", "--metrics-bind-address", "127.0.0.1:10249")
}

// nodePod is the address of a node's pod.
func nodePod(i int) string { return fmt.Sprintf("10.244.%d.2", i) }

// podsOnNodes makes the pods of these nodes the only ones that serve a Service.
func (l *lab) podsOnNodes(service string, nodes ...int) {
	l.t.Helper()
	slice := l.newSlice(service)
	for _, i := range nodes {
		node, yes := fmt.Sprintf("node%d", i), true
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{nodePod(i)}, NodeName: &node,
			Conditions: discoveryv1.EndpointConditions{Ready: &yes, Serving: &yes}})
	}
	l.putSlice(slice)
}
