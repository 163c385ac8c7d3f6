package agent

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"weir.io/weir/internal/model"
)

// plan is what this host has to do: a pure function of the configuration and of
// the host.
type plan struct {
	ends     []netip.Addr       // addresses of this host at which tunnels end
	holders  map[netip.Addr]int // and the interfaces that have them, unless that is lo
	sources  map[netip.Prefix]bpfHostSourceFlag
	services []service // and one for each VIP, which has neither protocol nor MSS
	vips     []netip.Addr
	director bool // this host is a director, too
	keepsAll bool // no packet is sent on to another host
	// redirects are the services whose connections may bypass directors.
	redirects []redirect

	namespaces []uint32 // whose sockets are looked at, too

	position map[identity]int // in services
}

// service is a service with a backend on this host or, with protocol 0, a VIP, for packets to it
// that have no port.
type service struct {
	name     string
	vip      netip.Addr
	protocol model.Protocol
	port     model.PortRange
	mss      int // 0: none
	peers    []netip.Addr
	pods     []pod // of this host
	podsOnly bool  // only pods of it are here: the host does not have the VIP
}

// identity is what tells services apart.
type identity struct {
	vip      netip.Addr
	protocol model.Protocol
	port     model.PortRange
}

// serves says whether tunnels come to this host. If only its clients are redirected, they do not.
func (p *plan) serves() bool { return len(p.services) > 0 || len(p.redirects) == 0 }

// quiet says whether this host must neither answer for nor announce VIPs. Hosts of pods have none.
func (p *plan) quiet() bool { return p.serves() && len(p.vips) > 0 }

func (s service) identity() identity { return identity{s.vip, s.protocol, s.port} }

// Header lengths, in bytes: an MSS counts neither options (RFC 6691).
const (
	ipv4TCPHeaders = 20 + 20
	ipv6TCPHeaders = 40 + 20
)

// loopbackIndex is the index of lo, in every namespace.
const loopbackIndex = 1

// newPlan computes what the host has to do.
func newPlan(config model.Config, h host) (plan, error) {
	p := plan{position: make(map[identity]int), holders: make(map[netip.Addr]int), keepsAll: config.Agent.SocketsElsewhere, namespaces: h.elsewhere.namespaces}
	for _, s := range config.Services {
		ends := localEnds(s, h)
		if len(ends) == 0 {
			continue
		}
		mss, err := largestMSS(s, smallestMTU(h.uplinks))
		if err != nil {
			return plan{}, fmt.Errorf("service %s: %w", s.Name, err)
		}
		p.ends = append(p.ends, ends...)
		pods, podsOnly := localPods(s, h)
		if !podsOnly && !h.elsewhere.addresses[s.VIP] {
			p.vips = append(p.vips, s.VIP) // with the VIP on lo, packets would never get to that namespace
		}
		peers := backendAddresses(s)
		p.add(service{name: s.Name, vip: s.VIP, protocol: s.Protocol, port: s.Port, mss: mss, peers: peers, pods: pods, podsOnly: podsOnly})
		p.add(service{vip: s.VIP, peers: peers, pods: pods, podsOnly: podsOnly})
	}
	p.redirects = redirects(config, h)
	p.ends = sorted(p.ends)
	for _, end := range p.ends {
		if index := h.addresses[end]; index != loopbackIndex {
			p.holders[end] = index
		}
	}
	p.vips = sorted(p.vips)
	p.sources = sources(config.Directors, p.services)
	p.director = isDirector(config.Directors, h)
	return p, nil
}

// unwrapped says whether packets of the mode reach the host with the VIP as their destination. A
// service takes tunnels of every kind or none: directors and agents do not learn of a change of
// mode at the same moment.
func unwrapped(m model.Mode) bool { return m != model.NAT }

// localEnds returns the addresses of the service's backends that are this host, or pods of it.
func localEnds(s model.Service, h host) []netip.Addr {
	var ends []netip.Addr
	for _, b := range s.Backends {
		if at := hostOf(&b); unwrapped(b.ModeIn(s)) && h.has(at) {
			ends = append(ends, at)
		}
	}
	return ends
}

