package test

import (
	"fmt"
	"net/netip"
	"testing"

	"weir.io/weir/lab/packet"
)

// TestFloodedFramesAreOfOthers: two directors in l2dsr are on one link, and one of them still has a
// backend that is dead. The switch floods frames for that backend. The other director, which has
// another backend, leaves them alone: it would give this one connections that the first director sends
// elsewhere. But it forwards what is for an address that its interface takes frames for besides its
// own, although the switch floods these frames, too.
//
//	client --- router --- switch --- director  (its backend is dead)
//	                             --- director2 (its backend is backend1)
//	                             --- backend1
func TestFloodedFramesAreOfOthers(t *testing.T) {
	t.Parallel()
	l := newLab(t, size{backends: 1})
	other, _ := l.secondDirector()
	vip := way{mode: "l2dsr"}.vip()
	service := func(backend string) string {
		return fmt.Sprintf("- {name: s, vip: %s, protocol: udp, port: 53, mode: l2dsr, backends: [%s]}\n", vip, backend)
	}
	dead := service(fmt.Sprintf("{name: dead, address: %s, mac: \"02:00:00:00:00:77\"}", lanAddress(77, false)))
	alive := service(fmt.Sprintf("{name: b1, address: %s}", lanAddress(backendHost, false)))
	daemons := []*daemon{
		startDaemon(t, l.director, "run", configText("eth0", "", dead)),
		startDaemon(t, other, "run", configText("eth0", "", alive)),
	}
	counted := func(reason string) (counts [2]uint64) {
		for i, d := range daemons {
			counts[i] = d.reason(reason)
		}
		return counts
	}
	const packets = 10
	send := func() {
		for port := range uint16(packets) {
			inject(t, l.client, ipFrom(netip.MustParseAddr("10.0.0.2"), vip), packet.UDPHeader{Src: 3000 + port, Dst: 53}, packet.Text("a question"))
		}
	}
	became := func(what, reason string, before, more [2]uint64) {
		t.Helper()
		want := [2]uint64{before[0] + more[0], before[1] + more[1]}
		waitFor(t, fmt.Sprintf("%s to be counted as %s: %d more", what, reason, more), func() bool { return counted(reason) == want })
	}

	forwarded, left := counted("forward_l2dsr"), counted("pass_sent_already")
	send()
	became("frames for a dead backend", "forward_l2dsr", forwarded, [2]uint64{packets, 0})
	became("frames for a dead backend", "pass_sent_already", left, [2]uint64{0, packets})

	const virtual = "00:00:5e:00:01:33"
	on(t, other, "bridge", "fdb", "add", virtual, "dev", "eth0", "self")
	on(t, l.router, "ip", "neighbor", "replace", lanAddress(50, false).String(), "lladdr", virtual, "dev", "eth1")
	on(t, l.router, "ip", "route", "replace", "192.0.2.0/24", "via", lanAddress(50, false).String())
	waitFor(t, "director2 to know the address", func() bool {
		forwarded = counted("forward_l2dsr")
		send()
		return counted("forward_l2dsr") == [2]uint64{forwarded[0], forwarded[1] + packets}
	})
}
