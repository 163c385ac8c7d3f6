package model

import (
	"cmp"
	"net/netip"
)

// Backend is a real server of a service.
type Backend struct {
	Name    string     `json:"name"`
	Address netip.Addr `json:"address"`
	Host    netip.Addr `json:"host,omitzero"`  // the host whose agent delivers packets to the address, of a pod or container; zero: none
	Port    uint16     `json:"port,omitempty"` // with mode nat, or to fall back to, or with a host; 0: the packet's own
	Weight  uint16     `json:"weight"`         // share of new connections; 0: none
	// Tier is when it gets new connections: while fewer than min-healthy backends of the tiers below this number are healthy.
	Tier  uint8        `json:"tier,omitempty"`
	State BackendState `json:"state"`
	Mode  *Mode        `json:"mode,omitempty"` // nil: the service's
	MAC   MAC          `json:"mac,omitzero"`   // next hop; zero: resolved through the kernel's neighbors
	VLAN  uint16       `json:"vlan,omitempty"` // 802.1Q tag to leave with; 0: as the mode and segment say
	// Interface is the director's interface on whose link it is; empty: the one that the route leads to or, in a
	// segment, the segment's.
	Interface string `json:"interface,omitempty"`
	// Segment is the tenant's network that it is in; nil: its service's, or no tenant's at the end of a tunnel.
	Segment *Segment `json:"segment,omitempty"`
	// VTEP is where its host's tunnel ends, in VXLAN and Geneve; zero: as what knows the segment's hosts says.
	VTEP          netip.Addr    `json:"vtep,omitzero"`
	VNI           uint32        `json:"vni,omitempty"` // on the wire, to it; 0: the segment's
	GeneveOptions GeneveOptions `json:"geneve-options,omitempty"`
	MTU           uint16        `json:"mtu,omitempty"`      // of the path to it; 0: that of the egress interface
	ServerID      ServerIDs     `json:"server-id,omitzero"` // in a service with quic: the server IDs that name it in connection IDs
	Check         *BackendCheck `json:"check,omitempty"`    // nil: probes go where the service's check says
}

// BackendCheck is where a backend is probed, in place of where its service's check says.
type BackendCheck struct {
	Address netip.Addr `json:"address,omitzero"` // reached by the host's routes; zero: the backend's
	Port    uint16     `json:"port,omitempty"`   // 0: as the service's check says
}

// DefaultWeight is the weight of a backend that gives none.
const DefaultWeight = 100

// ModeIn returns how packets that are not redirected reach the backend in a service: by its own
// mode, else the service's.
func (b Backend) ModeIn(s Service) Mode {
	if b.Mode != nil {
		return *b.Mode
	}
	return s.PacketMode()
}

// Endpoint returns what the backend is hashed by, its address and port: so no slot moves when it
// gets another name.
func (b Backend) Endpoint() netip.AddrPort {
	return netip.AddrPortFrom(b.Address, b.Port)
}

// NewBackend returns a backend in which every key that has a default has it. It exists because of
// the weight: 0 is a weight, so a missing one cannot be told from it afterwards.
func NewBackend() Backend {
	return Backend{Weight: DefaultWeight, State: Active}
}

func (b *Backend) setDefaults() {
	if b.Name == "" && b.Address.IsValid() {
		b.Name = b.Address.String()
	}
	b.State = cmp.Or(b.State, Active)
}

// The smallest IP packets that every link must carry (RFC 791, RFC 8200), and
// the largest that jumbo links commonly do.
const (
	minMTU4 = 576
	minMTU6 = 1280
	maxMTU  = 9216
)

