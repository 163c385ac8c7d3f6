package histories

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"

	"weir.io/weir/internal/model"
	"weir.io/weir/lab/packet"
	"weir.io/weir/lab/twin"
)

// segment is the part of a server's TCP segment that the tests read.
type segment struct {
	twin.Connection
	flags         uint8
	sequence, ack uint32
}

// readSegment reads an IP packet without options or extension headers.
func readSegment(b []byte) (s segment, is bool) {
	var vip, client netip.Addr
	var tcp []byte
	switch {
	case len(b) >= 40 && b[0] == 0x45 && b[9] == unix.IPPROTO_TCP:
		vip, client, tcp = netip.AddrFrom4([4]byte(b[12:])), netip.AddrFrom4([4]byte(b[16:])), b[20:]
	case len(b) >= 60 && b[0]>>4 == 6 && b[6] == unix.IPPROTO_TCP:
		vip, client, tcp = netip.AddrFrom16([16]byte(b[8:])), netip.AddrFrom16([16]byte(b[24:])), b[40:]
	default:
		return s, false
	}
	s.VIP = netip.AddrPortFrom(vip, binary.BigEndian.Uint16(tcp))
	s.Client = netip.AddrPortFrom(client, binary.BigEndian.Uint16(tcp[2:]))
	s.sequence, s.ack, s.flags = binary.BigEndian.Uint32(tcp[4:]), binary.BigEndian.Uint32(tcp[8:]), tcp[13]
	return s, true
}

var ether = packet.EthernetHeader{Dst: [6]byte{2, 0, 0, 0, 0, 0x11}, Src: [6]byte{2, 0, 0, 0, 0, 0x99}}

func ip(src, dst netip.Addr) packet.Header {
	if src.Is4() {
		return packet.IPv4Header{Src: src, Dst: dst}
	}
	return packet.IPv6Header{Src: src, Dst: dst}
}

func connection(f model.Flow) twin.Connection {
	return twin.Connection{Client: netip.AddrPortFrom(f.Source, f.SourcePort), VIP: netip.AddrPortFrom(f.Destination, f.DestinationPort)}
}

// segmentFrame is a client's frame.
func segmentFrame(s *twin.Segment, data string) []byte {
	return packet.Build(ether, ip(s.Client.Addr(), s.VIP.Addr()),
		packet.TCPHeader{Src: s.Client.Port(), Dst: s.VIP.Port(), Flags: s.Flags, Seq: s.Sequence, Ack: s.Ack, Window: 65535}, packet.Text(data))
}

// errorFrame is the error of a router that cannot forward a server's packet.
func errorFrame(q *twin.Quote) []byte {
	client, vip := q.Client, q.VIP
	quote := packet.Quote(8, ip(vip.Addr(), client.Addr()), packet.TCPHeader{Src: vip.Port(), Dst: client.Port(), Seq: q.Sequence})
	if vip.Addr().Is4() {
		const hostUnreachable = 1
		return packet.Build(ether, ip(router4, vip.Addr()), packet.ICMPv4Header{Type: packet.Unreachable, Code: hostUnreachable}, quote)
	}
	const unreachable, addressUnreachable = 1, 3
	return packet.Build(ether, ip(router6, vip.Addr()), packet.ICMPv6Header{Type: unreachable, Code: addressUnreachable}, quote)
}
