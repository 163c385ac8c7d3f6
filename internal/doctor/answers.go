package doctor

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"

	"weir.io/weir/internal/model"
)

// answers checks the source filter (rp_filter) where packets from an IPv4 VIP come in: answers to
// health checks of the VIP, and nat's replies that the kernel routes. By its routes this host would
// not reach their source by the way to backends.
func (x *examination) answers() {
	vips := map[string][]netip.Addr{} // by the interface that they come in by
	for i := range x.config.Services {
		s := &x.config.Services[i]
		if _, own := x.addresses[s.VIP]; own || !s.VIP.Is4() {
			continue
		}
		for j := range s.Backends {
			b := &s.Backends[j]
			if b.TenantIn(s).IsOverlay() {
				continue // they come in tunnels, from a VTEP
			}
			if b.ModeIn(*s) != model.NAT && (!s.Checked() || !s.ChecksVIP(b)) {
				continue
			}
			way, problem := x.way(b.Address)
			if problem != "" || way.local {
				continue
			}
			if name := way.link.Attrs().Name; !slices.Contains(vips[name], s.VIP) {
				vips[name] = append(vips[name], s.VIP)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(vips)) {
		x.answersOn(name, vips[name])
	}
}

// answersOn checks one interface.
func (x *examination) answersOn(name string, vips []netip.Addr) {
	check := "answers " + name
	value, err := interfaceSysctl(name, "rp_filter")
	if err != nil {
		x.warn(check, "", "%v", err)
		return
	}
	const what = "answers to health checks and replies of nat that come from there are dropped"
	for _, vip := range vips {
		way, problem := x.way(vip)
		switch {
		case value == 0:
		case problem != "":
			x.warn(check, "give this host a default route, or sysctl -w net/ipv4/conf/"+name+"/rp_filter=0, and conf/all",
				"rp_filter is %d, and there is no route to VIP %s: %s", value, vip, what)
			return
		case value == 1 && way.link.Attrs().Name != name:
			x.warn(check, "sysctl -w net/ipv4/conf/"+name+"/rp_filter=2",
				"rp_filter is strict, and the route to VIP %s leads to %s: %s", vip, way.link.Attrs().Name, what)
			return
		}
	}
	x.ok(check, "rp_filter is %d: what comes from VIPs is let in", value)
}

// vipsOnInterfaces finds VIPs for which this director answers by ARP and NDP and which are addresses of an
// interface, too: there the kernel answers for them. On lo they are for a backend, whose agent sees
// to it that the kernel does not answer.
func (x *examination) vipsOnInterfaces() {
	if !x.config.Director.Neighbor.Given() {
		return
	}
	vips := map[netip.Addr]bool{}
	for i := range x.config.Services {
		vips[x.config.Services[i].VIP] = true
	}
	interfaces, _ := net.Interfaces() // without a list nothing is found
	for i := range interfaces {
		if interfaces[i].Flags&net.FlagLoopback != 0 {
			continue
		}
		addresses, _ := interfaces[i].Addrs()
		for _, a := range addresses {
			if prefix, err := netip.ParsePrefix(a.String()); err == nil && vips[prefix.Addr()] {
				x.fail("neighbor", fmt.Sprintf("ip addr del %s dev %s", prefix, interfaces[i].Name),
					"%s is an address of %s: the kernel answers for it also when another director owns it", prefix.Addr(), interfaces[i].Name)
			}
		}
	}
}
