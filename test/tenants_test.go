package test

import (
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"

	"weir.io/weir/internal/model"
	"weir.io/weir/lab/etcdlab"
	"weir.io/weir/lab/netlab"
	"weir.io/weir/lab/routerlab"
	"weir.io/weir/lab/version"
)

// tenantService is a service in a segment ("none" is one), whose backend has a MAC address that it
// says.
func tenantService(segment, vip string, mac net.HardwareAddr) string {
	return fmt.Sprintf("- {name: '%s-%s', segment: '%s', vip: %s, protocol: tcp, port: 80, mode: l2dsr, backends: [{address: %s, mac: '%s'}]}\n",
		strings.NewReplacer(":", "-", ".", "-").Replace(segment), strings.ReplaceAll(vip, ".", "-"), segment, vip, lanAddress(backendHost, false), mac)
}

// tenantsRouter is a router of one network, at an address that all of them have.
type tenantsRouter struct {
	bird   *routerlab.BIRD
	port   *netlab.Port // the director's end of its link
	routes []string     // that it should have
}

// knows waits until a router has exactly these routes.
func (r *tenantsRouter) knows(t *testing.T, when string, routes ...string) {
	t.Helper()
	r.routes = routes
	waitFor(t, fmt.Sprintf("the router at %s to know %v, %s", r.port.Name, routes, when), func() bool {
		out, err := r.bird.Query("show", "route")
		if err != nil {
			return false
		}
		var got []string
		for line := range strings.Lines(out) {
			if prefix, err := netip.ParsePrefix(strings.Fields(line + " -")[0]); err == nil {
				got = append(got, prefix.String())
			}
		}
		slices.Sort(got)
		return slices.Equal(got, routes)
	})
}

// Two tenants have routers with the same address, and so has the host's own network: the director
// has a session with each, with its own password and BFD, and tells it the VIPs of its segment only.
// One of the tenants' routers opens the session itself.
//
//	router of none --- eth0
//	router of 100  --- eth1  director
//	router of 200  --- eth2
func TestDevicesOfTenantsRouters(t *testing.T) {
	t.Parallel()
	for _, devices := range []bool{false, true} {
		t.Run(map[bool]string{false: "bound to interfaces", true: "in VRFs"}[devices], func(t *testing.T) {
			if devices {
				needDevice(t, "vrf")
			}
			testTenantsRouters(t, devices)
		})
	}
}

