package doctor

import (
	"net/netip"

	"weir.io/weir/internal/model"
)

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
