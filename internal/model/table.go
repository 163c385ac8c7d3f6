package model

import (
	"net/netip"
	"time"
)

// Table is what the datapath must do: always all of it. It is a pure function of desired state and
// health.
type Table struct {
	Interfaces []string
	// ReplyInterfaces are further interfaces, by which full NAT's replies come.
	ReplyInterfaces []string
	Directors       []netip.Prefix // agents accept tunnels from these addresses
	TunnelSource    []netip.Prefix
	SNAT            SNAT
	ICMPRate        uint32
	Suspect         time.Duration // how long a backend that is lost from sight keeps its connections
	Group           []netip.Addr  // directors among which fragments are divided
	// KernelSources are the sources whose packets the kernel gets, for services with the field of
	// the same name.
	KernelSources []netip.Prefix
	// VTEP is where tunnels of tenants' networks end, and Segments what is known of these networks.
	VTEP     VTEP
	Segments []SegmentSettings
	// Quotas are what segments may have of the datapath, of those that have a bound.
	Quotas   map[Segment]SegmentQuota
	Services []TableService
}

// TableService is one service as the datapath needs it.
type TableService struct {
	Name     string
	Segment  Segment
	VIP      netip.Addr
	Protocol Protocol
	Port     PortRange
	// SourceRanges are where its clients have to be; none: anywhere.
	SourceRanges []netip.Prefix
	// KernelSources leaves packets from the table's KernelSources to the kernel.
	KernelSources bool
	// Quota says that its segment has one of the table's Quotas.
	Quota    bool
	Mode     Mode // of the service; a backend may have another one
	Policy   Policy
	Affinity Affinity // of Ring
	Salt     uint64   // keys the flow hash; the same on every director
	QUIC     []QUICConfig
	Backends []TableBackend
	Ring     Ring
	// Reported says that agents' reports decide which candidates rows have: backends in
	// gue are in them for as long as they have connections or flows.
	Reported bool
	// Before is the ring of the generations whose slots another affinity chose; nil: there
	// are none.
	Before *RingBefore
	// Tiers are the rings of all tiers of a service that has several; nil: it has one. Affinity, Ring and Before are those of
	// the tier that gets new connections.
	Tiers []TierRing
	// Tier is that tier, and TierHealth says why.
	Tier       uint8
	TierHealth *ServiceTiers
	// Health is what the states of Backends come from; nil: the service is not checked.
	Health *ServiceHealth
}

// TierRing is what places the connections of a tier.
type TierRing struct {
	Affinity Affinity // of Ring
	Ring     Ring     // without slots if the tier has no member
	Before   *RingBefore
}

// Use makes a tier the one that gets new connections.
func (s *TableService) Use(tier uint8) {
	s.Tier = tier
	if int(tier) < len(s.Tiers) {
		r := &s.Tiers[tier]
		s.Affinity, s.Ring, s.Before = r.Affinity, r.Ring, r.Before
	}
}

// ID returns what tells the service from others.
func (s *TableService) ID() ServiceID {
	return ServiceID{Segment: s.Segment, VIP: s.VIP, Protocol: s.Protocol, Port: s.Port}
}

// RingBefore is the former ring of a service whose affinity has changed: it places connections that
// are older than the change.
type RingBefore struct {
	Affinity Affinity
	Ring     Ring
}

// TableBackend is one backend of one service as the datapath needs it.
type TableBackend struct {
	Name     string
	Address  netip.Addr
	Host     netip.Addr // the host whose agent delivers packets to it: see Backend
	Port     uint16
	Mode     Mode
	Redirect bool // connections that ask for it are handed over to it
	SNAT     bool
	Asks     bool         // with SNAT: it is asked to hand connections over, in clients' place
	State    BackendState // desired state and health together
	// Unwell says that probes have found the backend down, or have no result yet. While all
	// backends are used in spite of probes, State does not say so. The next process goes on from
	// there.
	Unwell bool
	MAC    MAC
	VLAN   uint16
	// Interface is the one on whose link it is; empty: see Segment.
	Interface string
	// Segment is the tenant's network that it is in; the zero value: none, so the host's routes lead to it.
	Segment Segment
	// Left says that it is not in its service's segment.
	Left bool
	// Place is where it is in VXLAN or Geneve, as the configuration says; without a VTEP: see Table.Segments.
	Place    SegmentHost
	MTU      uint16
	Tier     uint8
	Weight   uint16 // policies by load divide the load by it; 0: the load does not count
	ServerID ServerIDs
}

// OffRoutes says that the backend is on the link of an interface whatever the host's routes say of its address.
func (b *TableBackend) OffRoutes() bool {
	return b.Interface != "" || b.Segment != (Segment{}) && !b.Segment.IsOverlay()
}

// Endpoint returns the backend's address and port.
func (b *TableBackend) Endpoint() netip.AddrPort { return netip.AddrPortFrom(b.Address, b.Port) }

// SameMemory reports whether two slices are the same memory. Tables and logs are read only: then they
// are equal, however long they are.
func SameMemory[T any](a, b []T) bool { return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0]) }

// NoBackend in a Slot says that there is no such candidate.
const NoBackend = ^uint32(0)

// ListFlag in Slot.Next says that the other bits are an index into Ring.Lists.
const ListFlag = uint32(1) << 31

// MaxCandidates bounds a row: over IPv4; the outer IPv6 header leaves room for
// MaxCandidates6.
const (
	MaxCandidates  = 8
	MaxCandidates6 = 6
)

// Ring is a service's lookup table: a row of candidates per slot. Candidates are
// positions in TableService.Backends. No slots: the service has no backend that
// may own one.
type Ring struct {
	Slots []Slot
	Lists []CandidateList
	// Older is the size of an older ring on whose borders slots lie; 0: none do. A hash is
	// beyond the border of its slot when it is in another slot of that ring than the first
	// hash of its slot.
	Older uint32
	// Turns has the positions of the backends among which an AmongAll policy places new
	// connections: with round-robin in the order of their turns, with p2c as often as with
	// round-robin, else each once. Without turns p2c chooses between a slot's two.
	Turns []uint32
}

// CandidateList is what follows a slot's owner where connections may belong to more than one
// backend.
type CandidateList struct {
	Next []uint32 // positions in TableService.Backends
	// Oldest has the positions in the row (0 is the owner) in the order in which a packet of an
	// unknown connection tries them, the likeliest first: the oldest owner.
	Oldest []uint8
	// Beyond has the same for packets beyond the border of Ring.Older; nil: it is the same order.
	Beyond []uint8
	// Fixed says that no policy may choose Next[0] for a new connection while the owner is up.
	Fixed bool
}

// Slot is a row: its owner and what follows it: the one other candidate, ListFlag | index of a
// list, or NoBackend. The owner is NoBackend if all backends that might own the slot are removed,
// and in a former ring also if no connection needs the slot any more.
type Slot struct {
	Owner uint32
	Next  uint32
}
