package datapath

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/packet"
)

// scenario is one service of the matrix mode x VIP family x backend family x
// protocol, all of them in one director.
type scenario struct {
	*testService
	name   string
	client netip.Addr
}

const (
	clientPort  = 40000
	servicePort = 80
	backendPort = 8080 // of NAT backends
	otherPort   = 81   // no service
)

var (
	client4 = netip.MustParseAddr("198.51.100.7")
	client6 = netip.MustParseAddr("2001:db8:c::7")
	arrived = packet.EthernetHeader{Dst: ownMAC, Src: clientMAC}
)

func singlePort(p uint16) model.PortRange { return model.PortRange{First: p, Last: p} }

// numbered returns the n-th address of a kind: 4, and what else tells it apart.
func numbered(is4 bool, kind byte, n int) netip.Addr {
	if is4 {
		return netip.AddrFrom4([4]byte{10, kind, byte(n >> 8), byte(n)})
	}
	a := [16]byte{0x20, 0x01, 0x0d, 0xb8, 0, kind}
	a[14], a[15] = byte(n>>8), byte(n)
	return netip.AddrFrom16(a)
}

func vipAddress(is4 bool, n int) netip.Addr     { return numbered(is4, 1, n) }
func backendAddress(is4 bool, n int) netip.Addr { return numbered(is4, 2, n) }

// wayTo is a mode with the family of the backend.
type wayTo struct {
	name      string
	mode      model.Mode
	snat      bool
	over4     bool
	sameProto bool // VIP and backend have the same family
}

var ways = []wayTo{
	{name: "l2dsr", mode: model.L2DSR, sameProto: true},
	{name: "ipip in 4", mode: model.IPIP, over4: true},
	{name: "ipip in 6", mode: model.IPIP},
	{name: "gue in 4", mode: model.GUE, over4: true},
	{name: "gue in 6", mode: model.GUE},
	{name: "nat", mode: model.NAT, sameProto: true},
	{name: "snat", mode: model.NAT, snat: true, sameProto: true},
}

// scenarios adds one service for each cell of the matrix that wanted accepts.
// Each has a live backend and a backup. Those of SCTP come last: the others keep their addresses.
func (w *testWorld) scenarios(wanted func(wayTo) bool) (list []scenario) {
	for _, protocols := range [][]model.Protocol{{model.TCP, model.UDP}, {model.SCTP}} {
		for _, way := range ways {
			for _, vip4 := range []bool{true, false} {
				for _, protocol := range protocols {
					if wanted(way) {
						list = append(list, w.scenario(way, vip4, protocol))
					}
				}
			}
		}
	}
	return list
}

func (w *testWorld) scenario(way wayTo, vip4 bool, protocol model.Protocol) scenario {
	s, n := way, len(w.services)
	if s.sameProto {
		s.over4 = vip4
	}
	backends := []testBackend{
		{mode: s.mode, snat: s.snat, address: backendAddress(s.over4, 2*n)},
		{mode: s.mode, snat: s.snat, address: backendAddress(s.over4, 2*n+1)},
	}
	if s.mode == model.NAT {
		backends[0].port, backends[1].port = backendPort, backendPort
	}
	family := "4"
	if !vip4 {
		family = "6"
	}
	return scenario{
		testService: w.add(testService{vip: vipAddress(vip4, n), protocol: protocol, port: singlePort(servicePort),
			salt: uint64(n) * 0x1234567, backends: backends}),
		name:   fmt.Sprintf("%s, vip %s, %s", s.name, family, protocol),
		client: clientOf(vip4),
	}
}

func clientOf(is4 bool) netip.Addr {
	if is4 {
		return client4
	}
	return client6
}

func ofSCTP(s scenario) bool { return s.protocol == model.SCTP }

func isNAT(w wayTo) bool      { return w.mode == model.NAT }
func notNAT(w wayTo) bool     { return w.mode != model.NAT }
func notFullNAT(w wayTo) bool { return !w.snat }
func isPlainNAT(w wayTo) bool { return isNAT(w) && !w.snat }
func isFullNAT(w wayTo) bool  { return w.snat }

