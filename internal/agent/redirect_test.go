package agent

import (
	"net/netip"
	"slices"
	"testing"

	"weir.io/weir/lab/packet"
)

// The life of a redirected connection, in both families and with another port.
func TestRedirectedConnection(t *testing.T) {
	for _, c := range connections() {
		t.Run(c.service, func(t *testing.T) {
			h := newRedirectHost(t)
			h.check(c.asks(), c.taken(),
				hostStep{name: "SYN-ACK again", arrives: true, in: c.answers(), out: c.taken().out, verdict: tcNext},
				c.sends(packet.ACK, 0), c.sends(packet.ACK|packet.PSH, 1001), c.receives(packet.ACK, 0), c.receives(packet.ACK|packet.PSH, 1001),
				hostStep{name: "SYN again", in: segment(c.client, c.vip, synOf(linuxSYN...)), out: segment(c.client, c.backend, synOf(linuxSYN...)), verdict: tcRedirect, event: c.service + " early"},
				leavesAs("the same on its way", "", segment(c.client, c.backend, synOf(linuxSYN...)), nil),
				c.receives(packet.FIN|packet.ACK, 0), c.sends(packet.FIN|packet.ACK, 0), c.receives(packet.ACK, 0))
			list, err := h.status()
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range list {
				if s.VIP != c.vip {
					continue
				}
				if s.Opened != 1 || s.Connections != 1 || s.SentPackets != 4 || s.ReceivedPackets != 6 {
					t.Errorf("%d connections of %d, %d packets sent and %d received, want 1 of 1, 4 and 6", s.Connections, s.Opened, s.SentPackets, s.ReceivedPackets)
				}
			}
			// The next connection by the same port begins as the first one did.
			next := synOf(linuxSYN...)
			next.Seq = 4711
			asks := next
			asks.Options = withOption(netip.AddrPort{}, linuxSYN)
			h.check(leavesAs("next SYN", c.service+" asked", segment(c.client, c.vip, next), segment(c.client, c.vip, asks)),
				leavesAs("data of nobody", "", segment(c.client, c.vip, dataOf(packet.ACK)), nil),
				arrivesAs("data of the one before", "", segment(c.backend, c.client, dataOf(packet.ACK)), nil))
		})
	}
}

// Errors about redirected packets are about packets to the VIP when they come up. Others
// stay as they are.
func TestErrorsAboutRedirected(t *testing.T) {
	for _, c := range connections() {
		is4 := c.vip.Addr().Is4()
		router, errors := stranger6, []packet.Header{
			packet.ICMPv6Header{Type: packet.PacketTooBig, Rest: 1400}, packet.ICMPv6Header{Type: packet.Unreachable6, Code: packet.PortUnreachable6},
			packet.ICMPv6Header{Type: packet.TimeExceeded6}, packet.ICMPv6Header{Type: packet.ParameterProblem6, Rest: 40}}
		var echo packet.Header = packet.ICMPv6Header{Type: packet.EchoRequest6}
		if is4 {
			router, errors = stranger4, []packet.Header{
				packet.ICMPv4Header{Type: packet.Unreachable, Code: packet.FragmentationNeeded, Rest: 1400}, packet.ICMPv4Header{Type: packet.Unreachable, Code: packet.PortUnreachable},
				packet.ICMPv4Header{Type: packet.TimeExceeded}, packet.ICMPv4Header{Type: packet.ParameterProblem, Rest: 20 << 24}}
			echo = packet.ICMPv4Header{Type: packet.EchoRequest}
		}
		about := func(icmp packet.Header, to netip.AddrPort) frame {
			return frame{ip(router, c.client.Addr()), icmp, packet.Quote(8, segment(c.client, to, dataOf(packet.ACK), packet.Zeros(100))...)}
		}
		t.Run(c.service, func(t *testing.T) {
			h := newRedirectHost(t)
			h.check(c.asks(), c.taken())
			for _, e := range errors {
				h.check(arrivesAs("error", c.service+" error", about(e, c.backend), about(e, c.vip)),
					arrivesAs("error about another port", "", about(e, netip.AddrPortFrom(c.backend.Addr(), 9)), nil),
					arrivesAs("error about the VIP", "", about(e, c.vip), nil),
					arrivesAs("error that quotes too little", "", frame{ip(router, c.client.Addr()), e, packet.Quote(7, segment(c.client, c.backend, dataOf(packet.ACK))...)}, nil),
					arrivesAs("error that quotes nothing", "", frame{ip(router, c.client.Addr()), e}, nil))
			}
			h.check(arrivesAs("echo", "", about(echo, c.backend), nil))
		})
	}
}