func testTenantsRouters(t *testing.T, devices bool) {
	lab := netlab.ForTest(t)
	director := lab.Host("director")
	const network, here, there = "10.9.0.0/24", "10.9.0.2", "10.9.0.1"
	vrf := map[string]string{"none": "", "100": "eth1", "200": "eth2"}
	routers := map[string]*tenantsRouter{}
	for _, of := range []string{"none", "100", "200"} {
		host := lab.Host("router" + of)
		link := lab.Link(director, host, netlab.LinkOptions{XDP: true, Tagged: true, B: []string{there + "/24"}})
		link.B.ReceiveXDP()
		if devices && of != "none" {
			vrf[of] = "tenant" + of
			on(t, director, "ip", "link", "add", vrf[of], "type", "vrf", "table", of)
			on(t, director, "ip", "link", "set", vrf[of], "up")
			on(t, director, "ip", "link", "set", link.A.Name, "master", vrf[of])
		}
		director.Address(link.A.Name, here+"/24")
		passive := map[bool]string{false: "passive on; ", true: ""}[of == "200"]
		routers[of] = &tenantsRouter{port: link.A, bird: startBIRD(t, host, fmt.Sprintf(`
log stderr all;
router id %s;
protocol device { scan time 1; }
protocol bfd { interface "*" { interval 300 ms; multiplier 5; }; }
protocol bgp director { local %s as 65000; neighbor %s as 65001; %spassword "of%s"; bfd on; connect retry time 1; error wait time 1, 5;
  ipv4 { import all; export none; }; }
`, there, there, here, passive, of))}
	}
	neighbors := "bgp:\n  asn: 65001\n  router-id: 10.9.0.2\n  listen: [" + here + "]\n  prefixes:\n  - {prefix: 198.51.100.0/24, segment: 'vlan:200', announce: prefix}\n  neighbors:\n"
	for _, of := range []string{"none", "100", "200"} {
		file := write(t, director, "password"+of, "of"+of+"\n")
		text := fmt.Sprintf("address: %s, asn: 65000, hold-time: 9s, password-file: %s, bfd: {interval: 300ms, multiplier: 5, interfaces: [%s]}", there, file, routers[of].port.Name)
		if of != "none" {
			text += fmt.Sprintf(", segment: 'vlan:%s', vrf: %s", of, vrf[of])
		}
		if of == "200" {
			text += ", passive: true"
		}
		neighbors += "  - {" + text + "}\n"
	}
	mac := routers["none"].port.MAC
	service := func(segment string, last int) string {
		return tenantService(segment, fmt.Sprintf("203.0.113.%d", last), mac)
	}
	prefixed := tenantService("vlan:200", "198.51.100.7", mac)
	text := func(services ...string) string {
		return "director: {interfaces: [eth0, eth1, eth2]}\n" + neighbors + "services:\n" + strings.Join(services, "")
	}
	all := []string{service("none", 5), service("vlan:100", 1), service("vlan:200", 1), service("vlan:200", 2), prefixed}
	d := startDaemon(t, director, "run", text(all...))
	defer func() {
		if t.Failed() {
			t.Logf("weir says %+v\nand logged:\n%s", d.bgp(), d.logged())
		}
	}()
	established := func(when string) {
		t.Helper()
		d.waitFor("have three sessions with BFD "+when, func() bool {
			status, err := d.tryBGP()
			if err != nil || len(status.Neighbors) != 3 {
				return false
			}
			return !slices.ContainsFunc(status.Neighbors, func(n model.BGPNeighborStatus) bool {
				return n.State != model.SessionEstablished || n.BFD != "up" || n.Problem != ""
			})
		})
	}
	check := func(when string) {
		t.Helper()
		established(when)
		for _, r := range routers {
			r.knows(t, when, r.routes...)
		}
	}
	routers["none"].routes = []string{"203.0.113.5/32"}
	routers["100"].routes = []string{"203.0.113.1/32"}
	routers["200"].routes = []string{"198.51.100.0/24", "203.0.113.1/32", "203.0.113.2/32"}
	check("at the start")
	names := map[string]string{}
	for _, n := range d.bgp().Neighbors {
		names[n.Name()] = n.Segment.String()
	}
	for of, segment := range map[string]string{"none": "none", "100": "vlan:100", "200": "vlan:200"} {
		if name := model.InVRF(netip.MustParseAddr(there), vrf[of]); names[name] != segment {
			t.Errorf("the neighbors are %v, want %s with segment %s", names, name, segment)
		}
	}
	out := on(t, director, weir, "bgp", "--socket", d.socket)
	for _, want := range []string{there + "%" + vrf["100"] + " vlan:100", "198.51.100.0/24 vlan:200"} {
		if !strings.Contains(out, want) {
			t.Errorf("weir bgp prints no %q:\n%s", want, out)
		}
	}

	// What goes in one segment stays in the others.
	d.edit(text(slices.Concat(all[:1], all[2:4])...))
	d.hangUp()
	routers["100"].routes = nil
	routers["200"].routes = []string{"203.0.113.1/32", "203.0.113.2/32"}
	check("with a VIP of 100 removed, and one of 200")

	// The next process finds all of them again.
	d.end(syscall.SIGTERM)
	d.start()
	d.ready()
	check("with the next process")

	// A session that is lost is its tenant's alone.
	before := d.bgp()
	on(t, director, "ip", "link", "set", routers["100"].port.Name, "down")
	d.waitFor("lose the session with the router of 100", func() bool {
		status, err := d.tryBGP()
		return err == nil && status.Neighbors[1].State != model.SessionEstablished
	})
	for i, n := range d.bgp().Neighbors {
		if i != 1 && (n.State != model.SessionEstablished || n.Losses != before.Neighbors[i].Losses) {
			t.Errorf("the session with %s is lost, too: %+v", n.Name(), n)
		}
	}
	on(t, director, "ip", "link", "set", routers["100"].port.Name, "up")
	check("with the link of 100 back")

	// A VRF that is not there is a problem of its neighbor.
	neighbors = strings.ReplaceAll(neighbors, "vrf: "+vrf["200"], "vrf: nowhere")
	d.edit(text(all...))
	d.hangUp()
	d.waitFor("say that there is no VRF", func() bool {
		status, err := d.tryBGP()
		return err == nil && len(status.Neighbors) == 3 && strings.Contains(status.Neighbors[2].Problem, "there is no interface nowhere (vrf)") && status.Neighbors[2].Own
	})
	routers["200"].knows(t, "without its neighbor")
	if got := d.bgp(); got.Neighbors[0].State != model.SessionEstablished || got.Neighbors[1].State != model.SessionEstablished {
		t.Errorf("with a VRF that is not there the others are %+v", got.Neighbors)
	}
	if out, err := tryOn(t, director, weir, "doctor", "-c", d.config); err == nil || !strings.Contains(out, "neighbor "+there+"%nowhere: ") || !strings.Contains(out, "there is no interface nowhere (vrf)") {
		t.Errorf("weir doctor prints (%v):\n%s", err, out)
	}
}

