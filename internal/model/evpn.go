package model

import (
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// MaxVNI is the largest VXLAN network identifier: it has 24 bits (RFC 7348). 0 is none.
const MaxVNI = 1<<24 - 1

// EVPNNeedsVTEP is what is wrong with a neighbor of EVPNWithoutVTEP.
const EVPNNeedsVTEP = "evpn needs director.vtep, where tunnels end: without it the director tells nobody of a host, and learns of none"

// EVPNWithoutVTEP returns the indexes of the BGP neighbors of the family evpn, if the director is no VTEP.
func (c *Config) EVPNWithoutVTEP() (neighbors []int) {
	if c.Director.VTEP.Given() {
		return nil
	}
	for i := range c.BGP.Neighbors {
		if slices.Contains(c.BGP.Neighbors[i].Families, BGPEVPN) {
			neighbors = append(neighbors, i)
		}
	}
	return neighbors
}

// EVPN is what a director tells other VTEPs of its own segments by BGP, and of which segments it
// takes what they tell (RFC 7432, RFC 8365). Neighbors hear of it whose families have [BGPEVPN].
type EVPN struct {
	Segments []EVPNSegment `json:"segments,omitempty"` // a VNI is in one of them
}

// EVPNSegments are the segments in VXLAN that this director tells other VTEPs of, and is told of. None, if no
// neighbor takes part. Networks of OVN are not among them: OVN says where their hosts are.
func (c *Config) EVPNSegments() map[Segment]*SegmentSettings {
	takesPart := func(n BGPNeighbor) bool { return slices.Contains(n.Families, BGPEVPN) }
	if !c.Director.VTEP.Given() || !slices.ContainsFunc(c.BGP.Neighbors, takesPart) {
		return nil
	}
	segments := map[Segment]*SegmentSettings{}
	for i := range c.Segments {
		segments[c.Segments[i].ID] = &c.Segments[i]
	}
	for i := range c.Services {
		if in := c.Services[i].Segment; segments[in] == nil {
			segments[in] = &SegmentSettings{ID: in}
		}
	}
	maps.DeleteFunc(segments, func(id Segment, s *SegmentSettings) bool { return id.Kind != SegmentVXLAN || s.Network != "" })
	return segments
}

// EVPNSegment is a VXLAN segment in which this director is a VTEP.
type EVPNSegment struct {
	VNI  uint32     `json:"vni"`
	VTEP netip.Addr `json:"vtep"` // of this director, where packets for the segment come; never the zero value
	// Distinguisher tells this VTEP's routes from those of others; the zero value: one is made of the
	// router-id and a number (RFC 7432 7.9). No two segments have the same.
	Distinguisher RouteDistinguisher `json:"rd,omitzero"`
	// Export are the route targets that routes are told with. None: AS:VNI, with the last 16 bits of
	// the AS, as FRR does.
	Export []RouteTarget `json:"export,omitempty"`
	// Import are the route targets of routes that are taken. None: those that end with the VNI,
	// whatever their AS, as FRR does, also in the form of RFC 8365 5.1.2.1.
	Import []RouteTarget `json:"import,omitempty"`
	// Entries are what is reached at this VTEP. Each is there once.
	Entries []EVPNEntry `json:"entries,omitempty"`
}

// EVPNEntry is a MAC address at this VTEP, or an IP address that has that MAC address.
type EVPNEntry struct {
	MAC MAC        `json:"mac"`
	IP  netip.Addr `json:"ip,omitzero"` // the zero value: only the MAC address is told
	// Sequence is the least mobility sequence number that the entry is told with (RFC 7432 7.7): whoever
	// keeps count of takeovers, as an etcd does, gives it. Without it the speaker finds one that is higher
	// than those it has heard of others for the same address.
	Sequence uint32 `json:"sequence,omitempty"`
}

// EVPNLearned is what other VTEPs have told of this director's segments: all of it, after each change.
type EVPNLearned struct {
	Hosts []EVPNHost `json:"hosts"` // sorted by VNI, IP and MAC
	VTEPs []EVPNVTEP `json:"vteps"` // sorted by VNI and address
	// Complete says that each neighbor with which there is a session has told all its routes, and that
	// there is one. Until then what is missing may only not have come yet, as after a start.
	Complete bool `json:"complete"`
}

// EVPNHost is where a host of a segment is. There is one for each IP address, with the MAC address
// that it has now, and one without an IP address for each MAC address.
type EVPNHost struct {
	VNI      uint32     `json:"vni"` // of this director's segment
	MAC      MAC        `json:"mac"`
	IP       netip.Addr `json:"ip,omitzero"`
	VTEP     netip.Addr `json:"vtep"`
	Label    uint32     `json:"label"`              // the VNI that packets to the VTEP have: the segment's, unless the VTEP says another (RFC 8365 5.1.1)
	Sequence uint32     `json:"sequence,omitempty"` // mobility sequence number
	Static   bool       `json:"static,omitempty"`   // it does not move (RFC 7432 15.2)
}

// EVPNVTEP is another VTEP of a segment, which wants a copy of what is for all.
type EVPNVTEP struct {
	VNI   uint32     `json:"vni"` // of this director's segment
	VTEP  netip.Addr `json:"vtep"`
	Label uint32     `json:"label"` // the VNI that packets to it have
}

// BGPEVPNStatus is what has gone between this director and one neighbor.
type BGPEVPNStatus struct {
	Sent      int    `json:"sent"`                // routes that it has been told
	Received  int    `json:"received"`            // routes of it that are kept: those of this director's segments
	Stale     int    `json:"stale,omitempty"`     // of these, kept from a session that is lost (graceful restart)
	Malformed uint64 `json:"malformed,omitempty"` // routes that could not be read, since the director started
	Problem   string `json:"problem,omitempty"`   // why routes are missing
}

// EVPNStatus is a segment in which this director is a VTEP.
type EVPNStatus struct {
	VNI           uint32             `json:"vni"`
	VTEP          netip.Addr         `json:"vtep"`
	Distinguisher RouteDistinguisher `json:"rd"`
	Export        []RouteTarget      `json:"export"`
	Entries       int                `json:"entries"` // at this VTEP
	Hosts         int                `json:"hosts"`   // at other VTEPs
	VTEPs         int                `json:"vteps"`   // other ones
	// Contested are entries of this director that another VTEP has taken, by a higher sequence number: they
	// are not told. At most 16.
	Contested []EVPNHost `json:"contested,omitempty"`
}

// RouteTarget is a route target (RFC 4360), and RouteDistinguisher a route distinguisher (RFC 4364):
// two numbers, the first an AS or an IPv4 address. The zero value is none.
type (
	RouteTarget        struct{ numbers }
	RouteDistinguisher struct{ numbers }
)

// numbers are the eight bytes of a distinguisher. The first two are its kind, and in a target's
// extended community the second says that it is one.
type numbers struct{ text uint64 }

// The kinds: of how many bits each number has.
const (
	kindAS16 = 0 // an AS of 16 bits, and 32 bits
	kindIPv4 = 1 // an IPv4 address, and 16 bits
	kindAS32 = 2 // an AS of 32 bits, and 16 bits
)

// NewRouteTarget returns the target AS:number, for which one of both has to fit into 16 bits.
func NewRouteTarget(asn, number uint32) RouteTarget {
	return RouteTarget{ofNumbers(uint64(asn), uint64(number))}
}

// NewRouteDistinguisher returns the distinguisher address:number; the address is an IPv4 one.
func NewRouteDistinguisher(router netip.Addr, number uint16) RouteDistinguisher {
	a := router.As4()
	return RouteDistinguisher{numbers{kindIPv4<<48 | uint64(binary.BigEndian.Uint32(a[:]))<<16 | uint64(number)}}
}

func ofNumbers(asn, number uint64) numbers {
	if asn <= 0xffff {
		return numbers{kindAS16<<48 | asn<<32 | number}
	}
	return numbers{kindAS32<<48 | asn<<16 | number}
}

// ReadRouteTarget reads the eight bytes of an extended community. ok is whether it is a target.
func ReadRouteTarget(b [8]byte) (t RouteTarget, ok bool) {
	if b[0] > kindAS32 || b[1] != 2 {
		return t, false
	}
	b[0], b[1] = 0, b[0]
	return RouteTarget{numbers{binary.BigEndian.Uint64(b[:])}}, true
}

// Bytes returns the extended community.
func (t RouteTarget) Bytes() (b [8]byte) {
	binary.BigEndian.PutUint64(b[:], t.text)
	b[0], b[1] = b[1], 2
	return b
}

// DistinguisherOf returns the distinguisher that a route has.
func DistinguisherOf(b [8]byte) RouteDistinguisher {
	return RouteDistinguisher{numbers{binary.BigEndian.Uint64(b[:])}}
}

// Bytes returns the distinguisher as routes have it.
func (d RouteDistinguisher) Bytes() (b [8]byte) {
	binary.BigEndian.PutUint64(b[:], d.text)
	return b
}

// VNI returns the VNI of a target that is made of an AS of 16 bits and a VNI, as FRR makes it
// (AS:VNI), or by RFC 8365 5.1.2.1; 0 if it is none.
func (t RouteTarget) VNI() uint32 {
	const vxlan = 1 << 28 // automatic, of VXLAN, without a domain ID
	number := uint32(t.text)
	if number&^MaxVNI == vxlan {
		number &= MaxVNI
	}
	if t.text>>48 != kindAS16 || number > MaxVNI {
		return 0
	}
	return number
}

// IsZero reports whether there is none.
func (n numbers) IsZero() bool { return n == numbers{} }

// String returns "65001:5001", "10.0.0.2:1" or "4200000001:1", and nothing for none.
func (n numbers) String() string {
	switch first, last := n.text>>16&(1<<32-1), n.text&0xffff; {
	case n.IsZero():
		return ""
	case n.text>>48 == kindAS16:
		return fmt.Sprintf("%d:%d", n.text>>32&0xffff, n.text&(1<<32-1))
	case n.text>>48 == kindIPv4:
		return fmt.Sprintf("%v:%d", netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, uint32(first)))), last)
	default:
		return fmt.Sprintf("%d:%d", first, last)
	}
}

// MarshalText writes what String returns.
func (n numbers) MarshalText() ([]byte, error) { return []byte(n.String()), nil }

// UnmarshalText reads what String returns.
func (n *numbers) UnmarshalText(text []byte) error {
	first, last, _ := strings.Cut(string(text), ":")
	number, err := strconv.ParseUint(last, 10, 32)
	if router, isAddress := netip.ParseAddr(first); isAddress == nil && router.Is4() && err == nil && number <= 0xffff {
		*n = NewRouteDistinguisher(router, uint16(number)).numbers
		return nil
	}
	asn, err2 := strconv.ParseUint(first, 10, 32)
	if err != nil || err2 != nil || asn > 0xffff && number > 0xffff {
		return fmt.Errorf("%q is not two numbers of which one fits into 16 bits; write 65001:5001, 4200000001:100, or 10.0.0.2:100", text)
	}
	*n = ofNumbers(asn, number)
	return nil
}
