package doctor

import (
	"maps"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"

	"weir.io/weir/internal/device"
	"weir.io/weir/internal/model"
	"weir.io/weir/internal/privilege"
)

// agent examines a backend's host.
func (x *examination) agent() {
	x.needed(privilege.Agent)
	services := x.localServices()
	if len(services) == 0 {
		x.warn("backend", "ip addr, and the backends' addresses in the file", "no address of this host is a backend's")
		return
	}
	var direct []model.Service          // services whose packets keep the VIP
	routed := make(map[netip.Addr]bool) // backends whose replies go to the client's address
	for _, s := range services {
		switch b := s.Backends[0]; {
		case b.ModeIn(s) != model.NAT:
			direct = append(direct, s)
		case !s.SNAT:
			routed[b.Address] = true
		}
	}
	x.waysBack(slices.SortedFunc(maps.Keys(routed), netip.Addr.Compare))
	if len(direct) == 0 {
		x.ok("backend", "nat needs nothing of this host but that replies go back through a director")
		return
	}
	x.directors(direct)
	held := slices.DeleteFunc(slices.Clone(direct), func(s model.Service) bool { return s.Backends[0].Host.IsValid() })
	x.vips(held)
	x.pods()
	uplinks := x.uplinks(services)
	x.socketsTranslated(held, uplinks)
	for _, link := range uplinks {
		x.xdp(link, hostProgram)
		x.lro(link)
		x.reversePath(link)
		x.arp(link, held)
		x.uplinkMTU(link, direct)
		x.checksum(link)
	}
}

// directors checks that the agent would take tunnels from some director.
func (x *examination) directors(services []model.Service) {
	tunnels := slices.ContainsFunc(services, func(s model.Service) bool {
		return s.Backends[0].MaxOverheadIn(&s) > 0
	})
	if tunnels && len(x.config.Directors) == 0 {
		x.known("directors", "name their addresses: directors: [10.0.0.0/24]", "directors is empty: the agent takes no tunnel from anybody")
	}
}

// vips checks that this host takes packets for the VIPs.
func (x *examination) vips(services []model.Service) {
	checked := make(map[netip.Addr]bool)
	held := 0
	for _, s := range services {
		if checked[s.VIP] {
			continue
		}
		checked[s.VIP] = true
		check := "vip " + s.VIP.String()
		index, here := x.addresses[s.VIP]
		link := x.links[index]
		switch {
		case !here && len(x.config.Agent.Namespaces) > 0:
			x.onward(check, s.VIP)
		case !here:
			x.known(check, "run weir agent, or ip addr add "+netip.PrefixFrom(s.VIP, s.VIP.BitLen()).String()+" dev lo",
				"is not on lo: this host drops packets for it")
		case link != nil && link.Attrs().Flags&net.FlagLoopback == 0:
			x.warn(check, "move it to lo", "is on %s: this host answers ARP and neighbor requests that are the directors'", link.Attrs().Name)
		default:
			held++
		}
	}
	if held > 0 {
		x.ok("vips", "%d of %d on lo", held, len(checked))
	}
}

// onward says where packets for a VIP of another network namespace go.
func (x *examination) onward(check string, vip netip.Addr) {
	routes, err := netlink.RouteGet(vip.AsSlice())
	if err != nil || len(routes) == 0 || x.links[routes[0].LinkIndex] == nil {
		x.fail(check, "ip route add "+vip.String()+" via the namespace's address", "has no route into one of agent.namespaces")
		return
	}
	x.ok(check, "is not on this host, and goes on by %s: that must lead into one of agent.namespaces", x.links[routes[0].LinkIndex].Attrs().Name)
}

// like returns the interfaces that match a pattern; there may be none.
func (x *examination) like(pattern string) (links []netlink.Link) {
	for _, index := range slices.Sorted(maps.Keys(x.links)) {
		if is, err := filepath.Match(pattern, x.links[index].Attrs().Name); is && err == nil && !device.Made(x.links[index]) {
			links = append(links, x.links[index])
		}
	}
	return links
}

// uplinks returns the interfaces that packets for backends come in by.
func (x *examination) uplinks(services []model.Service) []netlink.Link {
	var links []netlink.Link
	for _, name := range x.config.Agent.Interfaces {
		if model.IsInterfacePattern(name) {
			links = append(links, x.like(name)...)
		} else if link := x.exists(name); link != nil {
			links = append(links, link)
		}
	}
	if len(x.config.Agent.Interfaces) > 0 {
		return links
	}
	seen := make(map[int]bool)
	for _, s := range services {
		index := x.addresses[hostOf(&s.Backends[0])]
		link := x.links[index]
		if seen[index] || link == nil || link.Attrs().Flags&net.FlagLoopback != 0 {
			continue
		}
		seen[index] = true
		links = append(links, x.exists(link.Attrs().Name))
	}
	return links
}