// Two tenants have the same VIP, and clients with the same address, which ask for it by ARP in their
// VLAN: each gets its own server, and a host without a tag gets no answer. The director answers on the
// trunk, or on the host's VLAN interfaces.
//
//	client100 --- switch --- director
//	client200 ---        --- server100, server200
//	client    ---
func TestDevicesOfTenantsHosts(t *testing.T) {
	t.Parallel()
	for _, devices := range []bool{false, true} {
		t.Run(map[bool]string{false: "on the trunk", true: "on VLAN interfaces"}[devices], func(t *testing.T) {
			if devices {
				needDevice(t, "vlan")
			}
			testTenantsHosts(t, devices)
		})
	}
}

func testTenantsHosts(t *testing.T, devices bool) {
	lab := netlab.ForTest(t)
	lan, director := lab.Switch("switch"), lab.Host("director")
	up := func(h *netlab.Host, number int) *netlab.Port {
		return lab.Link(h, lan, netlab.LinkOptions{XDP: true, Tagged: true, A: lanPrefixes(number)}).A
	}
	up(director, directorHost)
	four, six := way{mode: "l2dsr"}, way{mode: "l2dsr", inner6: true, outer6: true}
	services, answering := "", ""
	clients := map[string]*netlab.Host{}
	for i, id := range []uint16{0, 100, 200} {
		name := map[bool]string{true: fmt.Sprint(id)}[id != 0]
		client := lab.Host("client" + name)
		number := map[bool]int{false: 2, true: 9}[id == 0]
		clientPort := up(client, number)
		joinVLAN(t, clientPort, id, true)
		for _, w := range []way{four, six} {
			on(t, client, "ip", "route", "add", fmt.Sprintf("%s/%d", w.vip(), w.vip().BitLen()), "dev", "eth0")
		}
		if id == 0 {
			clients[""] = client
			continue
		}
		server := lab.Host("server" + name)
		serverPort := up(server, backendHost+i)
		joinVLAN(t, serverPort, id, true)
		for _, w := range []way{four, six} {
			server.Address("lo", fmt.Sprintf("%s/%d", w.vip(), w.vip().BitLen()))
			server.Neighbor("eth0", lanAddress(number, w.inner6).String(), clientPort.MAC)
			services += segmentService("vlan:"+name, w.inner6, serverPort.MAC, "")
		}
		server.Sysctl("net.ipv4.conf.all.arp_ignore", "1")
		startNginx(t, server)
		clients[server.Name] = client
		on := "eth0"
		if devices {
			on = vlanInterface(t, director, name)
		}
		answering += fmt.Sprintf("    - {name: %s, segment: 'vlan:%s'}\n", on, name)
	}
	services = renamed(services)
	if devices { // an interface for another VLAN than that of the segment
		answering += "    - {name: tenant200, segment: 'vlan:100'}\n"
	}
	d := startDaemon(t, director, "run", "director:\n  interfaces: [eth0]\n  neighbor:\n    interfaces:\n"+answering+"services:\n"+services)
	for _, w := range []way{four, six} {
		for server, client := range clients {
			out, err := tryOn(t, client, "curl", "--silent", "--globoff", "--max-time", map[bool]string{true: "10", false: "2"}[server != ""], w.url("name"))
			if served := err == nil && out == server; served != (server != "") {
				t.Errorf("%s gets %q (%v) from %s, want %s", client.Name, out, err, w, server)
			}
		}
	}
	status := d.directorStatus().Neighbor
	var answered []string
	for _, i := range status.Interfaces {
		if wrong := "its packets are in VLAN 200, not in vlan:100"; i.Problem == wrong && devices && i.Name == "tenant200" && i.Segment.String() == "vlan:100" {
			continue
		}
		if i.Answered == 0 || i.Conflicts != 0 || i.Problem != "" {
			t.Errorf("on %v the director says %+v", i.Place(), i)
		}
	}
	for _, v := range status.VIPs {
		answered = append(answered, fmt.Sprintf("%v %s", v.Of(), v.State))
	}
	var want []string
	for _, segment := range []string{"vlan:100/", "vlan:200/"} {
		want = append(want, segment+four.vip().String()+" answers", segment+six.vip().String()+" answers")
	}
	if !slices.Equal(answered, want) {
		t.Errorf("the director answers for %q, want %q", answered, want)
	}
	out, _ := tryOn(t, director, weir, "status", "--socket", d.socket) // with a problem it does not exit with 0
	for _, want := range []string{" vlan:100 ", "\nvlan:200/" + four.vip().String() + " "} {
		if !strings.Contains(out, want) {
			t.Errorf("weir status prints no %q:\n%s", want, out)
		}
	}
}

