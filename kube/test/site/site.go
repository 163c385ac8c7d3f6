// Package site is the lab with a whole cluster's network: a router that speaks BGP, directors,
// nodes with pods behind them, a control plane of Kubernetes and weir's controller. Pods are hosts
// of the lab with nginx, and the site writes their status as kubelets would.
package site

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"weir.io/weir/kube/test/cluster"
	"weir.io/weir/lab/netlab"
	"weir.io/weir/lab/process"
)

const (
	// Namespace is where Services and pods are.
	Namespace = "default"

	// Class is the class of weir's Services.
	Class = "weir.io/weir"

	// Owner is the owner of the controller's set.
	Owner = "kube"
)

// Client is the client's address.
var Client = netip.MustParseAddr("10.0.0.2")

// Client6 is the client's IPv6 address.
var Client6 = netip.MustParseAddr("fd00::2")

// vips are the addresses for Services.
const vips = `203.0.113.0/24, "2001:db8:1::/64"`

// Host numbers in the servers' network.
const (
	routerNumber   = 1
	controlNumber  = 5
	directorNumber = 11
	snatNumber     = 111
	nodeNumber     = 51
)

// Programs are the paths of the site's programs.
type Programs struct {
	APIServer, Controllers string // kube-apiserver, kube-controller-manager
	Weir, WeirKube         string
}

// Options are the size of the site.
type Options struct {
	Programs    Programs
	Definitions string // the directory of weir's custom resources
	Directors   int
	Nodes       int
	Slots       int // pods that may be on a node at a time
	Edges       int // nodes that may be directors of a DirectorGroup
	EdgeSlots   int // pods that may be on each of these
	// OverlayBack lets replies go only to the overlay's addresses: each node has one there, and
	// drops packets that come by the overlay from sources that are not routed there. Directors send
	// from these addresses.
	OverlayBack bool
	Overlay     bool // nodes reach each other's pods through a VXLAN, and pods have the MTU that it leaves

	Notice                 time.Duration // of the DirectorGroup; 0: the API server's default
	OwnCoalesce, OwnNotice time.Duration // of the directors of their own; 0: their defaults
}

// Site is the lab:
//
//	client --- router (FRR) --- switch --- director1 ... directorN
//	                                   --- node1 ... nodeM --- pods
//	                                   --- edge1 ... edgeK (directors of a DirectorGroup)
//	                                   --- control (etcd of the directors; etcd, kube-apiserver,
//	                                       kube-controller-manager, weir-kube)
type Site struct {
	*cluster.Cluster
	Directors []*Director
	Nodes     []*Node
	Edges     []*Edge

	AgentToken func(node string) (string, error) // for the sidecar of a node's agent; nil: the admin token

	lab            *netlab.Lab
	options        Options
	client, router *netlab.Host
	lan, control   *netlab.Host
	store          *process.Process
	weirKube       *process.Process
	follower       *Follower
	pods           int // made so far
}

// New builds the site and returns when the controller has the lease, and all directors have sessions
// with the router.
func New(ctx context.Context, lab *netlab.Lab, o Options) (*Site, error) {
	s := &Site{lab: lab, options: o, client: lab.Host("client"), router: lab.Router("router"), lan: lab.Switch("switch")}
	lab.Link(s.client, s.router, netlab.LinkOptions{A: []string{Client.String() + "/24", Client6.String() + "/64"}, B: []string{"10.0.0.1/24", "fd00::1/64"}})
	lab.Link(s.router, s.lan, netlab.LinkOptions{XDP: true, A: []string{address(routerNumber).String() + "/16", address6(routerNumber).String() + "/64"}})
	s.client.Route("default", "10.0.0.1")
	s.client.Route("default", "fd00::1")
	s.client.Sysctl("net.ipv4.ip_local_port_range", "1024 65535")
	s.control = lab.Host("control")
	s.plugIn(s.control, controlNumber)
	for i := range o.Nodes {
		s.addNode(i)
	}
	for i := range o.Directors {
		s.addDirector(i)
	}
	for i := range o.Edges {
		s.addEdge(i)
	}
	s.addRoutes()
	if err := lab.Err(); err != nil {
		return nil, err
	}
	if o.Overlay {
		if err := s.joinOverlay(ctx); err != nil {
			return nil, fmt.Errorf("make the overlay: %w", err)
		}
	}
	if err := s.startRouter(); err != nil {
		return nil, err
	}
	if err := errors.Join(s.startStore(), s.startDirectors()); err != nil {
		return nil, err
	}
	if err := s.startCluster(ctx); err != nil {
		return nil, err
	}
	if err := s.directorsRun(ctx); err != nil {
		return nil, err
	}
	return s, s.startController(ctx)
}

func address(number int) netip.Addr { return netip.AddrFrom4([4]byte{10, 1, 0, byte(number)}) }

func address6(number int) netip.Addr {
	return netip.AddrFrom16([16]byte{0: 0xfd, 3: 1, 15: byte(number)})
}

