package test

import (
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"testing"

	"weir.io/weir/internal/model"
	"weir.io/weir/lab/netlab"
	"weir.io/weir/lab/routerlab"
)

// unnumbered is a lab in which the director has a link of its own to the router, with only the
// link-local addresses that the kernel makes.
//
//	client --- router ------------ director
//	              |                    |
//	              +------ switch ------+--- backend1
type unnumbered struct {
	*announcing
	link *netlab.Link // router: A, director: B
}

func newUnnumbered(t *testing.T) *unnumbered {
	t.Helper()
	u := &unnumbered{announcing: newAnnouncing(t, 1, 1, "")}
	u.link = u.Link(u.router, u.director, netlab.LinkOptions{XDP: true})
	u.link.A.ReceiveXDP()
	return u
}

// linkLocal returns the address of a port of the link.
func linkLocal(t *testing.T, h *netlab.Host, device string) netip.Addr {
	t.Helper()
	var found netip.Addr
	waitFor(t, device+" to have a link-local address", func() bool {
		for _, field := range strings.Fields(on(t, h, "ip", "-6", "-o", "addr", "show", "dev", device, "scope", "link")) {
			if prefix, err := netip.ParsePrefix(field); err == nil {
				found = prefix.Addr()
				return true
			}
		}
		return false
	})
	return found
}

// direct starts the director with a neighbor on that link, and other keys of the neighbor.
func (u *unnumbered) direct(service, neighbor string) *daemon {
	u.t.Helper()
	text := configText("eth0, "+u.link.B.Name, "", service)
	return startDaemon(u.t, u.director, "run", text+fmt.Sprintf("bgp:\n  asn: 65001\n  router-id: 10.2.0.11\n  neighbors:\n  - {%s, asn: 65000, hold-time: 9s, %s}\n", neighbor, patientBFD))
}

// established waits until the session with the router has both families and BFD.
func (u *unnumbered) established(d *daemon, router netip.Addr) {
	u.t.Helper()
	d.waitFor("have a session with BFD over the link", func() bool {
		status, err := d.tryBGP()
		if err != nil || len(status.Neighbors) != 1 {
			return false
		}
		n := status.Neighbors[0]
		return n.State == model.SessionEstablished && n.BFD == "up" && n.Problem == "" && len(n.Families) == 2 && n.Address.WithZone("") == router
	})
}

// viaLink reports whether the router's kernel routes a prefix over the link.
func (u *unnumbered) viaLink(prefix string) bool {
	family := "-4"
	if strings.Contains(prefix, ":") {
		family = "-6"
	}
	return strings.Contains(on(u.t, u.router, "ip", family, "route", "show", prefix), "dev "+u.link.A.Name)
}

// FRR with "neighbor eth2 interface", and weir with "interface": neither is configured with an
// address, each finds the other by its router advertisements, and IPv4 routes have an IPv6 next hop
// (RFC 8950).
func TestUnnumberedFRR(t *testing.T) {
	t.Parallel()
	u := newUnnumbered(t)
	frr := startFRR(t, u.router, routerlab.FRRConfig{BFD: "bfd\n", BGP: fmt.Sprintf(`
hostname router
router bgp 65000
 bgp router-id 10.2.0.1
 no bgp ebgp-requires-policy
 neighbor %[1]s interface remote-as 65001
 neighbor %[1]s advertisement-interval 0
 neighbor %[1]s bfd 5 300 300
 address-family ipv4 unicast
  neighbor %[1]s activate
 exit-address-family
 address-family ipv6 unicast
  neighbor %[1]s activate
 exit-address-family
`, u.link.A.Name)})
	four, six := way{mode: "l2dsr"}, way{mode: "l2dsr", outer6: true, inner6: true}
	services := four.service("tcp", "80", everyBackend(1)) + six.service("tcp", "80", everyBackend(1))
	u.serve(services)
	d := u.direct(services, "interface: "+u.link.B.Name)
	defer func() {
		if t.Failed() {
			out, _ := frr.Query("show bgp summary")
			neighbors, _ := frr.Query("show bgp neighbors")
			peers, _ := frr.Query("show bfd peers")
			t.Logf("FRR says %s\n%s\n%s\nweir says %+v\nand logged:\n%s", out, neighbors, peers, d.bgp(), d.logged())
		}
	}()
	u.established(d, linkLocal(t, u.router, u.link.A.Name))
	for _, w := range []way{four, six} {
		prefix := netip.PrefixFrom(w.vip(), w.vip().BitLen()).String()
		waitFor(t, "the router to send "+prefix+" by the link", func() bool { return u.viaLink(prefix) })
		u.answers("over the link", w)
	}
	out, err := tryOn(t, u.director, weir, "bgp", "--socket", d.socket)
	if err != nil || !strings.Contains(out, u.link.B.Name+" fe80::") {
		t.Errorf("weir bgp says (%v):\n%s", err, out)
	}

	// The router is replaced by one with another address: no configuration changes.
	on(t, u.router, "ip", "link", "set", u.link.A.Name, "down")
	on(t, u.router, "ip", "link", "set", u.link.A.Name, "address", "02:00:00:00:0a:0a")
	on(t, u.router, "ip", "link", "set", u.link.A.Name, "up")
	waitFor(t, "the router to have another address", func() bool {
		return strings.HasSuffix(linkLocal(t, u.router, u.link.A.Name).String(), "aff:fe00:a0a") || strings.HasSuffix(linkLocal(t, u.router, u.link.A.Name).String(), "ff:fe00:a0a")
	})
	u.established(d, linkLocal(t, u.router, u.link.A.Name))
	waitFor(t, "the route to be back", func() bool { return u.viaLink(four.vip().String() + "/32") })
	u.answers("of another router", four)
	d.end(syscall.SIGKILL)
	d.start()
	d.ready()
	u.established(d, linkLocal(t, u.router, u.link.A.Name))
}

