package kube

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"weir.io/weir/internal/api"
	"weir.io/weir/kube/group"
	control "weir.io/weir/kube/test/cluster"
	"weir.io/weir/kube/v1alpha1"
	"weir.io/weir/lab/netlab"
	"weir.io/weir/lab/routerlab"
)

// groupLab is
//
//	client --- router --- switch --- node-a node-b node-c
//	                             --- pod1 pod2 pod3
//	                             --- control
//
// where BGP tells the router which nodes forward, each node has a director and its sidecar, with
// the chart's rights, and control is as in lab.
type groupLab struct {
	*lab
	router *netlab.Host
	frr    *routerlab.FRR
	nodes  []*labNode
	of     *cluster // the cluster with the nodes' objects
	runs   *cluster // the cluster with the controller's pod

	pod, controllerPod corev1.PodSpec // of directors and the controller, from the chart
}

// groupOptions are what differs between labs of a group.
type groupOptions struct {
	values string // of the chart; empty: with the router as a peer
	bgp    string // the router's; empty: it accepts sessions from all nodes
	pool   string // addresses; empty: those of vip
	// onLink puts the client on the nodes' link, and there is no router. All hosts have an IPv6
	// address there, too.
	onLink bool
	nodes  int // with the group's labels; 0: three
	// tagged makes the nodes' links trunks.
	tagged bool
	// elsewhere puts the nodes into a cluster of their own, which has nothing else.
	elsewhere bool
	// controllerElsewhere makes the controller, then the chart's, run there, too.
	controllerElsewhere bool
}

const edgeControlAddress = "10.2.0.6" // of that cluster's API server

