package test

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"

	"weir.io/weir/lab/netlab"
	"weir.io/weir/lab/routerlab"
)

// rack is what docs/operate/tenants.md says to do: the test does what a reader does.
type rack struct{ leaf, bgp, director, server string }

func documentedRack(t *testing.T) rack {
	t.Helper()
	code := codeOf(t, "A rack with EVPN")
	return rack{code("A leaf", "sh"), code("A leaf", ""), code("The rack's director", "yaml"), code("The rack's servers", "sh")}
}

// codeOf returns the first block of code of a language under a heading in a section of docs/operate/tenants.md.
func codeOf(t *testing.T, section string) func(heading, language string) string {
	t.Helper()
	text, err := os.ReadFile("../docs/operate/tenants.md")
	if err != nil {
		t.Fatal(err)
	}
	_, of, _ := strings.Cut(string(text), "\n## "+section+"\n")
	of, _, _ = strings.Cut(of, "\n## ")
	return func(heading, language string) string {
		t.Helper()
		_, part, _ := strings.Cut(of, "\n### "+heading+"\n")
		part, _, _ = strings.Cut(part, "\n### ")
		for i, block := range strings.Split(part, "```") {
			if of, code, _ := strings.Cut(block, "\n"); i%2 == 1 && of == language {
				return code
			}
		}
		t.Fatalf("docs/operate/tenants.md has no code of the language %q under %q", language, heading)
		return ""
	}
}

// does runs commands on a host, line by line.
func (u *underlay) does(h *netlab.Host, commands string) {
	u.Helper()
	for line := range strings.Lines(commands) {
		words := strings.Fields(line)
		on(u.T, h, words[0], words[1:]...)
	}
}

// here has this lab's addresses for those of the document: the director's, the reflector's, and a leaf's.
func (u *underlay) here(leaf int) *strings.Replacer {
	return strings.NewReplacer("192.0.2.200", u.vtep(directorHost).String(), "192.0.2.11", u.vtep(2).String(), "192.0.2.12", u.vtep(leaf).String(),
		"192.0.2.0/24", netip.PrefixFrom(u.vtep(2), 24).Masked().String(), "172.16.0.252", fmt.Sprintf("172.16.0.%d", 250-leaf))
}

// addLeaf makes a host a VTEP of Linux whose FRR tells where its hosts are, and learns it of others.
func (u *underlay) addLeaf(r rack, name string, reflects bool) (leaf *netlab.Host, number int, router *routerlab.FRR) {
	u.Helper()
	u.hosts++
	leaf = u.lab.Host(name)
	u.plug(leaf, u.hosts)
	if err := u.lab.Err(); err != nil {
		u.Fatal(err)
	}
	u.does(leaf, u.here(u.hosts).Replace(r.leaf))
	// Sessions begin again within a second: the leaves start one after the other.
	bgp := strings.Replace(r.bgp, " neighbor 192", " neighbor rack timers 1 3\n neighbor rack timers connect 1\n neighbor 192", 1)
	if reflects {
		bgp = strings.NewReplacer("neighbor 192.0.2.11 peer-group rack", "bgp listen range 192.0.2.0/24 peer-group rack",
			"neighbor rack activate\n", "neighbor rack activate\n  neighbor rack route-reflector-client\n").Replace(bgp)
	}
	return leaf, u.hosts, startFRR(u.T, leaf, routerlab.FRRConfig{BGP: u.here(u.hosts).Replace(bgp)})
}

// host plugs a tenant's host into a leaf.
func (u *underlay) host(name string, leaf *netlab.Host, addresses ...string) *netlab.Host {
	u.Helper()
	h := u.lab.Host(name)
	u.lab.Link(h, leaf, netlab.LinkOptions{XDP: true, MTU: underlayMTU - 50, A: addresses, NameB: name})
	if err := u.lab.Err(); err != nil {
		u.Fatal(err)
	}
	on(u.T, leaf, "ip", "link", "set", "dev", name, "master", "br5001")
	return h
}

