// Package site is a lab with real clients and servers: web servers behind every way
// to spread connections over them, weir's and others', side by side and with the
// same cables.
package site

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"weir.io/weir/internal/model"
	"weir.io/weir/lab/netlab"
)

// Host numbers in the servers' network: the router, the balancers by their place in the list of
// balancers, and servers by the role of an address.
const (
	routerNumber   = 1
	balancerNumber = 1 << 8 // and the balancer's own number
	snatNumber     = balancerNumber + 101
	serverNumber   = 2 << 8 // and the server's own number: its ordinary address
	returnNumber   = 3 << 8 // and (balancer << 8) + server: from where replies go back through that balancer
)

// Site is the lab:
//
//	client --- router --- switch --- weir, iptables, nftables, nginx, haproxy
//	                             --- server1 ... serverN
//	                             --- agent1 ... agentN
//
// The router sends every VIP to its balancer; without one it spreads connections over the servers
// itself (ECMP). Replies that need not pass the balancer go from the servers to the router. The
// servers with weir's agent are not those of the ways that need none.
type Site struct {
	Client *netlab.Host

	lab       *netlab.Lab
	router    *netlab.Host
	lan       *netlab.Host
	balancers map[string]*netlab.Host
	servers   []*netlab.Host
	agents    []*netlab.Host
	sizes     []int
}

// New builds the lab with all ways, for each of these numbers of servers, and returns when all
// servers of every VIP have answered. Closing the lab ends everything.
func New(ctx context.Context, lab *netlab.Lab, sizes []int) (*Site, error) {
	s := &Site{lab: lab, sizes: sizes, balancers: map[string]*netlab.Host{}}
	s.connect()
	s.route()
	if err := lab.Err(); err != nil {
		return nil, err
	}
	for _, start := range []func(context.Context) error{
		s.startServers, s.startWeir, s.startIptables, s.startNftables, s.startNginx, s.startHAProxy, s.checkSpread,
	} {
		if err := start(ctx); err != nil {
			return nil, err
		}
	}
	return s, lab.Err()
}

// lanAddress is an address in the servers' network.
func lanAddress(number int, six bool) netip.Addr {
	if six {
		return netip.MustParseAddr(fmt.Sprintf("fd00:1::%x", number))
	}
	return netip.AddrFrom4([4]byte{10, 1, byte(number >> 8), byte(number)})
}

func lanPrefixes(numbers ...int) []string {
	var list []string
	for _, n := range numbers {
		list = append(list, lanAddress(n, false).String()+"/16", lanAddress(n, true).String()+"/64")
	}
	return list
}

// balancerNames are the hosts between router and servers. Their order gives them
// their numbers, from 1.
var balancerNames = []string{"weir", "iptables", "nftables", "nginx", "haproxy"}

func (s *Site) connect() {
	s.Client, s.router, s.lan = s.lab.Host("client"), s.lab.Router("router"), s.lab.Switch("switch")
	s.lab.Link(s.Client, s.router, netlab.LinkOptions{
		A: []string{"10.0.0.2/24", "fd00::2/64"}, B: []string{"10.0.0.1/24", "fd00::1/64"}})
	s.lab.Link(s.router, s.lan, netlab.LinkOptions{XDP: true, A: lanPrefixes(routerNumber)})
	for i, name := range balancerNames {
		s.balancers[name] = s.lab.Router(name)
		s.plugIn(s.balancers[name], balancerNumber+i+1)
	}
	s.balancers["weir"].Address("eth0", lanPrefixes(snatNumber)...)
	for i := range slices.Max(s.sizes) {
		server, agent := s.lab.Host(fmt.Sprintf("server%d", i+1)), s.lab.Host(fmt.Sprintf("agent%d", i+1))
		s.servers, s.agents = append(s.servers, server), append(s.agents, agent)
		s.plugIn(server, serverNumber+i+1)
		s.plugIn(agent, agentNumber(i))
	}
}

// agentNumber is the number of the server with an agent at that place in the list.
func agentNumber(i int) int { return serverNumber + 128 + i + 1 }

// returnAddress is the second address of the server at that place in the list: replies from it go
// back through the balancer.
func returnAddress(balancer string, i int, six bool) netip.Addr {
	return lanAddress(returnNumber+slices.Index(balancerNames, balancer)<<8+i+1, six)
}

// plugIn connects a host to the switch. All cables are alike: XDP may run at any end.
func (s *Site) plugIn(h *netlab.Host, number int) {
	s.lab.Link(h, s.lan, netlab.LinkOptions{XDP: true, A: lanPrefixes(number)})
	for _, six := range []bool{false, true} {
		h.Route("default", lanAddress(routerNumber, six).String())
	}
	// This allows as many connections per second as possible, on both sides of a balancer.
	h.Sysctl("net.ipv4.ip_local_port_range", "1024 65535")
	h.Sysctl("net.ipv4.tcp_tw_reuse", "1")
	h.Sysctl("net.core.somaxconn", "8192")
	h.Sysctl("net.ipv4.tcp_max_syn_backlog", "8192")
}

