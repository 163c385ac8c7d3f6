package agent

import (
	"net/netip"
	"testing"

	"weir.io/weir/lab/packet"
)

const (
	decapPod   = bpfHostReasonHOST_DECAP_POD
	lastResort = bpfHostReasonHOST_DECAP_LAST_RESORT
	noPod      = bpfHostReasonHOST_DROP_NO_POD
	podReply   = bpfHostReasonHOST_POD_REPLY
	others     = bpfHostReasonHOST_PASS_EGRESS
)

// TestIngressPods tells what becomes of packets to pods and from them, in every combination of
// families. Build computes checksums of its own, so a frame that is met has them right.
func TestIngressPods(t *testing.T) {
	for name, p := range podLabs(t) {
		t.Run(name, func(t *testing.T) {
			for _, story := range []struct {
				name string
				tell func(*testing.T)
			}{
				{"connection", p.testConnection},
				{"cookie", p.testPodCookie},
				{"second chance", p.testPodsSecondChance},
				{"ports used again", p.testPodsReuse},
				{"opened twice", p.testPodsOpenedTwice},
				{"rows", p.testPodRows},
				{"whose", p.testWhosePods},
				{"taken", p.testTaken},
				{"errors", p.testPodErrors},
				{"datagrams", p.testPodDatagrams},
				{"fragments", p.testPodFragments},
				{"ipip", p.testPodIPIP},
				{"ages", p.testPodAges},
			} {
				t.Run(story.name, story.tell)
			}
		})
	}
}

// talker is a client's port, and what it says to a VIP.
type podTalk struct {
	*podLab
	from, vip netip.AddrPort
}

func (p *podLab) talk(port uint16) podTalk {
	return podTalk{p, netip.AddrPortFrom(p.client, port), netip.AddrPortFrom(p.vip, 80)}
}

// says sends a segment for a pod that a director picked; it must come to another one.
func (c podTalk) says(t *testing.T, what string, row []byte, flags uint8, seq, ack uint32, reason bpfHostReason, to netip.AddrPort) {
	t.Helper()
	c.arrives(t, what, gue(c.director, c.host, row, ended(c.from, c.vip, flags, seq, ack, "data")), reason,
		build(frame{ether}, ended(c.from, to, flags, seq, ack, "data")))
}

// hears sends what a pod answers, which must be the VIP's.
func (c podTalk) hears(t *testing.T, what string, pod netip.AddrPort, flags uint8, seq, ack uint32) {
	t.Helper()
	reason := podReply
	if flags&packet.SYN != 0 {
		reason = bpfHostReasonHOST_CLAMP_ABSENT
	} else if flags&packet.RST != 0 && seq == 0 {
		reason = bpfHostReasonHOST_PASS_REFUSED
	}
	c.leaves(t, what, build(frame{ether}, ended(pod, c.from, flags, seq, ack, "")), reason, build(frame{ether}, ended(c.vip, c.from, flags, seq, ack, "")))
}

func (c podTalk) opens(t *testing.T, pod netip.AddrPort) {
	t.Helper()
	row := podRow(1, c.here(pod))
	c.says(t, "SYN", row, packet.SYN, 100, 0, decapPod, pod)
	c.hears(t, "SYN-ACK", pod, packet.SYN|packet.ACK, 900, 101)
	c.says(t, "ACK", row, packet.ACK, 101, 901, decapPod, pod)
}