// plugIn connects a host to the switch.
func (s *Site) plugIn(h *netlab.Host, numbers ...int) {
	options := netlab.LinkOptions{XDP: true}
	for _, n := range numbers {
		options.A = append(options.A, address(n).String()+"/16", address6(n).String()+"/64")
	}
	s.lab.Link(h, s.lan, options)
	h.Route("default", address(routerNumber).String())
	h.Route("default", address6(routerNumber).String())
}

// addRoutes adds the routes of a cluster whose network routes pods' addresses: each node has some.
func (s *Site) addRoutes() {
	for _, n := range s.AllNodes() {
		for _, d := range s.Directors {
			n.routeTo(d.host)
		}
		for _, other := range s.AllNodes() {
			if other != n {
				n.routeTo(other.host)
			}
		}
	}
}

// AllNodes returns the nodes, and the edges' own.
func (s *Site) AllNodes() []*Node {
	nodes := slices.Clone(s.Nodes)
	for _, e := range s.Edges {
		nodes = append(nodes, e.Node)
	}
	return nodes
}

func storeURL(port int) string { return fmt.Sprintf("http://%s:%d", address(controlNumber), port) }

// startStore starts the etcd that the directors share: one member, because this lab loses none.
func (s *Site) startStore() (err error) {
	s.store, err = process.Start(s.control, "directors-etcd", "etcd", "--name", "store", "--data-dir", filepath.Join(s.control.Dir(), "store"),
		"--listen-client-urls", storeURL(2379), "--advertise-client-urls", storeURL(2379),
		"--listen-peer-urls", storeURL(2380), "--initial-advertise-peer-urls", storeURL(2380),
		"--initial-cluster", "store="+storeURL(2380), "--initial-cluster-state", "new")
	return err
}

// startCluster starts the control plane, and makes the objects that must exist first.
func (s *Site) startCluster(ctx context.Context) (err error) {
	if s.Cluster, err = cluster.Start(ctx, s.control, s.options.Programs.APIServer); err != nil {
		return err
	}
	if err := s.StartControllers(s.options.Programs.Controllers, "endpointslice-controller", "serviceaccount-controller"); err != nil {
		return err
	}
	if err := s.MakeResources(ctx, s.options.Definitions); err != nil {
		return err
	}
	system := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "weir-system"}}
	if _, err := s.Core.Namespaces().Create(ctx, system, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("make the controller's namespace: %w", err)
	}
	for _, n := range s.AllNodes() {
		if err := s.register(ctx, n); err != nil {
			return err
		}
	}
	if s.follower, err = s.follow(ctx); err != nil {
		return err
	}
	return cluster.Until(ctx, "the service account of pods", func() error {
		_, err := s.Core.ServiceAccounts(Namespace).Get(ctx, "default", metav1.GetOptions{})
		return err
	})
}

// startController starts weir's controller, and waits until it works.
func (s *Site) startController(ctx context.Context) error {
	var text strings.Builder
	fmt.Fprintf(&text, "mode: nat\nbackends: pods\nlease: {namespace: weir-system, name: weir-kube, duration: 15s}\n"+
		"pools:\n- {name: public, addresses: [%s]}\n", vips)
	if len(s.Directors) > 0 {
		text.WriteString("directors:\n")
	}
	for _, d := range s.Directors {
		fmt.Fprintf(&text, "- socket: %s\n", d.Weir.Socket)
	}
	config, err := s.Write("weir-kube.yaml", text.String())
	if err != nil {
		return err
	}
	kubeconfig, err := s.WriteKubeconfig("weir-kube", cluster.ServerURL, cluster.AdminToken)
	if err != nil {
		return err
	}
	s.weirKube, err = process.Start(s.control, "weir-kube", s.options.Programs.WeirKube, "controller", "-c", config, "--kubeconfig", kubeconfig, "--identity", "one")
	if err != nil {
		return err
	}
	return s.weirKube.Await(ctx, "follow the cluster", func() error {
		if !strings.Contains(s.weirKube.Log(), "following the cluster") {
			return errNotYet
		}
		return nil
	})
}

// errNotYet says that something has not happened yet.
var errNotYet = errors.New("not yet")

// Logs returns the ends of the processes' logs, for debugging.
func (s *Site) Logs() string {
	var all strings.Builder
	if s.Cluster != nil {
		all.WriteString(s.Cluster.Logs())
	}
	for _, p := range s.processes() {
		text := p.Log()
		fmt.Fprintf(&all, "%s on %s said, in the end:\n%s\n", p.Name, p.Host.Name, text[max(0, len(text)-6000):])
	}
	return all.String()
}

func (s *Site) processes() (list []*process.Process) {
	for _, p := range []*process.Process{s.store, s.weirKube} {
		if p != nil {
			list = append(list, p)
		}
	}
	for _, d := range s.Directors {
		if d.Weir != nil {
			list = append(list, d.Weir.Process)
		}
	}
	for _, e := range s.Edges {
		if e.sidecar != nil {
			list = append(list, e.weir, e.sidecar)
		}
	}
	for _, n := range s.AllNodes() {
		list = append(list, n.agent...)
		if n.proxy != nil {
			list = append(list, n.proxy)
		}
	}
	return list
}

func named(what string, i int) string { return what + strconv.Itoa(i+1) }
