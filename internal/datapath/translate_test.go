package datapath

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"

	"github.com/vishvananda/netlink"

	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/packet"
)

// Replies of NAT backends take the kernel's route: the clients' is through wire0
// (see inNamespace), by a router whose MAC address is known.
var (
	router4    = netip.MustParseAddr("10.0.0.9")
	router6    = netip.MustParseAddr("2001:db8::9")
	unrouted4  = netip.MustParseAddr("192.88.99.7")
	unrouted6  = netip.MustParseAddr("2001:db8:dead::7")
	wireMAC    [6]byte
	wireNumber uint32
)

// routeReplies makes this host a router between lo, where the packets of
// BPF_PROG_TEST_RUN come in, and wire0.
func routeReplies(t *testing.T) {
	t.Helper()
	wire, err := netlink.LinkByName("wire0")
	must(t, err)
	wireNumber = uint32(wire.Attrs().Index)
	copy(wireMAC[:], wire.Attrs().HardwareAddr)
	for _, path := range []string{"ipv4/conf/all/forwarding", "ipv4/conf/lo/forwarding", "ipv6/conf/all/forwarding"} {
		must(t, os.WriteFile("/proc/sys/net/"+path, []byte("1"), 0))
	}
	for client, router := range map[netip.Addr]netip.Addr{client4: router4, client6: router6} {
		addNeighbor(t, router)
		destination := &net.IPNet{IP: client.AsSlice(), Mask: net.CIDRMask(client.BitLen(), client.BitLen())}
		must(t, netlink.RouteReplace(&netlink.Route{LinkIndex: int(wireNumber), Dst: destination, Gw: router.AsSlice()}))
	}
}

// routed is the Ethernet header of a reply on its way.
func routed(client netip.Addr) packet.EthernetHeader {
	router := router6
	if client.Is4() {
		router = router4
	}
	return packet.EthernetHeader{Dst: neighborMAC(router), Src: wireMAC}
}

// vipEnd and backendEnd are the two names of the server.
func (s scenario) vipEnd() end     { return end{s.vip, servicePort} }
func (s scenario) backendEnd() end { return end{s.backends[0].address, s.backends[0].port} }

// sent is the row of a reply that goes to the client as these headers.
func (s scenario) sent(name string, reason abi.Reason, in []byte, headers ...packet.Header) row {
	out := packet.Build(append([]packet.Header{routed(s.client)}, headers...)...)
	return row{name: name, in: in, reason: reason, action: xdpRedirect, out: out}
}

// answer is a packet from the backend to a client.
func (s scenario) answer(client netip.Addr, payload int) []packet.Header {
	b := s.backendEnd()
	return []packet.Header{ip(b.address, client), l4(s.protocol, b.port, clientPort), packet.Zeros(payload)}
}

func testReplies(t *testing.T) {
	w := &testWorld{}
	scenarios := w.scenarios(isPlainNAT)
	d := loadTestDirector(t, w)
	d.put(t, "egress", wireNumber, wireNumber)
	for i, s := range scenarios {
		t.Run(s.name, func(t *testing.T) {
			d.check(t, s.replyRows())
			d.check(t, s.unroutedRows())
			d.check(t, s.replyFragmentRows(uint32(i*100)))
			d.check(t, s.replyErrorRows())
		})
	}
}

func (s scenario) replyRows() []row {
	reply := func(name string, headers ...packet.Header) row {
		return s.sent(name, abi.ReasonFORWARD_REPLY, build(headers...), translated(headers, s.vipEnd(), end{}, 1)...)
	}
	answer := s.answer(s.client, 100)
	rows := []row{
		reply("reply", answer...),
		reply("no payload", s.answer(s.client, 0)...),
		reply("odd payload", answer[0], answer[1], packet.Text("odd")),
		reply("as large as fits", s.answer(s.client, 1500-len(packet.Build(s.answer(s.client, 0)...)))...),
		reply("TTL 2", withTTL(answer[0], 2), answer[1]),
		row{name: "TTL 1", in: build(withTTL(answer[0], 1), answer[1])}.passed(abi.ReasonPASS_TTL_EXPIRED),
		s.pass("from another port", answer[0], l4(s.protocol, otherPort, clientPort)),
		s.pass("from another host", ip(backendAddress(s.vip.Is4(), 0xfff), s.client), answer[1]),
	}
	if s.protocol == model.UDP && s.vip.Is4() {
		rows = append(rows, reply("UDP without checksum", answer[0], packet.UDPHeader{Src: backendPort, Dst: clientPort, NoChecksum: true}, packet.Text("x")))
	}
	if s.protocol == model.TCP {
		rows = append(rows, reply("SYN-ACK", answer[0], packet.TCPHeader{Src: backendPort, Dst: clientPort, Flags: packet.SYN | packet.ACK, Options: []byte{2, 4, 5, 0xb4}}))
	}
	return append(rows, s.tooBigReplyRows()...)
}

