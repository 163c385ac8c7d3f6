package datapath

import (
	"encoding/binary"
	"fmt"
	"slices"
	"testing"

	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/packet"
)

// A packet of no service goes to the kernel unchanged.
func testPassWhatIsNoService(t *testing.T) {
	w := &testWorld{}
	scenarios := w.scenarios(func(wayTo) bool { return true })
	d := loadTestDirector(t, w)
	for _, s := range scenarios {
		t.Run(s.name, func(t *testing.T) { d.check(t, s.passRows()) })
	}
}

func (s scenario) passRows() []row {
	is4 := s.vip.Is4()
	other := model.TCP
	if s.protocol == model.TCP {
		other = model.UDP
	}
	from := l4(s.protocol, clientPort, servicePort)
	tagged := row{name: "VIP of another segment", in: packet.Build(append([]packet.Header{arrived, packet.VLANTag{ID: 9}}, s.data(10)...)...)}
	return []row{
		s.pass("unknown port", ip(s.client, s.vip), l4(s.protocol, clientPort, otherPort)),
		s.pass("unknown address", ip(s.client, vipAddress(is4, 0xfff)), from),
		s.pass("from the service's port", ip(s.vip, s.client), l4(s.protocol, servicePort, clientPort)),
		s.pass("other protocol, same port", ip(s.client, s.vip), l4(other, clientPort, servicePort)),
		s.pass("GRE", withProtocol(ip(s.client, s.vip), 47), packet.Zeros(20)),
		s.pass("ESP", withProtocol(ip(s.client, s.vip), 50), packet.Zeros(20)),
		s.pass("no next header", withProtocol(ip(s.client, s.vip), packet.NoNextHeader)),
		s.pass("the other family's ICMP", withProtocol(ip(s.client, s.vip), icmpOf(clientOf(!is4))), packet.Bytes{8, 0, 0, 0, 0, 0, 0, 0}),
		tagged.passed(abi.ReasonPASS_NO_SERVICE),
	}
}

func withProtocol(h packet.Header, protocol uint8) packet.Header {
	if four, is4 := h.(packet.IPv4Header); is4 {
		four.Protocol = protocol
		return four
	}
	six := h.(packet.IPv6Header)
	six.Next = &protocol
	return six
}

// Frames that are not IP, and IP that is not for a VIP.
func testPassWhatIsNotIP(t *testing.T) {
	w := &testWorld{}
	w.scenarios(notNAT)
	d := loadTestDirector(t, w)
	frames := map[string][]byte{
		"ARP":                packet.Build(packet.EthernetHeader{Dst: [6]byte{255, 255, 255, 255, 255, 255}, Src: clientMAC, Type: packet.EtherTypeARP}, packet.Zeros(46)),
		"LLDP":               packet.Build(packet.EthernetHeader{Dst: [6]byte{1, 0x80, 0xc2, 0, 0, 0xe}, Src: clientMAC, Type: packet.EtherTypeLLDP}, packet.Zeros(46)),
		"ARP with a tag":     packet.Build(arrived, packet.VLANTag{ID: 5, Type: packet.EtherTypeARP}, packet.Zeros(46)),
		"IEEE 802.3 length":  packet.Build(packet.EthernetHeader{Dst: ownMAC, Src: clientMAC, Type: 46}, packet.Zeros(46)),
		"nothing":            packet.Build(packet.EthernetHeader{Dst: ownMAC, Src: clientMAC, Type: 0x88b5}),
		"three tags":         packet.Build(arrived, packet.VLANTag{ID: 1}, packet.VLANTag{ID: 2}, packet.VLANTag{ID: 3}, ip(client4, vipAddress(true, 0)), l4(6, 1, servicePort)),
		"tag without a type": packet.Build(arrived, packet.VLANTag{ID: 1})[:16],
	}
	var rows []row
	for name, frame := range frames {
		none := uint64(0)
		rows = append(rows, row{name: name, in: frame, bytes: &none}.passed(abi.ReasonPASS_NOT_IP))
	}
	neighbor := build(withTTL(ip(client6, vipAddress(false, 2)), 255), packet.ICMPv6Header{Type: packet.NeighborSolicitation}, packet.Zeros(16))
	rows = append(rows, row{name: "neighbor solicitation", in: neighbor}.passed(abi.ReasonPASS_NO_SERVICE))
	multicast := build(packet.IPv4Header{Src: client4, Dst: numbered(true, 224, 1), Protocol: 2, TTL: 1, Options: []byte{148, 4, 0, 0}}, packet.Zeros(8))
	rows = append(rows, row{name: "IGMP", in: multicast}.passed(abi.ReasonPASS_NO_SERVICE))
	d.check(t, rows)
}

// Every packet cut at every byte of its headers: never forwarded, never read
// beyond its end, always left to the kernel.
func testTruncated(t *testing.T) {
	w := &testWorld{}
	scenarios := w.scenarios(func(way wayTo) bool { return true })
	d := loadTestDirector(t, w)
	for _, s := range scenarios {
		t.Run(s.name, func(t *testing.T) { d.check(t, s.truncatedRows()) })
	}
}

func (s scenario) truncatedRows() (rows []row) {
	const link = 14 // BPF_PROG_TEST_RUN takes no frame below an Ethernet header
	headers := s.data(4)
	if s.vip.Is6() {
		headers = []packet.Header{headers[0], packet.ExtensionHeader{Kind: packet.DestOptions}, headers[1], headers[2]}
	}
	whole := build(headers...)
	cut := func(name string, frame []byte) row {
		bytes := uint64(0) // what is not there does not count
		if length := ipLength(frame); isIP(frame[link:]) && int(length) <= len(frame)-link {
			bytes = length
		}
		return row{name: name, in: frame, bytes: &bytes}.passed(abi.ReasonPASS_MALFORMED)
	}
	for length := link; length < len(whole); length++ {
		rows = append(rows, cut(fmt.Sprintf("frame of %d bytes", length), whole[:length:length]))
	}
	// The packet's own length ends before its L4 header does.
	ipHeader := len(packet.Build(headers[:len(headers)-2]...))
	l4Header := 8
	if s.protocol == model.TCP {
		l4Header = 20
	}
	for length := range ipHeader + l4Header {
		frame := slices.Clone(whole)
		if s.vip.Is4() {
			binary.BigEndian.PutUint16(frame[link+2:], uint16(length))
		} else if length < 40 {
			continue
		} else {
			binary.BigEndian.PutUint16(frame[link+4:], uint16(length-40))
		}
		rows = append(rows, cut(fmt.Sprintf("length of %d bytes", length), frame))
	}
	for _, first := range []byte{0, 0x15, 0x40, 0x44, 0x55, 0x75, 0xf5} {
		frame := slices.Clone(whole)
		frame[link] = first
		rows = append(rows, cut(fmt.Sprintf("IP header that begins with %#02x", first), frame))
	}
	return rows
}

// isIP says whether an IP header is there and does not contradict itself.
func isIP(b []byte) bool {
	if len(b) < 20 || b[0]>>4 == 6 {
		return len(b) >= 40
	}
	header := int(b[0]&15) * 4
	return b[0]>>4 == 4 && header >= 20 && header <= int(binary.BigEndian.Uint16(b[2:]))
}
