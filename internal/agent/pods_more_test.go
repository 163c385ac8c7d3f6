package agent

import (
	"net/netip"
	"testing"
	"time"

	"weir.io/weir/internal/model"
	"weir.io/weir/lab/packet"
)

// bothEnds are those of a packet.
type bothEnds struct{ from, to netip.AddrPort }

// quotes is an ICMP error from one host to another about a packet of TCP. The checksum in what
// is quoted is that of the packet as it was before its ends were replaced: nobody changes it.
func quotes(from, to netip.Addr, is, was bothEnds, length int) frame {
	return quotesNumber(from, to, is, was, length, 4711)
}

func quotesNumber(from, to netip.Addr, is, was bothEnds, length int, seq uint32) frame {
	segment := func(e bothEnds) []byte {
		return packet.Build(ip(e.from.Addr(), e.to.Addr()), packet.TCPHeader{Src: e.from.Port(), Dst: e.to.Port(), Seq: seq, Window: 512})
	}
	now, before := segment(is), segment(was)
	l4 := len(now) - 20
	copy(now[l4+16:l4+18], before[l4+16:])
	quote := packet.Bytes(now[:l4+length])
	if to.Is4() {
		return frame{ip(from, to), packet.ICMPv4Header{Type: 3, Code: 4, Rest: 1400}, quote}
	}
	return frame{ip(from, to), packet.ICMPv6Header{Type: 2, Rest: 1400}, quote}
}

// testPodErrors: an error about what a pod has sent reaches the pod as if it had no VIP, and
// one about what was sent to a pod leaves as if it were about the VIP.
func (p *podLab) testPodErrors(t *testing.T) {
	c := p.talk(1601)
	c.opens(t, p.first)
	router := map[bool]netip.Addr{true: netip.MustParseAddr("203.0.113.1"), false: netip.MustParseAddr("2001:db8:f::1")}[p.vip.Is4()]
	row := podRow(1, p.here(p.second), candidate{p.peer, p.elsewhere})
	toVIP, toPod := bothEnds{c.from, c.vip}, bothEnds{c.from, p.first}
	fromVIP, fromPod := bothEnds{c.vip, c.from}, bothEnds{p.first, c.from}
	stranger := netip.AddrPortFrom(p.client, 1602)
	lost := bothEnds{c.vip, stranger}
	for _, length := range []int{8, 20} {
		p.arrives(t, "too big", gue(p.director, p.host, row, quotes(router, p.vip, fromVIP, fromVIP, length)), decapPod,
			build(frame{ether}, quotes(router, p.first.Addr(), fromPod, fromVIP, length)))
		p.leaves(t, "error of the pod", build(frame{ether}, quotes(p.first.Addr(), p.client, toPod, toPod, length)), podReply,
			build(frame{ether}, quotes(p.vip, p.client, toVIP, toPod, length)))
		p.leaves(t, "error of a router in front of the pod", build(frame{ether}, quotes(router, p.client, toPod, toPod, length)), podReply,
			build(frame{ether}, quotes(router, p.client, toVIP, toPod, length)))
		inner := quotes(router, p.vip, lost, lost, length)
		p.arrives(t, "of nobody", gue(p.director, p.host, row, inner), bpfHostReasonHOST_PASSED_ON, gue(p.host, p.peer, podRow(2, p.here(p.second), candidate{p.peer, p.elsewhere}), inner))
		p.arrives(t, "of nobody, and nobody else is left", gue(p.director, p.host, podRow(1, p.here(p.second)), inner), noPod, nil)
		about := bothEnds{stranger, p.first}
		p.leaves(t, "about nobody", build(frame{ether}, quotes(p.first.Addr(), p.client, about, about, length)), others, nil)
	}
	echo := frame{ip(p.client, p.vip), packet.ICMPv4Header{Type: 8}, packet.Zeros(40)}
	if p.vip.Is6() {
		echo[1] = packet.ICMPv6Header{Type: 128}
	}
	p.arrives(t, "echo", gue(p.director, p.host, row, echo), noPod, nil)
}

