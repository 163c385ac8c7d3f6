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

// healthzPort is the port where kube-proxy, or Cilium in its place, reports its health.
const healthzPort = 10256

// Services returns what directors forward for a Service that has these addresses, a service for
// each of its ports and addresses, and what a user has to know about it.
func Services(o Options, s *corev1.Service, slices []*discoveryv1.EndpointSlice, addresses []netip.Addr, c *Cluster) ([]model.Service, []Problem) {
	o, problems := o.of(s)
	if why := refuses(o, s); why != "" {
		return nil, append(problems, Problem{Unsupported, why})
	}
	if s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal && o.Mode == model.NAT && o.SNAT {
		problems = append(problems, problem(Unsupported, "spec.externalTrafficPolicy Local: pods see a director's address, and not the client's, in mode nat with snat; the modes gue and ipip to pods and l2dsr and ipip to nodes keep it, and so does nat with snat: false where replies come back through a director")...)
	}
	if s.Spec.SessionAffinity == corev1.ServiceAffinityClientIP {
		problems = append(problems, affinityProblems(s)...)
		if o.Policy != model.Maglev {
			problems = append(problems, problem(Unsupported, "spec.sessionAffinity ClientIP wants a client's connections on one backend, and policy %s of its ServicePolicy does not: it is forwarded with maglev", o.Policy)...)
		}
		o.Affinity, o.Policy = model.AffinitySourceIP, model.Maglev
	}
	o, limits := o.InGUE()
	problems = append(problems, limits...)
	problems = append(problems, weightProblems(slices)...)
	problems = append(problems, endpointProblems(slices)...)
	if o.To() == Nodes && s.Spec.ExternalTrafficPolicy != corev1.ServiceExternalTrafficPolicyLocal {
		problems = append(problems, c.problems...)
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
			problems = append(problems, problem(Unsupported, "%s", unsupported(port))...)
			continue
		}
		if protocol == model.SCTP && o.ByAgent() {
			problems = append(problems, problem(Unsupported, "port %d: SCTP is not delivered to pods by agents yet, as mode %s to pods wants: it is not forwarded. Give it to a Service of its own, annotated with %s: nat", port.Port, o.Mode, AnnotationMode)...)
			continue
		}
		for _, vip := range addresses {
			one := o.Service(Of(s).String(), vip, protocol, port.Port)
			one.SourceRanges = ranges[pool.FamilyOf(vip)]
			var lacks []Problem
			one.Backends, lacks = Backends(o, s, port, slices, pool.FamilyOf(vip), c)
			problems = AddNew(problems, lacks)
			one.Health = HealthCheck(o, s, protocol)
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

// Backends returns the backends of one port of a Service in a family, and why some pods get
// nothing.
func Backends(o Options, s *corev1.Service, port *corev1.ServicePort, slices []*discoveryv1.EndpointSlice, family pool.Family, c *Cluster) (list []model.Backend, lacks []Problem) {
	found, zoned := endpoints(slices, port, family, o.Zone, o.ByAgent())
	switch {
	case o.ByAgent():
		list, lacks = c.delivered(o, found, family)
	case o.To() == Pods:
		list = pods(found)
	case s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal:
		list = nodesWithPods(o, port, found, c, family)
	case len(found) == 0:
		list = []model.Backend{}
	default:
		list = nodes(o, port, c, family)
		if zoned {
			list = c.inZone(list, o.Zone)
		}
		list = meantFor(list, found)
	}
	for i := range list {
		list[i].MTU = o.MTU
	}
	return list, lacks
}

// AddNew adds problems that are not in the list yet: several ports and addresses have the same
// ones.
func AddNew(problems, more []Problem) []Problem {
	for _, p := range more {
		if !slices.Contains(problems, p) {
			problems = append(problems, p)
		}
	}
	return problems
}

// refuses says why a Service cannot be forwarded as it asks to be, if any other way would give it
// less than it relies on.
func refuses(o Options, s *corev1.Service) string {
	if why := o.LacksAgents(); why != "" {
		return why
	}
	if o.Mode != model.NAT || o.Backends != Nodes {
		return ""
	}
	for _, p := range s.Spec.Ports {
		if _, known := protocolOf(&p); known && p.NodePort == 0 {
			return fmt.Sprintf("port %d has no node port, by which mode nat reaches nodes: set spec.allocateLoadBalancerNodePorts to true; or, where directors have routes to pods, annotate it with %s: pods", p.Port, AnnotationBackends)
		}
	}
	return ""
}

// affinityProblems says how a Service's session affinity differs from what it asks for. Clients are
// placed by their addresses, which no director remembers, so no time is counted: neither one after
// which a client is placed anew, nor one for which it stays when backends change. The API server
// fills in its default, which no user has asked for.
func affinityProblems(s *corev1.Service) []Problem {
	c := s.Spec.SessionAffinityConfig
	if c == nil || c.ClientIP == nil || c.ClientIP.TimeoutSeconds == nil || *c.ClientIP.TimeoutSeconds == corev1.DefaultClientIPServiceAffinitySeconds {
		return nil
	}
	return problem(Unsupported, "spec.sessionAffinityConfig.clientIP.timeoutSeconds: %d s are not counted. A client's connections go to the backend that its address is placed on, for as long as the backends and their weights stay the same, also after that time; when some come or go, the next connections of some clients go to others, also before it", *c.ClientIP.TimeoutSeconds)
}

func protocolOf(p *corev1.ServicePort) (model.Protocol, bool) {
	switch cmp.Or(p.Protocol, corev1.ProtocolTCP) {
	case corev1.ProtocolTCP:
		return model.TCP, true
	case corev1.ProtocolUDP:
		return model.UDP, true
	case corev1.ProtocolSCTP:
		return model.SCTP, true
	}
	return 0, false
}

// Service returns a service at a port of an address, without backends. Its name has what cannot
// change unless it becomes another service.
func (o Options) Service(owner string, vip netip.Addr, protocol model.Protocol, port int32) model.Service {
	s := model.Service{Name: fmt.Sprintf("%s/%d-%s", owner, port, protocol), VIP: vip, Protocol: protocol, Port: model.PortRange{First: uint16(port), Last: uint16(port)},
		Mode: o.Mode, SNAT: o.SNAT && o.Mode == model.NAT, Policy: o.Policy, Affinity: o.Affinity, AffinityPrefix: o.AffinityPrefix, Retention: o.Drain, MaxRetention: o.MaxDrain, MinHealthy: o.MinHealthy}
	if vip.Is6() {
		s.Name += "-ipv6"
	}
	if protocol.Datagrams() {
		s.Policy = model.Maglev // no datagram says that it begins a flow
	}
	return s
}

// nodes returns all nodes that any pod can be reached through.
func nodes(o Options, port *corev1.ServicePort, c *Cluster, family pool.Family) []model.Backend {
	list := make([]model.Backend, 0, len(c.nodes))
	for _, n := range c.nodes {
		if b, is := c.backend(o, n, port, family); is {
			b.Weight = c.weights[n.Name]
			list = append(list, b)
		}
	}
	return list
}

// nodesWithPods returns the nodes that have pods of the Service, each with the sum of its pods'
// shares.
func nodesWithPods(o Options, port *corev1.ServicePort, found []endpoint, c *Cluster, family pool.Family) []model.Backend {
	active, draining := map[string][]endpoint{}, map[string]bool{}
	for _, e := range found {
		if e.draining {
			draining[e.node] = true
		} else {
			active[e.node] = append(active[e.node], e)
		}
	}
	list := []model.Backend{}
	for _, n := range c.nodes {
		b, is := c.backend(o, n, port, family)
		switch pods := active[n.Name]; {
		case !is || len(pods) == 0 && !draining[n.Name]:
			continue
		case len(pods) == 0:
			b.State = model.Draining
		default:
			weight := 0
			for _, e := range pods {
				weight += int(e.weight)
			}
			b.Weight = uint16(min(weight, maxWeight))
			if b.State == model.Down { // the pods' readiness is known better than the node's
				b.State = model.Active
			}
		}
		list = append(list, b)
	}
	return list
}

// backend returns a node as a backend, if directors can reach it.
func (c *Cluster) backend(o Options, n Node, port *corev1.ServicePort, family pool.Family) (model.Backend, bool) {
	b := model.NewBackend()
	address, has := c.address(n, family, o.Mode)
	b.Name, b.Address, b.Weight, b.State = n.Name, address, usualWeight, c.state(n)
	if o.Mode == model.NAT {
		b.Port = uint16(port.NodePort)
	}
	return b, has
}

// inZone drains nodes of other zones, if there is an active one in the zone: kube-proxy on a node
// stays in its own zone, too.
func (c *Cluster) inZone(list []model.Backend, zone string) []model.Backend {
	is := func(b model.Backend) bool { return c.nodes[c.byName[b.Name]].Zone == zone }
	if !slices.ContainsFunc(list, func(b model.Backend) bool { return b.State == model.Active && is(b) }) {
		return list
	}
	for i := range list {
		if !is(list[i]) {
			list[i].State = model.Draining
		}
	}
	return list
}

// HealthCheck returns how directors check that a Service's backends serve: as its ServicePolicy
// says, else whether a node forwards to pods, at the port that externalTrafficPolicy Local has for
// it or at kube-proxy's own; nil: they do not check. The same check is for ports of all protocols: what
// connects makes no association of SCTP, so it is the check of SCTP there, and the other way round.
func HealthCheck(o Options, s *corev1.Service, protocol model.Protocol) *model.HealthCheck {
	if o.Health != nil {
		check := *o.Health
		connects := check.Kind == model.CheckTCP || check.Kind == model.CheckSYN
		switch {
		case protocol == model.SCTP && connects && check.Port == 0:
			check.Kind = model.CheckSCTP
		case protocol == model.TCP && check.Kind == model.CheckSCTP:
			check.Kind = model.CheckTCP
		case protocol != model.SCTP && check.Kind == model.CheckSCTP:
			return nil // an empty datagram proves nothing
		}
		return &check
	}
	if !o.NodeHealth || o.To() != Nodes {
		return nil
	}
	h := &model.HealthCheck{Kind: model.CheckHTTP, To: model.CheckAddress, Port: healthzPort,
		Interval: model.Duration(2 * time.Second), HTTP: &model.HealthHTTP{HealthRequest: model.HealthRequest{Path: "/healthz"}}}
	if s.Spec.HealthCheckNodePort != 0 {
		h.Port = uint16(s.Spec.HealthCheckNodePort)
	}
	return h
}