func (s *Site) route() {
	s.Client.Route("default", "10.0.0.1")
	s.Client.Route("default", "fd00::1")
	s.Client.Sysctl("net.ipv4.ip_local_port_range", "1024 65535")
	for i, w := range ways {
		for _, n := range s.sizes {
			vip := w.VIP(n)
			if w.balancer != "" {
				s.router.Route(netip.PrefixFrom(vip, vip.BitLen()).String(), s.balancerAddress(w).String())
				continue
			}
			var nexthops []string
			for j, server := range s.servers[:n] {
				nexthops = append(nexthops, lanAddress(serverNumber+j+1, ways[i].Six).String())
				server.Address("lo", netip.PrefixFrom(vip, vip.BitLen()).String())
			}
			s.router.Route(netip.PrefixFrom(vip, vip.BitLen()).String(), nexthops...)
		}
	}
	for i, name := range balancerNames {
		for j, server := range s.servers {
			for _, six := range []bool{false, true} {
				own := returnAddress(name, j, six)
				server.Address("eth0", fmt.Sprintf("%s/%d", own, map[bool]int{false: 16, true: 64}[six]))
				server.RouteFrom(netip.PrefixFrom(own, own.BitLen()).String(), "default",
					lanAddress(balancerNumber+i+1, six).String())
			}
		}
	}
}

// webPort is where servers and balancers listen, at any of their addresses.
var webPort = netip.AddrPortFrom(netip.Addr{}, 80)

func (s *Site) balancerAddress(w *Way) netip.Addr {
	return lanAddress(balancerNumber+slices.Index(balancerNames, w.balancer)+1, w.Six)
}

// Way is a way for requests to reach the servers.
type Way struct {
	Name string // of the compared subject: gue, iptables
	Six  bool   // over IPv6
	// Process says that processes spread the connections, so their time can be measured separately.
	Process bool

	balancer string // host to which the VIP is routed; empty: the router spreads
	weir     bool
	mode     model.Mode
	snat     bool
}

// ways are all ways: their order determines their VIPs. Direct is first.
var ways = []*Way{
	{Name: "direct"},
	{Name: "l2dsr", balancer: "weir", weir: true, mode: model.L2DSR},
	{Name: "ipip", balancer: "weir", weir: true, mode: model.IPIP},
	{Name: "gue", balancer: "weir", weir: true, mode: model.GUE},
	{Name: "nat", balancer: "weir", weir: true, mode: model.NAT},
	{Name: "nat+snat", balancer: "weir", weir: true, mode: model.NAT, snat: true},
	{Name: "iptables", balancer: "iptables"},
	{Name: "nftables", balancer: "nftables"},
	{Name: "nginx", balancer: "nginx", Process: true},
	{Name: "haproxy", balancer: "haproxy", Process: true},
	{Name: "l2dsr", Six: true, balancer: "weir", weir: true, mode: model.L2DSR},
	{Name: "gue", Six: true, balancer: "weir", weir: true, mode: model.GUE},
}

// Ways returns all ways to the servers.
func Ways() []*Way { return ways }

// Family names the family that the way is measured in.
func (w *Way) Family() string {
	if w.Six {
		return "ipv6"
	}
	return "ipv4"
}

// VIP returns the address at which the way leads to that many servers. Each has its
// own, so that nothing has to be changed between two measurements.
func (w *Way) VIP(servers int) netip.Addr {
	number := slices.Index(ways, w) + 1
	if w.Six {
		return netip.MustParseAddr(fmt.Sprintf("2001:db8:%x::%x", number, servers))
	}
	return netip.AddrFrom4([4]byte{198, 18, byte(number), byte(servers)}) // for benchmarks (RFC 2544 appendix C.2.2)
}

// URL returns the URL to ask for.
func (w *Way) URL(servers int) string {
	return "http://" + netip.AddrPortFrom(w.VIP(servers), webPort.Port()).String() + "/"
}

// natPort is the port where servers listen for weir's nat service with that many of them: replies
// of two services must differ by address or port.
func natPort(servers int) uint16 { return uint16(8000 + servers) }

// nat says that servers get packets to their own address and port.
func (w *Way) nat() bool { return w.mode == model.NAT }

// through returns the ways of a balancer.
func through(balancer string) []*Way {
	var list []*Way
	for _, w := range ways {
		if w.balancer == balancer {
			list = append(list, w)
		}
	}
	return list
}