// backends checks the backends of one service, and that no two of them are the same: two with one
// name could not be told apart, two with one address would get a double share that is not written
// as a weight.
func (v *validation) backends(i int) {
	s := &v.config.Services[i]
	names := make(map[string]int, len(s.Backends))
	places := make(map[netip.AddrPort]int, len(s.Backends))
	ends := make(map[netip.Addr]int)
	v.tiers(i)
	for j := range s.Backends {
		b := &s.Backends[j]
		v.backend(i, j)
		place := netip.AddrPortFrom(b.Address, b.portIn(s))
		if first, dup := places[place]; dup && b.Address.IsValid() {
			v.errs.addWithOther(backendPath(i, j, "address"), backendPath(i, first, "address"),
				"%s is already backend %q of this service; give one backend a larger weight instead",
				b.Address, s.Backends[first].Name)
			continue
		}
		places[place] = j
		if first, dup := names[b.Name]; dup && b.Name != "" {
			v.errs.addWithOther(backendPath(i, j, "name"), backendPath(i, first, "name"),
				"%q is already the name of backends[%d]", b.Name, first)
			continue
		}
		names[b.Name] = j
		if b.ModeIn(*s) != IPIP || !b.Host.IsValid() {
			continue
		}
		if first, dup := ends[b.Address]; dup {
			v.errs.addWithOther(backendPath(i, j, "port"), backendPath(i, first, "port"),
				"%s is also port %d of backend %q: in ipip the agent knows a pod by its address alone", b.Address, s.Backends[first].Port, s.Backends[first].Name)
			continue
		}
		ends[b.Address] = j
	}
}

// portIn returns the port that the backend gets packets at, 0: the packet's own.
func (b *Backend) portIn(s *Service) uint16 {
	if b.Port == 0 && s.Port.Single() {
		return s.Port.First
	}
	return b.Port
}

// backend checks one backend by itself.
func (v *validation) backend(i, j int) {
	s := &v.config.Services[i]
	b := &s.Backends[j]
	if problem := nameProblem(b.Name); problem != "" && (b.Name != "" || b.Address.IsValid()) {
		v.errs.add(backendPath(i, j, "name"), "%s", problem)
	}
	if problem := addressProblem(b.Address); problem != "" {
		v.errs.add(backendPath(i, j, "address"), "%s", withAddress(b.Address, problem))
	}
	switch b.State {
	case Active, Draining, Down:
	default:
		v.errs.add(backendPath(i, j, "state"), "%s is not a state (active, draining or down)", b.State)
	}
	if b.Mode != nil {
		if problem := packetModeProblem(*b.Mode); problem != "" {
			v.errs.add(backendPath(i, j, "mode"), "%s", problem)
		}
	}
	if b.VLAN > maxVLAN {
		v.errs.add(backendPath(i, j, "vlan"), "%d is out of range 1 to %d", b.VLAN, maxVLAN)
	}
	if b.MAC[0]&1 != 0 {
		v.errs.add(backendPath(i, j, "mac"), "%s is not a unicast Ethernet address", b.MAC)
	}
	v.backendPort(i, j)
	v.backendNAT(i, j)
	v.backendHost(i, j)
	v.backendInterface(i, j)
	v.backendOverlay(i, j)
	v.backendMTU(i, j)
	v.backendCheck(i, j)
}

// backendCheck refuses to look for an address in a tenant's network that is not the backend's: nothing says
// which host has it.
func (v *validation) backendCheck(i, j int) {
	s := &v.config.Services[i]
	b := &s.Backends[j]
	if b.Check == nil || !b.Check.Address.IsValid() {
		return
	}
	at := backendPath(i, j, "check.address")
	if problem := addressProblem(b.Check.Address); problem != "" {
		v.errs.add(at, "%s", withAddress(b.Check.Address, problem))
	}
	if in := b.TenantIn(s); in != (Segment{}) {
		v.errs.addWithOther(at, servicePath(i, "segment"), "is probed by the host's routes, which do not lead into %s: leave it out", in)
	}
}