// ip is the header of a packet from one address to another.
func ip(from, to netip.Addr) packet.Header {
	if from.Is4() {
		return packet.IPv4Header{Src: from, Dst: to, TOS: 0x28, ID: 4711, DF: true, TTL: 57}
	}
	return packet.IPv6Header{Src: from, Dst: to, TrafficClass: 0x28, FlowLabel: 0x12345, HopLimit: 57}
}

// l4 is the header of an established connection's packet.
func l4(protocol model.Protocol, from, to uint16) packet.Header {
	if protocol == model.TCP {
		return packet.TCPHeader{Src: from, Dst: to, Seq: 0x01020304, Ack: 0x05060708, Flags: packet.ACK | packet.PSH, Window: 1024,
			Options: []byte{1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2}}
	}
	if protocol == model.SCTP {
		return packet.SCTPHeader{Src: from, Dst: to, Tag: 0x0a0b0c0d}
	}
	return packet.UDPHeader{Src: from, Dst: to}
}

// data is an ordinary packet of the service, with this much payload.
func (s scenario) data(payload int) []packet.Header {
	return []packet.Header{ip(s.client, s.vip), l4(s.protocol, clientPort, servicePort), packet.Zeros(payload)}
}

// flow is that of data.
func (s scenario) flow() model.Flow { return s.flowFrom(clientPort) }

// flowFrom is the flow of the client's port.
func (s scenario) flowFrom(port uint16) model.Flow {
	return model.Flow{Segment: s.segment, Source: s.client, Destination: s.vip, SourcePort: port, DestinationPort: servicePort, Protocol: uint8(s.protocol)}
}

// build is the frame of an untagged packet as it comes in.
func build(headers ...packet.Header) []byte {
	return packet.Build(slices.Concat([]packet.Header{arrived}, headers)...)
}

// forward is the row of a packet of flow f that goes to a backend.
func (s scenario) forward(name string, f model.Flow, backend int, headers ...packet.Header) row {
	reason := map[model.Mode]abi.Reason{
		model.L2DSR: abi.ReasonFORWARD_L2DSR,
		model.IPIP:  abi.ReasonFORWARD_IPIP,
		model.GUE:   abi.ReasonFORWARD_GUE,
		model.NAT:   abi.ReasonFORWARD_NAT,
	}[s.backends[backend].mode]
	return row{name: name, in: build(headers...)}.forwarded(reason, s.testService, backend, s.leaves(f, backend, headers...))
}

// left is the Ethernet header of what a backend is sent.
func (s *testService) left(backend int) packet.EthernetHeader {
	return packet.EthernetHeader{Dst: backendMAC(s.first + uint32(backend)), Src: egressMAC}
}

// leaves is the whole frame that a backend must be sent for a packet of flow f.
func (s *testService) leaves(f model.Flow, backend int, headers ...packet.Header) []byte {
	b := s.backends[backend]
	link := []packet.Header{s.left(backend)}
	if b.vlan != 0 {
		link = append(link, packet.VLANTag{ID: b.vlan})
	}
	hash := uint32(f.Hash(s.salt, s.affinity))
	inner := packet.Build(headers...)
	protocol := uint8(packet.ProtocolIPv6)
	if inner[0]>>4 == 4 {
		protocol = packet.ProtocolIPv4
	}
	switch b.mode {
	case model.IPIP:
		link = append(link, outer(b.address, hash, tos(inner), protocol))
	case model.GUE:
		link = append(link, outer(b.address, hash, tos(inner), packet.ProtocolUDP),
			packet.UDPHeader{Src: 0xc000 | uint16(hash&0x3fff), Dst: 6080, NoChecksum: b.address.Is4() || !sumKnown(headers)},
			packet.GUEHeader{Protocol: protocol, Private: s.row(f, backend, headers)})
	case model.NAT:
		headers = translated(headers, end{}, end{b.address, b.port}, 1)
	case model.L2DSR:
		if s.vip.Is4() {
			link[len(link)-1] = withType(link[len(link)-1], packet.EtherTypeIPv4)
		} else {
			link[len(link)-1] = withType(link[len(link)-1], packet.EtherTypeIPv6)
		}
	}
	if b.mode == model.NAT {
		return packet.Build(append(link, headers...)...)
	}
	return packet.Build(append(link, packet.Bytes(inner))...)
}