// tooBigReplyRows: the backend is told, by the client as far as it knows.
func (s scenario) tooBigReplyRows() []row {
	big := s.answer(s.client, 1600)
	told := scenario{testService: &testService{vip: s.client}, client: s.backendEnd().address}
	rows := []row{told.tooBig("reply that does not fit", nil, big)}
	if four, is4 := big[0].(packet.IPv4Header); is4 {
		four.DF = false
		big[0] = four
		rows = append(rows, s.unrouted("reply that may be fragmented", nil, big))
	}
	return rows
}

// unrouted is the row of a reply that the kernel gets as the client shall see it.
func (s scenario) unrouted(name string, tags, headers []packet.Header) row {
	link := append([]packet.Header{arrived}, tags...)
	in := packet.Build(append(link, headers...)...)
	out := packet.Build(append(link, translated(headers, s.vipEnd(), end{}, 0)...)...)
	return row{name: name, in: in, reason: abi.ReasonPASS_REPLY_UNROUTED, action: xdpPass, out: out}
}

func (s scenario) unroutedRows() []row {
	nowhere := unrouted6
	if s.vip.Is4() {
		nowhere = unrouted4
	}
	return []row{
		s.unrouted("no route", nil, s.answer(nowhere, 10)),
		s.unrouted("with a tag", []packet.Header{packet.VLANTag{Priority: 1}}, s.answer(s.client, 10)),
	}
}

func (s scenario) replyFragmentRows(id uint32) []row {
	in, out := pieces(id, s.answer(s.client, 600)...), pieces(id, translated(s.answer(s.client, 600), s.vipEnd(), end{}, 1)...)
	var rows []row
	for i := range in {
		reason := abi.ReasonFORWARD_FRAGMENT
		if i == 0 {
			reason = abi.ReasonFORWARD_REPLY
		}
		fragment := row{name: fmt.Sprintf("fragment %d", i), in: in[i]}
		if i == 0 && s.protocol == model.SCTP {
			rows = append(rows, fragment.dropped(abi.ReasonDROP_FRAGMENT_PORTS, s.testService))
			continue
		}
		fragment.reason, fragment.action, fragment.out = reason, xdpRedirect, relinked(out[i], routed(s.client))
		rows = append(rows, fragment)
	}
	return rows
}

// replyErrorRows are errors about packets that the backend was sent: from the
// backend, which is the VIP for the client, and from a router before it.
func (s scenario) replyErrorRows() (rows []row) {
	is4 := s.vip.Is4()
	router := numbered(is4, 9, 1)
	for _, e := range icmpErrors(is4) {
		for _, quoted := range []int{8, 20, 1000} {
			about := s.data(30)
			received := translated(about, end{}, s.backendEnd(), 1)
			told := translated(about, end{}, end{}, 1)
			for _, from := range []netip.Addr{s.backendEnd().address, router} {
				as := from
				if from != router {
					as = s.vip
				}
				rows = append(rows, s.sent(fmt.Sprintf("%s from %v, %d bytes", e.name, from, quoted), abi.ReasonFORWARD_ICMP_ERROR,
					build(ip(from, s.client), e.header, packet.Quote(quoted, received...)),
					withTTL(ip(as, s.client), 56), e.header, packet.Quote(quoted, told...)))
			}
		}
	}
	return rows
}