// The cases in which a connection falls back to the service's mode.
func TestNotRedirected(t *testing.T) {
	for _, c := range connections() {
		to := func(h packet.TCPHeader, payload ...packet.Header) frame {
			return segment(c.client, c.vip, h, payload...)
		}
		other := netip.AddrPortFrom(c.client.Addr(), 50000)
		for name, steps := range map[string][]hostStep{
			"the second SYN does not ask": {c.asks(), leavesAs("SYN again", c.service+" again", to(synOf(linuxSYN...)), nil),
				leavesAs("and again", "", to(synOf(linuxSYN...)), nil),
				arrivesAs("answer to the first one", c.service+" not_asked_for", c.answers(), nil),
				arrivesAs("SYN-ACK of the VIP", "", segment(c.vip, c.client, synAckOf(linuxSYN...)), nil)},
			"the VIP answers": {c.asks(), arrivesAs("SYN-ACK of the VIP", c.service+" not_taken", segment(c.vip, c.client, synAckOf(linuxSYN...)), nil),
				arrivesAs("answer to a copy", c.service+" not_asked_for", c.answers(), nil), leavesAs("data", "", to(dataOf(packet.ACK)), nil)},
			"no room": {leavesAs("SYN", c.service+" no_room", to(synOf(slices.Concat(linuxSYN, slices.Repeat([]byte{1}, 12))...)), nil),
				leavesAs("again", "", to(synOf(slices.Concat(linuxSYN, slices.Repeat([]byte{1}, 12))...)), nil),
				arrivesAs("answer to nothing", c.service+" not_asked_for", c.answers(), nil),
				arrivesAs("SYN-ACK of the VIP", "", segment(c.vip, c.client, synAckOf(linuxSYN...)), nil)},
			"no room in the answer": {leavesAs("SYN", c.service+" no_room", to(synOf(slices.Repeat([]byte{1}, 28)...)), nil)},
			"room in the answer": {leavesAs("SYN", c.service+" asked", to(synOf(slices.Repeat([]byte{1}, 24)...)),
				to(synOf(withOption(netip.AddrPort{}, slices.Repeat([]byte{1}, 24))...)))},
			"no options":               {leavesAs("SYN", c.service+" asked", to(synOf()), to(synOf(withOption(netip.AddrPort{}, nil)...)))},
			"data":                     {leavesAs("SYN", c.service+" has_data", to(synOf(linuxSYN...), packet.Text("early")), nil)},
			"Fast Open":                {leavesAs("SYN", c.service+" forbidden", to(synOf(34, 2, 1, 1)), nil)},
			"MPTCP":                    {leavesAs("SYN", c.service+" forbidden", to(synOf(30, 4, 0, 1)), nil)},
			"somebody asks already":    {leavesAs("SYN", c.service+" asks_already", to(synOf(withOption(netip.AddrPort{}, linuxSYN)...)), nil)},
			"an option of no byte":     {leavesAs("SYN", c.service+" malformed", to(synOf(5, 0, 1, 1)), nil)},
			"the end before its place": {leavesAs("SYN", c.service+" no_room", to(synOf(2, 4, 5, 0xb4, 0, 0, 0, 0)), nil)},
			"another port of the VIP":  {leavesAs("SYN", "", segment(c.client, netip.AddrPortFrom(c.vip.Addr(), 444), synOf(linuxSYN...)), nil)},
			"RST":                      {leavesAs("RST", "", to(packet.TCPHeader{Flags: packet.RST}), nil)},
			"no asking, but an answer": {arrivesAs("SYN-ACK", c.service+" not_asked_for", c.answers(), nil)},
			"a call of the backend itself": {c.asks(), leavesAs("SYN", "", segment(c.client, c.backend, synOf(linuxSYN...)), nil),
				arrivesAs("SYN-ACK without option", "", segment(c.backend, c.client, synAckOf(linuxSYN...)), nil)},
			"a port that calls the backend itself": {leavesAs("SYN", "", segment(c.client, c.backend, synOf(linuxSYN...)), nil),
				leavesAs("SYN to the VIP", c.service+" may_clash", to(synOf(linuxSYN...)), nil),
				leavesAs("another port's", c.service+" asked", segment(other, c.vip, synOf(linuxSYN...)), segment(other, c.vip, synOf(withOption(netip.AddrPort{}, linuxSYN)...)))},
		} {
			t.Run(c.service+": "+name, func(t *testing.T) { newRedirectHost(t).check(steps...) })
		}
	}
}

