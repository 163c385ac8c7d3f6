package agent

import (
	"net/netip"
	"slices"

	"weir.io/weir/lab/packet"
	"weir.io/weir/lab/twin"
)

// chooser makes all choices of a random packet: a number below n.
type chooser func(n int) int

func pickOne[T any](choose chooser, list ...T) T { return list[choose(len(list))] }

// near is a number at the edge of something.
func (choose chooser) near(base uint32) uint32 { return base + uint32(choose(7)) - 3 }

// probe is a packet in a tunnel: what its frames are made of, before and after, and what
// the twin is told of it.
type probe struct {
	from, to   netip.Addr
	tos        uint8
	noChecksum bool
	gue        packet.GUEHeader
	carried    carried
}

// carried is the packet in the tunnel.
type carried struct {
	client, vip netip.Addr
	tos         uint8
	options     []byte             // of IPv4
	extensions  []packet.Header    // of IPv6
	fragment    *packet.IPv4Header // MF and Offset
	rest        []packet.Header    // from L4 on
	protocol    uint8              // whose service it is for: of the VIP itself, with port 0, if it has none
	port        uint16
	packet      twin.Packet
	broken      bool
	before      *acknowledged // what the host remembers
}

// wrap makes the frame of the packet on its way from one host to another.
func (p *probe) wrap(from, to netip.Addr, private []byte) []byte {
	gue := p.gue
	gue.Private = private
	return build(frame{ether, withTOS(ip(from, to), p.tos), packet.UDPHeader{Src: 50000, Dst: 6080, NoChecksum: p.noChecksum}, gue,
		packet.Bytes(p.carried.build(p.carried.tos))})
}

// unwrapped makes the frame of the packet without the tunnel.
func (p *probe) unwrapped(tos uint8) []byte {
	e := ether
	e.Type = packet.EtherTypeIPv4
	if p.carried.vip.Is6() {
		e.Type = packet.EtherTypeIPv6
	}
	return build(frame{e, packet.Bytes(p.carried.build(tos))})
}

func (c *carried) build(tos uint8) []byte {
	header := withTOS(ip(c.client, c.vip), tos)
	if four, is4 := header.(packet.IPv4Header); is4 {
		four.Options = c.options
		if c.fragment != nil {
			four.MF, four.Offset, four.ID = c.fragment.MF, c.fragment.Offset, 7
		}
		header = four
	}
	b := build(frame{header}, c.extensions, c.rest)
	if c.broken {
		return b[:len(b)-1] // the inner length says more than there is
	}
	return b
}

func withTOS(h packet.Header, tos uint8) packet.Header {
	if four, is4 := h.(packet.IPv4Header); is4 {
		four.TOS = tos
		return four
	}
	six := h.(packet.IPv6Header)
	six.TrafficClass = tos
	return six
}

// probe makes a random packet about one of the zoo's connections.
func (z *zoo) probe(choose chooser) *probe {
	p := &probe{noChecksum: choose(2) == 0, tos: uint8(choose(4)) | uint8(choose(3))<<4}
	p.carried = z.carried(choose)
	p.gue.Protocol = packet.ProtocolIPv4
	if p.carried.vip.Is6() {
		p.gue.Protocol = packet.ProtocolIPv6
	}
	own, hops := []netip.Addr{host4}, []netip.Addr{peer4, third4, otherPeer4, host4}
	p.from, p.to = director4, host4
	if choose(2) == 0 {
		own, hops = []netip.Addr{host6, netip.AddrFrom16(host4.As16())}, []netip.Addr{peer6, third6, stranger6, host6, netip.AddrFrom16(host4.As16())}
		p.from, p.to = director6, host6
	}
	p.gue.Private = randomRow(choose, hops, own)
	if choose(4) > 0 {
		return p
	}
	switch choose(6) {
	case 0:
		p.from = pickOne(choose, director4, peer4, otherPeer4, stranger4)
		if p.to.Is6() {
			p.from = pickOne(choose, director6, peer6, third6, stranger6)
		}
	case 1:
		p.to = pickOne(choose, p.to, hops[0])
	case 2:
		p.gue.Control = true
	case 3:
		p.gue.Protocol = pickOne(choose, uint8(packet.ProtocolIPv4), packet.ProtocolIPv6, packet.ProtocolTCP)
	case 4:
		p.gue.Flags = uint16(choose(3))
	case 5:
		p.carried.broken = true
	}
	return p
}

