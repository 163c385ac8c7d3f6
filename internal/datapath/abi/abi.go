// Package abi is the Go side of bpf/abi/types.h: the types of the director's maps, which are
// generated, and how addresses and ports are written in them.
package abi

import (
	"encoding/binary"
	"net/netip"
	"unsafe"
)

//go:generate ../../../bpf/types ../../../bpf/director/vtep/vtep.bpf.c -type address -type endpoint4 -type endpoint6 -type front -type backend_source -type range4 -type range6 -type ring_header -type slot -type candidates -type mode -type backend_state -type backend_flag -type probe_priority -type backend -type ring_flag -type quota -type quota_share -type quota_size -type settings_flag -type settings -type counter -type reason -type affinity -type policy -type fragment_key -type fragment -type snat_state -type snat_proof -type snat_fin -type asked_state -type ask_event -type ask_backend -type snat_asked -type snat_flow -type snat_bucket -type snat_header -type snat_shared -type snat_end -type told_snat -type flow_state -type flow_timeout -type flow_event -type flow_tag -type flow_entry -type flow_place -type flow_bucket -type former_bucket -type telling -type told_outcome -type tellings -type load -type load_scale -type turns -type owners -type turn -type quic_algorithm -type quic_event -type quic_config -type quic_servers -type peer -type group_slot -type steered_queue -type steered_flow -type heavy_flow -type heavy_line -type budget_kind -type vtep_network -type vtep_network_flag -type vtep_peer -type vtep_place_flag -type vtep_place -type vtep_source -type vtep_backend -type vtep_address -type vtep_host -type vtep_own_flag -type vtep_own -type vtep_stand_in

// BigEndian16 is a number as __be16 fields hold it, and back.
func BigEndian16(v uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, v))
}

// BigEndianAddress is an IPv4 address as __be32 fields hold it.
func BigEndianAddress(a netip.Addr) uint32 {
	b := a.As4()
	return binary.NativeEndian.Uint32(b[:])
}

// Address4 reads a __be32 field.
func Address4(v uint32) netip.Addr {
	return netip.AddrFrom4([4]byte(binary.NativeEndian.AppendUint32(nil, v)))
}

// AddressBytes is struct address.
func AddressBytes(a netip.Addr) (out Address) {
	copy(out.Bytes[:], a.AsSlice())
	return out
}

// AddressOf reads struct address.
func AddressOf(a Address, ipv6 bool) netip.Addr {
	if ipv6 {
		return netip.AddrFrom16(a.Bytes)
	}
	return netip.AddrFrom4([4]byte(a.Bytes[:4]))
}

// How a ring is laid out in lines (struct ring_line): its header, slots, lists, turns and owners.
const (
	LineSize     = 64
	HeaderLines  = 1
	TurnsPerLine = LineSize / 4
	SlotsPerLine = LineSize / int(unsafe.Sizeof(Slot{}))
	SlotList     = uint32(1) << 31 // SLOT_LIST
	SlotSettling = uint32(1) << 30 // SLOT_SETTLING

	OwnersPerLine = len(Owners{}.Index)
)

// SourceFilter is the section of SOURCE_FILTER_BITS; the section is a map.
const SourceFilter = ".data.sources"

// VTEP is the section of this_vtep.
const VTEP = ".data.vtep"

// FlowClock is the section of flow_time.
const FlowClock = ".data.clock"

// Steering is the section of steered_factor.
const Steering = ".data.steering"

// FanOut is the section of fan_out_count.
const FanOut = ".data.fan_out"
