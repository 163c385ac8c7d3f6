package datapath

import (
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/device"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/packet"
)

func settingsOf(t *testing.T, d *Datapath) (settings abi.Settings) {
	t.Helper()
	must(t, d.kernel.ThisDirector.Lookup(uint32(0), &settings))
	return settings
}

func wire(t *testing.T) netlink.Link {
	t.Helper()
	l, err := netlink.LinkByName("wire0")
	must(t, err)
	return l
}

func tunnelTable() model.Table {
	t := tableOf(1, 1, 0)
	t.Services[0].Backends[0].Mode = model.IPIP
	return t
}

// TestNothingChangesBeforeSet: what the kernel says between Open and the first Set
// changes nothing for packets of what an earlier process left.
func TestNothingChangesBeforeSet(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	first := openTest(t, model.Limits{})
	must(t, first.Set(tunnelTable()))
	want := settingsOf(t, first)
	must(t, first.Close())
	second := openTest(t, model.Limits{})
	second.hopsChanged()
	if got := settingsOf(t, second); got != want {
		t.Errorf("settings are %+v, want %+v as before", got, want)
	}
	if n := egressOf(t, second); !slices.Equal(n, []uint32{uint32(wire(t).Attrs().Index)}) {
		t.Errorf("packets may leave by %v, want wire0 as before", n)
	}
}

func egressOf(t *testing.T, d *Datapath) (list []uint32) {
	t.Helper()
	var key, value uint32
	all := d.kernel.Egress.Iterate()
	for all.Next(&key, &value) {
		list = append(list, key)
	}
	must(t, all.Err())
	return list
}

// TestTunnelSourceOutlivesRoute: while no backend has a route nobody can say where
// tunnels come from. The first packets after that must not come from anywhere.
func TestTunnelSourceOutlivesRoute(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	d := openTest(t, model.Limits{})
	must(t, d.Set(tunnelTable()))
	want := settingsOf(t, d)
	address, err := netlink.ParseAddr("10.0.0.1/24")
	must(t, err)
	must(t, netlink.AddrDel(wire(t), address))
	eventually(t, "the backend has no way", func() bool {
		return statusOf(t, d).Services[0].Backends[0].Interface == ""
	})
	if got := settingsOf(t, d); got.TunnelSource4 != want.TunnelSource4 || got.TunnelMask4 != want.TunnelMask4 {
		t.Errorf("tunnels come from %#x under %#x, want %#x under %#x as before", got.TunnelSource4, got.TunnelMask4, want.TunnelSource4, want.TunnelMask4)
	}
}

// TestTunnelSourceStays: which backend is asked first for the source of tunnels is said by the
// table, also when only routes change. Here every service would have another answer.
func TestTunnelSourceStays(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	d := openTest(t, model.Limits{})
	table := tableOf(8, 1, 0)
	for i := range table.Services {
		b := &table.Services[i].Backends[0]
		b.Address, b.Mode = netip.AddrFrom4([4]byte{10, 7, byte(i), 2}), model.IPIP
		own, err := netlink.ParseAddr(netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 7, byte(i), 1}), 24).String())
		must(t, err)
		must(t, netlink.AddrAdd(wire(t), own))
	}
	must(t, d.Set(table))
	want := settingsOf(t, d).TunnelSource4
	if first := abi.BigEndianAddress(netip.MustParseAddr("10.7.0.1")); want != first {
		t.Fatalf("tunnels come from %#x, want the address towards the first service's backend, %#x", want, first)
	}
	for range 20 {
		d.hopsChanged()
		if got := settingsOf(t, d).TunnelSource4; got != want {
			t.Fatalf("a change of routes makes tunnels come from %#x, not %#x", got, want)
		}
	}
}

// TestEgressIsOpenedAgain: the kernel takes an interface that goes out of a device
// map; it may come back by its number, from another namespace.
func TestEgressIsOpenedAgain(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	d := openTest(t, model.Limits{})
	must(t, d.Set(tableOf(1, 1, 0)))
	index := uint32(wire(t).Attrs().Index)
	must(t, d.kernel.Egress.Delete(index))
	must(t, d.kernel.Egress.Put(uint32(1), uint32(1)))
	d.hopsChanged()
	if n := egressOf(t, d); !slices.Equal(n, []uint32{index}) {
		t.Errorf("packets may leave by %v, want wire0 (%d)", n, index)
	}
}

