package kube

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"weir.io/weir/internal/model"
	"weir.io/weir/lab/netlab"
)

// Two things about nodes as backends of Services, with a real kube-proxy each. A node without a pod
// of a Service passes its connections on to one that has a pod, in nat by the node port and in
// l2dsr by the Service's address: the pod sees that first node. A node whose kube-proxy is lost
// gets no connections until it is back, whether or not the Service has a healthCheckNodePort.
func TestNodesHopAndFail(t *testing.T) {
	l := newLab(t)
	var proxies []*netlab.Command
	for i, host := range l.servers {
		host.Route("default", "10.2.0.11")
		host.Sysctl("net.ipv4.ip_forward", "1")
		for j := range l.servers {
			if j != i {
				host.Route(nodePod(j+1)+"/32", podAddress(j+1))
			}
		}
		proxies = append(proxies, l.node(host, i+1, podAddress(i+1)))
	}
	config := strings.NewReplacer("mode: nat", "mode: l2dsr", "backends: pods", "backends: nodes\nnode-health: true", "duration: 4s", "duration: 15s")
	l.config = l.write("nodes.yaml", config.Replace(l.read(l.config)))
	l.controller("one")

	// Nodes 2 and 3 get nothing from outside, and only node 3 has a pod.
	hidden := "node.kubernetes.io/exclude-from-external-load-balancers"
	l.label("node2", hidden, `""`)
	l.label("node3", hidden, `""`)
	l.podsOnNodes("address", 3)
	l.service("address")
	l.podsOnNodes("port", 3)
	l.service("port", func(s *corev1.Service) { s.Annotations = map[string]string{"weir.io/mode": "nat"} })
	l.waitForAddresses("address", "203.0.113.1")
	l.waitForAddresses("port", "203.0.113.2")
	l.waitForSet("default/address/80-tcp=node1 default/port/80-tcp=node1")
	for _, vip := range []string{"203.0.113.1", "203.0.113.2"} {
		l.reaches(vip, "pod3")
		if pod, seen, err := l.askSeen(vip); err != nil || pod != "pod3" || seen != podAddress(1) {
			t.Errorf("at %s %s sees %s, error %v; node1 is %s, and has no pod", vip, pod, seen, err, podAddress(1))
		}
	}

	// All nodes get connections, and each has a pod.
	l.deleteService("address")
	l.deleteService("port")
	waitFor(t, "all addresses to be released", func() bool { return l.claims() == "" })
	l.label("node2", hidden, "null")
	l.label("node3", hidden, "null")
	l.podsOnNodes("local", 1, 2)
	l.service("local", func(s *corev1.Service) { s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal })
	l.waitForAddresses("local", "203.0.113.1")
	l.podsOnNodes("any", 1, 2, 3)
	l.service("any")
	l.waitForAddresses("any", "203.0.113.2")
	l.reaches("203.0.113.1", "pod1", "pod2")
	l.waitForUp("default/local/80-tcp", "node1", "node2")
	l.waitForUp("default/any/80-tcp", "node1", "node2", "node3")

	stop(t, proxies[0])
	l.waitForUp("default/local/80-tcp", "node2")
	l.waitForUp("default/any/80-tcp", "node2", "node3")
	for range 30 {
		if pod, err := l.ask("203.0.113.1"); err != nil || pod != "pod2" {
			t.Fatalf("without the kube-proxy of node1 %q answers, error %v", pod, err)
		}
	}
	// Kubernetes does not notice: the node remains a backend.
	l.waitForSet("default/any/80-tcp=node1,node2,node3 default/local/80-tcp=node1,node2")
	l.startProxy(l.servers[0], "node1")
	l.waitForUp("default/local/80-tcp", "node1", "node2")
	l.waitForUp("default/any/80-tcp", "node1", "node2", "node3")
	l.reaches("203.0.113.1", "pod1", "pod2")
}

// label sets a node's label to a JSON value; null removes it.
func (l *lab) label(node, key, value string) {
	l.t.Helper()
	patch := fmt.Appendf(nil, `{"metadata": {"labels": {%q: %s}}}`, key, value)
	if _, err := l.core.Nodes().Patch(l.t.Context(), node, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		l.t.Fatal(err)
	}
}

// waitForUp waits until these backends of a service pass the director's checks, and no others.
func (l *lab) waitForUp(service string, want ...string) {
	l.t.Helper()
	waitFor(l.t, fmt.Sprintf("the checks of %s to find %v well", service, want), func() bool {
		return slices.Equal(l.up(service), want)
	})
}

// up returns the backends of a service that pass the checks, in order.
func (l *lab) up(service string) (list []string) {
	all, err := l.api.Backends(l.t.Context())
	if err != nil {
		return []string{err.Error()}
	}
	for _, b := range all {
		if b.Service == service && b.Health != nil && b.Health.State == model.HealthUp {
			list = append(list, b.Name)
		}
	}
	slices.Sort(list)
	return list
}
