package doctor_test

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"weir.io/weir/internal/doctor"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/netlab"
)

// lab is one director between a client and two backends, one of them behind a
// router:
//
//	client -eth0--eth0- director -eth1--eth0- backend 10.0.1.2
//	                             -eth2--eth0- router -- 10.0.3.2
type lab struct {
	director, backend *netlab.Host
	link              *netlab.Link // from director to backend
}

func newLab(t *testing.T) lab {
	t.Helper()
	l := netlab.ForTest(t)
	client, director := l.Host("client"), l.Host("director")
	backend, router := l.Host("backend"), l.Router("router")
	l.Link(client, director, netlab.LinkOptions{XDP: true, A: []string{"10.0.0.2/24"}, B: []string{"10.0.0.1/24"}})
	to := l.Link(director, backend, netlab.LinkOptions{XDP: true, MTU: 1600,
		A: []string{"10.0.1.1/24"}, B: []string{"10.0.1.2/24", "10.0.1.3/24"}})
	via := l.Link(director, router, netlab.LinkOptions{XDP: true, MTU: 1600, A: []string{"10.0.2.1/24"}, B: []string{"10.0.2.2/24"}})
	director.Route("10.0.3.0/24", "10.0.2.2")
	director.Neighbor("eth1", "10.0.1.2", to.B.MAC)
	director.Neighbor("eth2", "10.0.2.2", via.B.MAC)
	return lab{director, backend, to}
}

// What a director has made for itself is no interface that one may mean.
func TestOwnDevicesAreNotOffered(t *testing.T) {
	l := newLab(t)
	for _, pair := range [][2]string{{"weir-0a1b2c3d", "weir-0a1b2c3d-x"}, {"weirout0a1b2c", "weirout0a1b2c-x"}, {"weir-home", "office"}} {
		if err := l.director.Do(func() error {
			return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: pair[0]}, PeerName: pair[1]})
		}); err != nil {
			t.Fatal(err)
		}
	}
	c := config(model.L2DSR, "10.0.1.2")
	c.Director.Interfaces = []string{"eth7"}
	found := examine(t, l.director, doctor.Options{Config: c})
	if got, want := found["interface eth7"].Fix, "there are: eth0, eth1, eth2, office, weir-home"; got != want {
		t.Errorf("doctor says %q, want %q", got, want)
	}
	c.Agent.Interfaces = []string{"w*"}
	found = examine(t, l.director, doctor.Options{Config: c, Role: doctor.Agent})
	for check := range found {
		if strings.Contains(check, "weir-0") || strings.Contains(check, "weirout") {
			t.Errorf("a device that a director has made is examined as an agent's: %+v", found[check])
		}
	}
}

func config(mode model.Mode, backends ...string) *model.Config {
	s := model.Service{Name: "web", VIP: netip.MustParseAddr("203.0.113.10"), Protocol: model.TCP,
		Port: model.PortRange{First: 80, Last: 80}, Mode: mode}
	for _, b := range backends {
		backend := model.NewBackend()
		backend.Address = netip.MustParseAddr(b)
		s.Backends = append(s.Backends, backend)
	}
	c := &model.Config{
		Director:  model.Director{Interfaces: []string{"eth0"}},
		Directors: []netip.Prefix{netip.MustParsePrefix("10.0.1.1/32")},
		Services:  []model.Service{s},
	}
	c.SetDefaults()
	return c
}

