package site

import (
	"context"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"weir.io/weir/kube/test/cluster"
	"weir.io/weir/lab/netlab"
	"weir.io/weir/lab/process"
)

// Node is a host with pods behind it.
type Node struct {
	Name     string
	Address  netip.Addr
	Address6 netip.Addr

	host        *netlab.Host
	pods, pods6 netip.Prefix // their addresses
	slots       []*slot
	agent       []*process.Process // the agent and its sidecar; none: no agent runs
	proxy       *process.Process   // nil: none runs
}

// slot is a network namespace for one pod after another.
type slot struct {
	host    *netlab.Host
	address netip.Addr
	six     netip.Addr
	used    int // how many pods have been in it
	busy    bool
}

func (s *Site) addNode(i int) {
	s.Nodes = append(s.Nodes, s.newNode(named("node", i), nodeNumber+i, i+1, s.options.Slots))
}

// newNode makes a node with a number on the switch, a network of pods, and room for this many pods.
func (s *Site) newNode(name string, number, network, slots int) *Node {
	n := &Node{Name: name, Address: address(number), Address6: address6(number), host: s.lab.Router(name)}
	n.pods = netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, byte(network), 0}), 24)
	n.pods6 = netip.PrefixFrom(netip.AddrFrom16([16]byte{0: 0xfd, 2: 0x02, 3: 0x44, 5: byte(network)}), 64)
	s.plugIn(n.host, number)
	mtu := 0 // Ethernet's default
	if s.options.Overlay {
		mtu = OverlayMTU
	}
	for k := range slots {
		// Each pod has a cable of its own to the node: 4 addresses; the pod has the third.
		base := n.pods.Addr().As4()
		base[3] = byte(4 * k)
		gateway, pod := base, base
		gateway[3]++
		pod[3] += 2
		base6 := n.pods6.Addr().As16()
		base6[15] = byte(4 * k)
		gateway6, pod6 := base6, base6
		gateway6[15]++
		pod6[15] += 2
		one := &slot{host: s.lab.Host(fmt.Sprintf("%s-%d", n.Name, k)), address: netip.AddrFrom4(pod), six: netip.AddrFrom16(pod6)}
		s.lab.Link(n.host, one.host, netlab.LinkOptions{NameA: fmt.Sprintf("veth%d", k), MTU: mtu,
			A: []string{netip.AddrFrom4(gateway).String() + "/30", netip.AddrFrom16(gateway6).String() + "/126"}, B: []string{one.address.String() + "/30", one.six.String() + "/126"}})
		one.host.Route("default", netip.AddrFrom4(gateway).String())
		one.host.Route("default", netip.AddrFrom16(gateway6).String())
		n.slots = append(n.slots, one)
	}
	return n
}

// routeTo gives a host routes to the node's pods.
func (n *Node) routeTo(h *netlab.Host) {
	h.Route(n.pods.String(), n.Address.String())
	h.Route(n.pods6.String(), n.Address6.String())
}

// register makes the node's object, as its kubelet does, in state ready.
func (s *Site) register(ctx context.Context, n *Node) error {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: map[string]string{corev1.LabelHostname: n.Name}},
		Spec: corev1.NodeSpec{PodCIDR: n.pods.String(), PodCIDRs: []string{n.pods.String(), n.pods6.String()}}}
	node, err := s.Core.Nodes().Create(ctx, node, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("register %s: %w", n.Name, err)
	}
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: n.Address.String()}, {Type: corev1.NodeInternalIP, Address: n.Address6.String()}}
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady"}}
	if _, err := s.Core.Nodes().UpdateStatus(ctx, node, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("register %s: %w", n.Name, err)
	}
	return nil
}

// free takes the least used free slot, as a network plugin hands out addresses.
func (n *Node) free() (*slot, error) {
	var best *slot
	for _, s := range n.slots {
		if !s.busy && (best == nil || s.used < best.used) {
			best = s
		}
	}
	if best == nil {
		return nil, fmt.Errorf("%s has no room for another pod: %d are there", n.Name, len(n.slots))
	}
	best.busy = true
	best.used++
	return best, nil
}

// StartProxy starts a kube-proxy on the node.
func (s *Site) StartProxy(n *Node, program string) error {
	kubeconfig, err := s.WriteKubeconfig("proxy-"+n.Name, fmt.Sprintf("https://%s:6443", address(controlNumber)), cluster.AdminToken)
	if err != nil {
		return err
	}
	n.proxy, err = process.Start(n.host, "kube-proxy", program, "--proxy-mode", "nftables", "--kubeconfig", kubeconfig, "--hostname-override", n.Name,
		"--conntrack-max-per-core", "0", "--conntrack-tcp-timeout-established", "0s", "--conntrack-tcp-timeout-close-wait", "0s",
		"--cluster-cidr", "10.244.0.0/16,fd00:244::/32", "--nodeport-addresses", "10.1.0.0/16,fd00:1::/64", "--metrics-bind-address", "127.0.0.1:10249")
	return err
}

// Run runs a program on the node.
func (n *Node) Run(ctx context.Context, program string, args ...string) error {
	_, err := process.Run(ctx, n.host, program, args...)
	return err
}
