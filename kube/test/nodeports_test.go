package kube

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/model"
	"weir.io/weir/kube/test/site"
)

// setNodePorts sets in the DirectorGroup whether directors take node ports, and waits until all of
// them have this many services there.
func setNodePorts(t *testing.T, s *site.Site, value string, services int) {
	t.Helper()
	patch := []byte(`{"spec": {"nodePorts": ` + value + `}}`)
	err := s.Core.RESTClient().Patch(types.MergePatchType).AbsPath("/apis/weir.io/v1alpha1/directorgroups/edge").Body(patch).Do(t.Context()).Error()
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range s.Edges {
		waitFor(t, fmt.Sprintf("the director of %s to have %d services at node ports", e.Name, services), func() bool {
			set, err := api.NewClient(e.Socket()).Set(t.Context(), "kube.edge.nodeports")
			return err == nil && len(set.Services) == services || err != nil && services == 0
		})
	}
}

// nodePortOf returns the node port of a Service.
func nodePortOf(t *testing.T, s *site.Site, name string) (port uint16) {
	t.Helper()
	waitFor(t, "Service "+name+" to have a node port", func() bool {
		service, err := s.Core.Services(site.Namespace).Get(t.Context(), name, metav1.GetOptions{})
		if err == nil {
			port = uint16(service.Spec.Ports[0].NodePort)
		}
		return port != 0
	})
	return port
}

// packetsOf returns how many packets a director has counted under a reason.
func packetsOf(t *testing.T, e *site.Edge, reason string) uint64 {
	t.Helper()
	status, err := api.NewClient(e.Socket()).Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range status.Reasons {
		if r.Name == reason {
			return r.Packets
		}
	}
	return 0
}