// Errors about packets that the client was sent, with the packet as the backend
// sent it.
func testNATErrors(t *testing.T) {
	w := &testWorld{}
	scenarios := w.scenarios(isPlainNAT)
	d := loadTestDirector(t, w)
	for _, s := range scenarios {
		var rows []row
		for _, e := range icmpErrors(s.vip.Is4()) {
			for _, quoted := range []int{8, 20, 1000} {
				original := translated(s.reply(servicePort), s.backendEnd(), end{}, 0)
				r := row{name: fmt.Sprintf("%s, %d bytes", e.name, quoted), in: build(s.router(), e.header, packet.Quote(quoted, s.reply(servicePort)...))}
				rows = append(rows, r.forwarded(abi.ReasonFORWARD_ICMP_ERROR, s.testService, 0, packet.Build(s.left(0),
					translated([]packet.Header{s.router()}, end{}, s.backendEnd(), 1)[0], e.header, packet.Quote(quoted, original...))))
			}
		}
		t.Run(s.name, func(t *testing.T) { d.check(t, rows) })
	}
}

// The fragments of a packet for a NAT backend.
func testNATFragments(t *testing.T) {
	w := &testWorld{}
	scenarios := w.scenarios(isPlainNAT)
	d := loadTestDirector(t, w)
	for i, s := range scenarios {
		in, out := pieces(uint32(i), s.data(600)...), pieces(uint32(i), translated(s.data(600), end{}, s.backendEnd(), 1)...)
		var rows []row
		for j := range in {
			reason := abi.ReasonFORWARD_FRAGMENT
			if j == 0 {
				reason = abi.ReasonFORWARD_NAT
			}
			fragment := row{name: fmt.Sprintf("fragment %d", j), in: in[j]}
			if j == 0 && s.protocol == model.SCTP {
				rows = append(rows, fragment.dropped(abi.ReasonDROP_FRAGMENT_PORTS, s.testService))
				continue
			}
			rows = append(rows, fragment.forwarded(reason, s.testService, 0, relinked(out[j], s.left(0))))
		}
		t.Run(s.name, func(t *testing.T) { d.check(t, rows) })
	}
}

// NAT to a network with a tag, to the packet's own port, and to this host.
func testNATVariants(t *testing.T) {
	w := &testWorld{}
	var rows []row
	for _, is4 := range []bool{true, false} {
		add := func(b testBackend, ports model.PortRange, segment model.Segment) scenario {
			b.mode, b.address = model.NAT, backendAddress(is4, len(w.services)+1)
			return scenario{client: clientOf(is4), testService: w.add(testService{vip: vipAddress(is4, len(w.services)), protocol: model.UDP,
				segment: segment, port: ports, backends: []testBackend{b}})}
		}
		tagged := add(testBackend{port: backendPort, vlan: 200}, singlePort(servicePort), model.Segment{})
		changed := add(testBackend{port: backendPort, vlan: 200}, singlePort(servicePort), vlan(100))
		removed := add(testBackend{port: backendPort}, singlePort(servicePort), vlan(300<<12|100))
		same := add(testBackend{}, model.PortRange{First: 1, Last: 100}, model.Segment{})
		rows = append(rows, tagged.forward("tag added", tagged.flow(), 0, tagged.data(9)...), same.forward("own port", same.flow(), 0, same.data(9)...))
		for s, tags := range map[scenario][]packet.Header{changed: {packet.VLANTag{ID: 100}}, removed: {s300, packet.VLANTag{ID: 100}}} {
			r := s.forward(fmt.Sprintf("%d tags", len(tags)), s.flow(), 0, s.data(9)...)
			r.in = packet.Build(append(append([]packet.Header{arrived}, tags...), s.data(9)...)...)
			rows = append(rows, r)
		}
		local := add(testBackend{port: backendPort, local: true}, singlePort(servicePort), model.Segment{})
		here := row{name: "this host", in: build(local.data(9)...), reason: abi.ReasonPASS_LOCAL, action: xdpPass, backend: local.first,
			out: build(translated(local.data(9), end{}, local.backendEnd(), 0)...)}
		rows = append(rows, here)
	}
	loadTestDirector(t, w).check(t, rows)
}
