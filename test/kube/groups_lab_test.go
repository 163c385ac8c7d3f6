package kube

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/netlab"
	"weir.io/weir/internal/routerlab"
	"weir.io/weir/kube/group"
	"weir.io/weir/kube/v1alpha1"
	control "weir.io/weir/test/kube/cluster"
)

// groupLab is
//
//	client --- router --- switch --- node-a node-b node-c
//	                             --- pod1 pod2 pod3
//	                             --- control
//
// where the router is told by BGP which nodes forward, each node has a director and its
// sidecar, with the rights of the chart, and control is as in a lab.
type groupLab struct {
	*lab
	router *netlab.Host
	nodes  []*labNode
}

// labNode is a node with a director.
type labNode struct {
	*netlab.Host
	l       *groupLab
	address string
	config  string // of the sidecar: its kubeconfig
	api     *api.Client
	weir    *netlab.Command
	sidecar *netlab.Command
}

const (
	vip     = "203.0.113.1"
	edgeSet = "kube.edge.0"

	routerText = `
router bgp 65000
 bgp router-id 10.2.0.1
 no bgp ebgp-requires-policy
 bgp bestpath as-path multipath-relax
 neighbor directors peer-group
 neighbor directors remote-as 65001
 neighbor directors advertisement-interval 0
 neighbor directors bfd
 bgp listen range 10.2.0.0/24 peer-group directors
 address-family ipv4 unicast
  maximum-paths 16
 exit-address-family
`
)

func newGroupLab(t *testing.T) *groupLab {
	t.Helper()
	needsAPIServer(t)
	n := netlab.ForTest(t)
	l := &groupLab{lab: &lab{client: n.Host("client")}, router: n.Router("router")}
	lan := n.Switch("switch")
	n.Link(l.client, l.router, netlab.LinkOptions{XDP: true, A: []string{"10.0.0.2/24"}, B: []string{"10.0.0.1/24"}})
	n.Link(l.router, lan, netlab.LinkOptions{XDP: true, A: []string{"10.2.0.1/24"}})
	l.client.Route("default", "10.0.0.1")
	l.router.Sysctl("net.ipv4.fib_multipath_hash_policy", "1")
	for i := 1; i <= 3; i++ {
		pod := n.Host(fmt.Sprintf("pod%d", i))
		n.Link(pod, lan, netlab.LinkOptions{XDP: true, A: []string{podAddress(i) + "/24"}})
		serve(t, pod)
	}
	host := n.Host("control")
	n.Link(host, lan, netlab.LinkOptions{XDP: true, A: []string{controlAddress + "/24"}})
	for i, name := range []string{"node-a", "node-b", "node-c"} {
		node := &labNode{Host: n.Router(name), l: l, address: fmt.Sprintf("10.2.0.%d", 11+i)}
		n.Link(node.Host, lan, netlab.LinkOptions{XDP: true, A: []string{node.address + "/24"}})
		node.Route("default", "10.2.0.1")
		l.nodes = append(l.nodes, node)
	}
	if err := n.Err(); err != nil {
		t.Fatal(err)
	}
	if _, err := routerlab.StartFRR(l.router, routerlab.FRRConfig{BFD: "bfd\n", BGP: routerText}); err != nil {
		t.Fatal(err)
	}
	l.cluster = newCluster(t, host)
	l.applyResources()
	l.makeSystem()
	l.applyChart("--values", "testdata/groups.values.yaml")
	l.kubeconfigFile = l.kubeconfig("weir-system", "weir-kube")
	l.config = l.write("weir-kube.yaml", "lease: {namespace: weir-system, name: weir-kube, duration: 4s}\npools: [{name: public, addresses: [203.0.113.1-203.0.113.2]}]\n")
	for _, node := range l.nodes {
		node.join()
		node.startSidecar("--write-only")
		if err := node.sidecar.Wait(); err != nil {
			t.Fatalf("%s writes no file: %v", node.Name, err)
		}
		node.startDirector()
		node.startSidecar()
	}
	// Who is there when a controller begins may be a director: all of them are to be.
	for _, node := range l.nodes {
		waitFor(t, node.Name+" to say that it may be a director", func() bool {
			lease, err := l.coordination.Leases("weir-system").Get(t.Context(), group.LeaseName("edge", node.Name), metav1.GetOptions{})
			if err != nil {
				return false
			}
			p, err := group.ReadPresence(lease.Annotations[group.AnnotationDirector])
			return err == nil && p.Unfit == ""
		})
	}
	return l
}

// join makes the node's object, as a kubelet does.
func (n *labNode) join() {
	t := n.l.t
	t.Helper()
	object := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: map[string]string{"example.org/edge": "true"}}}
	made, err := n.l.core.Nodes().Create(t.Context(), object, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	made.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: n.address}}
	made.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	if _, err := n.l.core.Nodes().UpdateStatus(t.Context(), made, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	n.config = n.l.kubeconfig("weir-system", "weir-kube-director")
	text := strings.ReplaceAll(n.l.read(n.config), control.ServerURL, "https://"+controlAddress+":6443")
	n.config = n.l.write(n.Name+".kubeconfig", text)
}

