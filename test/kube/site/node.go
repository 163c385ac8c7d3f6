package site

import (
	"context"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"weir.io/weir/internal/netlab"
)

// Node is a host with pods behind it.
type Node struct {
	Name    string
	Address netip.Addr

	host  *netlab.Host
	pods  netip.Prefix // their addresses
	slots []*slot
}

// slot is a network namespace in which one pod after the other may be.
type slot struct {
	host    *netlab.Host
	address netip.Addr
	used    int // how many pods have been in it
	busy    bool
}

func (s *Site) addNode(i int) {
	n := &Node{Name: named("node", i), Address: address(nodeNumber + i)}
	n.pods = netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, byte(i + 1), 0}), 24)
	n.host = s.lab.Router(n.Name)
	s.plugIn(n.host, nodeNumber+i)
	for k := range s.options.Slots {
		// Each pod has a cable of its own to the node: 4 addresses, of which it has the third.
		base := n.pods.Addr().As4()
		base[3] = byte(4 * k)
		gateway, pod := base, base
		gateway[3]++
		pod[3] += 2
		one := &slot{host: s.lab.Host(fmt.Sprintf("%s-%d", n.Name, k)), address: netip.AddrFrom4(pod)}
		s.lab.Link(n.host, one.host, netlab.LinkOptions{A: []string{netip.AddrFrom4(gateway).String() + "/30"}, B: []string{one.address.String() + "/30"}})
		one.host.Route("default", netip.AddrFrom4(gateway).String())
		n.slots = append(n.slots, one)
	}
	s.Nodes = append(s.Nodes, n)
}

// register makes the node's object, as its kubelet does: ready.
func (s *Site) register(ctx context.Context, n *Node) error {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: map[string]string{corev1.LabelHostname: n.Name}},
		Spec: corev1.NodeSpec{PodCIDR: n.pods.String(), PodCIDRs: []string{n.pods.String()}}}
	node, err := s.Core.Nodes().Create(ctx, node, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("register %s: %w", n.Name, err)
	}
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: n.Address.String()}}
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady"}}
	if _, err := s.Core.Nodes().UpdateStatus(ctx, node, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("register %s: %w", n.Name, err)
	}
	return nil
}

// free takes the slot that has been free for the longest, as a network plugin gives out addresses.
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