// testConnection: from its SYN to its end a connection is one pod's, whichever is picked, and
// then another one may have the client's port.
func (p *podLab) testConnection(t *testing.T) {
	c, before := p.talk(1001), p.established(t)
	c.says(t, "SYN", podRow(1, p.here(p.first)), packet.SYN, 100, 0, decapPod, p.first)
	c.says(t, "SYN again before the pod has answered, to another one", podRow(1, p.here(p.second)), packet.SYN, 100, 0, decapPod, p.second)
	c.leaves(t, "late SYN-ACK of the first", build(frame{ether}, ended(p.first, c.from, packet.SYN|packet.ACK, 5, 101, "")), others, nil)
	c.hears(t, "SYN-ACK", p.second, packet.SYN|packet.ACK, 900, 101)
	c.says(t, "SYN again when it has, to another one", podRow(1, p.here(p.first)), packet.SYN, 100, 0, decapPod, p.second)
	c.says(t, "ACK of something else", podRow(1, p.here(p.first)), packet.ACK, 101, 777, lastResort, p.second)
	if n := p.established(t); n != before {
		t.Errorf("a segment that acknowledges nothing makes a connection established: %d are", n)
	}
	c.says(t, "ACK", podRow(1, p.here(p.first), candidate{p.peer, p.elsewhere}), packet.ACK, 101, 901, decapPod, p.second)
	if n := p.established(t); n != before+1 {
		t.Errorf("%d connections are established, want %d", n, before+1)
	}
	c.says(t, "SYN that somebody has forged", podRow(1, p.here(p.first)), packet.SYN, 7, 0, decapPod, p.second)
	c.says(t, "data", podRow(1, p.here(p.first)), packet.ACK|packet.PSH, 101, 901, decapPod, p.second)
	c.hears(t, "data", p.second, packet.ACK|packet.PSH, 901, 105)
	for _, forged := range []uint32{101 + 1<<21, 101 + 0xfff00000, 101 + 1<<31} {
		c.says(t, "RST that somebody has forged", podRow(1, p.here(p.first)), packet.RST, forged, 0, decapPod, p.second)
		c.says(t, "FIN that somebody has forged", podRow(1, p.here(p.first)), packet.FIN|packet.ACK, forged, 0, decapPod, p.second)
		c.says(t, "SYN of the same", podRow(1, p.here(p.first)), packet.SYN, 7, 0, decapPod, p.second)
	}
	c.says(t, "RST that somebody has guessed", podRow(1, p.here(p.first)), packet.RST, 105, 0, decapPod, p.second)
	c.says(t, "data, all the same", podRow(1, p.here(p.first)), packet.ACK, 105, 901, decapPod, p.second)
	c.says(t, "SYN: it lives", podRow(1, p.here(p.first)), packet.SYN, 7, 0, decapPod, p.second)
	c.says(t, "FIN", podRow(1, p.here(p.first)), packet.ACK|packet.FIN, 105, 901, decapPod, p.second)
	c.says(t, "SYN: the pod has not ended it", podRow(1, p.here(p.first)), packet.SYN, 7, 0, decapPod, p.second)
	c.hears(t, "FIN", p.second, packet.ACK|packet.FIN, 901, 106)
	c.says(t, "last ACK", podRow(1, p.here(p.first)), packet.ACK, 106, 902, decapPod, p.second)
	c.says(t, "SYN of the next one", podRow(1, p.here(p.first)), packet.SYN, 7, 0, decapPod, p.first)
	c.hears(t, "refusal", p.first, packet.RST|packet.ACK, 0, 8)
	c.leaves(t, "of the one before", build(frame{ether}, ended(p.second, c.from, packet.ACK, 902, 106, "")), others, nil)
}

// testPodCookie: only a SYN-ACK and the segment that acknowledges it are seen; and a pod that
// sends data first.
func (p *podLab) testPodCookie(t *testing.T) {
	c, before := p.talk(1101), p.established(t)
	c.says(t, "SYN", podRow(1, p.here(p.first)), packet.SYN, 1, 0, decapPod, p.first)
	c.hears(t, "SYN-ACK", p.first, packet.SYN|packet.ACK, 0xffffffff, 2)
	c.says(t, "ACK, number 0", podRow(1, p.here(p.second), candidate{p.peer, p.elsewhere}), packet.ACK, 2, 0, decapPod, p.first)
	c.hears(t, "greeting", p.first, packet.ACK|packet.PSH, 0, 2)
	c.says(t, "ACK", podRow(1, p.here(p.second)), packet.ACK, 2, 9, decapPod, p.first)
	if n := p.established(t); n != before+1 {
		t.Errorf("%d connections are established, want %d", n, before+1)
	}
}

// testPodsSecondChance: what nobody here knows goes on along the row, to hosts that are not
// this one, and at the end to the pod that it was sent to.
func (p *podLab) testPodsSecondChance(t *testing.T) {
	c := p.talk(1201)
	row := []candidate{p.here(p.first), p.here(p.second), {p.peer, p.elsewhere}}
	inner := ended(c.from, c.vip, packet.ACK, 5, 5, "data")
	c.arrives(t, "unknown", gue(p.director, p.host, podRow(1, row...), inner), bpfHostReasonHOST_PASSED_ON, gue(p.host, p.peer, podRow(3, row...), inner))
	c.arrives(t, "from a host before", gue(p.peer, p.host, podRow(2, row[2], row[1], row[2]), inner), bpfHostReasonHOST_PASSED_ON, gue(p.host, p.peer, podRow(3, row[2], row[1], row[2]), inner))
	c.says(t, "nobody else", podRow(2, row[2], row[1]), packet.ACK, 5, 5, lastResort, p.second)
	c.hears(t, "reset", p.second, packet.RST, 5, 0)
	c.goesOn(t, "and again: it is not the pod's", packet.ACK, 5, 5)
	c = p.talk(1202)
	c.says(t, "nobody else", podRow(2, row[2], row[1]), packet.ACK, 5, 5, lastResort, p.second)
	c.hears(t, "of an older memory: it has the connection", p.second, packet.ACK, 5, 9)
	before := p.established(t)
	c.says(t, "data", podRow(1, row...), packet.ACK, 9, 5, decapPod, p.second)
	if n := p.established(t); n != before+1 {
		t.Errorf("%d connections are established, want %d", n, before+1)
	}
}

