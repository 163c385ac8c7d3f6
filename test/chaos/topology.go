package main

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	"weir.io/weir/lab/netlab"
	"weir.io/weir/lab/process"
	"weir.io/weir/test/chaos/schedule"
)

// The service, and the ports of its nat backends.
const (
	vip     = "192.0.2.1"
	tcpPort = 80
	udpPort = 7
	natTCP  = 8080
	natUDP  = 7007
)

// Host numbers in the servers' network. Replies from the upper half of it, where
// nat backends have addresses of their own, are routed through a director.
const (
	routerHost    = 1
	directors     = 11
	snatHost      = 31
	backends      = 51
	natHost       = 151
	natPrefix     = "10.1.0.128/25"
	mostDirectors = 20
	mostBackends  = 75
)

// topology is the lab:
//
//	          +- eth0 director1 eth1 -+
//	client --- router     ...       switch --- backend1 ... backendN
//	          |  eth0 directorN eth1 -+ |
//	          +-------------------------+ +- store (three members of etcd)
//
// The router spreads the VIP's packets over the directors that are announced (ECMP
// by addresses and ports), loses some, and lets some overtake others. Replies of
// direct modes take its own cable from the switch.
type topology struct {
	lab       *netlab.Lab
	client    *netlab.Host
	access    *netlab.Link // the client's link
	router    *netlab.Host
	store     *netlab.Host // the etcd's host
	directors []*directorHost
	backends  []*backendHost
	viaGroup  bool // replies from the nat addresses go through a director
	steer     bool // the directors' uplinks have NICs that steer flows
}

type directorHost struct {
	*netlab.Host
	address  string // towards the router
	up, down *netlab.Link
}

type backendHost struct {
	*netlab.Host
	link *netlab.Link
}

func lanAddress(host int) netip.Addr { return netip.AddrFrom4([4]byte{10, 1, 0, byte(host)}) }

func lanPrefix(host int) string { return lanAddress(host).String() + "/24" }

func clientAddress() netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, 2}) }

// movedAddress is the address to which the client's QUIC connections move, and from which they move
// back.
func movedAddress() netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, 3}) }

func newTopology(lab *netlab.Lab, nDirectors, nBackends int, m mode, steer bool) *topology {
	t := &topology{lab: lab, client: lab.Host("client"), router: lab.Router("router"), viaGroup: m.viaGroup(), steer: steer}
	lan := lab.Switch("switch")
	t.access = lab.Link(t.client, t.router, netlab.LinkOptions{A: []string{clientAddress().String() + "/24", movedAddress().String() + "/24"}, B: []string{"10.0.0.1/24"}})
	t.client.Route("default", "10.0.0.1")
	t.client.Sysctl("net.ipv4.ip_local_port_range", "10000 60999")
	lab.Link(t.router, lan, netlab.LinkOptions{A: []string{lanPrefix(routerHost)}})
	t.store = lab.Host("store")
	lab.Link(t.store, lan, netlab.LinkOptions{XDP: true, A: []string{lanPrefix(storeHost)}})
	for i := range nDirectors {
		t.addDirector(i, lan, m)
	}
	for i := range nBackends {
		b := &backendHost{Host: lab.Host(backendName(i))}
		b.link = lab.Link(b.Host, lan, netlab.LinkOptions{XDP: true, A: []string{lanPrefix(backends + i), lanPrefix(natHost + i)}})
		b.Route("default", lanAddress(routerHost).String())
		t.backends = append(t.backends, b)
	}
	return t
}

// followSockets makes the router choose a connection's director by the hash that the client's
// socket gives its packets. TCP takes another hash when it sends again.
func (t *topology) followSockets() {
	t.router.Sysctl("net.ipv4.fib_multipath_hash_policy", "1")
}

