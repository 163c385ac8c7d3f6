package doctor_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weir.io/weir/internal/doctor"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/netlab"
)

// TestVethPeer looks at the director's own link whose other end takes what XDP sends, and at one
// whose other end loses it, but not what generic XDP sends.
func TestVethPeer(t *testing.T) {
	for name, test := range map[string]struct {
		ready bool
		mode  model.XDPMode
		level doctor.Level
		text  string
	}{
		"ready":                {true, model.XDPAuto, doctor.OK, "takes what XDP sends"},
		"deaf":                 {false, model.XDPAuto, doctor.Fail, "neither an XDP program nor GRO"},
		"deaf, in generic XDP": {false, model.XDPGeneric, doctor.OK, "takes what generic XDP sends"},
	} {
		t.Run(name, func(t *testing.T) {
			l := netlab.ForTest(t)
			director, backend := l.Host("director"), l.Host("backend")
			l.Link(director, backend, netlab.LinkOptions{XDP: test.ready, A: []string{"10.0.1.1/24"}, B: []string{"10.0.1.2/24"}})
			c := config(model.IPIP, "10.0.1.2")
			c.Director.XDP = test.mode
			want(t, examine(t, director, doctor.Options{Config: c}), "peer eth0", test.level, test.text, "")
		})
	}
}

// TestReturns looks at what XDP sends back by a veth: without a program at the other end it comes late,
// whatever GRO is there, and nothing that is not seen is called ok.
func TestReturns(t *testing.T) {
	for name, test := range map[string]struct {
		program, second, blind bool
		mode                   model.XDPMode
		level                  doctor.Level
		text, fix              string
	}{
		"GRO alone":                {mode: model.XDPAuto, level: doctor.Fail, text: "no XDP program in its driver: forwarded packets come late", fix: "director.xdp: generic"},
		"GRO alone, and another":   {second: true, mode: model.XDPAuto, level: doctor.Warn, text: "no XDP program in its driver", fix: "director.xdp: generic"},
		"a program":                {program: true, mode: model.XDPAuto, level: doctor.OK, text: "its other end has an XDP program"},
		"without leave to look":    {program: true, blind: true, mode: model.XDPAuto, level: doctor.Warn, text: "cannot be seen from here", fix: "ip -details link"},
		"GRO alone, generic XDP":   {mode: model.XDPGeneric},
		"a program and native XDP": {program: true, mode: model.XDPNative, level: doctor.OK, text: "its other end has an XDP program"},
	} {
		t.Run(name, func(t *testing.T) {
			l := netlab.ForTest(t)
			director, backend := l.Host("director"), l.Host("backend")
			to := l.Link(director, backend, netlab.LinkOptions{XDP: true, A: []string{"10.0.1.1/24"}, B: []string{"10.0.1.2/24"}})
			if test.program {
				to.B.ReceiveXDP()
			}
			c := config(model.IPIP, "10.0.1.2")
			c.Director.XDP = test.mode
			if test.second {
				l.Link(director, l.Host("client"), netlab.LinkOptions{XDP: true, A: []string{"10.0.2.1/24"}})
				c.Director.Interfaces = append(c.Director.Interfaces, "eth1")
			}
			if test.blind {
				dropNetAdmin(t)
			}
			found := examine(t, director, doctor.Options{Config: c})
			if f, there := found["returns eth0"]; test.level == "" {
				if there {
					t.Errorf("generic XDP sends back like the kernel, and there is %+v", f)
				}
				return
			}
			want(t, found, "returns eth0", test.level, test.text, test.fix)
		})
	}
}

// dropNetAdmin takes the capability from the test's thread, which ends with the test.
func dropNetAdmin(t *testing.T) {
	t.Helper()
	runtime.LockOSThread() // and never unlocked
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	if err := unix.Capget(&header, &sets[0]); err != nil {
		t.Fatal(err)
	}
	sets[0].Effective &^= 1 << unix.CAP_NET_ADMIN
	if err := unix.Capset(&header, &sets[0]); err != nil {
		t.Fatal(err)
	}
}

