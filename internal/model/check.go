package model

import (
	"cmp"
	"net/netip"
	"time"
)

// Target is a backend of a service, without the names of the two.
type Target struct {
	Service ServiceID
	Backend netip.AddrPort
	// Redirect says that the question is not whether the backend is healthy, but whether
	// connections can be handed over to it.
	Redirect bool
}

// Check is what to find out about a backend, and how.
type Check struct {
	Target
	Service string         // name
	Backend string         // name
	To      netip.AddrPort // the backend's own address
	Way     *CheckWay      // the way of the service's packets to it; nil: the probes do not take it
	How     *HealthCheck   // with its defaults; not written to any more
	// Serving says that the backend gets connections already: one failure is not enough
	// to take it out when nothing else is known of it.
	Serving bool
	// Programs says how the program of a check runs; nil: by the defaults.
	Programs *ExecChecks
}

// CountsIn returns the segment with which the check's probes count, like its backend: see SegmentLimits.
func (c *Check) CountsIn() Segment {
	if c.Way == nil {
		return c.Target.Service.Segment
	}
	return countsIn(c.Way.Backend.Segment, c.Target.Service.Segment)
}

// ListedAddresses are what a server of SCTP lists in its INIT ACK beside the address that was asked: its
// clients send packets there, too.
type ListedAddresses struct {
	Service, Backend string // names
	Asked            netip.Addr
	Addresses        []netip.Addr
}

// CheckWay is the way of a service's packets from a director to a backend.
type CheckWay struct {
	*CheckHost
	VIP     netip.Addr
	Segment Segment
	Backend TableBackend // its address, mode, MAC, VLAN and MTU
	// Direct leads probes to the backend's own address and not to the VIP: only that is to be in its network.
	Direct bool
	// Own are the addresses that this director has in the backend's segment, by its configuration.
	Own []netip.Addr
}

// CheckHost is the part that the ways of all checks share: see Director.
type CheckHost struct {
	Interfaces   []string
	TunnelSource []netip.Prefix
	Directors    []netip.Prefix
	VTEP         VTEP
	Segments     []SegmentSettings
}

// Faults that need no probe.
const (
	FaultARP = "arp" // the backend answers ARP for the VIP
	// FaultNoAddress says that this director has no address in the backend's segment.
	FaultNoAddress   = "no-address"
	FaultUnreachable = "unreachable" // there is no way to the backend in its segment
)

// Way is how one probe gets to its backend.
type Way struct {
	To netip.AddrPort
	// Named is what To stands for, where packets get another address on their way; zero: for itself.
	Named netip.AddrPort
	// Prepare is called with the probe's socket before anything is sent from it; nil: the socket
	// needs no preparation.
	Prepare func(socket int) error
	// Alike is equal for ways that prepare sockets alike, except for what Again does: Again adapts
	// a socket that was prepared for one of them to this way. nil: a prepared socket is of no use
	// to another way. Its type is comparable.
	Alike any
	Again func(socket int) error
	// MTU is the largest packet that clients may send by this way; 0: clients' packets do not take
	// it.
	MTU int
	// Fault is what is wrong with the backend already, and needs no probe; "": nothing.
	Fault, Detail string
	// Later says that the way is not known yet, but will be in a moment.
	Later bool
}

// Target is the address that packets have when they reach the backend.
func (w *Way) Target() netip.AddrPort { return cmp.Or(w.Named, w.To) }

// HealthState is what is known about a backend's health.
type HealthState string

// The states of health.
const (
	HealthUnknown HealthState = "unknown" // no probe has ended yet
	HealthUp      HealthState = "up"
	HealthDown    HealthState = "down"
)

// Found is what is known about a backend's health, and how long it has been so. The zero value is
// nothing.
type Found struct {
	State HealthState
	For   time.Duration
}