// vlanInterface makes a host's VLAN interface on its trunk.
func vlanInterface(t *testing.T, h *netlab.Host, id string) (name string) {
	t.Helper()
	name = "tenant" + id
	on(t, h, "ip", "link", "add", "link", "eth0", "name", name, "type", "vlan", "id", id)
	on(t, h, "ip", "link", "set", name, "up")
	return name
}

// renamed gives the services of several segments names of their own.
func renamed(services string) string {
	text := ""
	for i, one := range strings.Split(services, "- name: ") {
		if i > 0 {
			text += fmt.Sprintf("- name: of%d-", i)
		}
		text += one
	}
	return text
}

// beforeSegments is a commit whose directors answer for no VIP in a segment.
const beforeSegments = "5a6e216b"

// A director of the version before shares the VIPs in no segment with a newer one, which answers for
// the segments' VIPs alone, until the other one is replaced, too.
//
//	switch --- director (new), director2 (old)
//	       --- store (etcd)
func TestSegmentOwnersBesideTheVersionBefore(t *testing.T) {
	t.Parallel()
	if err := exec.Command("git", "-C", "..", "cat-file", "-e", beforeSegments).Run(); err != nil {
		t.Skipf("the repository's history does not reach back to %s: %v", beforeSegments, err)
	}
	before, err := version.BuildCommit(t.Context(), "..", built, beforeSegments)
	if err != nil {
		t.Fatal(err)
	}
	l := newLab(t, size{routed: true})
	second, link := l.secondDirector()
	_, store := l.startStore(etcdlab.Options{Members: 1})
	text := func(segments string) string {
		return fmt.Sprintf("director:\n  interfaces: [eth0]\n  group: [%s, %s]\n  neighbor:\n    lease: 1m\n    settle: 100ms\n    interfaces:\n    - {name: eth0, prefixes: [203.0.113.0/24]}\n%s%sservices: []\n",
			lanAddress(directorHost, false), lanAddress(otherDirector, false), segments, store)
	}
	const segments = "    - {name: eth0, segment: 'vlan:100'}\n    - {name: eth0, segment: 'vlan:200'}\n"
	newer := startDaemon(t, l.director, "run", text(segments))
	older := newDaemon(t, second, "run", text(""))
	newer.binary, older.binary = weir, before
	older.start()
	older.ready()
	var services []string
	for last := range 4 {
		for _, segment := range []string{"none", "vlan:100", "vlan:200"} {
			services = append(services, tenantService(segment, fmt.Sprintf("203.0.113.%d", last+1), link.A.MAC))
		}
	}
	newer.apply(services...)
	answers := func(d *daemon, when, want string) {
		t.Helper()
		last := ""
		defer func() {
			if t.Failed() {
				t.Logf("it says %q", last)
			}
		}()
		d.waitFor(fmt.Sprintf("answer for %s, %s", want, when), func() bool {
			status, err := neighborStatus(d)
			count := map[bool]int{}
			for _, v := range status.VIPs {
				if v.State == model.NeighborAnswers {
					count[v.Of().InSegment()]++
				}
			}
			last = fmt.Sprintf("%d %d", count[false], count[true])
			return err == nil && last == want
		})
	}
	answers(older, "beside a newer one", "2 0")
	answers(newer, "beside an older one", "2 8")
	if status, err := neighborStatus(older); err != nil || len(status.VIPs) != 4 {
		t.Errorf("the older one lists %+v (%v), want the four VIPs in no segment", status.VIPs, err)
	}
	// Replaced, it gets its share.
	older.end(syscall.SIGTERM)
	answers(newer, "alone", "4 8")
	older.binary = weir
	older.edit(text(segments))
	older.start()
	answers(older, "as new as the other one", "2 4")
	answers(newer, "beside one like it", "2 4")
}