// hostOf returns the address of the host to whose agent packets for a backend go.
func hostOf(b *model.Backend) netip.Addr {
	if b.Host.IsValid() {
		return b.Host
	}
	return b.Address
}

func backendAddresses(s model.Service) []netip.Addr {
	addresses := make([]netip.Addr, 0, len(s.Backends))
	for _, b := range s.Backends {
		if unwrapped(b.ModeIn(s)) {
			addresses = append(addresses, hostOf(&b))
		}
	}
	return sorted(addresses)
}

// largestMSS returns the MSS that a TCP service may offer. It fits all backends of the service, so
// that it is the same on every host.
func largestMSS(s model.Service, mtu int) (int, error) {
	if s.Protocol != model.TCP {
		return 0, nil
	}
	overhead := 0
	for _, b := range s.Backends {
		overhead = max(overhead, b.MaxOverheadIn(&s))
		if b.MTU != 0 {
			mtu = min(mtu, int(b.MTU))
		}
	}
	headers := ipv6TCPHeaders
	if s.VIP.Is4() {
		headers = ipv4TCPHeaders
	}
	mss := mtu - overhead - headers
	if mss < 1 {
		return 0, fmt.Errorf("an MTU of %d bytes leaves no room for data behind %d bytes of tunnel headers", mtu, overhead)
	}
	return min(mss, 65535), nil
}

// add adds a service or, where there is one of the same address, protocol and
// ports (in another segment, or the VIP of another service), merges the two.
func (p *plan) add(s service) {
	i, known := p.position[s.identity()]
	if !known {
		p.position[s.identity()] = len(p.services)
		p.services = append(p.services, s)
		return
	}
	same := &p.services[i]
	same.mss = min(same.mss, s.mss)
	same.peers = sorted(slices.Concat(same.peers, s.peers))
	same.pods = samePods(slices.Concat(same.pods, s.pods))
	same.podsOnly = same.podsOnly && s.podsOnly
}

// sources returns where tunnels may come from. The kernel finds only the longest of the prefixes
// that hold an address, so that one must have the flags of all.
func sources(directors []netip.Prefix, services []service) map[netip.Prefix]bpfHostSourceFlag {
	flags := make(map[netip.Prefix]bpfHostSourceFlag)
	for _, d := range directors {
		flags[d.Masked()] = bpfHostSourceFlagHOST_SOURCE_DIRECTOR
	}
	for _, s := range services {
		for _, peer := range s.peers {
			flag := bpfHostSourceFlagHOST_SOURCE_BACKEND
			if slices.ContainsFunc(directors, func(d netip.Prefix) bool { return d.Contains(peer) }) {
				flag |= bpfHostSourceFlagHOST_SOURCE_DIRECTOR
			}
			flags[netip.PrefixFrom(peer, peer.BitLen())] |= flag
		}
	}
	return flags
}

// isDirector says whether tunnels may come from this host.
func isDirector(directors []netip.Prefix, h host) bool {
	for a := range h.addresses {
		if slices.ContainsFunc(directors, func(d netip.Prefix) bool { return d.Contains(a) }) {
			return true
		}
	}
	return false
}

func sorted(addresses []netip.Addr) []netip.Addr {
	slices.SortFunc(addresses, netip.Addr.Compare)
	return slices.Compact(addresses)
}

// pod is a backend that is not a host, but a pod or container of this host.
type pod struct {
	address netip.Addr
	port    uint16 // 0: the packet's own
	name    uint32 // by which directors call it
}

// localPods returns a service's pods on this host. only says that the service has no other backends
// here.
func localPods(s model.Service, h host) (pods []pod, only bool) {
	only = true
	for _, b := range s.Backends {
		switch {
		case !unwrapped(b.ModeIn(s)) || !h.has(hostOf(&b)):
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
