package kube

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	control "weir.io/weir/kube/test/cluster"
	"weir.io/weir/kube/test/site"
	"weir.io/weir/lab/netlab"
)

// newPodSite builds the site with two nodes for pods and two more as directors of a group, which
// may have pods, too. All have agents, except those in without.
func newPodSite(t *testing.T, without ...string) *site.Site {
	t.Helper()
	return newPodSiteOf(t, site.Options{Slots: 3}, without...)
}

// newPodSiteOf builds such a site with more room for pods, or with directors of their own in
// addition.
func newPodSiteOf(t *testing.T, o site.Options, without ...string) *site.Site {
	t.Helper()
	needs(t, map[string]string{"helm in $WEIR_HELM": helmProgram, "kube-apiserver in $WEIR_KUBE_APISERVER": apiserver, "kube-controller-manager in $WEIR_KUBE_CONTROLLER_MANAGER": controllers})
	o.Programs = site.Programs{APIServer: apiserver, Controllers: controllers, Weir: weir, WeirKube: weirKube}
	o.Definitions, o.Nodes, o.Edges, o.EdgeSlots, o.Notice, o.OwnNotice = "../chart/crds", 2, 2, 2, 200*time.Millisecond, 200*time.Millisecond
	s, err := site.New(t.Context(), netlab.ForTest(t), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(s.Logs())
		}
	})
	if err := s.MakeGroup(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, e := range s.Edges {
		if _, err := e.Join(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	s.AgentToken = agentTokens(t, s)
	for _, n := range s.AllNodes() {
		if slices.Contains(without, n.Name) {
			continue
		}
		if err := s.StartAgent(t.Context(), n); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// agentTokens makes the chart's account for agents' sidecars, with its rights, and returns a
// function that gives each node's sidecar a token, as a kubelet does.
func agentTokens(t *testing.T, s *site.Site) func(node string) (string, error) {
	t.Helper()
	text, err := render(t, agentValues...)
	if err != nil {
		t.Fatal(err)
	}
	for one := range strings.SplitSeq(text, "\n---\n") {
		if strings.Contains(one, "\nkind: DaemonSet\n") {
			continue // the lab does the DaemonSet's work
		}
		if kind, name, err := s.Make(t.Context(), one); err != nil {
			t.Fatalf("make the %s %s of the chart: %v", kind, name, err)
		}
	}
	return func(node string) (string, error) {
		pod, err := podOn(t.Context(), s.Core, node, "weir-system", "weir-kube-agent", "agent-"+node)
		if apierrors.IsAlreadyExists(err) {
			pod, err = s.Core.Pods("weir-system").Get(t.Context(), "agent-"+node, metav1.GetOptions{})
		}
		if err != nil {
			return "", err
		}
		return podToken(t.Context(), s.Core, pod)
	}
}

// inMode annotates a Service with its mode.
func inMode(mode string) func(*corev1.Service) {
	return func(s *corev1.Service) { metav1.SetMetaDataAnnotation(&s.ObjectMeta, "weir.io/mode", mode) }
}

// inBoth gives a Service addresses of both families.
func inBoth(v4, v6 netip.Addr) func(*corev1.Service) {
	return func(s *corev1.Service) {
		policy := corev1.IPFamilyPolicyRequireDualStack
		s.Spec.IPFamilyPolicy, s.Spec.IPFamilies = &policy, []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
		s.Annotations["weir.io/addresses"] = v4.String() + "," + v6.String()
	}
}

func setMode(t *testing.T, s *site.Site, service, mode string) {
	t.Helper()
	patch := fmt.Sprintf(`{"metadata": {"annotations": {"weir.io/mode": %q}}}`, mode)
	if _, err := s.Core.Services(site.Namespace).Patch(t.Context(), service, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

// answered asks until all these pods have answered, and returns the clients that they have seen.
func answered(t *testing.T, pods []*site.Pod, ask func(context.Context) site.Answer) (seen map[netip.Addr]int) {
	t.Helper()
	return answeredWithin(t, patience, pods, ask)
}

func answeredWithin(t *testing.T, patience time.Duration, pods []*site.Pod, ask func(context.Context) site.Answer) (seen map[netip.Addr]int) {
	t.Helper()
	by := map[string]int{}
	seen = map[netip.Addr]int{}
	var last site.Answer
	for deadline := time.Now().Add(patience); ; {
		last = ask(t.Context())
		if last.Err == nil {
			by[last.Pod]++
			seen[last.Seen]++
		}
		if !slices.ContainsFunc(pods, func(p *site.Pod) bool { return by[p.Name] == 0 }) {
			return seen
		}
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for all of %d pods to answer: %v did, the last one with %+v", len(pods), by, last)
		}
	}
}

// A Service reaches every pod in each mode and both families: pods on nodes, on a director's node,
// and in a node's own network. In gue and ipip they see the client. Pods call the Service, too, and
// see each other. Its mode may change.
func TestPodModes(t *testing.T) {
	s := newPodSite(t)
	ctx := t.Context()
	var pods []*site.Pod
	for _, n := range append(slices.Clone(s.Nodes), s.Nodes[0], s.Edges[0].Node) {
		p, err := s.StartPod(ctx, n, "web")
		if err != nil {
			t.Fatal(err)
		}
		pods = append(pods, p)
	}
	host, err := s.StartHostPod(ctx, s.Nodes[1], "web", 8090)
	if err != nil {
		t.Fatal(err)
	}
	onDirector, err := s.StartHostPod(ctx, s.Edges[1].Node, "web", 8090)
	if err != nil {
		t.Fatal(err)
	}
	pods = append(pods, host, onDirector)
	for _, p := range pods {
		if _, err := p.Ready(ctx); err != nil {
			t.Fatal(err)
		}
	}
	var callers []*site.Pod
	for _, n := range []*site.Node{s.Nodes[0], s.Edges[0].Node} {
		p, err := s.StartPod(ctx, n, "caller")
		if err != nil {
			t.Fatal(err)
		}
		callers = append(callers, p)
	}
	client := map[bool]netip.Addr{false: site.Client, true: site.Client6}
	for i, mode := range []string{"gue", "ipip", "nat"} {
		vip := netip.AddrFrom4([4]byte{203, 0, 113, byte(10 + i)})
		vip6 := netip.MustParseAddr(fmt.Sprintf("2001:db8:1::%d", 10+i))
		if _, err := s.MakeService(ctx, mode, "web", vip, inMode(mode), inBoth(vip, vip6), site.ByEdge); err != nil {
			t.Fatal(err)
		}
		for _, at := range []netip.Addr{vip, vip6} {
			seen := answered(t, pods, func(ctx context.Context) site.Answer { return s.Ask(ctx, at) })
			if mode == "nat" {
				if len(seen) < 2 { // pods of a director's own node see the client
					t.Errorf("in mode nat pods see nobody but %v", seen)
				}
				continue
			}
			if own := client[at.Is6()]; len(seen) != 1 || seen[own] == 0 {
				t.Errorf("in mode %s pods see %v for the client %s", mode, seen, own)
			}
			for _, caller := range callers {
				seen := answered(t, pods, func(ctx context.Context) site.Answer { return caller.Ask(ctx, at) })
				own := map[bool]netip.Addr{false: caller.Address, true: caller.Address6}[at.Is6()]
				if len(seen) != 1 || seen[own] == 0 {
					t.Errorf("in mode %s pods see %v for the pod %s", mode, seen, own)
				}
			}
		}
	}

	// A change of mode: at some time pods begin to see the client. Open connections of full NAT
	// then end, because pods know them by another address; from gue to ipip none ends.
	vip := netip.MustParseAddr("203.0.113.12")
	requests := site.Request(ctx, 10*time.Millisecond, func(ctx context.Context) site.Answer { return s.Ask(ctx, vip) })
	defer requests.Close()
	setMode(t, s, "nat", "gue")
	waitFor(t, "pods to see the client, and nobody else", func() bool {
		requests.Forget()
		waitFor(t, "answers", func() bool { return len(requests.Since(time.Time{})) > 100 })
		return !slices.ContainsFunc(requests.Since(time.Time{}), func(a site.Answer) bool { return a.Seen != site.Client })
	})
	requests.Forget()
	setMode(t, s, "nat", "ipip")
	for range 3 {
		before := time.Now()
		answered(t, pods, func(ctx context.Context) site.Answer { return s.Ask(ctx, vip) })
		waitFor(t, "requests after the change", func() bool { return len(requests.Since(before)) > 50 })
	}
	requests.Close()
	if failed := requests.Failures(time.Time{}); len(failed) > 0 {
		t.Errorf("of %d requests %d failed while the mode changed from gue to ipip: %v", len(requests.Since(time.Time{})), len(failed), failed)
	}
}

// In gue a connection stays with its pod while the pod is told to end and is no longer ready, and
// while the connection's director goes: the other director's packets name the backends that may
// have it.
func TestPodEndsInGUE(t *testing.T) {
	s := newPodSite(t)
	ctx := t.Context()
	pods := startPods(t, s, "web", 3)
	vip := netip.MustParseAddr("203.0.113.10")
	if _, err := s.MakeService(ctx, "web", "web", vip, inMode("gue"), site.ByEdge); err != nil {
		t.Fatal(err)
	}
	answered(t, pods, func(ctx context.Context) site.Answer { return s.Ask(ctx, vip) })
	asked := make(chan site.Answer, 64)
	for range cap(asked) {
		go func() { asked <- s.AskLong(ctx, vip) }()
	}
	waitFor(t, "long answers to be under way", func() bool {
		connections := 0
		for _, p := range pods {
			connections += p.Connections()
		}
		return connections >= cap(asked)
	})
	first := pods[0]
	if first.Connections() == 0 {
		t.Fatalf("no long answer is of %s", first.Name)
	}
	told, err := first.Delete(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := first.NotReady(ctx); err != nil { // as its readiness probe may report while it ends
		t.Fatal(err)
	}
	if err := s.Edges[0].Withdraw(ctx, vip); err != nil {
		t.Fatal(err)
	}
	requests := site.Request(ctx, 10*time.Millisecond, func(ctx context.Context) site.Answer { return s.Ask(ctx, vip) })
	defer requests.Close()
	if _, err := requests.Quiet(ctx, first.Name, told, time.Second); err != nil {
		t.Fatal(err)
	}
	if err := first.End(ctx); err != nil {
		t.Fatal(err)
	}
	by := map[string]int{}
	for range cap(asked) {
		a := <-asked
		if by[a.Pod]++; a.Err != nil {
			t.Errorf("a long answer that began before %s was told to end: %+v", first.Name, a)
		}
	}
	if by[first.Name] == 0 {
		t.Errorf("no long answer is of %s: %v", first.Name, by)
	}
	requests.Close()
	if failed := requests.Failures(time.Time{}); len(failed) > 0 {
		t.Errorf("%d requests failed: %v", len(failed), failed)
	}
}

// Pods get nothing in gue if no agent runs on their node, and in ipip if directors reach them
// through a tunnel. Events say so, until the reason ends. If an agent goes away, pods keep what
// they have.
func TestPodsThatCannotBeReached(t *testing.T) {
	s := newPodSite(t, "node2")
	ctx := t.Context()
	pods := startPods(t, s, "web", 2)
	gue, ipip := netip.MustParseAddr("203.0.113.10"), netip.MustParseAddr("203.0.113.11")
	for name, vip := range map[string]netip.Addr{"gue": gue, "ipip": ipip} {
		if _, err := s.MakeService(ctx, name, "web", vip, inMode(name), site.ByEdge); err != nil {
			t.Fatal(err)
		}
		seen := answered(t, pods[:1], func(ctx context.Context) site.Answer { return s.Ask(ctx, vip) })
		if len(seen) != 1 {
			t.Errorf("in mode %s pods see %v", name, seen)
		}
		waitFor(t, "an event of Service "+name+" about node2", func() bool {
			return strings.Contains(eventsOf(t, s.Cluster, name), "NoAgent: pods of node2 get nothing: no weir agent runs there")
		})
	}
	if err := s.StartAgent(ctx, s.Nodes[1]); err != nil {
		t.Fatal(err)
	}
	for _, vip := range []netip.Addr{gue, ipip} {
		answered(t, pods, func(ctx context.Context) site.Answer { return s.Ask(ctx, vip) })
	}

	// One of the directors reaches node2's pods as in an overlay.
	edge := s.Edges[1]
	run := func(args ...string) {
		t.Helper()
		if err := edge.Run(ctx, "ip", args...); err != nil {
			t.Fatal(err)
		}
	}
	run("link", "add", "vx0", "type", "vxlan", "id", "7", "remote", s.Nodes[1].Address.String(), "dstport", "4789", "dev", "eth0")
	run("link", "set", "vx0", "up")
	run("route", "replace", "10.244.2.0/24", "dev", "vx0")
	waitFor(t, "an event about the tunnel", func() bool {
		return strings.Contains(eventsOf(t, s.Cluster, "ipip"), "NoWay: pods of node2 get nothing: director edge2: "+pods[1].Address.String()+" is reached through a tunnel, vx0 (vxlan); mode gue needs no way to pods")
	})
	only := func(vip netip.Addr, p *site.Pod) {
		t.Helper()
		in := 0
		waitFor(t, "30 answers by "+p.Name+" alone", func() bool {
			if a := s.Ask(ctx, vip); a.Err != nil || a.Pod != p.Name {
				in = 0
			} else {
				in++
			}
			return in == 30
		})
	}
	only(ipip, pods[0])
	answered(t, pods, func(ctx context.Context) site.Answer { return s.Ask(ctx, gue) })
	run("route", "replace", "10.244.2.0/24", "via", s.Nodes[1].Address.String())
	answered(t, pods, func(ctx context.Context) site.Answer { return s.Ask(ctx, ipip) })

	if err := s.Nodes[1].KillAgent(); err != nil {
		t.Fatal(err)
	}
	only(gue, pods[0])
}

// eventsOf returns the texts of a Service's events.
func eventsOf(t *testing.T, s *control.Cluster, service string) string {
	t.Helper()
	list, err := s.Core.Events(site.Namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, e := range list.Items {
		if e.InvolvedObject.Kind == "Service" && e.InvolvedObject.Name == service {
			all = append(all, e.Reason+": "+e.Message)
		}
	}
	return strings.Join(all, "\n")
}
