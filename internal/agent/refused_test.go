package agent

import (
	"net/netip"

	"weir.io/weir/lab/packet"
)

// refused are frames that ingress does not unwrap.
func refused() []ingressRow {
	web := frame{ip(client4, vip4), packet.TCPHeader{Src: 33000, Dst: 443, Flags: packet.ACK}, packet.Text("GET /")}
	web6 := frame{ip(client6, vip6), packet.TCPHeader{Src: 33000, Dst: 443, Flags: packet.ACK}}
	fromDirector := ip(director4, host4)
	udp := packet.UDPHeader{Src: 50000, Dst: 6080}
	gue := func(h packet.Header, inner frame) []byte { return build(frame{ether, fromDirector, udp, h}, inner) }
	// outer wraps the web request in one IP header.
	outer := func(h packet.Header) []byte { return build(frame{ether, h}, web) }
	extended := func(kind uint8) []byte {
		return build(frame{ether, ip(director6, host6), packet.ExtensionHeader{Kind: kind}}, web6)
	}
	versioned := gue(packet.GUEHeader{}, web)
	versioned[14+20+8] |= 1 << 6
	wrongVersion := outer(fromDirector)
	wrongVersion[14] = 5<<4 | 5
	shortHeader := outer(fromDirector)
	shortHeader[14] = 4<<4 | 4
	innerVersion := outer(fromDirector)
	innerVersion[14+20] = 6<<4 | 5
	innerHeader := outer(fromDirector)
	innerHeader[14+20] = 4<<4 | 4
	wrongVersion6 := build(frame{ether, ip(director6, host6)}, web6)
	wrongVersion6[14] = 4 << 4
	seven := frame{ip(client6, vip6)}
	for range 7 {
		seven = append(seven, packet.ExtensionHeader{Kind: packet.DestOptions})
	}
	seven = append(seven, packet.TCPHeader{Src: 33000, Dst: 443})

	const (
		notIP     = bpfHostReasonHOST_PASS_NOT_IP
		notTunnel = bpfHostReasonHOST_PASS_NOT_TUNNEL
		malformed = bpfHostReasonHOST_PASS_MALFORMED
		options   = bpfHostReasonHOST_PASS_OPTIONS
		fragment  = bpfHostReasonHOST_PASS_FRAGMENT
		notHere   = bpfHostReasonHOST_PASS_NOT_HERE
		unknown   = bpfHostReasonHOST_PASS_UNKNOWN_SOURCE
		notVIP    = bpfHostReasonHOST_PASS_NOT_VIP
		broken    = bpfHostReasonHOST_DROP_INNER_MALFORMED
		noService = bpfHostReasonHOST_DROP_NO_SERVICE
		notPeer   = bpfHostReasonHOST_DROP_NOT_PEER
	)
	return append([]ingressRow{
		{name: "ARP", in: build(frame{packet.EthernetHeader{Type: packet.EtherTypeARP}, packet.Zeros(28)}), reason: notIP},
		{name: "two tags", reason: notIP, only: onXDP, link: 18,
			in: build(frame{ether, packet.VLANTag{ID: 5}, packet.VLANTag{ID: 6}, fromDirector}, web)},
		{name: "second tag", in: build(frame{ether, packet.VLANTag{ID: 6}, fromDirector}, web), reason: notIP, only: onTC},

		{name: "TCP to the host", in: build(frame{ether, ip(client4, host4), packet.TCPHeader{Src: 1, Dst: 22}}), reason: notTunnel},
		{name: "TCP6 to the host", in: build(frame{ether, ip(client6, host6), packet.TCPHeader{Src: 1, Dst: 22}}), reason: notTunnel},
		{name: "request by l2dsr", in: build(frame{ether}, web), reason: notTunnel},
		{name: "UDP to another port", in: build(frame{ether, fromDirector, packet.UDPHeader{Src: 1, Dst: 6081}, packet.GUEHeader{}}, web), reason: notTunnel},
		{name: "ICMPv6", in: build(frame{ether, ip(client6, host6), packet.ICMPv6Header{Type: 128}}), reason: notTunnel},

		{name: "version 5", in: wrongVersion, reason: malformed},
		{name: "header of 16 bytes", in: shortHeader, reason: malformed},
		{name: "IPv6 of version 4", in: wrongVersion6, reason: malformed},
		{name: "length shorter than the header", in: outer(packet.IPv4Header{Src: director4, Dst: host4, Length: 19}), reason: malformed},
		{name: "UDP length differs", reason: malformed,
			in: build(frame{ether, fromDirector, packet.UDPHeader{Src: 1, Dst: 6080, Length: 60}, packet.GUEHeader{}}, web)},
		{name: "GUE header longer than the packet", reason: malformed,
			in: gue(packet.GUEHeader{Protocol: packet.ProtocolIPv4, Private: make([]byte, 8)}, nil)[:14+20+8+4]},
		{name: "hlen beyond the packet", in: beyond(gue(packet.GUEHeader{Protocol: packet.ProtocolIPv4}, frame{packet.Zeros(8)})), reason: malformed},

		{name: "outer options", in: outer(packet.IPv4Header{Src: director4, Dst: host4, Options: []byte{1, 1, 1, 0}}), reason: options},
		{name: "outer hop-by-hop header", in: extended(packet.HopByHop), reason: options},
		{name: "outer routing header", in: extended(packet.Routing), reason: options},
		{name: "outer destination options", in: extended(packet.DestOptions), reason: options},
		{name: "outer authentication header", reason: options,
			in: build(frame{ether, ip(director6, host6), packet.AuthHeader{ICV: make([]byte, 12)}}, web6)},
		{name: "outer first fragment", in: outer(packet.IPv4Header{Src: director4, Dst: host4, MF: true}), reason: fragment},
		{name: "outer later fragment", in: outer(packet.IPv4Header{Src: director4, Dst: host4, Offset: 80}), reason: fragment},
		{name: "outer fragment of IPv6", in: build(frame{ether, ip(director6, host6), packet.FragmentHeader{More: true}}, web6), reason: fragment},

		{name: "tunnel to another host", in: outer(ip(director4, peer4)), reason: notHere},
		{name: "GUE to another host", in: build(frame{ether, ip(director4, peer4), udp, packet.GUEHeader{}}, web), reason: notHere},
		{name: "tunnel to the VIP", in: outer(ip(director4, vip4)), reason: notHere},
		{name: "tunnel to another host of IPv6", in: build(frame{ether, ip(director6, peer6)}, web6), reason: notHere},

		{name: "GUE variant 1", in: versioned, reason: bpfHostReasonHOST_PASS_GUE_VERSION},
		{name: "GUE control message", in: gue(packet.GUEHeader{Control: true}, web), reason: bpfHostReasonHOST_PASS_GUE_CONTROL},
		{name: "GUE with Ethernet inside", in: gue(packet.GUEHeader{Protocol: 143}, web), reason: bpfHostReasonHOST_PASS_GUE_PROTOCOL},

		{name: "IPIP from a stranger", in: outer(ip(stranger4, host4)), reason: unknown},
		{name: "IPIP over IPv6 from a stranger", in: build(frame{ether, ip(stranger6, host6)}, web), reason: unknown},
		{name: "GUE from a client", in: build(frame{ether, ip(client4, host4), udp, packet.GUEHeader{}}, web), reason: unknown},

		{name: "other tunnel of the director", reason: notVIP,
			in: build(frame{ether, fromDirector, ip(client4, notVIP4), packet.TCPHeader{Src: 1, Dst: 80}})},
		{name: "other tunnel over GUE", reason: notVIP,
			in: gue(packet.GUEHeader{}, frame{ip(client6, notVIP6), packet.UDPHeader{Src: 1, Dst: 53}})},

		{name: "inner version 6 in protocol 4", in: innerVersion, reason: broken},
		{name: "inner header of 16 bytes", in: innerHeader, reason: broken},
		{name: "inner IPv4 said to be IPv6", in: gue(packet.GUEHeader{Protocol: packet.ProtocolIPv6}, web), reason: broken},
		{name: "inner packet shorter than its tunnel", in: build(frame{ether}, carrying(frame{fromDirector}, packet.ProtocolIPv4), frame{packet.Bytes(build(web)), packet.Zeros(4)}), reason: broken},
		{name: "two GUE packets that the kernel glued", in: gue(packet.GUEHeader{Protocol: packet.ProtocolIPv4}, frame{packet.Bytes(build(web)), packet.Bytes(build(web))}), reason: broken},
		{name: "inner TCP header cut short", in: build(frame{ether, fromDirector, packet.IPv4Header{Src: client4, Dst: vip4, Protocol: packet.ProtocolTCP}, packet.Zeros(19)}), reason: broken},
		{name: "inner UDP header cut short", in: build(frame{ether, fromDirector, packet.IPv4Header{Src: client4, Dst: vip4, Protocol: packet.ProtocolUDP}, packet.Zeros(7)}), reason: broken},
		{name: "seven extension headers", in: build(frame{ether, fromDirector}, seven), reason: broken},

		{name: "VIP's other port", in: build(frame{ether, fromDirector, ip(client4, vip4), packet.TCPHeader{Src: 1, Dst: 80}}), reason: noService},
		{name: "VIP's other protocol", in: build(frame{ether, fromDirector, ip(client4, vip4), packet.UDPHeader{Src: 1, Dst: 443}}), reason: noService},
		{name: "port before the range", in: build(frame{ether, fromDirector, ip(client4, rangeVIP4), packet.TCPHeader{Src: 1, Dst: 7999}}), reason: noService},
		{name: "port after the range", in: build(frame{ether, fromDirector, ip(client4, rangeVIP4), packet.TCPHeader{Src: 1, Dst: 8101}}), reason: noService},
		{name: "SCTP to the VIP", reason: noService,
			in: build(frame{ether, fromDirector, packet.IPv4Header{Src: client4, Dst: vip4, Protocol: 132}, packet.Zeros(12)})},
		{name: "ICMPv6 in IPv4", reason: noService,
			in: build(frame{ether, fromDirector, packet.IPv4Header{Src: client4, Dst: vip4, Protocol: 58}, packet.Zeros(12)})},
		{name: "UDP6 to a VIP of TCP only", in: build(frame{ether, fromDirector, ip(client6, rangeVIP6), packet.UDPHeader{Src: 1, Dst: 53}}), reason: noService},

		{name: "second chance from a backend", in: build(frame{ether, ip(peer4, host4)}, web),
			reason: bpfHostReasonHOST_DECAP_IPIP, service: "web4", out: build(frame{ether}, web)},
		{name: "second chance from a backend of IPv6", in: build(frame{ether, ip(peer6, host6)}, web6),
			reason: bpfHostReasonHOST_DECAP_IPIP, service: "web6", out: build(frame{ether}, web6)},
		{name: "ICMP error from a backend of the VIP", in: build(frame{ether, ip(otherPeer4, host4), ip(client4, vip4), packet.ICMPv4Header{Type: 3}, packet.Zeros(28)}),
			reason: bpfHostReasonHOST_DECAP_IPIP, service: "192.0.2.10",
			out: build(frame{ether, ip(client4, vip4), packet.ICMPv4Header{Type: 3}, packet.Zeros(28)})},
		{name: "from a backend of another service", in: build(frame{ether, ip(otherPeer4, host4)}, web), reason: notPeer},
		{name: "ICMP error from a backend of another VIP", reason: notPeer,
			in: build(frame{ether, ip(otherPeer4, host4), ip(client4, rangeVIP4), packet.ICMPv4Header{Type: 3}, packet.Zeros(28)})},

		// Without a type the kernel does not know how to take such a packet apart.
		{name: "coalesced by nobody knows whom", in: outer(fromDirector), reason: bpfHostReasonHOST_DROP_DECAP_FAILED, only: onTC, gso: 30},
	}, nobodys()...)
}

