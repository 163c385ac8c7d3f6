package demo

import (
	"fmt"
	"net/netip"

	"weir.io/weir/lab/netlab"
)

const (
	directors = 2
	backends  = 3
)

// Host numbers in the servers' network. SNAT takes addresses of the director's
// own, so that replies come back to the director that has the flow.
const (
	routerHost     = 1
	uplinkHost     = 2 // of a director, on the way to the router
	directorHost   = 11
	directorSNAT   = 16
	backendHost    = 21
	backendNATHost = 31
)

// topology is the lab that the demo runs in:
//
//	             +- uplink1 - eth0 director1 eth1 -+
//	client --- router                            switch --- backend1, backend2, backend3
//	           | +- uplink2 - eth0 director2 eth1 -+ |
//	           +-------------------------------------+
//
// The router spreads the VIPs' packets over both directors (ECMP). Replies of direct modes take the
// router's own cable to the switch. The uplinks are switches, too: the router's ports stay up when
// a director is lost, as they do in most networks.
type topology struct {
	lab       *netlab.Lab
	client    *netlab.Host
	router    *netlab.Host
	directors [directors]*netlab.Host
	backends  [backends]*netlab.Host
	// cables are the switches' ends of the cables to each director and backend.
	cables map[*netlab.Host][]*netlab.Port
	// watched are the ports that every reply crosses which crosses a director.
	watched []*netlab.Port
}

// clientAddresses are the client's addresses.
var clientAddresses = []netip.Addr{netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("fd00::2")}

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
	t := &topology{lab: lab, client: lab.Host("client"), router: lab.Router("router"), cables: map[*netlab.Host][]*netlab.Port{}}
	lan := lab.Switch("switch")
	lab.Link(t.client, t.router, netlab.LinkOptions{
		A: []string{clientAddresses[0].String() + "/24", clientAddresses[1].String() + "/64"}, B: []string{"10.0.0.1/24", "fd00::1/64"}})
	t.client.Route("default", "10.0.0.1")
	t.client.Route("default", "fd00::1")
	lab.Link(t.router, lan, netlab.LinkOptions{A: lanPrefixes(routerHost)})
	for i := range t.directors {
		t.addDirector(i, lan)
	}
	for i := range t.backends {
		t.addBackend(i, lan)
	}
	return t
}

func (t *topology) addDirector(i int, lan *netlab.Host) {
	// A router too: its kernel sends packets that the director translates but has no next hop for,
	// and the errors for a TTL that expires there.
	d := t.lab.Router(fmt.Sprintf("director%d", i+1))
	t.directors[i] = d
	uplink := t.lab.Switch(fmt.Sprintf("uplink%d", i+1))
	wire := t.lab.Link(t.router, uplink, netlab.LinkOptions{A: uplinkPrefixes(i, routerHost)})
	up := t.lab.Link(d, uplink, netlab.LinkOptions{XDP: true, A: uplinkPrefixes(i, uplinkHost)})
	down := t.lab.Link(d, lan, netlab.LinkOptions{XDP: true, A: lanPrefixes(directorHost+i, directorSNAT+i)})
	for _, six := range []bool{false, true} {
		d.Route("default", uplinkAddress(i, routerHost, six).String())
	}
	t.cables[d] = []*netlab.Port{up.B, down.B}
	t.watched = append(t.watched, wire.A, down.B)
}

// uplinkAddress is an address between the router and a director, counted from 0.
func uplinkAddress(director, host int, six bool) netip.Addr {
	if six {
		return netip.MustParseAddr(fmt.Sprintf("fd00:0:%d::%d", director+1, host))
	}
	return netip.AddrFrom4([4]byte{10, 0, byte(director + 1), byte(host)})
}

func uplinkPrefixes(director, host int) []string {
	return []string{uplinkAddress(director, host, false).String() + "/24", uplinkAddress(director, host, true).String() + "/64"}
}

// routeByHand makes the router send the VIPs' packets to all directors, if it does not learn that
// from them.
func (t *topology) routeByHand() {
	for prefix, six := range map[string]bool{"192.0.2.0/24": false, "2001:db8::/64": true} {
		var next []string
		for i := range t.directors {
			next = append(next, uplinkAddress(i, uplinkHost, six).String())
		}
		t.router.Route(prefix, next...)
	}
}

// plug plugs all cables of a host in or out, at their other ends.
func (t *topology) plug(h *netlab.Host, in bool) error {
	for _, port := range t.cables[h] {
		if err := port.SetUp(in); err != nil {
			return err
		}
	}
	return nil
}

func (t *topology) addBackend(i int, lan *netlab.Host) {
	b := t.lab.Host(fmt.Sprintf("backend%d", i+1))
	t.backends[i] = b
	link := t.lab.Link(b, lan, netlab.LinkOptions{XDP: true, A: lanPrefixes(backendHost+i, backendNATHost+i)})
	t.cables[b] = []*netlab.Port{link.B}
	for _, six := range []bool{false, true} {
		b.Route("default", lanNexthops(six, routerHost)...)
		own := lanAddress(backendNATHost+i, six)
		b.RouteFrom(netip.PrefixFrom(own, own.BitLen()).String(), map[bool]string{false: "10.0.0.0/24", true: "fd00::/64"}[six],
			lanNexthops(six, directorHost, directorHost+1)...)
	}
}