// backendInterface checks the interface by which a backend is reached.
func (v *validation) backendInterface(i, j int) {
	b := &v.config.Services[i].Backends[j]
	if b.Interface == "" {
		return
	}
	if problem := interfaceProblem(b.Interface); problem != "" {
		v.errs.add(backendPath(i, j, "interface"), "%s", problem)
	}
	if b.Host.IsValid() {
		v.errs.addWithOther(backendPath(i, j, "interface"), backendPath(i, j, "host"), "is not available with host yet: its packets follow the routes to the host")
	}
}

func (v *validation) backendPort(i, j int) {
	s := &v.config.Services[i]
	b := &s.Backends[j]
	mode := b.ModeIn(*s)
	switch {
	case b.Port == 0:
	case b.Host.IsValid() && (mode == GUE || mode == IPIP) && s.Port.Single():
	case mode != NAT && b.RedirectsIn(s):
		v.errs.add(backendPath(i, j, "port"), "needs fallback nat: what goes by %s keeps its port, and would not find the server", mode)
	case mode != NAT && !b.Host.IsValid():
		v.errs.add(backendPath(i, j, "port"), "is only for mode nat, or with host: %s leaves the port as it is", mode)
	case !s.Port.Single():
		v.errs.add(backendPath(i, j, "port"), "cannot replace every port of a service with port %s", s.Port)
	}
}

func (v *validation) backendNAT(i, j int) {
	s := &v.config.Services[i]
	b := &s.Backends[j]
	mode := b.ModeIn(*s)
	if mode == NAT {
		v.otherFamily(i, j, "mode nat")
	}
}

// otherFamily refuses a backend whose address is not of the VIP's family, which what forwards to it
// cannot change.
func (v *validation) otherFamily(i, j int, what string) bool {
	s := &v.config.Services[i]
	b := &s.Backends[j]
	if !s.VIP.IsValid() || !b.Address.IsValid() || s.VIP.Is4() == b.Address.Is4() {
		return false
	}
	v.errs.add(backendPath(i, j, "address"), "%s is %s and VIP %s is %s: %s cannot change the family",
		b.Address, family(b.Address), s.VIP, family(s.VIP), what)
	return true
}

// backendHost checks that the host's agent can deliver what comes to it. In nat packets go to the
// backend's address without an agent, in l2dsr to a host that has the VIP, and clients make
// redirected connections themselves.
func (v *validation) backendHost(i, j int) {
	s := &v.config.Services[i]
	b := &s.Backends[j]
	mode := b.ModeIn(*s)
	if !b.Host.IsValid() {
		return
	}
	if problem := addressProblem(b.Host); problem != "" {
		v.errs.add(backendPath(i, j, "host"), "%s", withAddress(b.Host, problem))
	}
	switch {
	case s.Mode == Redirect:
		v.errs.add(backendPath(i, j, "host"), "is not for mode redirect: connections are handed over to the backend's address")
	case mode != GUE && mode != IPIP:
		v.errs.add(backendPath(i, j, "host"), "is only for modes gue and ipip, and this backend is %s", mode)
	case len(s.QUIC) > 0:
		v.errs.addWithOther(backendPath(i, j, "host"), servicePath(i, "quic"), "is not available with quic yet")
	}
	v.otherFamily(i, j, "the agent of a host")
}

// backendMTU checks that the MTU of the path to a backend is at least what every link has, and for
// an IPv6 VIP in a tunnel at least what its clients may rely on plus the outer header.
func (v *validation) backendMTU(i, j int) {
	s := &v.config.Services[i]
	b := &s.Backends[j]
	if b.MTU == 0 {
		return
	}
	mode, low := b.ModeIn(*s), minMTU4
	if !mode.TunnelEnd(b.Address, b.Host).Is4() {
		low = minMTU6
	}
	if s.VIP.Is6() {
		low = minMTU6 + minOverhead(mode, b.Address, b.Host)
	}
	if int(b.MTU) < low || b.MTU > maxMTU {
		v.errs.add(backendPath(i, j, "mtu"), "%d is out of range %d to %d", b.MTU, low, maxMTU)
	}
}