// randomRow is private data: none, of another kind, or a row, which may contradict
// itself.
func randomRow(choose chooser, hops, own []netip.Addr) []byte {
	row := twin.Row{}
	for range 1 + choose(7) {
		row.Hops = append(row.Hops, pickOne(choose, hops...))
	}
	if choose(8) == 0 {
		row.Hops = slices.Repeat(own, 3)
	}
	row.Next = choose(len(row.Hops) + 1)
	b := row.Bytes()
	switch choose(16) {
	case 0:
		return nil
	case 1:
		b[choose(4)] += uint8(1 + choose(255))
		if b[0] == datagramRow { // whose hosts walk it otherwise
			b[0] = 0
		}
	case 2:
		b = b[:4*choose(len(b)/4)]
	case 3:
		b = append(b, 0, 0, 0, 0)
	}
	return b
}

// carried makes what is in the tunnel.
func (z *zoo) carried(choose chooser) carried {
	a := pickOne(choose, z.animals...)
	c := carried{client: a.client, vip: a.vip, tos: uint8(choose(4)) | 0x50}
	switch choose(8) {
	case 0, 1:
		c.quote(a, choose)
	case 2:
		c.echo()
	default:
		c.segment(a, choose)
	}
	if choose(6) == 0 {
		c.lengthen(choose)
	}
	if choose(12) == 0 {
		c.cut(choose)
	}
	return c
}

// segment is one of the connection, or not quite.
func (c *carried) segment(a *flow, choose chooser) {
	s := twin.Segment{Connection: a.connection()}
	s.Flags = pickOne[uint8](choose, packet.ACK, packet.ACK, packet.ACK|packet.PSH, packet.ACK|packet.FIN, packet.FIN, packet.RST,
		packet.RST|packet.ACK, packet.SYN, packet.SYN|packet.ACK, 0, uint8(choose(256)))
	data := packet.Zeros(pickOne(choose, 0, 0, 1, 2, 5, 700))
	s.Length = uint32(len(data))
	s.Sequence = choose.near(pickOne(choose, a.next, a.next, a.next+a.window, a.next-1<<31, uint32(choose(1<<16))<<16))
	if choose(2) == 0 { // it is the end that is at the edge
		if s.Sequence -= s.Length; s.Flags&packet.FIN != 0 {
			s.Sequence--
		}
	}
	s.Ack = pickOne(choose, a.ack, a.ack, a.ack, choose.near(a.ack), uint32(choose(1<<16))<<16)
	switch choose(16) {
	case 0:
		s.Client = netip.AddrPortFrom(s.Client.Addr(), s.Client.Port()^1<<15) // nobody's
	case 1:
		s.Client = netip.AddrPortFrom(s.Client.Addr().Next(), s.Client.Port())
	case 2:
		s.VIP = netip.AddrPortFrom(s.VIP.Addr(), 80)
	case 3:
		c.otherVIP(&s, choose)
	}
	if choose(3) == 0 {
		c.before = &acknowledged{s.Connection, twin.Cookie{
			Sequence: choose.near(pickOne(choose, a.next, s.Sequence, s.Sequence-1<<16, s.Sequence-1<<31)),
			Ack:      pickOne(choose, s.Ack, s.Ack, a.ack, choose.near(s.Ack)),
		}, choose(4) == 0}
	}
	c.client, c.vip = s.Client.Addr(), s.VIP.Addr()
	c.rest = frame{packet.TCPHeader{Src: s.Client.Port(), Dst: s.VIP.Port(), Flags: s.Flags, Seq: s.Sequence, Ack: s.Ack,
		Window: 1024, Options: make([]byte, pickOne(choose, 0, 0, 4, 12, 40))}, data}
	c.protocol, c.port, c.packet.Segment = packet.ProtocolTCP, s.VIP.Port(), &s
}

