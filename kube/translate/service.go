package translate

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"weir.io/weir/internal/model"
	"weir.io/weir/kube/pool"
)

const (
	weightPerPod = 100   // of a node, for each of its pods; and of a pod
	maxWeight    = 65535 // the model's
)

// healthzPort is where kube-proxy, and Cilium in its place, say how they are.
const healthzPort = 10256

// Services returns what directors forward for a Service that has these addresses, and
// what a user has to know about it: a service for each of its ports and addresses.
func Services(o Options, s *corev1.Service, slices []*discoveryv1.EndpointSlice, addresses []netip.Addr, c *Cluster) ([]model.Service, []Problem) {
	o, problems := o.of(s)
	if why := refuses(o, s); why != "" {
		return nil, append(problems, Problem{Unsupported, why})
	}
	if s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal && o.Mode == model.NAT && o.SNAT {
		problems = append(problems, problem(Unsupported, "spec.externalTrafficPolicy Local: pods see a director's address, and not the client's, in mode nat with snat; the modes l2dsr and ipip keep it")...)
	}
	if s.Spec.SessionAffinity == corev1.ServiceAffinityClientIP {
		if o.Policy != model.Maglev {
			problems = append(problems, problem(Unsupported, "spec.sessionAffinity ClientIP wants a client's connections on one backend, and policy %s of its ServicePolicy does not: it is forwarded with maglev", o.Policy)...)
		}
		o.Affinity, o.Policy = model.AffinitySourceIP, model.Maglev
	}
	ranges, err := sourceRanges(s)
	if err != nil {
		return nil, append(problems, Problem{Unsupported, err.Error()})
	}
	addresses, barred := reachable(addresses, ranges)
	problems = append(problems, barred...)
	var list []model.Service
	empty := []string{}
	for i := range s.Spec.Ports {
		port := &s.Spec.Ports[i]
		protocol, known := protocolOf(port)
		if !known {
			problems = append(problems, problem(Unsupported, "port %d: %s is not forwarded; tcp and udp are", port.Port, port.Protocol)...)
			continue
		}
		for _, vip := range addresses {
			one := model.Service{Drain: o.Drain, MaxDrain: o.MaxDrain, Affinity: o.Affinity, Policy: o.Policy, Name: nameOf(s, port, vip, protocol), VIP: vip, Protocol: protocol,
				Port: model.PortRange{First: uint16(port.Port), Last: uint16(port.Port)}, Mode: o.Mode, SNAT: o.SNAT && o.Mode == model.NAT, SourceRanges: ranges[pool.FamilyOf(vip)]}
			if protocol == model.UDP {
				one.Policy = model.Maglev // no datagram says that it begins a flow
			}
			found := endpoints(slices, port, pool.FamilyOf(vip))
			if o.Backends == Pods {
				one.Backends = pods(found)
			} else {
				one.Backends = nodes(o, s, port, found, c, pool.FamilyOf(vip))
				one.Health = nodeHealth(o, s)
			}
			if o.Health != nil {
				check := *o.Health
				one.Health = &check
			}
			if len(one.Backends) == 0 {
				empty = append(empty, fmt.Sprintf("%s port %d", vip, port.Port))
			}
			list = append(list, one)
		}
	}
	if len(empty) > 0 {
		problems = append(problems, problem(NoBackends, "nothing serves %s: no pod is ready, or none of its nodes can be used", strings.Join(empty, ", "))...)
	}
	return list, problems
}

// refuses says why a Service cannot be forwarded as it asks to be, where doing it in another
// way would be less than it relies on.
func refuses(o Options, s *corev1.Service) string {
	if o.Mode != model.NAT || o.Backends != Nodes {
		return ""
	}
	for _, p := range s.Spec.Ports {
		if _, known := protocolOf(&p); known && p.NodePort == 0 {
			return fmt.Sprintf("port %d has no node port, by which mode nat reaches nodes: leave spec.allocateLoadBalancerNodePorts out", p.Port)
		}
	}
	return ""
}

func protocolOf(p *corev1.ServicePort) (model.Protocol, bool) {
	switch cmp.Or(p.Protocol, corev1.ProtocolTCP) {
	case corev1.ProtocolTCP:
		return model.TCP, true
	case corev1.ProtocolUDP:
		return model.UDP, true
	}
	return 0, false
}

// nameOf names a service by what cannot change without its being another one.
func nameOf(s *corev1.Service, p *corev1.ServicePort, vip netip.Addr, protocol model.Protocol) string {
	name := fmt.Sprintf("%s/%s/%d-%s", s.Namespace, s.Name, p.Port, protocol)
	if vip.Is6() {
		name += "-ipv6"
	}
	return name
}

func pods(found []endpoint) []model.Backend {
	list := make([]model.Backend, 0, len(found))
	names := map[string]bool{}
	for _, e := range found {
		b := model.NewBackend()
		b.Name, b.Address, b.Port, b.Weight = e.name, e.at.Addr(), e.at.Port(), weightPerPod
		if b.Name == "" || names[b.Name] {
			b.Name = e.at.String()
		}
		names[b.Name] = true
		if e.draining {
			b.State = model.Draining
		}
		list = append(list, b)
	}
	return list
}

// nodes returns those that a port's packets may be sent to. By externalTrafficPolicy Local
// they are those with pods, each with a share for every pod of its own; else all of them,
// while there are pods anywhere.
func nodes(o Options, s *corev1.Service, port *corev1.ServicePort, found []endpoint, c *Cluster, family pool.Family) []model.Backend {
	local := s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
	active, draining := map[string]int{}, map[string]int{}
	for _, e := range found {
		if e.draining {
			draining[e.node]++
		} else {
			active[e.node]++
		}
	}
	list := []model.Backend{}
	if len(found) == 0 {
		return list
	}
	for _, n := range c.nodes {
		address, has := c.address(n, family, o.Mode)
		if !has || local && active[n.Name]+draining[n.Name] == 0 {
			continue
		}
		b := model.NewBackend()
		b.Name, b.Address, b.Weight, b.State = n.Name, address, weightPerPod, c.state(n)
		if o.Mode == model.NAT {
			b.Port = uint16(port.NodePort)
		}
		switch {
		case !local:
		case active[n.Name] == 0:
			b.State = model.Draining
		default:
			b.Weight = uint16(min(weightPerPod*active[n.Name], maxWeight))
			if b.State == model.Down { // whether pods are ready is known better than of the node
				b.State = model.Active
			}
		}
		list = append(list, b)
	}
	slices.SortFunc(list, func(a, b model.Backend) int { return cmp.Compare(a.Name, b.Name) })
	return list
}

// nodeHealth returns how directors find out that a node forwards to pods: by the port that
// externalTrafficPolicy Local has for it, else by kube-proxy's own.
func nodeHealth(o Options, s *corev1.Service) *model.HealthCheck {
	if !o.NodeHealth {
		return nil
	}
	h := &model.HealthCheck{Kind: model.CheckHTTP, To: model.CheckAddress, Port: healthzPort,
		Interval: model.Duration(2 * time.Second), HTTP: &model.HealthHTTP{Path: "/healthz"}}
	if s.Spec.HealthCheckNodePort != 0 {
		h.Port = uint16(s.Spec.HealthCheckNodePort)
	}
	return h
}