// testPodDatagrams: a flow stays with its pod as long as the director names that, or nobody
// says anything for too long.
func (p *podLab) testPodDatagrams(t *testing.T) {
	from, vip := netip.AddrPortFrom(p.client, 1701), netip.AddrPortFrom(p.vip, 53)
	says := func(what string, row []byte, to netip.AddrPort) {
		t.Helper()
		p.arrives(t, what, gue(p.director, p.host, row, datagram(from, vip, "?")), decapPod, build(frame{ether}, datagram(from, to, "?")))
	}
	says("first", podRow(1, p.here(p.dnsFirst)), p.dnsFirst)
	p.leaves(t, "answer", build(frame{ether}, datagram(p.dnsFirst, from, "!")), podReply, build(frame{ether}, datagram(vip, from, "!")))
	says("another is picked, and the first is named", podRow(1, p.here(p.dnsSecond), candidate{p.peer, p.dnsFar}, p.here(p.dnsFirst)), p.dnsFirst)
	says("another is picked, and the first is not named", podRow(1, p.here(p.dnsSecond), candidate{p.peer, p.dnsFar}), p.dnsSecond)
	p.leaves(t, "late answer of the first", build(frame{ether}, datagram(p.dnsFirst, from, "!")), others, nil)
	p.leaves(t, "answer of the second", build(frame{ether}, datagram(p.dnsSecond, from, "!")), podReply, build(frame{ether}, datagram(vip, from, "!")))
	p.arrives(t, "to no pod", gue(p.director, p.host, podRow(1, p.here(p.first)), datagram(from, vip, "?")), noPod, nil)
	if p.vip.Is4() {
		zero := func(from, to netip.AddrPort) frame {
			return frame{ip(from.Addr(), to.Addr()), packet.UDPHeader{Src: from.Port(), Dst: to.Port(), NoChecksum: true}, packet.Text("?")}
		}
		p.arrives(t, "no checksum", gue(p.director, p.host, podRow(1, p.here(p.dnsSecond)), zero(from, vip)), decapPod, build(frame{ether}, zero(from, p.dnsSecond)))
		p.leaves(t, "answer without checksum", build(frame{ether}, zero(p.dnsSecond, from)), podReply, build(frame{ether}, zero(vip, from)))
	}
}

// part is a fragment of a datagram; whole frames of fragments have no checksum of their own.
func part(from, to netip.Addr, later bool) frame {
	switch {
	case from.Is4() && later:
		return frame{packet.IPv4Header{Src: from, Dst: to, ID: 77, Offset: 24, Protocol: packet.ProtocolUDP}, packet.Zeros(9)}
	case from.Is4():
		return frame{packet.IPv4Header{Src: from, Dst: to, ID: 77, MF: true, Protocol: packet.ProtocolUDP}}
	case later:
		return frame{packet.IPv6Header{Src: from, Dst: to}, packet.FragmentHeader{Offset: 24, ID: 77, Next: packet.ProtocolUDP}, packet.Zeros(9)}
	}
	return frame{packet.IPv6Header{Src: from, Dst: to}, packet.FragmentHeader{More: true, ID: 77}}
}

// testPodFragments: all of a datagram's fragments go to the pod that was picked, and all of an
// answer's leave as the VIP's. Of UDP, whose checksum is the whole datagram's: it is made for
// the first fragment alone here, and has to change as that does.
func (p *podLab) testPodFragments(t *testing.T) {
	from, vip := netip.AddrPortFrom(p.client, 1801), netip.AddrPortFrom(p.vip, 53)
	first := func(from, to netip.AddrPort) frame {
		return join(part(from.Addr(), to.Addr(), false), frame{packet.UDPHeader{Src: from.Port(), Dst: to.Port()}, packet.Zeros(16)})
	}
	row := podRow(1, p.here(p.dnsSecond), p.here(p.dnsFirst))
	p.arrives(t, "flow of another pod", gue(p.director, p.host, podRow(1, p.here(p.dnsFirst)), datagram(from, vip, "?")), decapPod, nil)
	p.arrives(t, "first", gue(p.director, p.host, row, first(from, vip)), decapPod, build(frame{ether}, first(from, p.dnsSecond)))
	p.arrives(t, "later", gue(p.director, p.host, row, part(p.client, p.vip, true)), decapPod, build(frame{ether}, part(p.client, p.dnsSecond.Addr(), true)))
	p.leaves(t, "answer's later one, first", build(frame{ether}, part(p.dnsSecond.Addr(), p.client, true)), others, nil)
	p.leaves(t, "answer's first", build(frame{ether}, first(p.dnsSecond, from)), podReply, build(frame{ether}, first(vip, from)))
	p.leaves(t, "answer's later", build(frame{ether}, part(p.dnsSecond.Addr(), p.client, true)), podReply, build(frame{ether}, part(p.vip, p.client, true)))
}

