package agent

import (
	"net/netip"
	"testing"

	"weir.io/weir/lab/packet"
)

// sharing are two connections by the same port of a client to two VIPs of the same backends, of
// which directors have chosen the same one.
func sharing() map[string][2]connection {
	four, six := netip.AddrPortFrom(client4, 40000), netip.AddrPortFrom(client6, 40000)
	return map[string][2]connection{
		"IPv4": {{"port", four, portVIP4, netip.AddrPortFrom(peer4, 8080)}, {"shared four", four, shared4, netip.AddrPortFrom(peer4, 8080)}},
		"IPv6": {{"six", six, handedVIP6, netip.AddrPortFrom(peer6, 443)}, {"shared six", six, shared6, netip.AddrPortFrom(peer6, 443)}},
	}
}

// Connections to several VIPs of one backend are told apart by the client's port. One that
// would meet another one there goes as its service falls back.
func TestSharedBackends(t *testing.T) {
	for name, pair := range sharing() {
		first, same := pair[0], pair[1]
		second := same
		second.client = netip.AddrPortFrom(second.client.Addr(), 40001)
		clashes := leavesAs("SYN of the same port", same.service+" may_clash", segment(same.client, same.vip, synOf(linuxSYN...)), nil)
		for what, steps := range map[string][]hostStep{
			"two ports": {first.asks(), second.asks(), second.taken(), first.taken(),
				first.sends(packet.ACK, 7), second.sends(packet.ACK, 7), first.receives(packet.ACK, 7), second.receives(packet.ACK, 7)},
			"one port":                   {first.asks(), first.taken(), clashes, first.sends(packet.ACK, 7), first.receives(packet.ACK, 7)},
			"one port, before an answer": {first.asks(), clashes, first.taken()},
			"one port, after its end":    {first.asks(), first.taken(), first.sends(packet.FIN|packet.ACK, 0), first.receives(packet.FIN|packet.ACK, 0), clashes},
			"one port, which is not redirected": {first.asks(), arrivesAs("SYN-ACK of the VIP", first.service+" not_taken", segment(first.vip, first.client, synAckOf(linuxSYN...)), nil),
				same.asks(), same.taken(), same.sends(packet.ACK, 7)},
		} {
			t.Run(name+": "+what, func(t *testing.T) { newRedirectHost(t).check(steps...) })
		}
	}
}

// A client's host that has forgotten which of many VIPs a port has called does not let an
// answer for another VIP take an open connection, and does when that has ended.
func TestForgottenHolder(t *testing.T) {
	for name, pair := range sharing() {
		first, same := pair[0], pair[1]
		// Linux begins each connection with another number.
		syn, answer := synOf(linuxSYN...), synAckOf(withOption(same.vip, linuxSYN)...)
		syn.Seq, answer.Ack = 4711, 4712
		asking := syn
		asking.Options = withOption(netip.AddrPort{}, linuxSYN)
		asks := leavesAs("SYN", same.service+" asked", segment(same.client, same.vip, syn), segment(same.client, same.vip, asking))
		from := segment(same.backend, same.client, answer)
		forget := func(t *testing.T, h *redirectHost) {
			key := redirectRedirectDirect{Client: redirectAddressOf(first.client.Addr()), Port: networkOrder(first.client.Port())}
			if err := h.RedirectHolders.Delete(key); err != nil {
				t.Fatal(err)
			}
		}
		t.Run(name+": open", func(t *testing.T) {
			h := newRedirectHost(t)
			h.check(first.asks(), first.taken())
			forget(t, h)
			h.check(asks, arrivesAs("SYN-ACK", same.service+" clash", from, nil),
				first.sends(packet.ACK, 7), first.receives(packet.ACK, 7))
		})
		t.Run(name+": ended", func(t *testing.T) {
			h := newRedirectHost(t)
			h.check(first.asks(), first.taken(), first.receives(packet.RST, 0))
			forget(t, h)
			h.check(asks, arrivesAs("SYN-ACK", same.service+" taken", from, segment(same.vip, same.client, answer)), same.sends(packet.ACK, 7), same.receives(packet.ACK, 7),
				leavesAs("data of the one before", "", segment(first.client, first.vip, dataOf(packet.ACK)), nil))
		})
	}
}

// A backend's host answers for the VIP that the SYN says, of those that the backend has.
func TestEchoOfSharedBackend(t *testing.T) {
	h := newRedirectHost(t)
	backend := netip.AddrPortFrom(host6, 443)
	for i, vip := range []netip.AddrPort{handedVIP6, shared6} {
		service := []string{"six", "shared six"}[i]
		client := netip.AddrPortFrom(client6, uint16(41000+i))
		h.check(arrivesAs("SYN", service+" received", segment(client, backend, synOf(withOption(vip, linuxSYN)...)), nil),
			leavesAs("SYN-ACK", service+" echoed", segment(backend, client, synAckOf(linuxSYN...)), segment(backend, client, synAckOf(withOption(vip, linuxSYN)...))))
	}
	client := netip.AddrPortFrom(client6, 42000)
	h.check(arrivesAs("SYN to a VIP of others", "six misnamed", segment(client, backend, synOf(withOption(alikeVIP6, linuxSYN)...)), nil),
		leavesAs("SYN-ACK", "", segment(backend, client, synAckOf(linuxSYN...)), nil))
}