// labNode is a node with a director.
type labNode struct {
	*netlab.Host
	l       *groupLab
	port    *netlab.Port
	address string
	six     string // its IPv6 address; empty: none
	group   string // empty: edge
	inPod   *hostedPod
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

func newGroupLab(t *testing.T, o groupOptions) *groupLab {
	t.Helper()
	needsAPIServer(t)
	n := netlab.ForTest(t)
	l := &groupLab{lab: &lab{net: n, client: n.Host("client")}}
	l.lan = n.Switch("switch")
	host := l.network(o)
	if err := n.Err(); err != nil {
		t.Fatal(err)
	}
	for _, pod := range l.servers {
		serve(t, pod)
	}
	if l.router != nil {
		var err error
		if l.frr, err = routerlab.StartFRR(l.router, routerlab.FRRConfig{BFD: "bfd\n", BGP: cmp.Or(o.bgp, routerText)}); err != nil {
			t.Fatal(err)
		}
	}
	l.cluster = newCluster(t, host)
	if l.of = l.cluster; o.elsewhere {
		l.of = l.edgeCluster()
	}
	l.applyResources()
	l.makeSystem()
	l.install(o)
	l.kubeconfigFile = l.kubeconfig("weir-system", "weir-kube")
	t.Cleanup(l.logEvents)
	l.config = l.write("weir-kube.yaml", fmt.Sprintf("lease: {namespace: weir-system, name: weir-kube, duration: 4s}\npools: [{name: public, addresses: [%s]}]\n",
		cmp.Or(o.pool, "203.0.113.1-203.0.113.2")))
	for _, node := range l.nodes {
		node.join()
		node.writeFile()
		node.startDirector()
		node.startSidecar()
	}
	// All nodes are ready before a controller starts: it chooses directors among those that are.
	for _, node := range l.nodes {
		waitFor(t, node.Name+" to say that it may be a director", func() bool {
			lease, err := l.coordination.Leases("weir-system").Get(t.Context(), group.LeaseName("edge", node.Name), metav1.GetOptions{})
			if err != nil {
				return false
			}
			p, err := group.ReadPresence("edge", lease.Name, lease.Annotations[group.AnnotationDirector])
			return err == nil && p.Unfit == ""
		})
	}
	return l
}

// edgeCluster starts a cluster that has only nodes.
func (l *groupLab) edgeCluster() *cluster {
	l.t.Helper()
	host := l.net.Host("edge-control")
	l.net.Link(host, l.lan, netlab.LinkOptions{XDP: true, A: []string{edgeControlAddress + "/24", serviceAddress + "/32"}})
	return newCluster(l.t, host)
}

// reached returns a kubeconfig of a cluster's account for hosts other than the API server's.
func (c *cluster) reached(namespace, account, address string) string {
	c.t.Helper()
	text := strings.ReplaceAll(c.read(c.kubeconfig(namespace, account)), control.ServerURL, "https://"+address+":6443")
	return c.write(account+".reached.kubeconfig", text)
}

// network makes the hosts and their links, and returns the API server's host.
func (l *groupLab) network(o groupOptions) *netlab.Host {
	n := l.net
	on := func(last int) []string {
		list := []string{fmt.Sprintf("10.2.0.%d/24", last)}
		if o.onLink {
			list = append(list, fmt.Sprintf("fd00:2::%d/64", last))
		}
		return list
	}
	if o.onLink {
		n.Link(l.client, l.lan, netlab.LinkOptions{XDP: true, A: on(2)})
	} else {
		l.router = n.Router("router")
		n.Link(l.client, l.router, netlab.LinkOptions{XDP: true, A: []string{"10.0.0.2/24"}, B: []string{"10.0.0.1/24"}})
		n.Link(l.router, l.lan, netlab.LinkOptions{XDP: true, A: on(1)})
		l.client.Route("default", "10.0.0.1")
		l.router.Sysctl("net.ipv4.fib_multipath_hash_policy", "1")
	}
	for i := 1; i <= 3; i++ {
		pod := n.Host(fmt.Sprintf("pod%d", i))
		n.Link(pod, l.lan, netlab.LinkOptions{XDP: true, A: on(20 + i)})
		l.servers = append(l.servers, pod)
	}
	host := n.Host("control")
	n.Link(host, l.lan, netlab.LinkOptions{XDP: true, A: []string{controlAddress + "/24", serviceAddress + "/32"}})
	apiServer := controlAddress
	if o.elsewhere {
		apiServer = edgeControlAddress
	}
	for i, name := range []string{"node-a", "node-b", "node-c"}[:cmp.Or(o.nodes, 3)] {
		node := &labNode{Host: n.Router(name), l: l, address: fmt.Sprintf("10.2.0.%d", 11+i)}
		if o.onLink {
			node.six = fmt.Sprintf("fd00:2::%d", 11+i)
		}
		node.port = n.Link(node.Host, l.lan, netlab.LinkOptions{XDP: true, Tagged: o.tagged, A: on(11 + i)}).A
		node.Route(serviceAddress+"/32", apiServer)
		if !o.onLink {
			node.Route("default", "10.2.0.1")
		}
		l.nodes = append(l.nodes, node)
	}
	return host
}

// install creates the chart's objects of the group: all of them, or those for each of two clusters.
func (l *groupLab) install(o groupOptions) {
	l.t.Helper()
	values := []string{"--values", cmp.Or(o.values, "testdata/groups.values.yaml")}
	var objects, ofNodes map[string]string
	if o.elsewhere {
		objects, ofNodes = l.installTwice(values, o.controllerElsewhere)
	} else {
		objects = l.applyChart(values...)
		ofNodes = objects
	}
	l.runs = l.cluster
	if o.controllerElsewhere {
		l.runs, objects = l.of, ofNodes
	}
	var set appsv1.DaemonSet
	fromYAML(l.t, []byte(ofNodes["DaemonSet"]), &set)
	l.pod = set.Spec.Template.Spec
	var deployment appsv1.Deployment
	fromYAML(l.t, []byte(objects["Deployment"]), &deployment)
	l.controllerPod = deployment.Spec.Template.Spec
}

// controllerOfChart starts the chart's controller.
func (l *groupLab) controllerOfChart() *netlab.Command {
	l.t.Helper()
	made := l.runs.podOn("somewhere", "weir-system", l.controllerPod.ServiceAccountName, "controller")
	pod := newHostedPod(l.t, l.runs.host, l.runs, made, map[string]string{"/etc/weir/kube": filepath.Join(l.runs.dir, "kube"), "/etc/weir/services": filepath.Join(l.runs.dir, "services")})
	pod.volumes(l.controllerPod, l.controllerPod.Containers[0])
	return pod.start(l.controllerPod.Containers[0], weirKube)
}

// join makes the node's object, as a kubelet does.
func (n *labNode) join() {
	t := n.l.t
	t.Helper()
	object := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: map[string]string{"example.org/" + cmp.Or(n.group, "edge"): "true"}}}
	made, err := n.l.of.core.Nodes().Create(t.Context(), object, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	made.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: n.address}}
	if n.six != "" {
		made.Status.Addresses = append(made.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: n.six})
	}
	made.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	if _, err := n.l.of.core.Nodes().UpdateStatus(t.Context(), made, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	pod := n.l.of.podOn(n.Name, "weir-system", n.l.pod.ServiceAccountName, "director-"+n.Name)
	n.inPod = newHostedPod(t, n.Host, n.l.of, pod, map[string]string{"/var/lib/weir": n.at("state"), "/run/weir": n.at("run"), "/sys/fs/bpf": n.BPFFS(), "/etc/weir/services": n.at("services")})
	for _, c := range n.l.pod.Containers {
		n.inPod.volumes(n.l.pod, c)
	}
}

