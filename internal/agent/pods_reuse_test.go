package agent

import (
	"net/netip"
	"testing"

	"weir.io/weir/lab/packet"
)

// goesOn sends a segment that another host may have the connection of, and must get.
func (c podTalk) goesOn(t *testing.T, what string, flags uint8, seq, ack uint32) {
	t.Helper()
	row := []candidate{c.here(c.first), {c.peer, c.elsewhere}}
	inner := ended(c.from, c.vip, flags, seq, ack, "data")
	c.arrives(t, what, gue(c.director, c.host, podRow(1, row...), inner), bpfHostReasonHOST_PASSED_ON, gue(c.host, c.peer, podRow(2, row...), inner))
}

// stays sends one that another host might have, too, and that must come to the pod here.
func (c podTalk) stays(t *testing.T, what string, flags uint8, seq, ack uint32, pod netip.AddrPort) {
	t.Helper()
	c.says(t, what, podRow(1, c.here(c.first), candidate{c.peer, c.elsewhere}), flags, seq, ack, decapPod, pod)
}

// testPodsReuse: a connection has ended here, and its client has opened another one by the same
// port on another host. This host has not seen that SYN, and must not keep what follows; but
// what is still said of the one that has ended comes to its pod.
func (p *podLab) testPodsReuse(t *testing.T) {
	data := uint8(packet.ACK | packet.PSH)
	fin := uint8(packet.ACK | packet.FIN)
	alone := podRow(1, p.here(p.first))
	for i, c := range []struct {
		name string
		end  func(podTalk)
		fins bool // both are there, so the pod's numbers are known to the last one
	}{
		{"the pod ends it first", func(c podTalk) {
			c.hears(t, "FIN", p.second, fin, 901, 101)
			c.stays(t, "FIN", fin, 101, 902, p.second)
			c.hears(t, "last ACK", p.second, packet.ACK, 902, 106)
		}, true},
		{"the client ends it first", func(c podTalk) {
			c.stays(t, "FIN", fin, 101, 901, p.second)
			c.hears(t, "FIN", p.second, fin, 901, 106)
		}, true},
		{"the client resets it", func(c podTalk) { c.stays(t, "RST", packet.RST|packet.ACK, 101, 901, p.second) }, false},
		{"the pod resets it", func(c podTalk) { c.hears(t, "RST", p.second, packet.RST|packet.ACK, 901, 101) }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			talk := p.talk(2101 + uint16(i))
			talk.opens(t, p.second)
			c.end(talk)
			const isn, itsISN = 16_000_000, 3_000_000_000 // a second later, of another pod
			talk.goesOn(t, "ACK of another one", packet.ACK, isn+1, itsISN+1)
			talk.goesOn(t, "its data", data, isn+1, itsISN+1)
			talk.goesOn(t, "its FIN", fin, isn+5, itsISN+9)
			talk.goesOn(t, "its RST", packet.RST, isn+5, 0)
			talk.goesOn(t, "data of one with numbers below", data, 1<<32-isn, itsISN+1)
			if c.fins {
				talk.goesOn(t, "data of one that begins where this one ended", data, 500, itsISN+1)
				talk.stays(t, "FIN again", fin, 101, 902, p.second)
				talk.stays(t, "FIN before the pod's has arrived", fin, 101, 901, p.second)
				talk.stays(t, "last ACK", packet.ACK, 106, 902, p.second)
			}
			talk.says(t, "data that nobody else may have", alone, data, isn+1, itsISN+1, lastResort, p.second)
			p.quotesOfEnded(t, talk, c.fins)
		})
	}
	c := p.talk(2111)
	c.opens(t, p.second)
	c.stays(t, "RST that somebody has guessed", packet.RST, 105, 0, p.second)
	c.stays(t, "data of the one that lives", data, 101, 901, p.second)
	c.stays(t, "data far beyond, which it may have come to", data, 1<<30, 901, p.second)
}

// quotesOfEnded: errors, too, are about this connection or about another one.
func (p *podLab) quotesOfEnded(t *testing.T, c podTalk, fins bool) {
	t.Helper()
	row := []candidate{p.here(p.first), {p.peer, p.elsewhere}}
	was, is := bothEnds{c.vip, c.from}, bothEnds{p.second, c.from}
	far := quotesNumber(p.client, p.vip, was, was, 8, 3_000_000_001)
	p.arrives(t, "error about another one", gue(p.director, p.host, podRow(1, row...), far), bpfHostReasonHOST_PASSED_ON, gue(p.host, p.peer, podRow(2, row...), far))
	if fins {
		p.arrives(t, "error about its FIN", gue(p.director, p.host, podRow(1, row...), quotesNumber(p.client, p.vip, was, was, 8, 901)), decapPod,
			build(frame{ether}, quotesNumber(p.client, p.second.Addr(), is, was, 8, 901)))
	}
}

// testPodsOpenedTwice: a SYN came here, and was sent again to another host. Whose SYN-ACK the
// client acknowledges has the connection.
func (p *podLab) testPodsOpenedTwice(t *testing.T) {
	c := p.talk(2201)
	c.says(t, "SYN", podRow(1, p.here(p.second)), packet.SYN, 100, 0, decapPod, p.second)
	c.goesOn(t, "ACK, while the pod here has answered nothing", packet.ACK, 101, 5001)
	c.goesOn(t, "RST", packet.RST, 101, 0)
	c.hears(t, "late SYN-ACK", p.second, packet.SYN|packet.ACK, 900, 101)
	c.goesOn(t, "data for who answered first", packet.ACK|packet.PSH, 101, 5001)
	row := []candidate{p.here(p.first), {p.peer, p.elsewhere}}
	was, is := bothEnds{c.vip, c.from}, bothEnds{p.second, c.from}
	other := quotesNumber(p.client, p.vip, was, was, 8, 5000)
	p.arrives(t, "error about the other SYN-ACK", gue(p.director, p.host, podRow(1, row...), other), bpfHostReasonHOST_PASSED_ON, gue(p.host, p.peer, podRow(2, row...), other))
	p.arrives(t, "error about this one", gue(p.director, p.host, podRow(1, row...), quotesNumber(p.client, p.vip, was, was, 8, 900)), decapPod,
		build(frame{ether}, quotesNumber(p.client, p.second.Addr(), is, was, 8, 900)))
	c.stays(t, "ACK of the one here", packet.ACK, 101, 901, p.second)
	c.stays(t, "data", packet.ACK|packet.PSH, 101, 901, p.second)

	c = p.talk(2202)
	c.says(t, "SYN", podRow(1, p.here(p.second)), packet.SYN, 100, 0, decapPod, p.second)
	c.hears(t, "SYN-ACK", p.second, packet.SYN|packet.ACK, 900, 101)
	c.stays(t, "RST", packet.RST, 101, 0, p.second)
	c.says(t, "SYN of the next one", podRow(1, p.here(p.first)), packet.SYN, 7, 0, decapPod, p.first)
}
