package model

import (
	"cmp"
	"net/netip"
)

// VIP is the address of services in a segment: the same address may exist in several segments.
type VIP struct {
	Segment Segment
	Address netip.Addr
}

// Untagged returns the VIP of an address in no segment.
func Untagged(a netip.Addr) VIP { return VIP{Address: a} }

// InSegment reports whether the VIP is a tenant's.
func (v VIP) InSegment() bool { return v.Segment != (Segment{}) }

// Compare orders VIPs: first those in no segment, then those of each segment, by their addresses.
func (v VIP) Compare(o VIP) int {
	return cmp.Or(v.Segment.Compare(o.Segment), v.Address.Compare(o.Address))
}

// String returns "203.0.113.10", or "vlan:100/203.0.113.10".
func (v VIP) String() string {
	if v.InSegment() {
		return v.Segment.String() + "/" + v.Address.String()
	}
	return v.Address.String()
}