func (n *labNode) cordon(yes bool) {
	n.l.t.Helper()
	object, err := n.l.of.core.Nodes().Get(n.l.t.Context(), n.Name, metav1.GetOptions{})
	if err == nil {
		object.Spec.Unschedulable = yes
		_, err = n.l.of.core.Nodes().Update(n.l.t.Context(), object, metav1.UpdateOptions{})
	}
	if err != nil {
		n.l.t.Fatal(err)
	}
}

func (n *labNode) at(name string) string { return filepath.Join(n.Dir(), name) }

// startDirector and startSidecar start the containers of a director's pod in the chart's DaemonSet.
func (n *labNode) startDirector() {
	n.l.t.Helper()
	n.weir = n.inPod.start(n.container(n.l.pod.Containers[0]), weir)
	n.api = api.NewClient(n.at("run/director.sock"))
}

func (n *labNode) startSidecar() {
	n.l.t.Helper()
	n.sidecar = n.inPod.start(n.container(n.l.pod.Containers[1]), weirKube)
}

// container returns a container of the chart's group as the chart has it for the node's.
func (n *labNode) container(c corev1.Container) corev1.Container {
	c.Args = slices.Clone(c.Args)
	for i := range c.Args {
		if n.group != "" && c.Args[i] == "--group=edge" {
			c.Args[i] = "--group=" + n.group
		}
	}
	return c
}

// writeFile runs the init container.
func (n *labNode) writeFile() {
	n.l.t.Helper()
	if err := n.inPod.start(n.container(n.l.pod.InitContainers[0]), weirKube).Wait(); err != nil {
		n.l.t.Fatalf("%s writes no file: %v", n.Name, err)
	}
}

// waitForFit waits until all nodes say that they may be directors: otherwise the first ones become
// directors.
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

// documents returns what the node's director forwards for the group, with the logs.
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

// generations is how many generations the director's log of the first service has.
func (n *labNode) generations() int {
	documents, err := n.api.Documents(n.l.t.Context(), edgeSet)
	if err != nil || len(documents) == 0 {
		return 0
	}
	return len(documents[0].Log.Generations)
}

// hops returns the nodes to which the router sends the VIP's packets.
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

// status returns the group's status: the directors, and how many stand by.
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

// waitForSame waits until the directors of two nodes have the same services and the same logs, and
// the first log has at least this many generations.
func (l *groupLab) waitForSame(a, b *labNode, generations int) {
	l.t.Helper()
	waitFor(l.t, fmt.Sprintf("%s and %s to have the same logs, of %d generations or more", a.Name, b.Name, generations), func() bool {
		return a.generations() >= generations && a.documents() == b.documents()
	})
}

// answered asks this many times, and fails if a request gets no answer.
func (l *groupLab) answered(times int, when string) {
	l.t.Helper()
	for range times {
		if _, err := l.ask(vip); err != nil {
			l.t.Errorf("%s nobody answers: %v", when, err)
		}
	}
}