// Answers that must not take a connection over. The right one does, after each of them.
func TestForgedAnswers(t *testing.T) {
	for _, c := range connections() {
		backend := func(a netip.Addr) netip.AddrPort { return netip.AddrPortFrom(a, c.backend.Port()) }
		stranger := stranger6
		if c.vip.Addr().Is4() {
			stranger = stranger4
		}
		forged := func(from netip.AddrPort, h packet.TCPHeader, vip netip.AddrPort, options ...byte) frame {
			h.Options = options
			if options == nil {
				h.Options = withOption(vip, linuxSYN)
			}
			return segment(from, c.client, h)
		}
		number := synAckOf()
		number.Ack++
		before := synAckOf()
		before.Ack--
		filled := withOption(c.vip, nil)
		for name, s := range map[string]hostStep{
			"next number":            arrivesAs("", c.service+" not_asked_for", forged(c.backend, number, c.vip), nil),
			"number before":          arrivesAs("", c.service+" not_asked_for", forged(c.backend, before, c.vip), nil),
			"from a stranger":        arrivesAs("", c.service+" foreign", forged(backend(stranger), synAckOf(), c.vip), nil),
			"another port of it":     arrivesAs("", "nobody's not_asked_for", forged(c.backend, synAckOf(), netip.AddrPortFrom(c.vip.Addr(), 9)), nil),
			"no VIP":                 arrivesAs("", "nobody's not_asked_for", forged(c.backend, synAckOf(), netip.AddrPortFrom(c.client.Addr(), c.vip.Port())), nil),
			"option with zeroes":     arrivesAs("", "", forged(c.backend, synAckOf(), netip.AddrPort{}), nil),
			"no option":              arrivesAs("", "", forged(c.backend, synAckOf(), c.vip, linuxSYN...), nil),
			"option at an odd place": arrivesAs("", "", forged(c.backend, synAckOf(), c.vip, slices.Concat([]byte{1}, filled[:10], []byte{1})...), nil),
			"option twice":           arrivesAs("", "", forged(c.backend, synAckOf(), c.vip, slices.Concat(filled, filled)...), nil),
			"option cut short":       arrivesAs("", "", forged(c.backend, synAckOf(), c.vip, slices.Concat([]byte{1, 1, 1, 1}, filled[:8])...), nil),
			"with Fast Open":         arrivesAs("", "", forged(c.backend, synAckOf(), c.vip, slices.Concat([]byte{34, 6, 1, 2, 3, 4, 1, 1}, filled)...), nil),
			"to another port": arrivesAs("", c.service+" not_asked_for",
				segment(c.backend, netip.AddrPortFrom(c.client.Addr(), c.client.Port()+7), synAckOf(withOption(c.vip, nil)...)), nil),
			"with data": arrivesAs("", "", segment(c.backend, c.client, synAckOf(withOption(c.vip, nil)...), packet.Text("x")), nil),
		} {
			t.Run(c.service+": "+name, func(t *testing.T) {
				s.name = name
				newRedirectHost(t).check(c.asks(), s, c.taken(), c.sends(packet.ACK, 10), c.receives(packet.ACK, 10))
			})
		}
	}
}

