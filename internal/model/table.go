package model

import (
	"net/netip"
	"time"
)

// Table is what the datapath must do: all of it, every time. It is a pure
// function of desired state and health.
type Table struct {
	Interfaces []string
	// ReplyInterfaces are others, by which full NAT's replies come.
	ReplyInterfaces []string
	Directors       []netip.Prefix // where agents accept tunnels from
	TunnelSource    []netip.Prefix
	SNAT            SNAT
	ICMPRate        uint32
	Suspect         time.Duration // that a backend keeps its connections when it is lost from sight
	Group           []netip.Addr  // directors among which fragments are divided
	// KernelSources are whose packets the kernel gets, of services with the same field.
	KernelSources []netip.Prefix
	Services      []TableService
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
	// KernelSources leaves what comes from the table's KernelSources to the kernel.
	KernelSources bool
	Mode          Mode // of the service; a backend may have another one
	Policy        Policy
	Affinity      Affinity // of Ring
	Salt          uint64   // keys the flow hash; the same on every director
	QUIC          []QUICConfig
	Backends      []TableBackend
	Ring          Ring
	// Reported says that agents' reports decide which candidates rows have: backends in
	// gue are in them for as long as they have connections or flows.
	Reported bool
	// Before is the ring of the generations whose slots another affinity chose; nil: there
	// are none.
	Before *RingBefore
}

// RingBefore is the ring of a service whose affinity has changed, as it was before:
// connections that are older than the change are where it says.
type RingBefore struct {
	Affinity Affinity
	Ring     Ring
}

// TableBackend is one backend of one service as the datapath needs it.
type TableBackend struct {
	Name     string
	Address  netip.Addr
	Host     netip.Addr // whose agent delivers packets to it: see Backend
	Port     uint16
	Mode     Mode
	Redirect bool // connections that ask for it are handed over to it
	SNAT     bool
	Asks     bool         // with SNAT: it is asked to hand connections over, in clients' place
	State    BackendState // desired state and health together
	// Unwell says that probes have found it down, or nothing yet: while all backends are used
	// in spite of probes its state does not say so. The next process goes on from there.
	Unwell   bool
	MAC      MAC
	VLAN     uint16
	MTU      uint16
	Weight   uint16 // what policies that look at loads divide them by; 0: this one's says nothing
	ServerID ServerIDs
}

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
	// Turns has the positions of those among whom a policy that is AmongAll places new
	// connections: in the order in which it is their turn with round-robin, and as often with
	// p2c, else each once. Without turns p2c chooses between a slot's two.
	Turns []uint32
}

// CandidateList is what follows a slot's owner where connections may be of more
// than one backend.
type CandidateList struct {
	Next []uint32 // positions in TableService.Backends
	// Oldest has the positions in the row (0 is the owner) in the order in which a
	// packet of an unknown connection is likely to be theirs: the oldest owner first.
	Oldest []uint8
	// Beyond has the same for packets beyond the border of Ring.Older; nil: nothing differs.
	Beyond []uint8
	// Fixed says that no policy may choose Next[0] for a new connection while the owner is up.
	Fixed bool
}

// Slot is a row: its owner and what follows it, which is the one other
// candidate, ListFlag | index of a list, or NoBackend. The owner is NoBackend where all
// who might own the slot are removed, and in a ring before also where no connection needs
// it any more.
type Slot struct {
	Owner uint32
	Next  uint32
}