// otherVIP: nobody listens there, or it is none of this host's.
func (c *carried) otherVIP(s *twin.Segment, choose chooser) {
	if s.VIP.Addr().Is4() {
		s.VIP = pickOne(choose, netip.AddrPortFrom(rangeVIP4, 8003), netip.AddrPortFrom(rangeVIP4, 9000), netip.AddrPortFrom(notVIP4, 80))
	} else {
		s.VIP = pickOne(choose, netip.AddrPortFrom(rangeVIP6, 443), netip.AddrPortFrom(notVIP6, 80))
	}
}

// quote is an ICMP message that may be an error about a segment that the host has sent.
func (c *carried) quote(a *flow, choose chooser) {
	q := twin.Quote{Connection: a.connection(), Sequence: pickOne(choose, a.ack-1, a.ack-1, a.ack, a.ack-2, uint32(choose(1<<16)))}
	if choose(8) == 0 {
		q.Client = netip.AddrPortFrom(q.Client.Addr(), q.Client.Port()^1<<15)
	}
	length, told := pickOne(choose, 8, 8, 20, 7, 0), true
	from := ip(q.VIP.Addr(), q.Client.Addr())
	var quoted packet.Header = packet.TCPHeader{Src: q.VIP.Port(), Dst: q.Client.Port(), Seq: q.Sequence}
	switch choose(8) {
	case 0: // what a VIP never sends
		quoted, told = packet.AuthHeader{}, false
	case 1:
		if four, is4 := from.(packet.IPv4Header); is4 {
			four.Options = make([]byte, 4)
			from, told = four, false
		}
	}
	quote := packet.Quote(length, from, quoted)
	if c.vip.Is4() {
		kind := pickOne[uint8](choose, 3, 3, 11, 12, 4, 5, uint8(choose(256)))
		told = told && slices.Contains([]uint8{3, 11, 12}, kind)
		c.rest = frame{packet.ICMPv4Header{Type: kind, Code: uint8(choose(5)), Rest: 1400}, quote}
	} else {
		kind := pickOne[uint8](choose, 1, 2, 3, 4, 0, 5, uint8(choose(256)))
		told = told && kind >= 1 && kind <= 4
		c.rest = frame{packet.ICMPv6Header{Type: kind, Code: uint8(choose(5)), Rest: 1400}, quote}
	}
	if told && length >= 8 {
		c.packet.Quote = &q
	}
}

func (c *carried) echo() {
	if c.vip.Is4() {
		c.rest = frame{packet.ICMPv4Header{Type: packet.EchoRequest}, packet.Zeros(56)}
	} else {
		c.rest = frame{packet.ICMPv6Header{Type: packet.EchoRequest6}, packet.Zeros(56)}
	}
}

// lengthen puts options or extension headers before L4.
func (c *carried) lengthen(choose chooser) {
	if c.vip.Is4() {
		c.options = make([]byte, 4*(1+choose(10)))
		return
	}
	for range 1 + choose(5) {
		c.extensions = append(c.extensions, pickOne[packet.Header](choose,
			packet.ExtensionHeader{Kind: packet.HopByHop}, packet.ExtensionHeader{Kind: packet.DestOptions, Data: make([]byte, choose(30))},
			packet.AuthHeader{ICV: make([]byte, 12)}, packet.FragmentHeader{ID: 7})) // the last is of a whole packet
	}
}

// cut makes a fragment of the packet, of which sockets tell nothing.
func (c *carried) cut(choose chooser) {
	first := choose(2) == 0
	c.packet = twin.Packet{}
	if c.vip.Is4() {
		c.fragment = &packet.IPv4Header{MF: true}
		if !first {
			c.fragment = &packet.IPv4Header{MF: choose(2) == 0, Offset: 1400}
		}
	} else {
		h := packet.FragmentHeader{ID: 7, More: true}
		if !first {
			h.More, h.Offset = choose(2) == 0, 1400
		}
		c.extensions = append(c.extensions, h)
	}
	if !first {
		c.protocol, c.port = 0, 0
	}
}