// BIRD, whose neighbor is a link-local address: weir has the router's as "fe80::1%eth1", or finds it
// by its advertisements.
func TestUnnumberedBIRD(t *testing.T) {
	t.Parallel()
	u := newUnnumbered(t)
	here, there := linkLocal(t, u.director, u.link.B.Name), linkLocal(t, u.router, u.link.A.Name)
	router := startBIRD(t, u.router, fmt.Sprintf(`
log stderr all;
router id 10.2.0.1;
protocol device { scan time 1; }
protocol kernel k4 { ipv4 { import none; export all; }; }
protocol kernel k6 { ipv6 { import none; export all; }; }
protocol radv { interface "%[1]s" { max ra interval 4; min delay 3; }; }
protocol bfd { interface "*" { interval 300 ms; multiplier 5; }; }
protocol bgp director {
	local as 65000;
	neighbor %[2]s%%%[1]s as 65001;
	hold time 9;
	graceful restart on;
	bfd on;
	ipv4 { import all; export none; extended next hop on; };
	ipv6 { import all; export none; };
}
`, u.link.A.Name, here))
	w := way{mode: "l2dsr"}
	service, prefix := w.service("tcp", "80", everyBackend(1)), w.vip().String()+"/32"
	u.serve(service)
	d := u.direct(service, fmt.Sprintf(`address: "%s%%%s"`, there, u.link.B.Name))
	defer func() {
		if t.Failed() {
			out, _ := router.Query("show protocols all director")
			sessions, _ := router.Query("show bfd sessions")
			t.Logf("BIRD says %s\n%s\nweir says %+v\nand logged:\n%s", out, sessions, d.bgp(), d.logged())
		}
	}()
	u.established(d, there)
	waitFor(t, "the router to send the VIP by the link", func() bool { return u.viaLink(prefix) })
	u.answers("over the link", w)
	d.end(syscall.SIGTERM)
	on(t, u.director, weir, "detach", "--bpffs", d.bpffs, "--socket", d.socket)
	d = u.direct(service, "interface: "+u.link.B.Name)
	u.established(d, there)
	waitFor(t, "the router to send the VIP by the link again", func() bool { return u.viaLink(prefix) })
	u.answers("over the link, found by advertisements", w)
}

// While no router advertises itself on an interface, or there is no such interface, weir says so.
func TestNobodyOnTheInterface(t *testing.T) {
	t.Parallel()
	u := newUnnumbered(t)
	d := startDaemon(t, u.director, "run", configText("eth0", "")+fmt.Sprintf(
		"bgp:\n  asn: 65001\n  router-id: 10.2.0.11\n  neighbors:\n  - {interface: %s, asn: 65000}\n  - {interface: eth7, asn: 65000}\n", u.link.B.Name))
	says := func() string {
		out, _ := tryOn(t, u.director, weir, "status", "--socket", d.socket)
		return out
	}
	defer func() {
		if t.Failed() {
			t.Logf("weir status says\n%s\nand logged\n%s", says(), d.logged())
		}
	}()
	waitFor(t, "weir status to say that there is nobody, and no interface", func() bool {
		out := says()
		return strings.Contains(out, "there is no session with "+u.link.B.Name+": no router has advertised itself") && strings.Contains(out, "there is no session with eth7: there is no interface eth7")
	})
	on(t, u.director, "ip", "link", "set", u.link.B.Name, "down")
	on(t, u.director, "ip", "link", "set", u.link.B.Name, "name", "eth7")
	on(t, u.director, "ip", "link", "set", "eth7", "up")
	waitFor(t, "the interface to be taken when it comes", func() bool {
		return strings.Contains(says(), "there is no session with eth7: no router has advertised itself")
	})
}
