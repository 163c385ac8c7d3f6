package test

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"weir.io/weir/lab/netlab"
)

// device is a kind of uplink of a director. It is made of one cable or two, and has the director's
// addresses.
type device struct {
	kind    string // the name in iproute2, and of the kernel's module
	uplink  string // in director.interfaces
	segment string // of the services; empty: none
	vrf     string // of the uplink: packets of the director itself need "ip vrf exec"
	make    func(l *lab)
	lost    string // why frames for a backend's own MAC address cannot leave; empty: they can
}

// devices are the uplinks that operators have.
var devices = map[string]device{
	"bond, active-backup": {kind: "bond", uplink: "bond0", make: func(l *lab) { l.bond("active-backup") }},
	"bond, 802.3ad":       {kind: "bond", uplink: "bond0", make: func(l *lab) { l.bond("802.3ad") }},
	"VLAN, 802.1Q":        {kind: "vlan", uplink: "eth0", segment: "vlan:100", make: func(l *lab) { l.trunk("802.1Q") }},
	"VLAN, 802.1ad":       {kind: "vlan", uplink: "eth0", segment: "vlan:100", make: func(l *lab) { l.trunk("802.1ad") }, lost: "XDP cannot send into tenant (vlan)"},
	"VRF":                 {kind: "vrf", uplink: "eth0", vrf: "tenant", make: (*lab).vrf},
	"bridge":              {kind: "bridge", uplink: "eth0", make: (*lab).bridge, lost: "XDP cannot send into br0 (bridge)"},
}

