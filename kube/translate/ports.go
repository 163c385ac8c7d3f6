package translate

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"weir.io/weir/kube/pool"
)

// Forwarded is the type of the condition of Services that says whether directors forward them.
const Forwarded = "weir.io/Forwarded"

// Why directors do not forward a port, as the status of the port says.
const (
	UnsupportedProtocol = "weir.io/UnsupportedProtocol" // directors do not know its protocol
	NoSourceRange       = "weir.io/NoSourceRange"       // no client may reach it by this address
)

// unsupported says what happens to a port whose protocol directors do not know, and what helps.
func unsupported(p *corev1.ServicePort) string {
	return fmt.Sprintf("port %d: %s is not forwarded; TCP, UDP and SCTP are. Take it out, and give it to a Service of its own that another load balancer serves", p.Port, p.Protocol)
}

// PortStatuses returns what the status of a Service says about its ports at an address: nothing if
// all are forwarded.
func PortStatuses(s *corev1.Service, address netip.Addr) []corev1.PortStatus {
	ranges, err := sourceRanges(s)
	barred := err == nil && ranges != nil && len(ranges[pool.FamilyOf(address)]) == 0
	var list []corev1.PortStatus
	wrong := false
	for i := range s.Spec.Ports {
		p := &s.Spec.Ports[i]
		status := corev1.PortStatus{Port: p.Port, Protocol: cmp.Or(p.Protocol, corev1.ProtocolTCP)}
		text := ""
		if _, known := protocolOf(p); !known {
			text = UnsupportedProtocol
		} else if barred {
			text = NoSourceRange
		}
		if text != "" {
			status.Error, wrong = &text, true
		}
		list = append(list, status)
	}
	if !wrong {
		return nil
	}
	return list
}

// PortErrors says which of a Service's ports are not forwarded, and at which addresses none is;
// empty: all are.
func PortErrors(s *corev1.Service, addresses []netip.Addr) string {
	var list []string
	for i := range s.Spec.Ports {
		if _, known := protocolOf(&s.Spec.Ports[i]); !known {
			list = append(list, unsupported(&s.Spec.Ports[i]))
		}
	}
	if ranges, err := sourceRanges(s); err == nil {
		_, barred := reachable(addresses, ranges)
		for _, p := range barred {
			list = append(list, p.Message)
		}
	}
	return strings.Join(list, "; ")
}

// sourceRanges returns where a Service's clients may be, in each family; nil: anywhere. An
// unreadable range is an error: without it, clients could come that are not meant to.
func sourceRanges(s *corev1.Service) (map[pool.Family][]netip.Prefix, error) {
	if len(s.Spec.LoadBalancerSourceRanges) == 0 {
		return nil, nil
	}
	ranges := map[pool.Family][]netip.Prefix{}
	for i, text := range s.Spec.LoadBalancerSourceRanges {
		p, err := netip.ParsePrefix(strings.TrimSpace(text))
		if err != nil || p.Addr().Is4In6() {
			return nil, fmt.Errorf("spec.loadBalancerSourceRanges[%d]: %q is not a prefix (203.0.113.0/28), so nothing is forwarded", i, text)
		}
		family := pool.FamilyOf(p.Addr())
		ranges[family] = append(ranges[family], p.Masked())
	}
	for family, list := range ranges {
		slices.SortFunc(list, func(a, b netip.Prefix) int {
			return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
		})
		ranges[family] = slices.Compact(list)
	}
	return ranges, nil
}

// reachable returns the addresses that some client may reach, and reports the others: for a
// director a service without ranges is open to every client.
func reachable(addresses []netip.Addr, ranges map[pool.Family][]netip.Prefix) (list []netip.Addr, problems []Problem) {
	for _, a := range addresses {
		if family := pool.FamilyOf(a); ranges == nil || len(ranges[family]) > 0 {
			list = append(list, a)
		} else {
			problems = append(problems, problem(Unsupported, "spec.loadBalancerSourceRanges has no %s prefix, so nobody may reach %s, and it is not forwarded", family, a)...)
		}
	}
	return list, problems
}
