package kube

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"weir.io/weir/lab/netlab"
)

// Pods that call the address of a Service are served by any of its pods, by the kube-proxy of their
// own node: on any node, and on a director's node, which also has a pod of the Service. Clients
// outside come by the director. The client that pods see tells the way:
//
//	caller1 --- pod1 (node1)              caller0 --- director (node0) --- client
//	              |                                      |
//	              +--------------- switch ---------------+--- pod2 (node2), pod3
func TestPodsCallVIPs(t *testing.T) {
	l := newLab(t)
	nodes := append([]*netlab.Host{l.director}, l.servers[:2]...)
	addresses := []string{"10.2.0.11", podAddress(1), podAddress(2)}
	for i, host := range nodes {
		host.Sysctl("net.ipv4.ip_forward", "1")
		for j, address := range addresses {
			if j != i {
				host.Route(fmt.Sprintf("10.244.%d.0/24", j), address)
			}
		}
		l.node(host, i, addresses[i])
	}
	for _, host := range l.servers[:2] {
		host.Route("default", addresses[0])
	}
	l.director.Route("203.0.113.0/24", "10.0.0.2") // like a host with a default route
	serve(t, l.director)
	exclude := []byte(`{"metadata": {"labels": {"node.kubernetes.io/exclude-from-external-load-balancers": ""}}}`)
	if _, err := l.core.Nodes().Patch(t.Context(), "node0", types.MergePatchType, exclude, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	l.config = l.write("callers.yaml", strings.ReplaceAll(l.read(l.config), "backends: pods", "backends: nodes"))
	l.controller("one")

	l.podsOnNodes("web", 0, 1, 2)
	l.service("web", func(s *corev1.Service) { s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal })
	l.waitForAddresses("web", "203.0.113.1")
	l.waitForSet("default/web/80-tcp=node1,node2")
	l.reaches("203.0.113.1", "pod1", "pod2")
	if pod, seen, err := l.askSeen("203.0.113.1"); err != nil || seen != "10.2.0.16" {
		t.Errorf("for a client outside %s sees %s, error %v; the director's address is 10.2.0.16", pod, seen, err)
	}

	for i, node := range nodes[:2] {
		caller := l.net.Host(fmt.Sprintf("caller%d", i))
		address := fmt.Sprintf("10.244.%d.130", i)
		l.net.Link(caller, node, netlab.LinkOptions{A: []string{address + "/25"}, B: []string{fmt.Sprintf("10.244.%d.129/25", i)}})
		caller.Route("default", fmt.Sprintf("10.244.%d.129", i))
		for name, from := range map[string]*netlab.Host{"a pod": caller, "the node itself": node} {
			answered := map[string]string{}
			waitFor(t, fmt.Sprintf("%s on node%d to be served by all pods of the Service, and not only by %v", name, i, answered), func() bool {
				if pod, seen, err := askFrom(from, "203.0.113.1"); err == nil {
					answered[pod] = seen
				}
				return len(answered) == 3
			})
			for pod, seen := range answered {
				if name == "a pod" && seen != address {
					t.Errorf("%s sees %s for a pod of node%d that is %s", pod, seen, i, address)
				}
				if seen == "10.2.0.16" {
					t.Errorf("%s was called by %s on node%d by way of the director", pod, name, i)
				}
			}
		}
	}
}