// TestDevices sends real traffic in every mode through directors whose uplink is no plain
// interface. "make test-guest" tries devices that this host's kernel lacks.
//
//	client --- router --- switch === device of the director
//	                             --- backend1, backend2
func TestDevices(t *testing.T) {
	t.Parallel()
	for name, d := range devices {
		t.Run(name, func(t *testing.T) {
			needDevice(t, d.kind)
			if d.segment == "" { // connections of a segment are not handed over
				t.Run("redirect", func(t *testing.T) {
					l := newNarrowLab(t, size{backends: 2, uplink: d.make, uplinkName: d.uplink, vrf: d.vrf}, redirectService{number: 1, port: 80, fallback: "gue", backends: everyBackend(2)})
					for _, b := range l.backends {
						startNginx(t, b)
					}
					for _, six := range []bool{false, true} {
						l.bypasses(t, 1, func() {
							url := "http://" + netip.AddrPortFrom(redirectVIP(1, six), 80).String() + "/name"
							if out, err := tryOn(t, l.client, "curl", "--silent", "--show-error", "--globoff", "--max-time", "20", url); err != nil || !strings.HasPrefix(out, "backend") {
								t.Errorf("%s: curl prints %q (%v)", url, out, err)
							}
						})
					}
				})
			}
			l := newLab(t, size{backends: 2, uplink: d.make})
			service := func(w way) string {
				text := w.service("tcp", "80", everyBackend(2))
				if d.segment != "" {
					text = strings.Replace(text, "  vip:", "  segment: "+d.segment+"\n  vip:", 1)
				}
				return text
			}
			var services, lost []string
			for _, w := range ways {
				if w.mode == "l2dsr" && d.lost != "" {
					lost = append(lost, service(w))
				} else {
					services = append(services, service(w))
				}
			}
			for _, b := range l.backends {
				startDaemon(t, b, "agent", configText("", "eth0", services...))
				root := startNginx(t, b)
				if err := os.WriteFile(filepath.Join(root, "large"), make([]byte, 1<<20), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			director := startDaemon(t, l.director, "run", configText(d.uplink, "", services...))
			for _, w := range ways {
				if w.mode != "l2dsr" || d.lost == "" {
					t.Run(w.String(), func(t *testing.T) { l.fetches(t, director, w) })
				}
			}
			if d.lost == "" {
				return
			}
			director.edit(configText(d.uplink, "", append(lost, services...)...))
			director.waitFor("say which backends it cannot reach, and why", func() bool {
				status, _ := tryOn(t, l.director, weir, "status", "--socket", director.socket)
				return strings.Contains(status, `backend "backend2" of service "l2dsr-6-tcp-80" gets no packets: `+d.lost)
			})
		})
	}
}

// fetches gets files of both sizes through a way, several times.
func (l *lab) fetches(t *testing.T, director *daemon, w way) {
	t.Helper()
	for range 4 {
		if out, err := tryOn(t, l.client, "curl", "--silent", "--show-error", "--globoff", "--max-time", "20", w.url("name")); err != nil || !strings.HasPrefix(out, "backend") {
			t.Fatalf("curl prints %q (%v)\n%s\n%s\n%s", out, err, on(t, l.director, weir, "status", "--socket", director.socket),
				on(t, l.director, weir, "backends", "-o", "wide", "--socket", director.socket), director.logged())
		}
	}
	if out, err := tryOn(t, l.client, "curl", "--silent", "--show-error", "--globoff", "--max-time", "60", "--output", "/dev/null", "--write-out", "%{size_download}", w.url("large")); err != nil || out != fmt.Sprint(1<<20) {
		t.Errorf("of a large file %q bytes come (%v)", out, err)
	}
}

// needDevice skips the test if the kernel has no such device. In a guest that is made for these
// devices, nothing is skipped.
func needDevice(t *testing.T, kind string) {
	t.Helper()
	lab := netlab.ForTest(t)
	h := lab.Host("probe")
	lab.Link(h, lab.Host("peer"), netlab.LinkOptions{})
	args := []string{"link", "add", "probe0", "type", kind}
	switch kind {
	case "vlan":
		args = []string{"link", "add", "link", "eth0", "name", "probe0", "type", "vlan", "id", "2"}
	case "vrf":
		args = append(args, "table", "9")
	}
	if out, err := tryOn(t, h, "ip", args...); err != nil {
		if os.Getenv("WEIR_DEVICES") == "all" {
			t.Fatalf("make a device of kind %s: %s", kind, out)
		}
		t.Skipf("this kernel has no %s devices; make test-guest tries them", kind)
	}
}

// bond connects the director by two bonded cables.
func (l *lab) bond(mode string) {
	opts := []string{"miimon", "20"}
	if mode == "802.3ad" {
		opts = append(opts, "lacp_rate", "fast", "xmit_hash_policy", "layer3+4")
	}
	first := l.Link(l.director, l.lan, netlab.LinkOptions{XDP: true, NameB: "to-director0"})
	l.Link(l.director, l.lan, netlab.LinkOptions{XDP: true, NameB: "to-director1"})
	l.enslave(l.director, "bond0", mode, opts, first.A.Name, "eth1")
	if mode == "802.3ad" {
		on(l.t, l.lan, "ip", "link", "set", "to-director0", "xdp", "off")
		on(l.t, l.lan, "ip", "link", "set", "to-director1", "xdp", "off")
		l.enslave(l.lan, "bond1", mode, opts, "to-director0", "to-director1")
		on(l.t, l.lan, "ip", "link", "set", "bond1", "master", "bridge")
		(&netlab.Port{Host: l.lan, Name: "bond1"}).ReceiveXDP()
	}
	l.director.Address("bond0", lanPrefixes(directorHost, snatHost)...)
}

func (l *lab) enslave(h *netlab.Host, bond, mode string, opts []string, ports ...string) {
	on(l.t, h, "ip", append([]string{"link", "add", bond, "type", "bond", "mode", mode}, opts...)...)
	for _, port := range ports {
		on(l.t, h, "ip", "link", "set", port, "nomaster")
		on(l.t, h, "ip", "link", "set", port, "down")
		on(l.t, h, "ip", "link", "set", port, "master", bond)
		on(l.t, h, "ip", "link", "set", port, "up")
	}
	on(l.t, h, "ip", "link", "set", bond, "up")
}

// trunk connects the director by a cable of tagged frames, with a device for the VLAN of all other
// hosts on the switch.
func (l *lab) trunk(protocol string) {
	port := l.Link(l.director, l.lan, netlab.LinkOptions{XDP: true, Tagged: true, NameB: "to-director"}).A
	on(l.t, l.lan, "ip", "link", "set", "bridge", "type", "bridge", "vlan_filtering", "1", "vlan_protocol", protocol, "vlan_default_pvid", "100")
	on(l.t, l.lan, "bridge", "vlan", "add", "dev", "to-director", "vid", "100")
	if protocol == "802.1ad" { // these tags have an offload of their own: XDP sees only those in the frame
		on(l.t, l.lan, "ethtool", "-K", "to-director", "tx-vlan-stag-hw-insert", "off")
	}
	on(l.t, l.director, "ip", "link", "add", "link", port.Name, "name", "tenant", "type", "vlan", "id", "100", "protocol", protocol)
	on(l.t, l.director, "ip", "link", "set", "tenant", "up")
	l.director.Address("tenant", lanPrefixes(directorHost, snatHost)...)
}

// vrf puts the director's uplink into a routing table of its own.
func (l *lab) vrf() {
	port := l.Link(l.director, l.lan, netlab.LinkOptions{XDP: true}).A
	on(l.t, l.director, "ip", "link", "add", "tenant", "type", "vrf", "table", "100")
	on(l.t, l.director, "ip", "link", "set", "tenant", "up")
	on(l.t, l.director, "ip", "link", "set", port.Name, "master", "tenant")
	l.director.Address(port.Name, lanPrefixes(directorHost, snatHost)...)
	l.directorRoute = func(to, via string) {
		on(l.t, l.director, "ip", "route", "add", to, "via", via, "vrf", "tenant")
	}
}

// bridge plugs the director's uplink into a bridge of its own, which has its addresses.
func (l *lab) bridge() {
	port := l.Link(l.director, l.lan, netlab.LinkOptions{XDP: true}).A
	on(l.t, l.director, "ip", "link", "add", "br0", "type", "bridge")
	on(l.t, l.director, "ip", "link", "set", port.Name, "master", "br0")
	on(l.t, l.director, "ip", "link", "set", "br0", "up")
	l.director.Address("br0", lanPrefixes(directorHost, snatHost)...)
}
