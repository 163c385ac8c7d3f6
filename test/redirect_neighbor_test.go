package test

import (
	"fmt"
	"testing"

	"github.com/cilium/ebpf/link"
)

// The kernel is asked for the neighbor of only a few of a connection's packets, and a changed
// neighbor is noticed: a backend's host gets another MAC address while connections are open.
func TestRedirectedPacketsFollowTheirNeighbor(t *testing.T) {
	t.Parallel()
	l := newEndsLab(t)
	before := watch(t, l.client, link.Head())
	var open []*bothEnds
	for i, six := range []bool{false, true} {
		c := l.open(t, six, 23000+i)
		passes(t, "much to the server", c.client, c.server, 4<<20)
		first, again := before.seen(t, redirectVIP(1, six)), before.seen(t, lanAddress(backendHost, six))
		var asked uint64
		for _, n := range again {
			asked += n
		}
		if asked == 0 || asked >= first[0]/2 {
			t.Errorf("the kernel was asked for the neighbor of %d of %d packets to %s", asked, first[0], c.client.RemoteAddr())
		}
		open = append(open, c)
	}
	// A router or host that replaces another tells its neighbors.
	const mac = "02:00:00:00:77:01"
	l.backends[0].Sysctl("net.ipv4.conf.eth0.arp_notify", "1")
	l.backends[0].Sysctl("net.ipv6.conf.eth0.ndisc_notify", "1")
	on(t, l.backends[0], "ip", "link", "set", "eth0", "address", mac)
	for _, six := range []bool{false, true} {
		on(t, l.client, "ip", "neigh", "replace", lanAddress(backendHost, six).String(), "lladdr", mac, "dev", "eth0", "nud", "reachable")
	}
	for _, c := range open {
		c.talk(t, fmt.Sprintf("with another neighbor, IPv6 %v", c.six))
		passes(t, "much to the server", c.client, c.server, 1<<20)
	}
}
