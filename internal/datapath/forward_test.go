package datapath

import (
	"testing"

	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/packet"
)

// Packets of a service, in every mode and family.
func testForward(t *testing.T) {
	w := &testWorld{}
	scenarios := w.scenarios(notFullNAT)
	d := loadTestDirector(t, w)
	for _, s := range scenarios {
		t.Run(s.name, func(t *testing.T) { d.check(t, s.forwardRows()) })
	}
}

func (s scenario) forwardRows() []row {
	from, to := l4(s.protocol, clientPort, servicePort), ip(s.client, s.vip)
	rows := []row{
		s.forward("data", s.flow(), 0, s.data(100)...),
		s.forward("no payload", s.flow(), 0, s.data(0)...),
		s.forward("odd payload", s.flow(), 0, to, from, packet.Text("odd")),
		s.forward("largest that fits", s.flow(), 0, s.sized(1500)...),
	}
	for _, tos := range []uint8{0, 1, 2, 3, 0xff} {
		rows = append(rows, s.forward("DSCP and ECN", s.flow(), 0, withTOS(to, tos), from, packet.Text("x")))
	}
	last := s.forward("TTL 1", s.flow(), 0, withTTL(to, 1), from)
	if s.backends[0].mode == model.NAT { // which routes
		last = row{name: "TTL 1", in: last.in}.passed(abi.ReasonPASS_TTL_EXPIRED)
	}
	rows = append(rows, last)
	if s.protocol == model.TCP {
		syn := packet.TCPHeader{Src: clientPort, Dst: servicePort, Seq: 1, Flags: packet.SYN | packet.ECE | packet.CWR,
			Options: []byte{2, 4, 5, 0xb4, 1, 3, 3, 7}}
		rows = append(rows,
			s.forward("SYN", s.flow(), 0, to, syn),
			s.forward("RST", s.flow(), 0, to, packet.TCPHeader{Src: clientPort, Dst: servicePort, Flags: packet.RST}),
			s.forward("urgent", s.flow(), 0, to, packet.TCPHeader{Src: clientPort, Dst: servicePort, Flags: packet.URG | packet.ACK, Urgent: 9}))
	}
	if s.protocol == model.UDP && s.vip.Is4() {
		rows = append(rows, s.forward("UDP without checksum", s.flow(), 0, to,
			packet.UDPHeader{Src: clientPort, Dst: servicePort, NoChecksum: true}, packet.Text("hello")))
	}
	if s.backends[0].mode == model.L2DSR {
		sent := s.forward("", s.flow(), 0, s.data(100)...)
		rows = append(rows, sentAlready("flooded by a switch", sent.out))
		for arrives, leaves := range map[uint8]uint8{64: 3, 3: 2, 2: 1} {
			rows = append(rows, s.forward("from the backend", s.flow(), 0, withTTL(to, leaves), from).from(sent.out[:6], withTTL(to, arrives), from))
		}
		last := row{}.from(sent.out[:6], withTTL(to, 1), from)
		rows = append(rows, sentAlready("from the backend, for the fourth time", last.in))
	}
	return append(rows, s.optionRows()...)
}

// sentAlready is a row with a frame that another director has sent: it is left alone, and counted for no
// backend.
func sentAlready(name string, in []byte) row {
	return row{name: name, in: in}.passed(abi.ReasonPASS_SENT_ALREADY)
}

// from is the row with a packet that arrives from another host than usually.
func (r row) from(mac []byte, headers ...packet.Header) row {
	r.in = build(headers...)
	copy(r.in[6:12], mac)
	return r
}

// sized is a packet of exactly this many bytes.
func (s scenario) sized(length int) []packet.Header {
	return s.data(length - len(packet.Build(s.data(0)...)))
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

func withTTL(h packet.Header, ttl uint8) packet.Header {
	if four, is4 := h.(packet.IPv4Header); is4 {
		four.TTL = ttl
		return four
	}
	six := h.(packet.IPv6Header)
	six.HopLimit = ttl
	return six
}

// optionRows are IPv4 options and IPv6 extension headers between IP and the ports.
func (s scenario) optionRows() []row {
	from := l4(s.protocol, clientPort, servicePort)
	if s.vip.Is4() {
		h := ip(s.client, s.vip).(packet.IPv4Header)
		var rows []row
		for _, words := range []int{1, 2, 10} {
			h.Options = make([]byte, 4*words) // end of options list
			h.Options[0] = 1                  // no operation
			rows = append(rows, s.forward("IP options", s.flow(), 0, h, from, packet.Text("data")))
		}
		return rows
	}
	to := ip(s.client, s.vip)
	hop := packet.ExtensionHeader{Kind: packet.HopByHop, Data: []byte{5, 2, 0, 0, 1, 0}}
	dst := packet.ExtensionHeader{Kind: packet.DestOptions, Data: make([]byte, 30)}
	routed := packet.ExtensionHeader{Kind: packet.Routing, Data: append([]byte{4, 0, 0, 0, 0, 0}, make([]byte, 16)...)}
	ah := packet.AuthHeader{SPI: 1, Sequence: 1, ICV: make([]byte, 12)}
	atomic := packet.FragmentHeader{ID: 99}
	return []row{
		s.forward("hop-by-hop", s.flow(), 0, to, hop, from, packet.Text("data")),
		s.forward("destination options", s.flow(), 0, to, dst, from, packet.Text("data")),
		s.forward("routing, no segments left", s.flow(), 0, to, routed, from, packet.Text("data")),
		s.forward("authentication header", s.flow(), 0, to, ah, from, packet.Text("data")),
		s.forward("atomic fragment", s.flow(), 0, to, atomic, from, packet.Text("data")),
		s.forward("every extension header", s.flow(), 0, to, hop, dst, routed, ah, atomic, from, packet.Text("data")),
	}
}