// A rack with EVPN: the director knows of no host of the tenant but what the leaves say by BGP, and the leaves
// learn of the VIP from the director. A member that moves to another leaf is followed.
//
//	client, b --- leaf1 (reflector) --- underlay --- director
//	a ----------- leaf2
//	              leaf3
func TestTenantsByEVPN(t *testing.T) {
	t.Parallel()
	u, r := newUnderlay(t, "vxlan", false), documentedRack(t)
	const vip, member = "172.16.0.100", "172.16.0.11"
	leaf1, first, reflector := u.addLeaf(r, "leaf1", true)
	leaf2, at, _ := u.addLeaf(r, "leaf2", false)
	leaf3, later, _ := u.addLeaf(r, "leaf3", false)
	client := u.host("client", leaf1, "172.16.0.2/24")
	a, b := u.host("a", leaf2, member+"/24"), u.host("b", leaf1, "172.16.0.12/24")
	for _, server := range []*netlab.Host{a, b} {
		u.does(server, r.server)
		startNginx(t, server)
	}
	file := u.here(0).Replace(r.director)
	d := launchDaemon(t, u.director, "run", file) // it is ready when the servers have spoken, below
	tried := ""
	ask := func() string {
		out, err := tryOn(t, client, "curl", "--silent", "--max-time", "2", "http://"+vip+"/name")
		tried = fmt.Sprint(out, err)
		return tried
	}
	speak := func(h *netlab.Host, leaf int) { // a leaf tells of a host that has asked it for something
		_, _ = tryOn(t, h, "curl", "--silent", "--max-time", "1", fmt.Sprintf("http://172.16.0.%d:9/", 250-leaf))
	}
	defer func() {
		if t.Failed() {
			routes, _ := reflector.Query("show bgp l2vpn evpn route")
			backends, _ := tryOn(t, d.host, weir, "backends", "-o", "json", "--socket", d.socket)
			hosts, _ := tryOn(t, d.host, weir, "segments", "-o", "json", "--socket", d.socket)
			t.Logf("last: %s\nthe reflector has\n%s\nbackends are\n%s\nsegments are\n%s", tried, routes, backends, hosts)
		}
	}()
	for _, name := range []string{"a", "b"} {
		d.waitFor("forward to "+name, func() bool {
			speak(a, at)
			speak(b, first)
			return ask() == name+"<nil>"
		})
	}
	if where := on(t, leaf1, "bridge", "fdb", "show", "dev", "vxlan5001"); !strings.Contains(where, "dst "+u.vtep(directorHost).String()) {
		t.Errorf("leaf1 has not learned of the director: %s", where)
	}
	d.edit(strings.Replace(file, "  - {name: b, address: 172.16.0.12}\n", "", 1))
	d.waitFor("forward to a alone", func() bool { s, err := d.services(); return err == nil && len(s) == 1 && len(s[0].Backends) == 1 })

	// The member moves.
	on(t, leaf2, "ip", "link", "set", "dev", "a", "nomaster")
	on(t, leaf2, "ip", "link", "set", "dev", "a", "netns", leaf3.Namespace())
	on(t, leaf3, "ip", "link", "set", "dev", "a", "master", "br5001", "up")
	d.waitFor("follow the member to leaf3", func() bool { speak(a, later); return ask() == "a<nil>" })

	// A leaf's kernel forgets the addresses of quiet hosts, and then FRR tells of their MAC addresses alone.
	told := func() bool {
		routes, err := reflector.Query("show bgp l2vpn evpn route type macip")
		return err != nil || strings.Contains(routes, "["+member+"]")
	}
	d.waitFor("be told the address of the member", func() bool { speak(a, later); return told() })
	d.waitFor("be told that no address is known of the member", func() bool {
		_, _ = tryOn(t, leaf3, "ip", "neigh", "del", member, "dev", "br5001")
		return !told()
	})
	if got := ask(); got != "a<nil>" {
		t.Errorf("when only the MAC address of the member is told, the VIP answers %q", got)
	}
	// The same of a member that no leaf has told an address of.
	mac := strings.Fields(on(t, a, "cat", "/sys/class/net/eth0/address"))[0]
	d.edit(strings.NewReplacer("  - {name: b, address: 172.16.0.12}\n", "", member, "172.16.0.13, mac: '"+mac+"'").Replace(file))
	a.Address("lo", "172.16.0.13/32")
	d.waitFor("find the member by its MAC address", func() bool { return ask() == "a<nil>" })
}