// A backend's host repeats what a SYN said, in the answer to that SYN.
func TestEcho(t *testing.T) {
	for _, c := range []connection{
		{"four", netip.AddrPortFrom(client4, 40000), handedVIP4, netip.AddrPortFrom(host4, 443)},
		{"six", netip.AddrPortFrom(client6, 40000), handedVIP6, netip.AddrPortFrom(host6, 443)},
	} {
		t.Run(c.service, func(t *testing.T) {
			h := newRedirectHost(t)
			says := func(vip netip.AddrPort) frame {
				return segment(c.client, c.backend, synOf(withOption(vip, linuxSYN)...))
			}
			answer := segment(c.backend, c.client, synAckOf(linuxSYN...))
			wrong := synAckOf(linuxSYN...)
			wrong.Ack = 99
			full := synAckOf(slices.Concat(linuxSYN, slices.Repeat([]byte{1}, 12))...)
			refusal := func(sequence uint32, options ...byte) frame {
				h := packet.TCPHeader{Seq: sequence, Ack: synAckOf().Ack, Flags: packet.RST | packet.ACK, Options: options}
				return segment(c.backend, c.client, h)
			}
			echo := leavesAs("SYN-ACK", c.service+" echoed", answer, segment(c.backend, c.client, synAckOf(withOption(c.vip, linuxSYN)...)))
			h.check(
				leavesAs("answer to nothing", "", answer, nil),
				arrivesAs("SYN without option", "", segment(c.client, c.backend, synOf(linuxSYN...)), nil),
				arrivesAs("SYN that asks", "", says(netip.AddrPort{}), nil),
				arrivesAs("SYN to another VIP", c.service+" misnamed", says(netip.MustParseAddrPort("203.0.113.1:443")), nil),
				arrivesAs("SYN to another port of it", c.service+" misnamed", says(netip.AddrPortFrom(c.vip.Addr(), 80)), nil),
				leavesAs("answer to these", "", answer, nil),
				arrivesAs("SYN", c.service+" received", says(c.vip), nil),
				leavesAs("answer with another number", "", segment(c.backend, c.client, wrong), nil),
				echo, echo, // it is sent again
				leavesAs("SYN-ACK of a guest that has an agent", c.service+" echoed", segment(c.backend, c.client, synAckOf(withOption(c.vip, linuxSYN)...)), nil),
				leavesAs("the same with room for a second option", c.service+" echoed", segment(c.backend, c.client, synAckOf(withOption(c.vip, nil)...)), nil),
				leavesAs("RST of a port that is closed", c.service+" echoed", refusal(0), refusal(0, withOption(c.vip, nil)...)),
				leavesAs("RST of a connection", "", refusal(7), nil),
				leavesAs("answer without room", c.service+" unechoed", segment(c.backend, c.client, full), nil),
				leavesAs("data", "", segment(c.backend, c.client, dataOf(packet.ACK)), nil))
		})
	}
}

// Two VIPs that an option cannot tell apart are not redirected.
func TestAlikeVIPs(t *testing.T) {
	h := newRedirectHost(t)
	client := netip.AddrPortFrom(client6, 40000)
	h.check(leavesAs("SYN", "alike ambiguous", segment(client, alikeVIP6, synOf(linuxSYN...)), nil),
		leavesAs("SYN", "alike too ambiguous", segment(client, alikeToo6, synOf(linuxSYN...)), nil))
}
