package translate

import (
	"cmp"
	"fmt"
	"net/netip"
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
	return fmt.Sprintf("port %d: %s is not forwarded; tcp and udp are. Take it out, and give it to a Service of its own that another load balancer serves", p.Port, p.Protocol)
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
