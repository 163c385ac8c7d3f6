package answers

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"

	"weir.io/weir/internal/model"
	"weir.io/weir/lab/packet"
)

// sent is a frame, and what decides its placement.
type sent struct {
	side  int
	frame []byte
	// fresh is the packet's flow if the service's ring alone places it: the service has no history,
	// and the flow was not sent before.
	fresh *model.Flow
	of    *model.Service
	opens bool // it is a SYN
}

// packets makes random packets for some services.
type packets struct {
	r        *rand.Rand
	lab      *Lab
	services []model.Service
	replies  [][]byte // to packets that nat backends got
	fresh    uint32   // number of flows that were sent once
}

// next is a random packet.
func (p *packets) next() sent {
	r := p.r
	if len(p.replies) > 0 && r.IntN(6) == 0 {
		return sent{side: backendSide, frame: p.replies[r.IntN(len(p.replies))]}
	}
	n := r.IntN(len(p.services))
	s := &p.services[n]
	ethernet := packet.EthernetHeader{Dst: [6]byte(p.lab.sides[clientSide].director), Src: [6]byte(p.lab.sides[clientSide].own)}
	headers := []packet.Header{ethernet}
	if s.Segment != (model.Segment{}) && r.IntN(8) > 0 {
		headers = append(headers, packet.VLANTag{ID: uint16(s.Segment.ID)})
	}
	tagged := len(headers) > 1
	kind, is4 := r.IntN(14), s.VIP.Is4()
	f := model.Flow{Segment: s.Segment, Source: clientAddress(is4, r.IntN(clients)), Destination: s.VIP, Protocol: uint8(s.Protocol),
		SourcePort: uint16(1024 + r.IntN(40)), DestinationPort: s.Port.First + uint16(r.IntN(int(s.Port.Last-s.Port.First)+1))}
	if kind == 1 {
		f.Source = clientAddress(is4, 0) // so that some fragments belong together
	}
	if r.IntN(14) == 0 {
		f.DestinationPort = 1234 // no service has this port
	}
	once := kind >= 4 && r.IntN(3) == 0 && f.DestinationPort != 1234 && tagged == (s.Segment != (model.Segment{}))
	if once {
		p.fresh++
		f.SourcePort = uint16(2000 + p.fresh%60000)
	}
	headers = append(headers, networkOf(&f, uint8(r.IntN(4))))
	payload := packet.Zeros(r.IntN(60))
	switch kind {
	case 0:
		return sent{frame: packet.Build(append(headers, ping(is4))...)}
	case 1:
		l4, _ := p.transport(s, &f)
		fragments := packet.Fragments(uint32(1+r.IntN(2)), 64, append(headers, l4, packet.Zeros(150))...)
		return sent{frame: fragments[r.IntN(len(fragments))]}
	case 2:
		payload = packet.Zeros(1428)
	case 3:
		frame := packet.Build(append(headers, packet.Zeros(r.IntN(30)))...)
		frame[12+r.IntN(len(frame)-12)] ^= 1 << r.IntN(8)
		return sent{frame: frame}
	}
	l4, opens := p.transport(s, &f)
	out := sent{frame: packet.Build(append(headers, l4, payload)...)}
	if once && p.isFirst(s) {
		out.fresh, out.of, out.opens = &f, s, opens
	}
	return out
}

// isFirst says whether a service has no history, by its name.
func (p *packets) isFirst(s *model.Service) bool {
	return s.VIP.Is4() && s.VIP.As4()[2] != 0 || s.VIP.Is6() && s.VIP.As16()[7] != 0
}

// transport is the header of a packet, and whether it opens a connection.
func (p *packets) transport(s *model.Service, f *model.Flow) (packet.Header, bool) {
	if s.Protocol == model.UDP {
		return packet.UDPHeader{Src: f.SourcePort, Dst: f.DestinationPort}, false
	}
	flags := []uint8{packet.SYN, packet.SYN, packet.ACK, packet.ACK | packet.PSH, packet.FIN | packet.ACK, packet.RST}[p.r.IntN(6)]
	return packet.TCPHeader{Src: f.SourcePort, Dst: f.DestinationPort, Seq: p.r.Uint32(), Flags: flags, Window: 1024}, flags == packet.SYN
}

func networkOf(f *model.Flow, tos uint8) packet.Header {
	if f.Source.Is4() {
		return packet.IPv4Header{Src: f.Source, Dst: f.Destination, TOS: tos << 2, DF: true}
	}
	return packet.IPv6Header{Src: f.Source, Dst: f.Destination, TrafficClass: tos << 2}
}

func ping(is4 bool) packet.Header {
	if is4 {
		return packet.ICMPv4Header{Type: packet.EchoRequest, Rest: packet.EchoID(1, 2)}
	}
	return packet.ICMPv6Header{Type: packet.EchoRequest6, Rest: packet.EchoID(1, 2)}
}

// got notes a packet that came to a nat backend, which answers some of them later.
func (p *packets) got(frame []byte) {
	if reply := p.replyTo(frame); reply != nil && len(p.replies) < 64 {
		p.replies = append(p.replies, reply)
	} else if reply != nil {
		p.replies[p.r.IntN(len(p.replies))] = reply
	}
}

// replyTo is the answer to an untagged TCP segment; nil for other frames.
func (p *packets) replyTo(frame []byte) []byte {
	var from, to netip.Addr
	rest := frame[14:]
	switch binary.BigEndian.Uint16(frame[12:]) {
	case packet.EtherTypeIPv4:
		if len(rest) < 40 || rest[0] != 0x45 || rest[9] != packet.ProtocolTCP {
			return nil
		}
		from, to, rest = netip.AddrFrom4([4]byte(rest[12:])), netip.AddrFrom4([4]byte(rest[16:])), rest[20:]
	case packet.EtherTypeIPv6:
		if len(rest) < 60 || rest[6] != packet.ProtocolTCP {
			return nil
		}
		from, to, rest = netip.AddrFrom16([16]byte(rest[8:])), netip.AddrFrom16([16]byte(rest[24:])), rest[40:]
	default:
		return nil
	}
	side := p.lab.sides[backendSide]
	back := model.Flow{Source: to, Destination: from}
	return packet.Build(packet.EthernetHeader{Dst: [6]byte(side.director), Src: [6]byte(side.own)}, networkOf(&back, 0),
		packet.TCPHeader{Src: binary.BigEndian.Uint16(rest[2:]), Dst: binary.BigEndian.Uint16(rest), Flags: packet.SYN | packet.ACK}, packet.Text("reply"))
}
