package demo

import (
	"fmt"
	"net/netip"

	"weir.io/weir/internal/netlab"
)

const (
	directors = 2
	backends  = 3
)

// Host numbers in the servers' network. SNAT takes addresses of the director's
// own, so that replies come back to the director that has the flow.
const (
	routerHost     = 1
	directorHost   = 11
	directorSNAT   = 16
	backendHost    = 21
	backendNATHost = 31
)

// topology is the lab that the demo runs in:
//
//	             +- eth0 director1 eth1 -+
//	client --- router                  switch --- backend1, backend2, backend3
//	           | +- eth0 director2 eth1 -+ |
//	           +---------------------------+
//
// The router spreads the VIPs' packets over both directors (ECMP). Replies of
// direct modes take its own cable to the switch.
type topology struct {
	lab       *netlab.Lab
	client    *netlab.Host
	router    *netlab.Host
	directors [directors]*netlab.Host
	backends  [backends]*netlab.Host
	// watched are the far ends of the directors' cables.
	watched []*netlab.Port
}

// lanAddress is an address in the servers' network.
func lanAddress(host int, six bool) netip.Addr {
	if six {
		return netip.MustParseAddr(fmt.Sprintf("fd00:1::%d", host))
	}
	return netip.AddrFrom4([4]byte{10, 1, 0, byte(host)})
}

// lanPrefixes are a host's addresses in the servers' network as links want them.
func lanPrefixes(hosts ...int) []string {
	var list []string
	for _, host := range hosts {
		list = append(list, lanAddress(host, false).String()+"/24", lanAddress(host, true).String()+"/64")
	}
	return list
}

func lanNexthops(six bool, hosts ...int) []string {
	var list []string
	for _, host := range hosts {
		list = append(list, lanAddress(host, six).String())
	}
	return list
}

func newTopology(lab *netlab.Lab) *topology {
	t := &topology{lab: lab, client: lab.Host("client"), router: lab.Router("router")}
	lan := lab.Switch("switch")
	lab.Link(t.client, t.router, netlab.LinkOptions{
		A: []string{"10.0.0.2/24", "fd00::2/64"}, B: []string{"10.0.0.1/24", "fd00::1/64"}})
	t.client.Route("default", "10.0.0.1")
	t.client.Route("default", "fd00::1")
	lab.Link(t.router, lan, netlab.LinkOptions{A: lanPrefixes(routerHost)})
	var next4, next6 []string
	for i := range t.directors {
		t.addDirector(i, lan)
		next4 = append(next4, fmt.Sprintf("10.0.%d.2", i+1))
		next6 = append(next6, fmt.Sprintf("fd00:0:%d::2", i+1))
	}
	t.router.Route("192.0.2.0/24", next4...)
	t.router.Route("2001:db8::/64", next6...)
	for i := range t.backends {
		t.addBackend(i, lan)
	}
	return t
}

func (t *topology) addDirector(i int, lan *netlab.Host) {
	// A router too: what a director translates but has no next hop for, and the
	// errors of a TTL that ended there, are its kernel's.
	d := t.lab.Router(fmt.Sprintf("director%d", i+1))
	t.directors[i] = d
	up := t.lab.Link(t.router, d, netlab.LinkOptions{XDP: true,
		A: []string{fmt.Sprintf("10.0.%d.1/24", i+1), fmt.Sprintf("fd00:0:%d::1/64", i+1)},
		B: []string{fmt.Sprintf("10.0.%d.2/24", i+1), fmt.Sprintf("fd00:0:%d::2/64", i+1)}})
	up.A.ReceiveXDP() // echo replies and ICMP errors go back where the packet came from
	down := t.lab.Link(d, lan, netlab.LinkOptions{XDP: true, A: lanPrefixes(directorHost+i, directorSNAT+i)})
	d.Route("default", fmt.Sprintf("10.0.%d.1", i+1))
	d.Route("default", fmt.Sprintf("fd00:0:%d::1", i+1))
	t.watched = append(t.watched, up.A, down.B)
}

func (t *topology) addBackend(i int, lan *netlab.Host) {
	b := t.lab.Host(fmt.Sprintf("backend%d", i+1))
	t.backends[i] = b
	t.lab.Link(b, lan, netlab.LinkOptions{XDP: true, A: lanPrefixes(backendHost+i, backendNATHost+i)})
	for _, six := range []bool{false, true} {
		b.Route("default", lanNexthops(six, routerHost)...)
		own := lanAddress(backendNATHost+i, six)
		b.RouteFrom(netip.PrefixFrom(own, own.BitLen()).String(), "default",
			lanNexthops(six, directorHost, directorHost+1)...)
	}
}