// TestEgressStaysForRings: until the rings are switched they name the backends before, so packets may
// leave to where only those are.
func TestEgressStaysForRings(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	must(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "other0"}, PeerName: "other1"}))
	other := device.ByName("other0")
	must(t, netlink.LinkSetUp(other))
	address, err := netlink.ParseAddr("10.9.0.1/24")
	must(t, err)
	must(t, netlink.AddrAdd(other, address))
	d := openTest(t, model.Limits{})
	table := tableOf(1, 1, 0)
	table.Services[0].Backends[0].Address, table.Services[0].Backends[0].Mode = netip.MustParseAddr("10.9.0.2"), model.IPIP
	must(t, d.Set(table))
	both := egressOf(t, d)
	if len(both) != 2 {
		t.Fatalf("packets may leave by %v, want wire0 and where the kernel sends to other0", both)
	}
	next := tableOf(1, 1, 0)
	c, err := d.assignIndexes(&next)
	must(t, err)
	must(t, d.configure(&c, d.have.flags()))
	if got := egressOf(t, d); !slices.Equal(got, both) {
		t.Errorf("while rings name the backend packets may leave by %v, want %v", got, both)
	}
	must(t, d.Set(next))
	if got, want := egressOf(t, d), []uint32{uint32(wire(t).Attrs().Index)}; !slices.Equal(got, want) {
		t.Errorf("when none does packets may leave by %v, want %v", got, want)
	}
}

// TestForwardingByFamily: forwarding is switched on where replies need it. For
// IPv6 it costs the host default routes that it has from advertisements.
func TestForwardingByFamily(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	d := openTest(t, model.Limits{})
	table := tableOf(1, 2, 0)
	for i := range table.Services[0].Backends {
		table.Services[0].Backends[i].Mode = model.NAT
	}
	must(t, d.Set(table))
	for family, want := range map[string]string{"ipv4": "1", "ipv6": "0"} {
		got, err := os.ReadFile("/proc/sys/net/" + family + "/conf/wire0/forwarding")
		must(t, err)
		if strings.TrimSpace(string(got)) != want {
			t.Errorf("%s forwarding is %s, want %s: only an IPv4 service is nat", family, got, want)
		}
	}
}

// TestNextHopObjectsAreFollowed: what becomes of a next-hop object, or of a group of them, is no
// news of a route that names it.
func TestNextHopObjectsAreFollowed(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	for _, family := range []struct{ backend, first, second string }{
		{"192.0.2.9", "10.0.0.251", "10.0.0.252"},
		{"2001:db8:9::9", "2001:db8::fb", "2001:db8::fc"},
	} {
		backend, first, second := netip.MustParseAddr(family.backend), netip.MustParseAddr(family.first), netip.MustParseAddr(family.second)
		addNeighbor(t, first)
		addNeighbor(t, second)
		ip := func(args ...string) {
			t.Helper()
			if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
				t.Fatalf("ip %s: %v: %s", strings.Join(args, " "), err, out)
			}
		}
		ip("nexthop", "add", "id", "1", "via", family.first, "dev", "wire0")
		ip("nexthop", "add", "id", "2", "via", family.second, "dev", "wire0")
		ip("nexthop", "add", "id", "10", "group", "1")
		ip("route", "add", family.backend, "nhid", "10")
		d := openOptions(t, Options{recheck: time.Hour})
		table := tableOf(1, 1, 0)
		table.Services[0].Backends[0].Address, table.Services[0].Backends[0].Mode = backend, model.IPIP
		must(t, d.Set(table))
		leads := func(what string, to netip.Addr) {
			t.Helper()
			eventually(t, what, func() bool { return statusOf(t, d).Services[0].Backends[0].NextHop == neighborMAC(to) })
		}
		leads("the backend is behind the first router", first)
		for range 3 {
			ip("nexthop", "replace", "id", "10", "group", "2")
			leads("after the group was replaced it is behind the second", second)
			ip("nexthop", "replace", "id", "10", "group", "1/2")
			ip("nexthop", "del", "id", "2")
			leads("after the second is deleted it is behind the first", first)
			ip("nexthop", "add", "id", "2", "via", family.second, "dev", "wire0")
			ip("nexthop", "replace", "id", "1", "via", family.second, "dev", "wire0")
			leads("after the object has another gateway it is behind that", second)
			ip("nexthop", "replace", "id", "1", "via", family.first, "dev", "wire0")
			leads("after the object has the first gateway again it is behind that", first)
		}
		ip("nexthop", "flush")
		eventually(t, "without its next hops the backend is down", func() bool {
			return statusOf(t, d).Services[0].Backends[0].State == model.Down
		})
		must(t, d.Close())
	}
}

