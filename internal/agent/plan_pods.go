package agent

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"slices"

	"weir.io/weir/internal/model"
)

// pod is a backend that is not a host, but a pod or container of this host.
type pod struct {
	address netip.Addr
	port    uint16 // 0: the packet's own
	name    uint32 // by which directors call it
}

// localPods returns a service's pods on this host. only says that the service has no other backends
// here.
func localPods(s model.Service, addresses map[netip.Addr]bool) (pods []pod, only bool) {
	only = true
	for _, b := range s.Backends {
		switch {
		case !unwrapped(b.ModeIn(s)) || !addresses[hostOf(&b)]:
		case !b.Host.IsValid():
			only = false
		default:
			at := b.PodIn(&s)
			pods = append(pods, pod{at.Addr(), at.Port(), model.PodName(at)})
		}
	}
	return samePods(pods), only
}

// samePods puts pods in order, each once.
func samePods(pods []pod) []pod {
	slices.SortFunc(pods, func(a, b pod) int {
		return cmp.Or(a.address.Compare(b.address), cmp.Compare(a.port, b.port))
	})
	return slices.Compact(pods)
}

// addPods writes down a service's pods, by the names that directors use and by their addresses. If
// two have the same name, or in ipip the same address, the first one gets all packets.
func (t *tables) addPods(s service, index uint32) {
	for _, p := range s.pods {
		value := bpfPod{Address: address(p.address), Port: networkOrder(p.port), Name: p.wireName()}
		for _, end := range []bpfPodEnd{{Address: value.Address}, {Address: value.Address, Service: index}} {
			if _, taken := t.podEnds[end]; !taken {
				t.podEnds[end] = value
			}
		}
		name := bpfPodName{Service: index, Name: value.Name}
		if _, taken := t.podNames[name]; !taken {
			t.podNames[name] = value
		}
	}
}

// wireName is the name as the number whose bytes in memory are those on the wire.
func (p pod) wireName() uint32 {
	return binary.NativeEndian.Uint32(binary.BigEndian.AppendUint32(nil, p.name))
}

// podsHere says whether packets that leave may be pods'. It is nil at the wrong time: pods are said
// to be here before they are written, and not to be here after former ones are removed.
func (t *tables) podsHere(here uint32) map[uint32]uint32 {
	if (len(t.podNames) > 0) != (here > 0) {
		return nil
	}
	return map[uint32]uint32{0: here}
}

// serviceOf is the service that clients call at an address and port; nil: there is none. If several
// match, it is the one with one port, as in the programs.
func (p *plan) serviceOf(vip netip.AddrPort, protocol model.Protocol) (found *service) {
	for i := range p.services {
		s := &p.services[i]
		if s.vip == vip.Addr() && s.protocol == protocol && s.port.Contains(vip.Port()) && (found == nil || s.port.Single()) {
			found = s
		}
	}
	return found
}

// has says whether the host has a pod for what a client sends to an address and port.
func (p *plan) has(vip netip.AddrPort, protocol model.Protocol, at netip.AddrPort) bool {
	return slices.ContainsFunc(p.services, func(s service) bool {
		return s.vip == vip.Addr() && s.protocol == protocol && s.port.Contains(vip.Port()) &&
			slices.ContainsFunc(s.pods, func(p pod) bool {
				return p.address == at.Addr() && (p.port == 0 || p.port == at.Port())
			})
	})
}