// nobodys are packets to services from where no client is: from addresses that nobody has, and, of
// UDP, from a VIP of this host.
func nobodys() (rows []ingressRow) {
	add := func(source string, vip netip.Addr, l4 packet.Header) {
		outer := ip(director6, host6)
		if vip.Is4() {
			outer = ip(director4, host4)
		}
		rows = append(rows, ingressRow{name: source + " to " + vip.String(), reason: bpfHostReasonHOST_DROP_INNER_SOURCE,
			in: build(frame{ether, outer}, frame{ip(netip.MustParseAddr(source), vip), l4})})
	}
	tcp, udp := packet.TCPHeader{Src: 33000, Dst: 443, Flags: packet.ACK}, packet.UDPHeader{Src: 53, Dst: 53}
	for _, source := range []string{"0.0.0.0", "127.0.0.1", "224.0.0.1", "239.1.2.3", "255.255.255.255"} {
		add(source, vip4, tcp)
		add(source, vip4, udp)
	}
	for _, source := range []string{"::", "::1", "::ffff:10.0.0.1", "ff02::1"} {
		add(source, vip6, tcp)
		add(source, vip6, udp)
	}
	for _, source := range []netip.Addr{vip4, rangeVIP4} {
		add(source.String(), vip4, udp)
	}
	for _, source := range []netip.Addr{vip6, rangeVIP6} {
		add(source.String(), vip6, udp)
	}
	return rows
}

// beyond makes a GUE header say that 16 bytes of private data follow.
func beyond(in []byte) []byte {
	in[14+20+8] = 4
	return in
}