// overlays is a director with interfaces that XDP cannot send into, each in a network of its own:
//
//	node -eth0--eth0- director -overlay, tunnel, bridge
//	                           -deaf--eth0- other
func overlays(t *testing.T) *netlab.Host {
	t.Helper()
	l := netlab.ForTest(t)
	director, node, other := l.Host("director"), l.Host("node"), l.Host("other")
	l.Link(director, node, netlab.LinkOptions{XDP: true, A: []string{"10.0.1.1/24"}, B: []string{"10.0.1.2/24"}})
	l.Link(director, other, netlab.LinkOptions{NameA: "deaf", A: []string{"10.247.0.1/16"}, B: []string{"10.247.0.7/16"}})
	err := director.Do(func() error {
		for _, link := range []netlink.Link{
			&netlink.Vxlan{LinkAttrs: netlink.LinkAttrs{Name: "overlay", MTU: 1450}, VxlanId: 7, Port: 8472, SrcAddr: net.IPv4(10, 0, 1, 1)},
			&netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: "tunnel"}, Mode: netlink.TUNTAP_MODE_TUN, Flags: netlink.TUNTAP_NO_PI},
			&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "bridge"}},
		} {
			if err := errors.Join(netlink.LinkAdd(link), netlink.LinkSetUp(link)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	director.Address("overlay", "10.244.0.1/16")
	director.Address("tunnel", "10.245.0.1/16")
	director.Address("bridge", "10.246.0.1/16")
	if err := l.Err(); err != nil {
		t.Fatal(err)
	}
	return director
}

// TestEgressWithoutXDP looks at routes into interfaces that XDP cannot send into: the kernel does,
// but no frames as they are.
func TestEgressWithoutXDP(t *testing.T) {
	director := overlays(t)
	for _, into := range []struct{ check, backend, what string }{
		{"egress overlay", "10.244.0.7", "(vxlan)"},
		{"egress tunnel", "10.245.0.7", "(tuntap)"},
		{"egress bridge", "10.246.0.7", "(bridge)"},
		{"peer deaf", "10.247.0.7", "(a veth whose other end has neither an XDP program nor GRO)"},
	} {
		t.Run(into.check, func(t *testing.T) {
			end := netip.MustParseAddr(into.backend)
			for _, mode := range []model.Mode{model.NAT, model.IPIP, model.GUE} {
				found := examine(t, director, doctor.Options{Config: config(mode, into.backend, "10.0.1.2")})
				want(t, found, into.check, doctor.OK, "XDP cannot send into it "+into.what+": the kernel sends", "")
				want(t, found, "peer eth0", doctor.OK, "takes what XDP sends", "")
				if f, there := found["backend "+end.String()]; there {
					t.Errorf("by %s the kernel finds the neighbor, and there is %+v", mode, f)
				}
			}
			for name, change := range map[string]func(*model.Service){
				"l2dsr": func(s *model.Service) { s.Mode = model.L2DSR },
				"mac":   func(s *model.Service) { s.Backends[0].MAC = model.MAC{2, 0, 0, 0, 0, 1} },
				"vlan":  func(s *model.Service) { s.Backends[0].VLAN = 7 },
			} {
				c := config(model.IPIP, into.backend, "10.0.1.2")
				change(&c.Services[0])
				found := examine(t, director, doctor.Options{Config: c})
				want(t, found, into.check, doctor.Fail, "backend "+into.backend+", by l2dsr or with a configured mac or vlan, gets nothing", "")
				if f, there := found["backend "+end.String()]; there == (name == "mac") {
					t.Errorf("with %s its neighbor is not known, and there is %+v", name, f)
				}
			}
			c := config(model.L2DSR, into.backend)
			c.Director.XDP = model.XDPGeneric
			f, there := examine(t, director, doctor.Options{Config: c})[into.check]
			if lost := into.check == "egress tunnel"; there && (f.Level == doctor.Fail) != lost {
				t.Errorf("of generic XDP, which sends frames into all that have Ethernet, there is %+v", f)
			}
		})
	}
}

// TestFullNATReplies looks at where replies to the addresses of full NAT come in.
func TestFullNATReplies(t *testing.T) {
	l := newLab(t)
	onOverlay := overlays(t)
	l.director.Address("eth1", "10.0.9.1/32")
	l.director.Address("lo", "10.0.9.2/32")
	onOverlay.Address("overlay", "10.248.0.0/32")
	for _, test := range []struct {
		host    *netlab.Host
		address string
		own     string // director.interfaces
		replies string // director.reply-interfaces
		level   doctor.Level
		text    string
		fix     string
		reached bool // the backends are, by the interface that has the address
	}{
		{l.director, "10.0.0.1", "eth0", "", doctor.OK, "is an address of this host", "", false},
		{l.director, "10.0.1.1", "eth1", "", doctor.OK, "is an address of this host", "", false},
		{l.director, "10.0.1.1", "eth0", "", doctor.Fail, "is an address of eth1, which is not in director.interfaces", "add eth1 to director.interfaces", false},
		{l.director, "10.0.1.1", "eth0", "eth1", doctor.OK, "is an address of this host", "", false},
		{l.director, "10.0.9.1", "eth0", "", doctor.OK, "is an address of this host", "", false},
		{l.director, "10.0.9.2", "eth0", "", doctor.OK, "is an address of this host", "", false},
		{l.director, "10.0.1.9", "eth0", "", doctor.Warn, "on no interface", "ip addr add 10.0.1.9/32", false},
		{onOverlay, "10.0.1.1", "eth0", "", doctor.OK, "is an address of this host", "", false},
		{onOverlay, "10.244.0.1", "eth0", "", doctor.Fail, "is an address of overlay", "add overlay to director.reply-interfaces", false},
		{onOverlay, "10.244.0.1", "eth0", "overlay", doctor.OK, "is an address of this host", "", false},
		{onOverlay, "10.248.0.0", "eth0", "", doctor.Warn, "is an address of overlay", "add overlay to director.reply-interfaces", false},
		{onOverlay, "10.248.0.0", "eth0", "overlay", doctor.OK, "is an address of this host", "", false},
		{l.director, "10.0.1.1", "eth0", "", doctor.OK, "is an address of this host", "", true},
		{onOverlay, "10.244.0.1", "eth0", "", doctor.OK, "is an address of this host", "", true},
		{onOverlay, "10.248.0.0", "eth0", "", doctor.OK, "is an address of this host", "", true},
	} {
		t.Run(fmt.Sprintf("%s with %s %s, reached %t", test.address, test.own, test.replies, test.reached), func(t *testing.T) {
			c := config(model.NAT, "10.0.0.9")
			if test.reached {
				c = config(model.NAT, "10.0.1.2", "10.244.0.7")
			}
			c.Services[0].SNAT = true
			c.Director.Interfaces, c.Director.SNAT.Addresses = []string{test.own}, []netip.Addr{netip.MustParseAddr(test.address)}
			if test.replies != "" {
				c.Director.ReplyInterfaces = []string{test.replies}
			}
			found := examine(t, test.host, doctor.Options{Config: c})
			want(t, found, "snat "+test.address, test.level, test.text, test.fix)
			for _, check := range []string{"nat eth1", "nat overlay"} {
				if f, there := found[check]; there {
					t.Errorf("of the way there, which is not that of replies, it says %+v", f)
				}
			}
		})
	}
}

// TestBridgePort: what comes in by a bridge comes in by its port first, where the program is.
func TestBridgePort(t *testing.T) {
	l := netlab.ForTest(t)
	director, node := l.Host("director"), l.Host("node")
	l.Link(director, node, netlab.LinkOptions{XDP: true, B: []string{"10.0.1.2/24"}})
	changeLink(t, director, "eth0", func(port netlink.Link) error {
		bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "bridge"}}
		return errors.Join(netlink.LinkAdd(bridge), netlink.LinkSetUp(bridge), netlink.LinkSetMaster(port, bridge))
	})
	director.Address("bridge", "10.0.1.1/24")
	c := config(model.NAT, "10.0.1.2")
	if f, there := examine(t, director, doctor.Options{Config: c})["nat bridge"]; there {
		t.Errorf("of replies that come by eth0 and its bridge it says %+v", f)
	}
	c.Director.Interfaces = []string{"lo"}
	want(t, examine(t, director, doctor.Options{Config: c}), "nat bridge", doctor.Fail, "is reached through bridge", "")
}