// testPodIPIP: in ipip the outer address is the pod's, whichever family the host has.
func (p *podLab) testPodIPIP(t *testing.T) {
	from, vip := netip.AddrPortFrom(p.client, 1901), netip.AddrPortFrom(p.vip, 80)
	director := map[bool]netip.Addr{true: director4, false: director6}[p.first.Addr().Is4()]
	wrap := func(to netip.Addr, inner frame) []byte { return build(frame{ether, ip(director, to)}, inner) }
	syn := ended(from, vip, packet.SYN, 5, 0, "")
	p.arrives(t, "SYN", wrap(p.first.Addr(), syn), decapPod, build(frame{ether}, ended(from, p.first, packet.SYN, 5, 0, "")))
	c := p.talk(1901)
	c.hears(t, "SYN-ACK", p.first, packet.SYN|packet.ACK, 900, 6)
	p.arrives(t, "ACK that a director guesses wrong", wrap(p.second.Addr(), ended(from, vip, packet.ACK, 6, 901, "")), decapPod, build(frame{ether}, ended(from, p.first, packet.ACK, 6, 901, "")))
	c = p.talk(1902)
	p.arrives(t, "unknown", wrap(p.second.Addr(), ended(c.from, vip, packet.ACK, 6, 901, "")), lastResort, build(frame{ether}, ended(c.from, p.second, packet.ACK, 6, 901, "")))
	p.arrives(t, "to a pod of another service", wrap(p.second.Addr(), ended(from, netip.AddrPortFrom(p.otherVIP, 80), packet.SYN, 5, 0, "")), noPod, nil)
	in := wrap(p.elsewhere.Addr(), syn)
	p.passes(t, "to a pod of another host", true, in, bpfHostReasonHOST_PASS_NOT_HERE, tcNext, in)
	in = wrap(p.first.Addr(), ended(from, netip.AddrPortFrom(map[bool]netip.Addr{true: notVIP4, false: notVIP6}[p.vip.Is4()], 80), packet.SYN, 5, 0, ""))
	p.passes(t, "what is no service's", true, in, bpfHostReasonHOST_PASS_NOT_VIP, tcNext, in)
	udp, dns := netip.AddrPortFrom(p.client, 1903), netip.AddrPortFrom(p.vip, 53)
	p.arrives(t, "datagram", wrap(p.dnsFirst.Addr(), datagram(udp, dns, "?")), decapPod, build(frame{ether}, datagram(udp, p.dnsFirst, "?")))
	p.arrives(t, "datagram to another", wrap(p.dnsSecond.Addr(), datagram(udp, dns, "?")), decapPod, build(frame{ether}, datagram(udp, p.dnsSecond, "?")))
}

// testPodAges: what is silent for too long goes, and what a pod had that is none any more, at
// once.
func (p *podLab) testPodAges(t *testing.T) {
	memory := p.memory()
	age := func(at time.Duration, has func(netip.AddrPort, model.Protocol, netip.AddrPort) bool) {
		t.Helper()
		if err := memory.age(at, has, func(bpfPodFlow) {}); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		end   func(podTalk)
		lives time.Duration
	}{
		"open":    {func(podTalk) {}, openTimeout},
		"one FIN": {func(c podTalk) { c.hears(t, "FIN", p.first, packet.FIN|packet.ACK, 901, 101) }, halfTimeout},
		"RST":     {func(c podTalk) { c.hears(t, "RST", p.first, packet.RST, 901, 101) }, resetTimeout},
		"RST of the client": {func(c podTalk) {
			c.says(t, "RST", podRow(1, p.here(p.first)), packet.RST, 101, 0, decapPod, p.first)
		}, resetTimeout},
		"both FINs": {func(c podTalk) {
			c.hears(t, "FIN", p.first, packet.FIN|packet.ACK, 901, 101)
			c.says(t, "FIN", podRow(1, p.here(p.first)), packet.FIN|packet.ACK, 101, 902, decapPod, p.first)
		}, closedTimeout},
	} {
		age(now()+48*time.Hour, p.plan.has)
		if n := p.established(t); n != 0 {
			t.Fatalf("%d connections are there after two days", n)
		}
		c2 := p.talk(2001)
		before := now() // the steps between may take long
		c2.opens(t, p.first)
		c.end(c2)
		after := now()
		age(before+c.lives-5*time.Second, p.plan.has)
		if n := p.established(t); n != 1 {
			t.Errorf("%s: the connection is gone before %v", name, c.lives)
		}
		age(after+c.lives+5*time.Second, p.plan.has)
		if n := p.established(t); n != 0 {
			t.Errorf("%s: the connection is there after %v", name, c.lives)
		}
		for i, m := range memory.all() {
			if err := eachEntry(m, func(f bpfPodFlow, w bpfPodWay) { t.Errorf("%s: %s has %v, %v", name, podMaps[i], f, w) }); name != "open" && err != nil {
				t.Fatal(err)
			}
		}
	}
	one, two := p.talk(2002), p.talk(2003)
	one.opens(t, p.first)
	two.opens(t, p.second)
	age(now(), func(_ netip.AddrPort, _ model.Protocol, pod netip.AddrPort) bool { return pod == p.second })
	one.says(t, "to a pod that is gone", podRow(1, p.here(p.second)), packet.ACK, 101, 901, lastResort, p.second)
	two.says(t, "to one that stays", podRow(1, p.here(p.first)), packet.ACK, 101, 901, decapPod, p.second)
}