// testPodRows: rows that contradict themselves.
func (p *podLab) testPodRows(t *testing.T) {
	inner := ended(p.talk(1301).from, netip.AddrPortFrom(p.vip, 80), packet.SYN, 5, 5, "")
	good := podRow(1, p.here(p.first), p.here(p.second))
	edit := func(at int, value byte) []byte {
		row := append([]byte(nil), good...)
		row[at] = value
		return row
	}
	for what, row := range map[string][]byte{
		"none": edit(1, 0), "too many": edit(1, 3), "too few": edit(1, 1), "far too many": edit(1, 9), "more than a byte can count": edit(1, 255),
		"before the first": edit(2, 0), "behind the last": edit(2, 3), "a claim": edit(3, 1), "only a header": good[:4],
	} {
		p.arrives(t, what, gue(p.director, p.host, row, inner), bpfHostReasonHOST_DROP_ROW_MALFORMED, nil)
	}
}

// testWhosePods: only what directors and hosts of the service send, to pods of the service.
func (p *podLab) testWhosePods(t *testing.T) {
	c := p.talk(1401)
	syn := ended(c.from, c.vip, packet.SYN, 5, 0, "")
	stranger, foreign := stranger4, netip.MustParseAddrPort("10.244.1.77:8080")
	if p.host.Is6() {
		stranger = stranger6
	}
	row := podRow(1, p.here(p.first))
	in := gue(stranger, p.host, row, syn)
	p.passes(t, "from a stranger", true, in, bpfHostReasonHOST_PASS_UNKNOWN_SOURCE, tcNext, in)
	p.arrives(t, "to no pod", gue(p.director, p.host, podRow(1, p.here(foreign)), syn), noPod, nil)
	p.arrives(t, "to a pod of another port", gue(p.director, p.host, podRow(1, p.here(p.dnsFirst)), syn), noPod, nil)
	p.arrives(t, "to a pod of another host", gue(p.director, p.host, podRow(1, p.here(p.elsewhere)), syn), noPod, nil)
	p.arrives(t, "to the host", gue(p.director, p.host, nil, syn), noPod, nil)
	p.arrives(t, "to a host that has none", gue(p.director, p.host, podRow(1, p.here(p.first), candidate{stranger, p.elsewhere}),
		ended(c.from, c.vip, packet.ACK, 5, 5, "data")), bpfHostReasonHOST_DROP_UNKNOWN_HOP, nil)
	p.arrives(t, "to the host, by a row", gue(p.director, p.host, row2(p.peer), syn), noPod, nil)
	p.arrives(t, "to a port without service", gue(p.director, p.host, row, ended(c.from, netip.AddrPortFrom(p.vip, 81), packet.SYN, 5, 0, "")), bpfHostReasonHOST_DROP_NO_SERVICE, nil)
	p.arrives(t, "from a host that has none", gue(map[bool]netip.Addr{true: otherPeer4, false: stranger6}[p.host.Is4()], p.host, row, syn), map[bool]bpfHostReason{true: bpfHostReasonHOST_DROP_NOT_PEER, false: bpfHostReasonHOST_PASS_UNKNOWN_SOURCE}[p.host.Is4()], nil)
	if p.vip.Is4() && p.host.Is4() {
		to := netip.AddrPortFrom(p.vip, 8042)
		p.arrives(t, "to any port", gue(p.director, p.host, podRow(1, p.here(netip.AddrPortFrom(p.first.Addr(), 0))), ended(c.from, to, packet.SYN, 5, 0, "")), decapPod,
			build(frame{ether}, ended(c.from, netip.AddrPortFrom(p.first.Addr(), 8042), packet.SYN, 5, 0, "")))
	}
}

// row2 is a row of a host that is no pod's.
func row2(hop netip.Addr) []byte { return row(0, hop) }

// testTaken: two VIPs with the same pod cannot have the same port of a client at once.
func (p *podLab) testTaken(t *testing.T) {
	c := p.talk(1501)
	c.opens(t, p.first)
	other := netip.AddrPortFrom(p.otherVIP, 80)
	outer := packet.Header(ip(p.director, p.first.Addr()))
	if p.director.Is4() != p.first.Addr().Is4() {
		outer = ip(map[bool]netip.Addr{true: director4, false: director6}[p.first.Addr().Is4()], p.first.Addr())
	}
	syn := func(flags uint8) []byte {
		return build(frame{ether, outer}, ended(c.from, other, flags, 5, 0, ""))
	}
	p.arrives(t, "SYN by another VIP", syn(packet.SYN), bpfHostReasonHOST_DROP_POD_TAKEN, nil)
	p.arrives(t, "segment by another VIP", syn(packet.ACK), bpfHostReasonHOST_DROP_POD_TAKEN, nil)
	c.hears(t, "reset", p.first, packet.RST, 5, 0)
	p.arrives(t, "SYN when it has ended", syn(packet.SYN), decapPod, build(frame{ether}, ended(c.from, p.first, packet.SYN, 5, 0, "")))
	c.vip = other
	c.hears(t, "SYN-ACK of the other VIP", p.first, packet.SYN|packet.ACK, 900, 101)
}
