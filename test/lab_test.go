package test

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"weir.io/weir/lab/etcdlab"
	"weir.io/weir/lab/netlab"
)

// Host numbers in the servers' network.
const (
	routerHost   = 1
	directorHost = 11
	snatHost     = 16
	backendHost  = 21
	natHost      = 31
	storeHost    = 51

	otherDirector = directorHost + 1
)

// lab is what most tests run in:
//
//	client --- router --- switch --- director
//	                             --- backend1 ... backendN
//
// The router sends the VIPs' packets to the director; replies of direct modes go
// from the backends to the router.
type lab struct {
	*netlab.Lab
	t        *testing.T
	client   *netlab.Host
	router   *netlab.Host
	lan      *netlab.Host
	director *netlab.Host
	backends []*netlab.Host

	directorRoute func(to, via string) // sets one of the director's routes; nil: as on all hosts
}

// size is what differs between labs.
type size struct {
	backends  int
	clientMTU int  // of the client's link; 0: 1500
	lanMTU    int  // of the servers' network; 0: 1500
	routed    bool // no routes to the VIPs are set by hand
	edgeMTU   int  // of a link between the client's router and the servers'; 0: only one router

	uplink     func(*lab) // connects the director to the switch; nil: by a plain interface
	uplinkName string     // in director.interfaces; empty: eth0
	vrf        string     // in which the director's own sockets are; empty: none
}

// lanAddress is an address in the servers' network. (lab/traffic's backends have
// 10.1.0.0/16.)
func lanAddress(host int, six bool) netip.Addr {
	if six {
		return netip.MustParseAddr(fmt.Sprintf("fd00:2::%d", host))
	}
	return netip.AddrFrom4([4]byte{10, 2, 0, byte(host)})
}

func lanPrefixes(hosts ...int) []string {
	var list []string
	for _, host := range hosts {
		list = append(list, lanAddress(host, false).String()+"/24", lanAddress(host, true).String()+"/64")
	}
	return list
}

func newLab(t *testing.T, s size) *lab {
	t.Helper()
	l := &lab{Lab: netlab.ForTest(t), t: t}
	l.client, l.router, l.lan, l.director = l.Host("client"), l.Router("router"), l.Switch("switch"), l.Router("director")
	near := l.router
	if s.edgeMTU > 0 {
		near = l.Router("edge")
		l.Link(near, l.router, netlab.LinkOptions{MTU: s.edgeMTU,
			A: []string{"10.0.9.2/24", "fd00:9::2/64"}, B: []string{"10.0.9.1/24", "fd00:9::1/64"}})
		near.Route("default", "10.0.9.1")
		near.Route("default", "fd00:9::1")
		l.router.Route("10.0.0.0/24", "10.0.9.2")
		l.router.Route("fd00::/64", "fd00:9::2")
	}
	l.Link(l.client, near, netlab.LinkOptions{MTU: s.clientMTU,
		A: []string{"10.0.0.2/24", "fd00::2/64"}, B: []string{"10.0.0.1/24", "fd00::1/64"}})
	l.Link(l.router, l.lan, netlab.LinkOptions{MTU: s.lanMTU, A: lanPrefixes(routerHost)})
	if s.uplink == nil {
		s.uplink = func(l *lab) {
			l.Link(l.director, l.lan, netlab.LinkOptions{MTU: s.lanMTU, XDP: true, A: lanPrefixes(directorHost, snatHost)})
		}
	}
	s.uplink(l)
	for i := range s.backends {
		b := l.Host(fmt.Sprintf("backend%d", i+1))
		l.Link(b, l.lan, netlab.LinkOptions{MTU: s.lanMTU, XDP: true, A: lanPrefixes(backendHost+i, natHost+i)})
		l.backends = append(l.backends, b)
	}
	l.route(!s.routed)
	return l
}

// route makes the client reachable and, unless routers learn them, the VIPs. Only replies from the
// backends' nat addresses go through the director.
func (l *lab) route(vips bool) {
	for _, six := range []bool{false, true} {
		router, director := lanAddress(routerHost, six).String(), lanAddress(directorHost, six).String()
		l.client.Route("default", map[bool]string{false: "10.0.0.1", true: "fd00::1"}[six])
		if vips {
			l.router.Route(map[bool]string{false: "192.0.2.0/24", true: "2001:db8::/64"}[six], director)
		}
		if l.directorRoute != nil {
			l.directorRoute("default", router)
		} else {
			l.director.Route("default", router)
		}
		for i, b := range l.backends {
			b.Route("default", router)
			own := lanAddress(natHost+i, six)
			b.RouteFrom(netip.PrefixFrom(own, own.BitLen()).String(), "default", director)
		}
	}
}

// attach connects a host to the servers' network.
func (l *lab) attach(h *netlab.Host, number int) *netlab.Link {
	link := l.Link(h, l.lan, netlab.LinkOptions{XDP: true, A: lanPrefixes(number)})
	for _, six := range []bool{false, true} {
		h.Route("default", lanAddress(routerHost, six).String())
	}
	return link
}

// secondDirector adds a host for another director.
func (l *lab) secondDirector() (*netlab.Host, *netlab.Link) {
	h := l.Router("director2")
	return h, l.attach(h, otherDirector)
}

// startStore runs an etcd on a host of its own, and returns it with the key store by which directors
// and agents know it.
func (l *lab) startStore(o etcdlab.Options) (etcd *etcdlab.Cluster, key string) {
	l.t.Helper()
	host := l.Host("store")
	l.attach(host, storeHost)
	o.Address, o.On = lanAddress(storeHost, false).String(), host.Do
	etcd = etcdlab.New(l.t, o)
	key = fmt.Sprintf("  store:\n    etcd:\n      endpoints: [\"%s\"]\n", strings.Join(etcd.Endpoints, `", "`))
	if o.Secure {
		key += fmt.Sprintf("      ca: %s\n      cert: %s\n      key: %s\n", etcd.CA, etcd.Cert, etcd.Key)
	}
	return etcd, key
}

// configText returns a configuration with those services: a director's if interfaces of a director
// are given, an agent's if an agent's are.
func configText(director, agent string, services ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "director:\n  interfaces: [%s]\n  snat:\n    addresses: [%s, \"%s\"]\n    ports: 20000-29999\n",
		director, lanAddress(snatHost, false), lanAddress(snatHost, true))
	// The addresses of the interface that the agents know.
	fmt.Fprintf(&b, "  tunnel-source: [%s, \"%s\"]\n", lanAddress(directorHost, false), lanAddress(directorHost, true))
	if agent != "" {
		fmt.Fprintf(&b, "agent:\n  interfaces: [%s]\n", agent)
	}
	fmt.Fprintf(&b, "directors: [%s, \"%s\"]\n", lanAddress(directorHost, false), lanAddress(directorHost, true))
	if len(services) == 0 {
		return b.String() + "services: []\n"
	}
	return b.String() + "services:\n" + strings.Join(services, "")
}

// start runs the director and an agent on every backend with those services, and
// waits until they forward.
func (l *lab) start(services ...string) *daemon {
	l.t.Helper()
	for _, b := range l.backends {
		startDaemon(l.t, b, "agent", configText("", "eth0", services...))
	}
	return startDaemon(l.t, l.director, "run", configText("eth0", "", services...))
}

// write puts a file in a directory of the host's and returns its path.
func write(t *testing.T, h *netlab.Host, name, text string) string {
	t.Helper()
	path := filepath.Join(h.Dir(), name)
	// Renamed into place, as editors do: no process reads half a file.
	if err := os.WriteFile(path+".new", []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
	return path
}
