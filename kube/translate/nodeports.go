package translate

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"weir.io/weir/internal/model"
	"weir.io/weir/kube/v1alpha1"
)

// tunnelPort is where tunnels of gue end on nodes, over UDP.
const tunnelPort = 6080

// NodePorts returns the node ports of a Service at which a group's directors take connections to
// their own nodes' addresses, and why other ports that one might expect stay kube-proxy's. With
// externalTrafficPolicy Local a node without a pod of the Service must not answer, and kube-proxy
// shows pods the client: all ports stay kube-proxy's.
func (g *DirectorGroup) NodePorts(o Options, s *corev1.Service) (list []v1alpha1.ServiceNodePort, problems []Problem) {
	if g == nil || g.Of.Spec.NodePorts == nil || s == nil || s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal {
		return nil, nil
	}
	if o, _ = o.of(s); !o.ByAgent() {
		if slices.ContainsFunc(s.Spec.Ports, func(p corev1.ServicePort) bool { return p.NodePort != 0 }) {
			problems = problem(Unsupported, "its node ports stay kube-proxy's, which hides the client where a node has no pod: %s, and directors take node ports in the modes gue and ipip to pods alone", o)
		}
		return nil, problems
	}
	for i := range s.Spec.Ports {
		p := &s.Spec.Ports[i]
		protocol, known := protocolOf(p)
		if !known || p.NodePort == 0 || protocol == model.SCTP { // Services says that agents do not deliver SCTP
			continue
		}
		if why := g.takesPort(protocol, uint16(p.NodePort)); why != "" {
			problems = append(problems, problem(Unsupported, "node port %d stays kube-proxy's: %s", p.NodePort, why)...)
			continue
		}
		list = append(list, v1alpha1.ServiceNodePort{Protocol: protocol.String(), Port: p.Port, NodePort: p.NodePort})
	}
	return list, problems
}

// takesPort says what else a director uses a port of its node for; empty: nothing.
func (g *DirectorGroup) takesPort(protocol model.Protocol, port uint16) string {
	if protocol == model.UDP && port == tunnelPort {
		return "tunnels of mode gue end there"
	}
	if g.snatPorts.First <= port && port <= g.snatPorts.Last {
		return fmt.Sprintf("it is among spec.snatPorts of DirectorGroup %s, %s", g.Of.Name, g.snatPorts)
	}
	return ""
}

// sourcesOf returns the source prefixes of packets of a node and of its pods, by the node's object.
func sourcesOf(n *corev1.Node) (list []string) {
	for _, given := range n.Status.Addresses {
		if given.Type != corev1.NodeInternalIP && given.Type != corev1.NodeExternalIP {
			continue
		}
		if a, err := netip.ParseAddr(given.Address); err == nil && model.AddressProblem(a.Unmap()) == "" {
			a = a.Unmap()
			list = append(list, netip.PrefixFrom(a, a.BitLen()).String())
		}
	}
	cidrs := n.Spec.PodCIDRs
	if len(cidrs) == 0 && n.Spec.PodCIDR != "" {
		cidrs = []string{n.Spec.PodCIDR}
	}
	for _, text := range cidrs {
		if p, err := netip.ParsePrefix(text); err == nil && p.Bits() > 0 && !p.Addr().Is4In6() {
			list = append(list, p.Masked().String())
		}
	}
	return list
}

// KernelSources returns the source prefixes of the cluster's nodes and pods, and those that the
// group names for pods; nil: the group takes no node ports. Directors leave such packets at node
// ports to kube-proxy: a pod's answer to its own node does not pass the node's agent, and its
// answer to a pod there does not need to.
func (g *DirectorGroup) KernelSources(nodes []Node) (list []string) {
	ports := g.Of.Spec.NodePorts
	if ports == nil {
		return nil
	}
	list = slices.Clone(ports.PodCIDRs)
	for _, n := range nodes {
		list = append(list, strings.Fields(n.Sources)...)
	}
	slices.Sort(list)
	return slices.Compact(list)
}
