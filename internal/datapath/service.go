package datapath

import (
	"net/netip"
	"slices"
	"time"

	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/model"
)

// serviceKey is what a service's index stands for.
type serviceKey struct {
	segment  uint32
	vip      netip.Addr
	protocol model.Protocol
	port     model.PortRange
}

func keyOf(s *model.TableService) serviceKey {
	return serviceKey{s.Segment.Key(), s.VIP, s.Protocol, s.Port}
}

func keyOfID(id model.ServiceID) serviceKey {
	return serviceKey{id.Segment.Key(), id.VIP, id.Protocol, id.Port}
}

// id is what other directors know the service by.
func (k serviceKey) id() model.ServiceID {
	return model.ServiceID{Segment: model.SegmentOf(k.segment), VIP: k.vip, Protocol: k.protocol, Port: k.port}
}

// service is one service and its place in the kernel.
type service struct {
	key      serviceKey
	index    uint32
	desired  *model.TableService
	backends map[backendKey]*backend
	assigned bool       // desired has been, at least once
	order    []*backend // as in desired
	distinct int        // backends in order, each counted once
	changed  bool       // since its ring was switched in
	tunnels  [2]bool    // some backend is behind a tunnel over IPv4, over IPv6
	ring     run        // as the kernel has it
	// reserve is, with tiers, where the next ring goes: when health chooses another tier, nothing may lack memory.
	reserve run
	left    time.Time // when packets have left the reserve
	// remembered says that a program before this one may remember flows of the service, though its
	// ring is not known.
	remembered bool
	settling   int    // how many slots are flagged SLOT_SETTLING
	clean      []bool // by slot: the last sweep saw no reason for the flag
	retired    tally  // forwarded to backends that are gone
}

// endpoint is where packets of a service with a single port go.
func (s *service) endpoint() endpoint {
	return endpoint{s.key.segment, s.key.vip, uint8(s.key.protocol), s.key.port.First}
}

// sameService says whether a service is unchanged, without reading its ring: a planner that keeps
// rings unchanged returns the same memory again.
func sameService(a, b *model.TableService) bool {
	return sameRing(&a.Ring, &b.Ring) && sameBefore(a.Before, b.Before) && a.Tier == b.Tier && slices.EqualFunc(a.Tiers, b.Tiers, sameTier) && a.Reported == b.Reported &&
		a.Salt == b.Salt && slices.Equal(a.QUIC, b.QUIC) && slices.Equal(a.SourceRanges, b.SourceRanges) && a.KernelSources == b.KernelSources && a.Quota == b.Quota && a.Policy == b.Policy && a.Affinity == b.Affinity &&
		(model.SameMemory(a.Backends, b.Backends) || slices.Equal(a.Backends, b.Backends))
}

// tunnels says whether packets get to backends of a mode inside packets of this host's own.
func tunnels(m model.Mode) bool { return m == model.IPIP || m == model.GUE }

// tunnelsTo says whether some backend is behind a tunnel over IPv4, and over IPv6.
func tunnelsTo(backends []model.TableBackend) (over [2]bool) {
	for i := range backends {
		if b := &backends[i]; tunnels(b.Mode) {
			over[truth(b.TunnelEnd().Is6())] = true
		}
	}
	return over
}

func sameRing(a, b *model.Ring) bool {
	return model.SameMemory(a.Slots, b.Slots) && model.SameMemory(a.Lists, b.Lists) && model.SameMemory(a.Turns, b.Turns) && a.Older == b.Older
}

func sameTier(a, b model.TierRing) bool {
	return a.Affinity == b.Affinity && sameRing(&a.Ring, &b.Ring) && sameBefore(a.Before, b.Before)
}

func sameBefore(a, b *model.RingBefore) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Affinity == b.Affinity && sameRing(&a.Ring, &b.Ring)
}

// tally is a counter summed over CPUs.
type tally struct {
	packets, bytes uint64
	opened         uint64 // TCP connections: only counted for backends
}

func (t tally) plus(o tally) tally {
	return tally{t.packets + o.packets, t.bytes + o.bytes, t.opened + o.opened}
}

// Protocol numbers under which a key says that an address is a VIP.
const (
	icmp4 = 1
	icmp6 = 58
)

// endpoint is a key of services{4,6} and replies{4,6} in one comparable form.
type endpoint struct {
	segment  uint32
	address  netip.Addr
	protocol uint8
	port     uint16
}

func (e endpoint) is4() bool { return e.address.Is4() }

func (e endpoint) v4() abi.Endpoint4 {
	return abi.Endpoint4{Segment: e.segment, Address: abi.BigEndianAddress(e.address), Port: abi.BigEndian16(e.port), Protocol: e.protocol}
}

func (e endpoint) v6() abi.Endpoint6 {
	return abi.Endpoint6{Segment: e.segment, Address: abi.AddressBytes(e.address), Port: abi.BigEndian16(e.port), Protocol: e.protocol}
}

// vipEndpoint says that the address is a VIP, whatever the port.
func (k serviceKey) vipEndpoint() endpoint {
	e := endpoint{segment: k.segment, address: k.vip, protocol: icmp4}
	if k.vip.Is6() {
		e.protocol = icmp6
	}
	return e
}

// prefix is a key of ranges{4,6} in one comparable form: ports with `bits` fixed
// bits, of a VIP or of a NAT backend's replies.
type prefix struct {
	endpoint
	bits  uint32
	reply uint8
}

// Bits of struct range{4,6} before the port.
const (
	fixedBits4 = 8 * (4 + 4 + 2)
	fixedBits6 = 8 * (4 + 16 + 2)
)

func (p prefix) is4() bool { return p.address.Is4() }

func (p prefix) v4() abi.Range4 {
	return abi.Range4{PrefixLen: fixedBits4 + p.bits, Segment: p.segment, Address: abi.BigEndianAddress(p.address),
		Protocol: p.protocol, Reply: p.reply, Port: abi.BigEndian16(p.port)}
}

func (p prefix) v6() abi.Range6 {
	return abi.Range6{PrefixLen: fixedBits6 + p.bits, Segment: p.segment, Address: abi.AddressBytes(p.address),
		Protocol: p.protocol, Reply: p.reply, Port: abi.BigEndian16(p.port)}
}

// width is how many ports the service has.
func (k serviceKey) width() int {
	if k.port.All() {
		return 1 << 16
	}
	return int(k.port.Last) - int(k.port.First) + 1
}

// prefixes are the keys of a service that has more than one port.
func (k serviceKey) prefixes() []prefix {
	return portBlocks(endpoint{segment: k.segment, address: k.vip, protocol: uint8(k.protocol)}, k.port, 0)
}

// portBlocks cuts a port range into aligned blocks.
func portBlocks(e endpoint, ports model.PortRange, reply uint8) []prefix {
	first, last := uint32(ports.First), uint32(ports.Last)
	if ports.All() {
		last = 0xffff
	}
	var list []prefix
	for first <= last {
		size := uint32(1)
		for first%(2*size) == 0 && first+2*size-1 <= last {
			size *= 2
		}
		bits := uint32(16)
		for s := size; s > 1; s /= 2 {
			bits--
		}
		e.port = uint16(first)
		list = append(list, prefix{e, bits, reply})
		first += size
	}
	return list
}