// TestRoutesAreReadAgain: a path MTU that a router has reported is an exception to a route. The
// kernel sends no notice when such an exception comes or ends.
func TestRoutesAreReadAgain(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	router, backend := netip.MustParseAddr("10.0.0.254"), netip.MustParseAddr("192.0.2.9")
	addNeighbor(t, router)
	must(t, netlink.RouteAdd(&netlink.Route{LinkIndex: wire(t).Attrs().Index, Gw: router.AsSlice(),
		Dst: &net.IPNet{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)}}))
	d := openOptions(t, Options{recheck: 20 * time.Millisecond})
	table := tableOf(1, 1, 0)
	table.Services[0].Backends[0].Address, table.Services[0].Backends[0].Mode = backend, model.IPIP
	must(t, d.Set(table))
	mtu := func() uint16 { return statusOf(t, d).Services[0].Backends[0].MTU }
	whole := mtu()
	tellTooBig(t, backend, 1400)
	eventually(t, "the path MTU is followed", func() bool { return mtu() == whole-100 })
	must(t, os.WriteFile("/proc/sys/net/ipv4/route/flush", []byte("1"), 0))
	eventually(t, "its end is followed", func() bool { return mtu() == whole })
}

// tellTooBig makes the kernel take in that packets to an address must be smaller: it sends one,
// and is told so by the far end of the wire.
func tellTooBig(t *testing.T, to netip.Addr, mtu uint32) {
	t.Helper()
	from := netip.MustParseAddr("10.0.0.1")
	conn, err := net.DialUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(from, 4000)), net.UDPAddrFromAddrPort(netip.AddrPortFrom(to, 4001)))
	must(t, err)
	t.Cleanup(func() { conn.Close() })
	_, err = conn.Write([]byte("data"))
	must(t, err)
	link := wire(t)
	sendFrom(t, "wire1", packet.Build(packet.EthernetHeader{Dst: [6]byte(link.Attrs().HardwareAddr), Src: neighborMAC(netip.MustParseAddr("10.0.0.254"))},
		ip(netip.MustParseAddr("10.0.0.254"), from),
		packet.ICMPv4Header{Type: packet.Unreachable, Code: packet.FragmentationNeeded, Rest: mtu},
		ip(from, to), packet.UDPHeader{Src: 4000, Dst: 4001}, packet.Text("data")))
}

// sendFrom sends a frame by an interface.
func sendFrom(t *testing.T, name string, frame []byte) {
	t.Helper()
	link, err := netlink.LinkByName(name)
	must(t, err)
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0)
	must(t, err)
	defer unix.Close(fd)
	must(t, unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: link.Attrs().Index, Halen: 6}))
}

// TestRulesAreFollowed: a rule decides by which table a backend is reached.
func TestRulesAreFollowed(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	addNeighbor(t, netip.MustParseAddr("10.0.0.11"))
	d := openTest(t, model.Limits{})
	must(t, d.Set(tableOf(1, 1, 0)))
	state := func() model.BackendState { return statusOf(t, d).Services[0].Backends[0].State }
	if s := state(); s != model.Active {
		t.Fatalf("the backend is %s, want active", s)
	}
	rule := netlink.NewRule()
	rule.Family, rule.Priority, rule.Type = netlink.FAMILY_V4, 100, unix.FR_ACT_BLACKHOLE
	rule.Dst = &net.IPNet{IP: net.IPv4(10, 0, 0, 11).To4(), Mask: net.CIDRMask(32, 32)}
	// More often than the new interface has other news of its own.
	for range 5 {
		must(t, netlink.RuleAdd(rule))
		eventually(t, "a backend that a rule leads nowhere is down", func() bool { return state() == model.Down })
		must(t, netlink.RuleDel(rule))
		eventually(t, "it is active again without the rule", func() bool { return state() == model.Active })
	}
}