// examine examines a host and returns its findings by check.
func examine(t *testing.T, h *netlab.Host, o doctor.Options) map[string]doctor.Finding {
	t.Helper()
	found := make(map[string]doctor.Finding)
	o.BPFFS = h.BPFFS()
	err := h.Do(func() error {
		for _, f := range doctor.Examine(o) {
			if _, twice := found[f.Check]; twice {
				return fmt.Errorf("two findings about %q", f.Check)
			}
			found[f.Check] = f
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// want checks one finding: its level, a part of its text and a part of its fix.
func want(t *testing.T, found map[string]doctor.Finding, check string, level doctor.Level, text, fix string) {
	t.Helper()
	f, there := found[check]
	if !there {
		t.Errorf("nothing is said about %q: %v", check, found)
		return
	}
	if f.Level != level || !strings.Contains(f.Text, text) || !strings.Contains(f.Fix, fix) {
		t.Errorf("about %q it says\n  %+v\nwant %s, %q and the fix %q", check, f, level, text, fix)
	}
}

func TestEveryHost(t *testing.T) {
	l := newLab(t)
	found := examine(t, l.director, doctor.Options{})
	want(t, found, "kernel", doctor.OK, ".", "")
	want(t, found, "capabilities", doctor.OK, "CAP_BPF", "")
	want(t, found, "bpf", doctor.OK, "", "")
	want(t, found, "bpffs", doctor.OK, "mounted at", "")
	if len(found) != 4 {
		t.Errorf("without a configuration there are findings about more: %v", found)
	}
}

func TestNoBPFFS(t *testing.T) {
	dir := t.TempDir()
	for _, f := range doctor.Examine(doctor.Options{BPFFS: dir}) {
		if f.Check == "bpffs" && (f.Level != doctor.Warn || f.Fix != "weir run mounts it; by hand: mount -t bpf bpf "+dir) {
			t.Errorf("a missing BPF file system gives %+v", f)
		}
	}
}

func TestDirector(t *testing.T) {
	l := newLab(t)

	t.Run("healthy", func(t *testing.T) {
		found := examine(t, l.director, doctor.Options{Config: config(model.IPIP, "10.0.1.2", "10.0.3.2")})
		want(t, found, "interface eth0", doctor.OK, "is up, MTU 1500", "")
		want(t, found, "xdp eth0", doctor.OK, "not attached", "")
		want(t, found, "backends", doctor.OK, "2 of 2 have a next hop", "")
		want(t, found, "mtu eth1", doctor.OK, "1600 holds clients' packets of 1500 and the 20 of ipip", "")
		want(t, found, "mtu eth2", doctor.OK, "1600 holds", "")
		want(t, found, "ring memory", doctor.OK, "of 64.0 MiB", "")
		for check, f := range found {
			if f.Level == doctor.Fail {
				t.Errorf("%s fails on a healthy host: %+v", check, f)
			}
		}
	})
	t.Run("interface missing", func(t *testing.T) {
		c := config(model.IPIP, "10.0.1.2")
		c.Director.Interfaces = []string{"eth9"}
		want(t, examine(t, l.director, doctor.Options{Config: c}), "interface eth9", doctor.Fail, "no such interface", "eth0")
	})
	t.Run("no interfaces", func(t *testing.T) {
		c := config(model.IPIP, "10.0.1.2")
		c.Director.Interfaces = nil
		found := examine(t, l.director, doctor.Options{Config: c, Role: doctor.Director})
		want(t, found, "interfaces", doctor.Fail, "director.interfaces is empty", "")
	})
	t.Run("another program", func(t *testing.T) {
		attach(t, l.director, "eth0", "firewall")
		found := examine(t, l.director, doctor.Options{Config: config(model.IPIP, "10.0.1.2")})
		want(t, found, "xdp eth0", doctor.Fail, "another XDP program is attached: firewall", "ip link set dev eth0 xdp off")
	})
	t.Run("left unattached", func(t *testing.T) {
		pin := filepath.Join(l.director.BPFFS(), "weir", "xdp-eth0")
		if err := os.MkdirAll(pin, 0o700); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.RemoveAll(filepath.Dir(pin)) })
		// A backend's host by its address, a director's by its pins.
		found := examine(t, l.director, doctor.Options{Config: config(model.IPIP, "10.0.1.1")})
		want(t, found, "xdp eth0", doctor.Fail, "not attached, though a director has run", "start weir run")
	})
	t.Run("attached", func(t *testing.T) {
		attach(t, l.director, "eth0", "director")
		found := examine(t, l.director, doctor.Options{Config: config(model.IPIP, "10.0.1.2")})
		want(t, found, "xdp eth0", doctor.OK, "attached in native mode", "")
	})
	t.Run("unknown neighbor", func(t *testing.T) {
		found := examine(t, l.director, doctor.Options{Config: config(model.IPIP, "10.0.1.3")})
		want(t, found, "backend 10.0.1.3", doctor.Warn, "next hop 10.0.1.3 is not known", "ping 10.0.1.3")
	})
	t.Run("some without a next hop", func(t *testing.T) {
		found := examine(t, l.director, doctor.Options{Config: config(model.IPIP, "10.0.1.2", "10.0.1.3", "192.0.2.1")})
		want(t, found, "backends", doctor.OK, "1 of 3 have a next hop, and not 10.0.1.3, 192.0.2.1", "")
	})
	t.Run("no route", func(t *testing.T) {
		found := examine(t, l.director, doctor.Options{Config: config(model.IPIP, "192.0.2.1")})
		want(t, found, "backend 192.0.2.1", doctor.Fail, "no route", "ip route add 192.0.2.1")
	})
	t.Run("l2dsr behind a router", func(t *testing.T) {
		found := examine(t, l.director, doctor.Options{Config: config(model.L2DSR, "10.0.3.2")})
		want(t, found, "backend 10.0.3.2", doctor.Fail, "is behind router 10.0.2.2", "use ipip or gue")
	})
	t.Run("mac given", func(t *testing.T) {
		c := config(model.L2DSR, "10.0.3.2")
		c.Services[0].Backends[0].MAC = model.MAC{2, 0, 0, 0, 0, 1}
		want(t, examine(t, l.director, doctor.Options{Config: c}), "backends", doctor.OK, "1 of 1", "")
	})
	t.Run("nat without forwarding", func(t *testing.T) {
		l.director.Sysctl("net.ipv4.ip_forward", "0")
		found := examine(t, l.director, doctor.Options{Config: config(model.NAT, "10.0.1.2")})
		want(t, found, "forwarding IPv4", doctor.Warn, "is off on eth0", "sysctl -w net/ipv4/conf/eth0/forwarding=1")
		l.director.Sysctl("net.ipv4.ip_forward", "1")
		found = examine(t, l.director, doctor.Options{Config: config(model.NAT, "10.0.1.2")})
		want(t, found, "forwarding IPv4", doctor.OK, "is on", "")
	})
	t.Run("nat replies unseen", func(t *testing.T) {
		c := config(model.NAT, "10.0.1.2", "10.0.1.3")
		found := examine(t, l.director, doctor.Options{Config: c})
		want(t, found, "nat eth1", doctor.Fail, "nat backend 10.0.1.2 and 1 more is reached through eth1, which is not in director.interfaces",
			"add eth1 to director.interfaces")
		for name, other := range map[string]func(){
			"with eth1 among the interfaces":       func() { c.Director.Interfaces = []string{"eth0", "eth1"} },
			"in full NAT, whose replies come here": func() { c.Director.Interfaces, c.Services[0].SNAT = []string{"eth0"}, true },
		} {
			other()
			if f, there := examine(t, l.director, doctor.Options{Config: c})["nat eth1"]; there {
				t.Errorf("%s there is %+v", name, f)
			}
		}
		c = config(model.NAT, "10.0.3.2")
		want(t, examine(t, l.director, doctor.Options{Config: c}), "nat eth2", doctor.Warn, "10.0.3.2 is behind a router", "add eth2 to director.interfaces")
	})
	t.Run("nobody takes connections", func(t *testing.T) {
		c := config(model.IPIP, "10.0.1.2", "10.0.1.3")
		c.Services[0].Backends[0].State, c.Services[0].Backends[1].State = model.Down, model.Draining
		found := examine(t, l.director, doctor.Options{Config: c})
		want(t, found, "service web", doctor.Warn, "no backend is to take new connections", "")
	})
	t.Run("vip on an interface", func(t *testing.T) {
		c := config(model.IPIP, "10.0.1.2")
		c.Services[0].VIP = netip.MustParseAddr("10.0.0.1")
		found := examine(t, l.director, doctor.Options{Config: c})
		want(t, found, "vip 10.0.0.1", doctor.Warn, "is an address of eth0", "remove it")
		c.Services[0].Backends[0].Host = netip.MustParseAddr("10.0.1.2")
		c.Services[0].Backends[0].Address = netip.MustParseAddr("10.244.0.2")
		want(t, examine(t, l.director, doctor.Options{Config: c}), "vip 10.0.0.1", doctor.OK, "whose other ports stay this host's", "")
	})
	t.Run("group", func(t *testing.T) {
		c := config(model.NAT, "10.0.1.2")
		c.Director.Group = []netip.Addr{netip.MustParseAddr("10.0.1.9"), netip.MustParseAddr("10.0.1.1")}
		want(t, examine(t, l.director, doctor.Options{Config: c}), "group", doctor.OK, "has 10.0.1.1, which is this host", "")
		c.Director.Group = c.Director.Group[:1]
		want(t, examine(t, l.director, doctor.Options{Config: c}), "group", doctor.Fail, "has no address of this host", "name this host's address")
	})
	t.Run("flow port", func(t *testing.T) { testFlowPort(t, l) })
	t.Run("rings near their limit", func(t *testing.T) {
		c := config(model.IPIP, "10.0.1.2")
		c.Director.Limits.RingMemory = c.RingMemory() + 1
		want(t, examine(t, l.director, doctor.Options{Config: c}), "ring memory", doctor.Warn, "does not fit",
			fmt.Sprintf("director.limits.ring-memory: %d", 2*c.RingMemory()))
	})
	t.Run("small mtu", func(t *testing.T) {
		setMTU(t, l.director, "eth1", 1500)
		found := examine(t, l.director, doctor.Options{Config: config(model.GUE, "10.0.1.2")})
		want(t, found, "mtu eth1", doctor.Warn, "1500 leaves 1436 bytes for packets by gue", "ip link set eth1 mtu 1564")
	})
	t.Run("clients and backends on one link", func(t *testing.T) {
		setMTU(t, l.director, "eth1", 1564)
		c := config(model.GUE, "10.0.1.2")
		c.Director.Interfaces = []string{"eth1"}
		want(t, examine(t, l.director, doctor.Options{Config: c}), "mtu eth1", doctor.OK, "1564 holds clients' packets of 1500", "")
	})
	t.Run("down", func(t *testing.T) {
		setDown(t, l.director, "eth0")
		found := examine(t, l.director, doctor.Options{Config: config(model.IPIP, "10.0.1.2")})
		want(t, found, "interface eth0", doctor.Fail, "is down", "ip link set eth0 up")
	})
}

func TestVLANOffload(t *testing.T) {
	for name, test := range map[string]struct {
		tagged bool
		level  doctor.Level
	}{"hidden": {false, doctor.Fail}, "seen": {true, doctor.OK}} {
		t.Run(name, func(t *testing.T) {
			l := netlab.ForTest(t)
			a, b := l.Host("a"), l.Host("b")
			l.Link(a, b, netlab.LinkOptions{XDP: true, Tagged: test.tagged})
			c := config(model.IPIP)
			c.Services[0].Segment = model.Segment{Kind: model.SegmentVLAN, ID: 7}
			found := examine(t, a, doctor.Options{Config: c})
			want(t, found, "rxvlan eth0", test.level, "", "")
			want(t, found, "txvlan eth0", doctor.Warn, "it must be one that puts VLAN tags into frames", "ethtool -K PEER txvlan off")
		})
	}
}

// TestTunnelRoom: a director that is a VTEP says whether tenants' packets fit into its links.
func TestTunnelRoom(t *testing.T) {
	l := netlab.ForTest(t)
	a, b := l.Host("a"), l.Host("b")
	l.Link(a, b, netlab.LinkOptions{XDP: true, MTU: 1550, A: []string{"192.0.2.1/24"}})
	for _, test := range []struct {
		vtep  string
		mtu   uint16
		level doctor.Level
		text  string
	}{
		{"192.0.2.1", 0, doctor.OK, "MTU 1550 holds packets of 1500 bytes in vxlan:5 and the headers of tunnels, 50 bytes"},
		{"2001:db8::1", 0, doctor.Warn, "MTU 1550 is too small for packets of 1500 bytes in vxlan:5 and the headers of tunnels, 70 bytes: senders are told to send less"},
		{"192.0.2.1", 1501, doctor.Fail, "MTU 1550 is too small for packets of 1501 bytes in vxlan:5, which segments[].mtu lets in"},
	} {
		c := config(model.IPIP)
		c.Director.VTEP = model.VTEP{Addresses: []netip.Addr{netip.MustParseAddr(test.vtep)}}
		c.Segments = []model.SegmentSettings{{ID: model.Segment{Kind: model.SegmentVXLAN, ID: 5}, MTU: test.mtu}}
		want(t, examine(t, a, doctor.Options{Config: c}), "tunnels eth0", test.level, test.text, "")
	}
}

// TestVethChecksum looks at both ends of a veth, which are in one namespace.
func TestVethChecksum(t *testing.T) {
	l := netlab.ForTest(t)
	h := l.Host("h")
	l.Link(h, h, netlab.LinkOptions{NameA: "eth0", NameB: "lazy"})
	want(t, examine(t, h, doctor.Options{Config: config(model.IPIP)}), "checksum eth0", doctor.Fail,
		"its other end, lazy, leaves checksums to offload", "ethtool -K lazy tx off")
}

func TestBackendHost(t *testing.T) {
	l := newLab(t)
	gue := config(model.GUE, "10.0.1.2", "10.0.1.4")

	t.Run("untouched", func(t *testing.T) {
		found := examine(t, l.backend, doctor.Options{Config: gue})
		want(t, found, "vip 203.0.113.10", doctor.Fail, "is not on lo", "ip addr add 203.0.113.10/32 dev lo")
		want(t, found, "arp_ignore eth0", doctor.Fail, "answers ARP requests for VIPs", "arp_ignore=1")
		want(t, found, "arp_announce eth0", doctor.Fail, "", "arp_announce=2")
		want(t, found, "mtu eth0", doctor.OK, "1600 holds packets of 1500 and the 64 of gue", "")
		if _, director := found["ring memory"]; director {
			t.Error("a backend's host with the directors' file is examined as a director")
		}
	})
	t.Run("prepared", func(t *testing.T) {
		l.backend.Address("lo", "203.0.113.10/32")
		l.backend.Sysctl("net.ipv4.conf.all.arp_ignore", "1")
		l.backend.Sysctl("net.ipv4.conf.all.arp_announce", "2")
		l.backend.Sysctl("net.ipv4.conf.all.rp_filter", "0")
		l.backend.Sysctl("net.ipv4.conf.eth0.rp_filter", "0")
		found := examine(t, l.backend, doctor.Options{Config: gue})
		want(t, found, "vips", doctor.OK, "1 of 1 on lo", "")
		want(t, found, "arp_ignore eth0", doctor.OK, "is 1", "")
		want(t, found, "arp_announce eth0", doctor.OK, "is 2", "")
		want(t, found, "rp_filter eth0", doctor.OK, "is 0", "")
	})
	t.Run("strict", func(t *testing.T) {
		l.backend.Sysctl("net.ipv4.conf.eth0.rp_filter", "1")
		found := examine(t, l.backend, doctor.Options{Config: gue})
		want(t, found, "rp_filter eth0", doctor.Warn, "is strict", "rp_filter=2")
	})
	t.Run("small mtu", func(t *testing.T) {
		setMTU(t, l.backend, "eth0", 1500)
		found := examine(t, l.backend, doctor.Options{Config: gue})
		want(t, found, "mtu eth0", doctor.Warn, "1500 leaves 1436 bytes for packets by gue", "mtu 1564")
	})
	t.Run("no directors", func(t *testing.T) {
		c := config(model.GUE, "10.0.1.2")
		c.Directors = nil
		want(t, examine(t, l.backend, doctor.Options{Config: c}), "directors", doctor.Fail, "takes no tunnel", "directors:")
	})
	t.Run("nat", func(t *testing.T) {
		found := examine(t, l.backend, doctor.Options{Config: config(model.NAT, "10.0.1.2")})
		want(t, found, "backend", doctor.OK, "nat needs nothing", "")
		want(t, found, "nat route IPv4", doctor.Warn, "there is no default route", "through a director")
		l.backend.Route("0.0.0.0/0", "10.0.1.1")
		found = examine(t, l.backend, doctor.Options{Config: config(model.NAT, "10.0.1.2")})
		want(t, found, "nat route IPv4", doctor.OK, "replies go by default to 10.0.1.1 on eth0: a director", "")

		elsewhere := config(model.NAT, "10.0.1.2") // 10.0.1.1 is a router, and no director
		elsewhere.Directors = []netip.Prefix{netip.MustParsePrefix("10.0.1.77/32")}
		found = examine(t, l.backend, doctor.Options{Config: elsewhere})
		want(t, found, "nat route IPv4", doctor.Fail, "10.0.1.1 on eth0, which is none of directors: nobody translates them back, and all clients time out", "or name 10.0.1.1 in directors")
		neighbor := func(address string) {
			err := l.backend.Do(func() error {
				link, err := netlink.LinkByName("eth0")
				if err != nil {
					return err
				}
				return netlink.NeighSet(&netlink.Neigh{LinkIndex: link.Attrs().Index, IP: net.ParseIP(address), State: netlink.NUD_PERMANENT,
					HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 7}})
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		neighbor("10.0.1.1")
		neighbor("10.0.1.77") // another address of the same host
		found = examine(t, l.backend, doctor.Options{Config: elsewhere})
		want(t, found, "nat route IPv4", doctor.OK, "a director", "")
		elsewhere.Directors = nil
		found = examine(t, l.backend, doctor.Options{Config: elsewhere})
		want(t, found, "nat route IPv4", doctor.Warn, "does not say whether it is", "name the directors")
		l.backend.RouteFrom("10.0.1.2/32", "default", "10.0.1.78") // of the backend's address alone
		elsewhere.Directors = []netip.Prefix{netip.MustParsePrefix("10.0.1.78/32")}
		found = examine(t, l.backend, doctor.Options{Config: elsewhere})
		want(t, found, "nat route IPv4", doctor.OK, "10.0.1.78 on eth0: a director", "")
	})
	t.Run("somebody else's file", func(t *testing.T) {
		found := examine(t, l.backend, doctor.Options{Config: config(model.GUE, "192.0.2.1"), Role: doctor.Agent})
		want(t, found, "backend", doctor.Warn, "no address of this host is a backend's", "")
	})
}

func TestWorst(t *testing.T) {
	for _, test := range []struct {
		levels []doctor.Level
		want   doctor.Level
	}{
		{nil, doctor.OK},
		{[]doctor.Level{doctor.OK, doctor.Warn, doctor.OK}, doctor.Warn},
		{[]doctor.Level{doctor.Fail, doctor.Warn}, doctor.Fail},
	} {
		var findings []doctor.Finding
		for _, l := range test.levels {
			findings = append(findings, doctor.Finding{Level: l})
		}
		if got := doctor.Worst(findings); got != test.want {
			t.Errorf("the worst of %v is %s, want %s", test.levels, got, test.want)
		}
	}
}

// attach puts an XDP program of this name on an interface until the test ends.
func attach(t *testing.T, h *netlab.Host, dev, name string) {
	t.Helper()
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: name, Type: ebpf.XDP, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()}}) // XDP_PASS
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	err = h.Do(func() error {
		iface, err := net.InterfaceByName(dev)
		if err != nil {
			return err
		}
		l, err := link.AttachXDP(link.XDPOptions{Program: program, Interface: iface.Index, Flags: link.XDPDriverMode})
		if err == nil {
			t.Cleanup(func() { l.Close() })
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func changeLink(t *testing.T, h *netlab.Host, dev string, change func(netlink.Link) error) {
	t.Helper()
	err := h.Do(func() error {
		l, err := netlink.LinkByName(dev)
		if err != nil {
			return err
		}
		return change(l)
	})
	if err != nil {
		t.Fatal(err)
	}
}

func setMTU(t *testing.T, h *netlab.Host, dev string, mtu int) {
	t.Helper()
	changeLink(t, h, dev, func(l netlink.Link) error { return netlink.LinkSetMTU(l, mtu) })
}

func setDown(t *testing.T, h *netlab.Host, dev string) {
	t.Helper()
	changeLink(t, h, dev, netlink.LinkSetDown)
}
