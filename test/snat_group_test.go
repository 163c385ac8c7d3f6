package test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"weir.io/weir/lab/routerlab"
)

// groupSource is the first director's address of full NAT; it is on no interface.
const groupSource = 40

// Connections of full NAT go on when their packets come to another director, when their director is
// lost, and when it has returned without memory and the other one is lost. Directors answer for the
// addresses by ARP.
//
//	client --- router --- switch --- director, director2
//	                             --- backend1, backend2, backend3
//	                             --- store (etcd)
func TestFullNATOutlivesItsDirector(t *testing.T) {
	t.Parallel()
	l := newSharingLabOf(t, way{mode: "nat", snat: true}, func(i int) (inside, beside string) {
		return snatText(lanAddress(groupSource+i, false)) + "  neighbor: {lease: 2s, settle: 100ms, interfaces: [{name: eth0}]}\n", ""
	})
	l.meetAgain()
	l.apply(0, everyBackend(3)...)
	l.openNAT()
	l.knows(1, len(l.flows))
	l.toDirector(1)
	l.goOn("by the other director, while their own is there")
	l.toDirector(0)
	l.goOn("by their own again")
	l.lose(0)
	l.goOn("with another director")
	l.revive(0)
	l.knows(0, 0)
	l.goOn("whose own director is there again")
	l.toDirector(0)
	l.goOn("by their own, which has lost its memory")
	l.lose(1)
	l.goOn("without the other one")
}

// The same by BGP: the router spreads clients' packets over both directors, and knows a longer way to
// the other one's addresses by each.
//
//	client --- router (FRR) --- switch --- director, director2
//	                                   --- backend1, backend2, backend3
//	                                   --- store (etcd)
func TestFullNATOutlivesItsDirectorByBGP(t *testing.T) {
	t.Parallel()
	// The router forgets a lost director's routes when the session ends.
	gone := fmt.Sprintf("{address: %s, asn: %d, hold-time: 3s, graceful-restart: false}", lanAddress(routerHost, false), routerAS)
	sources := []string{"198.18.40.1/32", "198.18.40.2/32"}
	l := newSharingLabOf(t, way{mode: "nat", snat: true}, func(i int) (inside, beside string) {
		return snatText(netip.MustParsePrefix(sources[i]).Addr()), bgpText([]int{directorHost, otherDirector}[i], gone)
	})
	l.router.Sysctl("net.ipv4.fib_multipath_hash_policy", "1") // by ports, too
	startFRR(t, l.router, routerlab.FRRConfig{BGP: frrText})
	l.meetAgain()
	l.apply(0, everyBackend(3)...)
	vip := netip.PrefixFrom(l.way.vip(), 32).String()
	waitRouted(t, l.router, vip, fmt.Sprintf("via %s %s", lanAddress(directorHost, false), lanAddress(otherDirector, false)))
	l.openNAT()
	for i := range l.directors {
		l.knows(i, 10)
		waitRouted(t, l.router, sources[i], "via "+lanAddress(l.number(i), false).String())
	}
	l.lose(0)
	l.goOn("with another director")
	waitRouted(t, l.router, sources[0], "via "+lanAddress(l.number(1), false).String())
	l.revive(0)
	waitRouted(t, l.router, sources[0], "via "+lanAddress(l.number(0), false).String())
	l.goOn("whose director has returned without memory")
	l.lose(1)
	l.goOn("without the other one")
}

// snatText has a director announce its address of full NAT.
func snatText(source netip.Addr) string {
	return fmt.Sprintf("  snat: {addresses: [%s], ports: 20000-29999, announce: true}\n", source)
}

// openNAT opens connections, and waits until they are proved and the directors know them.
func (l *sharingLab) openNAT() {
	l.t.Helper()
	for range 40 {
		l.dial(l.way, "tcp")
		l.dial(l.way, "udp")
	}
	began := time.Now()
	l.directors[0].waitFor("see flows that go on for a while", func() bool {
		l.goOn("until they are known")
		return time.Since(began) > 5*time.Second
	})
}

// knows waits until a director knows so many flows of the other one's addresses.
func (l *sharingLab) knows(i, flows int) {
	l.t.Helper()
	l.directors[i].waitFor(fmt.Sprintf("know %d flows of the other director", flows), func() bool {
		nat := l.status(i).NAT
		return nat != nil && nat.Shared >= flows
	})
}

// toDirector makes the router send all packets to a director.
func (l *sharingLab) toDirector(i int) {
	l.t.Helper()
	l.router.Route("192.0.2.0/24", lanAddress(l.number(i), false).String())
}
