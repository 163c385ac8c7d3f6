package nexthop

import (
	"cmp"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"

	"weir.io/weir/internal/model"
)

// Inside is where a backend of a tenant's network in VXLAN or Geneve is.
type Inside struct {
	Host   model.SegmentHost
	VNI    uint32    // on the wire, to it
	Source model.MAC // of this director in the network
	MTU    int       // of the network; 0: as large as fits
}

// Outer is the way to the VTEP where a tunnel ends. The zero value: packets leave in no tunnel of a tenant's.
type Outer struct {
	Kind    model.SegmentKind
	VNI     uint32
	VTEP    netip.Addr
	Options model.GeneveOptions
	MAC     model.MAC // next hop
	VLAN    uint16
	Source  model.MAC
}

// SetPlaces says what knows where hosts of tenants' networks are. It is called with the resolver's lock held.
func (r *Resolver) SetPlaces(places func(model.TableBackend) (in Inside, problem string)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.places = places
}

// hopInside is the next hop of a backend in a tenant's network in VXLAN or Geneve: its own MAC address, in a
// tunnel to its VTEP. The lock is held.
func (r *Resolver) hopInside(b model.TableBackend, interfaces []string, macOf func(Neighbor) model.MAC,
	onward func(Hop, netlink.Link) Hop) Hop {
	if r.places == nil {
		return Hop{Problem: fmt.Sprintf("it is in %s, and this director is no VTEP", b.Segment)}
	}
	in, problem := r.places(b)
	if problem != "" {
		return Hop{Problem: problem}
	}
	vtep := in.Host.VTEP
	way := r.hopOf(model.TableBackend{Address: vtep, Mode: model.IPIP, MTU: b.MTU}, interfaces, macOf, onward)
	if way.Local {
		return Hop{Problem: fmt.Sprintf("its VTEP %v is this host itself", vtep)}
	}
	if way.Problem != "" {
		way.Problem = fmt.Sprintf("VTEP %v: %s", vtep, way.Problem)
		return way
	}
	hop := way
	hop.Outer = Outer{Kind: b.Segment.Kind, VNI: in.VNI, VTEP: vtep, Options: in.Host.Options, MAC: way.MAC, VLAN: way.VLAN, Source: way.Source}
	hop.MTU = way.MTU - model.OverlayOverhead(vtep.Is6()) - len(in.Host.Options)
	hop.MTU = min(hop.MTU, cmp.Or(in.MTU, hop.MTU))
	hop.VLAN, hop.Source, hop.Answers = 0, in.Source, 0
	if !way.MAC.IsZero() {
		hop.MAC = in.Host.MAC
	}
	return hop
}
