package translate

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"

	"weir.io/weir/internal/model"
	"weir.io/weir/kube/pool"
)

// endpoint is an address and port where a port of a Service is served.
type endpoint struct {
	at       netip.AddrPort
	name     string // of the pod; empty: it is no pod
	node     string
	weight   uint16
	hints    []discoveryv1.ForZone // the zones that it is meant for
	nodes    []discoveryv1.ForNode // and the nodes
	draining bool                  // it keeps its connections, and gets no new ones
	idle     bool                  // it does not serve, and may have connections
}

// endpoints returns the endpoints of a port in a family, in the order of their addresses. Endpoints
// that terminate and still serve are draining; if there are no others, they are used (as kube-proxy
// does, KEP-1669). Endpoints that are meant for other zones than the directors' are draining, too.
// With idle, endpoints that do not serve are in the list as well: they keep their connections and
// never get new ones.
func endpoints(slices_ []*discoveryv1.EndpointSlice, port *corev1.ServicePort, family pool.Family, zone string, idle bool) (list []endpoint, zoned bool) {
	of := map[netip.AddrPort]endpoint{}
	ready := false
	for _, slice := range slices_ {
		number, serves := portOf(slice, port)
		if !serves || slice.AddressType != addressType(family) {
			continue
		}
		weights, _ := weights(slice)
		for i := range slice.Endpoints {
			e, known := endpointOf(&slice.Endpoints[i], number)
			if !known || e.idle && !idle || pool.FamilyOf(e.at.Addr()) != family {
				continue
			}
			for _, name := range []string{e.at.Addr().String(), e.name} {
				if weight, given := weights[name]; given {
					e.weight = weight
				}
			}
			// An endpoint may be in two slices while it moves between them: the one that says it is
			// ready counts.
			if before, twice := of[e.at]; !twice || before.idle || before.draining && !e.idle {
				of[e.at] = e
			}
			ready = ready || !e.draining
		}
	}
	list = make([]endpoint, 0, len(of))
	for _, e := range of {
		e.draining = e.draining && ready || e.idle
		list = append(list, e)
	}
	slices.SortFunc(list, func(a, b endpoint) int { return a.at.Compare(b.at) })
	return list, keepToZone(list, zone)
}

// keepToZone drains endpoints that are meant for other zones, where kube-proxy leaves them out
// (KEP-2433): only if all endpoints that get connections say for which zones they are meant, and
// some are meant for this one.
func keepToZone(list []endpoint, zone string) bool {
	meant := func(e endpoint) bool {
		return slices.ContainsFunc(e.hints, func(h discoveryv1.ForZone) bool { return h.Name == zone })
	}
	some := false
	for _, e := range list {
		if !e.draining && len(e.hints) == 0 {
			return false
		}
		some = some || !e.draining && meant(e)
	}
	if zone == "" || !some {
		return false
	}
	for i := range list {
		list[i].draining = list[i].draining || !meant(list[i])
	}
	return true
}

// meantFor gives nodes the shares of the pods that are meant for them (hints.forNodes, which
// trafficDistribution PreferSameNode leads to), and drains the other nodes. A client outside is on
// no node, so such a hint does not say which pod it is to reach. But a node that gets its packets
// hands them only to the pods that are meant for the node (kube-proxy, KEP-3015): if all nodes had
// equal shares, pods would have unequal ones, and nodes without a pod would send packets on. As in
// kube-proxy, hints count if all endpoints that get connections have them; and some node has to be
// able to take the connections.
func meantFor(list []model.Backend, found []endpoint) []model.Backend {
	shares := map[string]int{}
	for _, e := range found {
		if e.draining {
			continue
		}
		if len(e.nodes) == 0 {
			return list
		}
		for _, n := range e.nodes {
			shares[n.Name] += int(e.weight) / len(e.nodes)
		}
	}
	if !slices.ContainsFunc(list, func(b model.Backend) bool { return b.State == model.Active && shares[b.Name] > 0 }) {
		return list
	}
	for i := range list {
		if share := shares[list[i].Name]; share > 0 {
			list[i].Weight = uint16(min(share, maxWeight))
		} else {
			list[i].State = model.Draining
		}
	}
	return list
}

func addressType(family pool.Family) discoveryv1.AddressType {
	if family == pool.IPv6 {
		return discoveryv1.AddressTypeIPv6
	}
	return discoveryv1.AddressTypeIPv4
}

// portOf returns the number of the port at which a slice's endpoints serve a Service's port. Pods
// may serve a named port at different numbers: then there is a slice for each.
func portOf(slice *discoveryv1.EndpointSlice, port *corev1.ServicePort) (uint16, bool) {
	for _, p := range slice.Ports {
		if ptr.Deref(p.Name, "") == port.Name && ptr.Deref(p.Protocol, corev1.ProtocolTCP) == cmp.Or(port.Protocol, corev1.ProtocolTCP) && p.Port != nil && 0 < *p.Port && *p.Port <= 65535 {
			return uint16(*p.Port), true
		}
	}
	return 0, false
}

func endpointOf(e *discoveryv1.Endpoint, port uint16) (none endpoint, known bool) {
	ready := ptr.Deref(e.Conditions.Ready, true)
	serving, terminating := ptr.Deref(e.Conditions.Serving, ready), ptr.Deref(e.Conditions.Terminating, false)
	if len(e.Addresses) == 0 {
		return none, false
	}
	a, err := addressOf(e)
	if err != nil {
		return none, false
	}
	found := endpoint{at: netip.AddrPortFrom(a, port), node: ptr.Deref(e.NodeName, ""), weight: usualWeight, draining: !ready, idle: !ready && !(serving && terminating)}
	if e.Hints != nil {
		found.hints, found.nodes = e.Hints.ForZones, e.Hints.ForNodes
	}
	if e.TargetRef != nil && e.TargetRef.Kind == "Pod" {
		found.name = e.TargetRef.Name
	}
	return found, true
}

// addressOf returns the address of an endpoint. A client that may write EndpointSlices may write
// something that is no host's address into them: such an endpoint is left out, and the others
// serve.
func addressOf(e *discoveryv1.Endpoint) (netip.Addr, error) {
	a, err := netip.ParseAddr(e.Addresses[0]) // further ones have no meaning (discovery/v1)
	if err != nil {
		return a, err
	}
	if a = a.Unmap(); model.AddressProblem(a) != "" {
		return a, fmt.Errorf("%s %s", a, model.AddressProblem(a))
	}
	return a, nil
}

// endpointProblems returns which endpoints are left out because of their addresses.
func endpointProblems(list []*discoveryv1.EndpointSlice) (problems []Problem) {
	for _, s := range list {
		if s.AddressType == discoveryv1.AddressTypeFQDN {
			continue // names, which are not forwarded to (discovery/v1)
		}
		for i := range s.Endpoints {
			if e := &s.Endpoints[i]; len(e.Addresses) > 0 {
				if _, err := addressOf(e); err != nil {
					problems = append(problems, problem(Unsupported, "EndpointSlice %s: %v; the endpoint is left out", s.Name, err)...)
				}
			}
		}
	}
	return problems
}
