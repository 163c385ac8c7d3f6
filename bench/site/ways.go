package site

import (
	"fmt"
	"net/netip"

	"weir.io/weir/internal/model"
)

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
	for i, other := range ways {
		if other == w && w.Six {
			return netip.MustParseAddr(fmt.Sprintf("2001:db8:%x::%x", i+1, servers))
		}
		if other == w {
			// For benchmarks (RFC 2544 appendix C.2.2).
			return netip.AddrFrom4([4]byte{198, 18, byte(i + 1), byte(servers)})
		}
	}
	panic("no such way: " + w.Name)
}

// URL returns the URL to ask for.
func (w *Way) URL(servers int) string {
	return "http://" + netip.AddrPortFrom(w.VIP(servers), 80).String() + "/"
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