func (n *labNode) cordon(yes bool) {
	n.l.t.Helper()
	object, err := n.l.core.Nodes().Get(n.l.t.Context(), n.Name, metav1.GetOptions{})
	if err == nil {
		object.Spec.Unschedulable = yes
		_, err = n.l.core.Nodes().Update(n.l.t.Context(), object, metav1.UpdateOptions{})
	}
	if err != nil {
		n.l.t.Fatal(err)
	}
}

func (n *labNode) at(name string) string { return filepath.Join(n.Dir(), name) }

func (n *labNode) startDirector() {
	n.l.t.Helper()
	n.weir = start(n.l.t, n.Host, n.at("run.log"), weir, "run", "-c", n.at("etc/weir.yaml"), "--bpffs", n.BPFFS(), "--socket", n.at("director.sock"))
	n.api = api.NewClient(n.at("director.sock"))
}

func (n *labNode) startSidecar(more ...string) {
	n.l.t.Helper()
	if err := os.MkdirAll(n.at("etc"), 0o755); err != nil {
		n.l.t.Fatal(err)
	}
	args := append([]string{"node", "--group", "edge", "--node", n.Name, "--namespace", "weir-system", "--socket", n.at("director.sock"), "--file", n.at("etc/weir.yaml"),
		"--state", n.at("state"), "--kubeconfig", n.config}, more...)
	n.sidecar = start(n.l.t, n.Host, n.at("node.log"), weirKube, args...)
}

// waitForFit waits until all nodes say that they may be directors: who says so first becomes
// one.
func (l *groupLab) waitForFit() {
	l.t.Helper()
	waitFor(l.t, "all nodes to say that they may be directors", func() bool {
		leases, err := l.coordination.Leases("weir-system").List(l.t.Context(), metav1.ListOptions{LabelSelector: v1alpha1.LabelGroup + "=edge"})
		fit := 0
		for _, lease := range leases.Items {
			if !strings.Contains(lease.Annotations["weir.io/director"], "unfit") {
				fit++
			}
		}
		return err == nil && fit == len(l.nodes)
	})
}

// documents returns what the node's director forwards of the group, with the logs.
func (n *labNode) documents() string {
	documents, err := n.api.Documents(n.l.t.Context(), edgeSet)
	if err != nil {
		return err.Error()
	}
	text, err := json.Marshal(documents)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// generations is how many the director's log of the first service has.
func (n *labNode) generations() int {
	documents, err := n.api.Documents(n.l.t.Context(), edgeSet)
	if err != nil || len(documents) == 0 {
		return 0
	}
	return len(documents[0].Log.Generations)
}

// hops returns by which nodes the router sends the VIP's packets.
func (l *groupLab) hops() string {
	hops, err := routerlab.NextHops(l.router, netip.MustParsePrefix(vip+"/32"))
	if err != nil {
		return err.Error()
	}
	var names []string
	for _, h := range hops {
		i := slices.IndexFunc(l.nodes, func(n *labNode) bool { return n.address == h.String() })
		names = append(names, l.nodes[i].Name)
	}
	return strings.Join(names, " ")
}

func (l *groupLab) waitForHops(want string) {
	l.t.Helper()
	waitFor(l.t, fmt.Sprintf("the router to send %s to %q", vip, want), func() bool { return l.hops() == want })
}

// status returns what the group's status says: the directors, and how many stand by.
func (l *groupLab) status() string {
	text, err := l.core.RESTClient().Get().AbsPath("/apis/weir.io/v1alpha1/directorgroups/edge").Do(l.t.Context()).Raw()
	if err != nil {
		return err.Error()
	}
	var g v1alpha1.DirectorGroup
	if err := json.Unmarshal(text, &g); err != nil {
		return err.Error()
	}
	var names []string
	for _, d := range g.Status.Directors {
		names = append(names, d.Node)
	}
	return fmt.Sprintf("%s, %d stand by", strings.Join(names, " "), g.Status.Standby)
}

func (l *groupLab) waitForStatus(want string) {
	l.t.Helper()
	waitFor(l.t, fmt.Sprintf("the status of the group to say %q", want), func() bool { return l.status() == want })
}

// waitForSame waits until the directors of two nodes have the same services and the same logs,
// the first of which have so many generations at least.
func (l *groupLab) waitForSame(a, b *labNode, generations int) {
	l.t.Helper()
	waitFor(l.t, fmt.Sprintf("%s and %s to have the same logs, of %d generations or more", a.Name, b.Name, generations), func() bool {
		return a.generations() >= generations && a.documents() == b.documents()
	})
}

// answered asks so often, and fails where nobody answers.
func (l *groupLab) answered(times int, when string) {
	l.t.Helper()
	for range times {
		if _, err := l.ask(vip); err != nil {
			l.t.Errorf("%s nobody answers: %v", when, err)
		}
	}
}