func withType(h packet.Header, etherType uint16) packet.Header {
	if tag, isTag := h.(packet.VLANTag); isTag {
		tag.Type = etherType
		return tag
	}
	ethernet := h.(packet.EthernetHeader)
	ethernet.Type = etherType
	return ethernet
}

// outer is a tunnel's outer IP header.
func outer(to netip.Addr, hash uint32, tos, protocol uint8) packet.Header {
	source := tunnelSource(to.Is4(), hash)
	if to.Is4() {
		return packet.IPv4Header{Src: source, Dst: to, TOS: tos, DF: true, TTL: 64, Protocol: protocol}
	}
	return packet.IPv6Header{Src: source, Dst: to, TrafficClass: tos, FlowLabel: hash & 0xfffff, HopLimit: 64, Next: &protocol}
}

// tunnelSource is the address that a flow's tunnel comes from: the prefix, and
// the flow's hash in the bits after it, the same in each word. In a tenant's network it is the director's there.
func tunnelSource(is4 bool, hash uint32) netip.Addr {
	if inTunnels != nil {
		return ownInside(!is4)
	}
	if is4 {
		a := tunnel4.Addr().As4()
		binary.BigEndian.PutUint32(a[:], binary.BigEndian.Uint32(a[:])|hash&(1<<(32-tunnel4.Bits())-1))
		return netip.AddrFrom4(a)
	}
	a := tunnel6.Addr().As16()
	binary.BigEndian.PutUint32(a[8:], hash)
	binary.BigEndian.PutUint32(a[12:], hash)
	return netip.AddrFrom16(a)
}

// tos is DSCP and ECN of an IP packet.
func tos(ip []byte) uint8 {
	if ip[0]>>4 == 4 {
		return ip[1]
	}
	return ip[0]<<4 | ip[1]>>4
}

// sumKnown says whether GUE over IPv6 carries a UDP checksum: where the inner
// packet's own one gives it for free.
func sumKnown(headers []packet.Header) bool {
	if len(headers) < 2 { // the bytes of a fragment
		return false
	}
	switch h := headers[1].(type) {
	case packet.TCPHeader:
		return true
	case packet.UDPHeader:
		return !h.NoChecksum
	}
	return false
}

// end is one end of a flow; without a port it stands for an address alone.
type end struct {
	address netip.Addr
	port    uint16
}

// translated is what NAT makes of a packet: its ends, and the TTL less some hops.
// An end without an address, and a port of zero, stay.
func translated(headers []packet.Header, from, to end, hops uint8) []packet.Header {
	keep := func(is, new netip.Addr) netip.Addr {
		if new.IsValid() {
			return new
		}
		return is
	}
	out := slices.Clone(headers)
	for i, h := range out {
		switch h := h.(type) {
		case packet.IPv4Header:
			h.Src, h.Dst, h.TTL = keep(h.Src, from.address), keep(h.Dst, to.address), h.TTL-hops
			out[i] = h
		case packet.IPv6Header:
			h.Src, h.Dst, h.HopLimit = keep(h.Src, from.address), keep(h.Dst, to.address), h.HopLimit-hops
			out[i] = h
		case packet.TCPHeader:
			h.Src, h.Dst = cmp.Or(from.port, h.Src), cmp.Or(to.port, h.Dst)
			out[i] = h
		case packet.UDPHeader:
			h.Src, h.Dst = cmp.Or(from.port, h.Src), cmp.Or(to.port, h.Dst)
			out[i] = h
		case packet.SCTPHeader:
			h.Src, h.Dst = cmp.Or(from.port, h.Src), cmp.Or(to.port, h.Dst)
			out[i] = h
		}
	}
	return out
}