// reversePath checks the source filter: a client's packet comes in by a director,
// which need not be the way back.
func (x *examination) reversePath(link netlink.Link) {
	name := link.Attrs().Name
	value, err := interfaceSysctl(name, "rp_filter")
	switch {
	case err != nil:
		x.warn("rp_filter "+name, "", "%v", err)
	case value == 1:
		x.warn("rp_filter "+name, "sysctl -w net/ipv4/conf/"+name+"/rp_filter=2",
			"is strict: clients whose way back is another interface are dropped")
	default:
		x.ok("rp_filter "+name, "is %d: no client is dropped for its way back", value)
	}
}

// arp checks that Linux does not answer for IPv4 VIPs on lo, as it does by default: the address is
// the host's, whatever interface it is on.
func (x *examination) arp(link netlink.Link, services []model.Service) {
	if !slices.ContainsFunc(services, func(s model.Service) bool { return s.VIP.Is4() }) {
		return
	}
	name := link.Attrs().Name
	for _, key := range []struct {
		name  string
		least int
		wrong string
	}{
		{"arp_ignore", 1, "this host answers ARP requests for VIPs and takes clients from the directors"},
		{"arp_announce", 2, "this host may name a VIP as the sender of an ARP request and take clients from the directors"},
	} {
		check := key.name + " " + name
		value, err := interfaceSysctl(name, key.name)
		switch {
		case err != nil:
			x.warn(check, "", "%v", err)
		case value < key.least:
			x.known(check, "run weir agent, or sysctl -w net/ipv4/conf/"+name+"/"+key.name+"="+strconv.Itoa(key.least),
				"is %d: %s", value, key.wrong)
		default:
			x.ok(check, "is %d", value)
		}
	}
}

// interfaceSysctl returns what Linux uses: the larger of conf/all and the
// interface's own.
func interfaceSysctl(name, key string) (int, error) {
	largest := 0
	for _, conf := range []string{"all", name} {
		// A VLAN interface has a dot in its name, so the key is a path.
		text, err := readSysctl("net/ipv4/conf/" + conf + "/" + key)
		if err != nil {
			return 0, err
		}
		value, err := strconv.Atoi(strings.TrimSpace(text))
		if err != nil {
			return 0, err
		}
		largest = max(largest, value)
	}
	return largest, nil
}

// internetMTU is the size of packets that clients on the Internet send.
const internetMTU = 1500

// uplinkMTU checks that tunneled packets fit in the uplink.
func (x *examination) uplinkMTU(link netlink.Link, services []model.Service) {
	var mode model.Mode
	overhead := 0
	for _, s := range services {
		m := s.Backends[0].ModeIn(s)
		if n := s.Backends[0].MaxOverheadIn(&s); n > overhead {
			mode, overhead = m, n
		}
	}
	if overhead == 0 {
		return
	}
	name, mtu := link.Attrs().Name, link.Attrs().MTU
	if mtu < internetMTU+overhead {
		x.warn("mtu "+name, "ip link set "+name+" mtu "+strconv.Itoa(internetMTU+overhead)+", and on every link to the directors",
			"%d leaves %d bytes for packets by %s: weir agent lowers TCP's MSS to fit, larger UDP packets do not arrive",
			mtu, mtu-overhead, mode)
		return
	}
	x.ok("mtu "+name, "%d holds packets of %d and the %d of %s", mtu, internetMTU, overhead, mode)
}

// hostOf returns the address of the host whose agent gets packets for a backend.
func hostOf(b *model.Backend) netip.Addr {
	if b.Host.IsValid() {
		return b.Host
	}
	return b.Address
}

// pods checks that this host routes packets to the pods that it has.
func (x *examination) pods() {
	families, seen, bad := map[bool]bool{}, map[netip.Addr]bool{}, 0
	for i := range x.config.Services {
		for _, b := range x.config.Services[i].Backends {
			if _, own := x.addresses[b.Host]; !own || seen[b.Address] {
				continue
			}
			seen[b.Address], families[b.Address.Is4()] = true, true
			if _, problem := x.way(b.Address); problem != "" {
				bad++
				x.fail("pod "+b.Address.String(), "see that it runs on this host; else its host is another one", "%s", problem)
			}
		}
	}
	if len(seen) == 0 {
		return
	}
	for _, f := range []struct {
		is4       bool
		name, key string
	}{{true, "IPv4", "net/ipv4/ip_forward"}, {false, "IPv6", "net/ipv6/conf/all/forwarding"}} {
		if !families[f.is4] {
			continue
		}
		value, err := readSysctl(f.key)
		switch {
		case err != nil:
			x.warn("forwarding "+f.name, "", "%v", err)
		case value == "0":
			x.fail("forwarding "+f.name, "sysctl -w "+f.key+"=1", "%s is 0: packets for pods end here", f.key)
		default:
			x.ok("forwarding "+f.name, "packets for pods are forwarded")
		}
	}
	if bad == 0 {
		x.ok("pods", "%d have a route", len(seen))
	}
}