func (t *topology) addDirector(i int, lan *netlab.Host, m mode) {
	d := &directorHost{Host: t.lab.Router(fmt.Sprintf("director%d", i+1)), address: fmt.Sprintf("10.0.%d.2", i+1)}
	d.up = t.lab.Link(t.router, d.Host, netlab.LinkOptions{XDP: true, Queues: t.queues(schedule.MostQueues),
		A: []string{fmt.Sprintf("10.0.%d.1/24", i+1)}, B: []string{d.address + "/24"}})
	d.up.A.ReceiveXDP() // translated packets of a director go back to where they came from
	addresses := []string{lanPrefix(directors + i)}
	if m.dnat { // full NAT's addresses are weir's to answer for
		addresses = append(addresses, lanPrefix(snatHost+i))
	}
	d.down = t.lab.Link(d.Host, lan, netlab.LinkOptions{XDP: true, A: addresses})
	d.Route("default", fmt.Sprintf("10.0.%d.1", i+1))
	t.directors = append(t.directors, d)
}

// setCookies tells every host when to answer SYNs with cookies.
func (t *topology) setCookies(setting int) {
	hosts := []*netlab.Host{t.client, t.router, t.store}
	for _, d := range t.directors {
		hosts = append(hosts, d.Host)
	}
	for _, b := range t.backends {
		hosts = append(hosts, b.Host)
	}
	for _, h := range hosts {
		h.Sysctl("net.ipv4.tcp_syncookies", fmt.Sprint(setting))
	}
}

// announce makes the router send the VIP's packets to those directors.
func (t *topology) announce(announced []bool) error {
	var next []string
	for i, is := range announced {
		if is {
			next = append(next, t.directors[i].address)
		}
	}
	t.router.Route(vip+"/32", next...)
	if t.viaGroup {
		t.router.RouteFrom(natPrefix, "default", next...)
	}
	return t.lab.Err()
}

// setDirector plugs a director's cables in or out, as its host's end would.
func (t *topology) setDirector(i int, up bool) error {
	d := t.directors[i]
	for _, port := range []*netlab.Port{d.up.B, d.down.A} {
		if err := port.SetUp(up); err != nil {
			return err
		}
	}
	if up { // its route was lost with the cable
		d.Route("default", fmt.Sprintf("10.0.%d.1", i+1))
	}
	return t.lab.Err()
}

func (t *topology) setBackend(i int, up bool) error {
	b := t.backends[i]
	if err := b.link.A.SetUp(up); err != nil {
		return err
	}
	if up {
		b.Route("default", lanAddress(routerHost).String())
	}
	return t.lab.Err()
}

// queues is how many queues an uplink has where a schedule says so many: those for steered flows come first.
func (t *topology) queues(scheduled int) int {
	if t.steer {
		return cardQueues - 1 + scheduled
	}
	return scheduled
}

// setQueues gives the router's ends this many transmit queues: flows then use other queues at the
// directors. A NIC that steers has queues of its own choice.
func (t *topology) setQueues(ctx context.Context, n int) error {
	for _, d := range t.directors {
		if _, err := process.Run(ctx, t.router, "ethtool", "-L", d.up.A.Name, "tx", fmt.Sprint(t.queues(n))); err != nil &&
			!strings.Contains(err.Error(), "no channel parameters changed") { // it already has this many
			return err
		}
	}
	return nil
}

// blind makes a director lose sight of a backend, or see it again: the backend's ARP does not reach
// it, and its neighbor entry is dropped.
func (t *topology) blind(ctx context.Context, director, backend int, blind bool) error {
	d, address := t.directors[director], lanAddress(backends+backend).String()
	if t.viaGroup {
		address = lanAddress(natHost + backend).String()
	}
	if !blind {
		if _, err := process.Run(ctx, d.Host, "nft", "delete", "table", "arp", "blind"); err != nil {
			return err
		}
		_, err := process.Run(ctx, d.Host, "ip", "neigh", "flush", "to", address)
		return err
	}
	rules := fmt.Sprintf("table arp blind { chain input { type filter hook input priority 0; arp saddr ip %s drop; }; }", address)
	if _, err := process.Run(ctx, d.Host, "nft", rules); err != nil {
		return err
	}
	_, err := process.Run(ctx, d.Host, "ip", "neigh", "replace", address, "dev", d.down.A.Name, "nud", "failed")
	return err
}

// backendName is the name of a backend everywhere.
func backendName(i int) string { return fmt.Sprintf("backend%d", i+1) }