// A client outside calls a node port at a director without a pod. Without nodePorts kube-proxy
// hides the client from pods; with nodePorts pods of all nodes see it, in both families, in gue and
// ipip, also at the node ports of a director with a pod. kube-proxy serves nodes and pods that call
// these as before, nodes' addresses are not announced, and full NAT by the same addresses goes on.
// Without nodePorts everything is kube-proxy's again.
func TestNodePorts(t *testing.T) {
	needsAPIServer(t)
	s := newPodSite(t)
	ctx := t.Context()
	for _, n := range s.AllNodes() {
		if err := s.StartProxy(n, proxy); err != nil {
			t.Fatal(err)
		}
	}
	pods := startPods(t, s, "web", 3)
	caller, err := s.StartPod(ctx, s.Nodes[0], "caller")
	if err != nil {
		t.Fatal(err)
	}
	ports := map[string]uint16{}
	for i, mode := range []string{"gue", "ipip", "nat"} {
		vip, vip6 := netip.AddrFrom4([4]byte{203, 0, 113, byte(10 + i)}), netip.MustParseAddr(fmt.Sprintf("2001:db8:1::%d", 10+i))
		if _, err := s.MakeService(ctx, mode, "web", vip, inMode(mode), inBoth(vip, vip6), site.ByEdge); err != nil {
			t.Fatal(err)
		}
		answered(t, pods, func(ctx context.Context) site.Answer { return s.Ask(ctx, vip) })
		ports[mode] = nodePortOf(t, s, mode)
	}
	local, vip := func(s *corev1.Service) { s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal }, netip.MustParseAddr("203.0.113.20")
	if _, err := s.MakeService(ctx, "local", "web", vip, inMode("gue"), site.ByEdge, local); err != nil {
		t.Fatal(err)
	}
	answered(t, pods, func(ctx context.Context) site.Answer { return s.Ask(ctx, vip) })

	edge := s.Edges[0]
	own := map[bool]netip.Addr{false: edge.Address, true: edge.Address6}
	at := func(six bool, mode string) netip.AddrPort { return netip.AddrPortFrom(own[six], ports[mode]) }
	client := map[bool]netip.Addr{false: site.Client, true: site.Client6}
	// sees asks until all pods have answered, and checks that all see the same one client.
	sees := func(what string, who netip.Addr, ask func(context.Context) site.Answer) {
		t.Helper()
		if seen := answered(t, pods, ask); len(seen) != 1 || seen[who] == 0 {
			t.Errorf("%s: pods see %v, want %s", what, seen, who)
		}
	}
	kubeProxys := func(when string) {
		t.Helper()
		for _, six := range []bool{false, true} {
			for mode := range ports {
				sees(fmt.Sprintf("%s, in mode %s, IPv6 %v", when, mode, six), own[six], func(ctx context.Context) site.Answer { return s.AskPort(ctx, at(six, mode)) })
			}
		}
	}
	kubeProxys("before")

	held, cancel := context.WithCancel(ctx)
	defer cancel()
	ofNodes := heldAnswers(t, pods, 8, func(i int) site.Answer { return s.Nodes[i%2].AskHeldPort(held, at(i/2%2 == 0, "gue")) })
	ofClients := heldAnswers(t, pods, 4, func(i int) site.Answer { return s.AskHeldPort(held, at(i%2 == 0, "gue")) })
	setNodePorts(t, s, "{}", 4)
	areReset(t, "when directors take node ports", ofClients)
	for _, six := range []bool{false, true} {
		for _, mode := range []string{"gue", "ipip"} {
			what := fmt.Sprintf("in mode %s, IPv6 %v", mode, six)
			waitFor(t, "a pod to see the client, "+what, func() bool { return s.AskPort(ctx, at(six, mode)).Seen == client[six] })
			sees("with node ports "+what, client[six], func(ctx context.Context) site.Answer { return s.AskPort(ctx, at(six, mode)) })
			other := netip.AddrPortFrom(map[bool]netip.Addr{false: s.Edges[1].Address, true: s.Edges[1].Address6}[six], ports[mode])
			sees("at another director "+what, client[six], func(ctx context.Context) site.Answer { return s.AskPort(ctx, other) })
			for name, ask := range map[string]func(context.Context, netip.AddrPort) site.Answer{"a node": s.Nodes[0].AskPort, "another director": s.Edges[1].AskPort, "a pod": caller.AskPort} {
				sees(fmt.Sprintf("%s that calls a director, %s", name, what), own[six], func(ctx context.Context) site.Answer { return ask(ctx, at(six, mode)) })
			}
			answered(t, pods, func(ctx context.Context) site.Answer { return edge.AskPort(ctx, at(six, mode)) })
		}
		sees("in mode nat kube-proxy's", own[six], func(ctx context.Context) site.Answer { return s.AskPort(ctx, at(six, "nat")) })
	}
	if n := len(ofNodes); n > 0 {
		t.Errorf("%d held answers to nodes have ended since directors took node ports, the first with %+v", n, <-ofNodes)
	}
	if n := packetsOf(t, edge, "pass_kernel_source"); n == 0 {
		t.Error("no packet of nodes and pods was left to kube-proxy")
	}
	answered(t, pods, func(ctx context.Context) site.Answer { return s.Ask(ctx, netip.MustParseAddr("203.0.113.12")) }) // in full NAT
	if text := eventsOf(t, s.Cluster, "nat"); !strings.Contains(text, "its node ports stay kube-proxy's, which hides the client where a node has no pod: it is forwarded in mode nat to pods") {
		t.Errorf("of the Service in mode nat events say\n%s", text)
	}
	for _, e := range s.Edges {
		status, err := api.NewClient(e.Socket()).BGP(ctx)
		if err != nil || len(status.Routes) != 7 { // four Services, three of them in both families
			t.Errorf("%s announces %d routes, want 7 (%v)", e.Name, len(status.Routes), err)
		}
		for _, r := range status.Routes {
			if r.Prefix.Contains(e.Address) || r.Prefix.Contains(e.Address6) {
				t.Errorf("%s announces %s", e.Name, r.Prefix)
			}
		}
		for _, a := range []netip.Addr{e.Address, e.Address6} {
			if hops, err := s.NextHops(a); err != nil || len(hops) > 0 {
				t.Errorf("the router has a route to %s of %s, by %v (%v)", a, e.Name, hops, err)
			}
		}
	}

	// A Service whose backends are nodes, including those with node ports, ends no node port.
	toNodes := func(s *corev1.Service) { metav1.SetMetaDataAnnotation(&s.ObjectMeta, "weir.io/backends", "nodes") }
	if _, err := s.MakeService(ctx, "nodes", "web", netip.MustParseAddr("203.0.113.21"), inMode("l2dsr"), toNodes, site.ByEdge); err != nil {
		t.Fatal(err)
	}
	for _, e := range s.Edges {
		waitFor(t, e.Name+" to forward to nodes, at its own address among them", func() bool {
			set, err := api.NewClient(e.Socket()).Set(ctx, "kube.edge.0")
			return err == nil && slices.ContainsFunc(set.Services, func(s model.Service) bool {
				return s.Mode == model.L2DSR && slices.ContainsFunc(s.Backends, func(b model.Backend) bool { return b.Address == e.Address })
			})
		})
		if set, err := api.NewClient(e.Socket()).Set(ctx, "kube.edge.nodeports"); err != nil || len(set.Services) != 4 {
			t.Errorf("beside a Service to nodes %s has %d services at node ports, want 4 (%v)", e.Name, len(set.Services), err)
		}
	}
	sees("beside a Service to nodes", client[false], func(ctx context.Context) site.Answer { return s.AskPort(ctx, at(false, "gue")) })

	ofClients = heldAnswers(t, pods, 4, func(i int) site.Answer { return s.AskHeldPort(held, at(i%2 == 0, "gue")) })
	setNodePorts(t, s, "null", 0)
	areReset(t, "when directors leave node ports", ofClients)
	waitFor(t, "pods to see the node", func() bool { return s.AskPort(ctx, at(false, "gue")).Seen == own[false] })
	kubeProxys("after")

	// And again, with a pod on the director's own node.
	setNodePorts(t, s, "{}", 4)
	pods = append(pods, readyPod(t, s, edge.Node, "web"))
	waitFor(t, "a pod to see the client again", func() bool { return s.AskPort(ctx, at(false, "gue")).Seen == client[false] })
	sees("of a director's own pod, too", client[false], func(ctx context.Context) site.Answer { return s.AskPort(ctx, at(false, "gue")) })
}

// heldAnswers begins several long answers, and returns when they are under way.
func heldAnswers(t *testing.T, pods []*site.Pod, n int, ask func(i int) site.Answer) chan site.Answer {
	t.Helper()
	count := func() (connections int) {
		for _, p := range pods {
			connections += p.Connections()
		}
		return connections
	}
	before, all := count(), make(chan site.Answer, n)
	for i := range n {
		go func() { all <- ask(i) }()
	}
	waitFor(t, "held answers to be under way", func() bool { return count() >= before+n })
	return all
}

// areReset fails if a client still waits although its connection has lost its pod.
func areReset(t *testing.T, when string, all chan site.Answer) {
	t.Helper()
	for range cap(all) {
		if a := <-all; !errors.Is(a.Err, syscall.ECONNRESET) {
			t.Errorf("%s a held answer ends after %v with %v, not with a reset", when, a.Took, a.Err)
		}
	}
}

// readyPod starts a ready pod.
func readyPod(t *testing.T, s *site.Site, n *site.Node, app string) *site.Pod {
	t.Helper()
	p, err := s.StartPod(t.Context(), n, app)
	if err == nil {
		_, err = p.Ready(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	return p
}
