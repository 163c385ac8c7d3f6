package test

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weir.io/weir/internal/model"
	"weir.io/weir/lab/netlab"
)

// Tenants' networks in VXLAN. Their hypervisors are Linux with its own vxlan devices:
//
//	vm --- hypervisor --- underlay --- director
//
// The same addresses are in all networks.

// underlay is where hypervisors and the director are.
type underlay struct {
	*testing.T
	lab      *netlab.Lab
	lan      *netlab.Host
	director *netlab.Host
	port     *netlab.Port // the director's
	six      bool
	kind     string // of the tunnels
	hosts    int
}

const underlayMTU = 1600

func newUnderlay(t *testing.T, kind string, six bool) *underlay {
	t.Helper()
	u := &underlay{T: t, lab: netlab.ForTest(t), six: six, kind: kind, hosts: 1}
	u.lan, u.director = u.lab.Switch("underlay"), u.lab.Host("director")
	u.port = u.plug(u.director, directorHost)
	return u
}

func (u *underlay) plug(h *netlab.Host, number int) *netlab.Port {
	return u.lab.Link(h, u.lan, netlab.LinkOptions{XDP: true, Tagged: h == u.director, MTU: underlayMTU, A: lanPrefixes(number)}).A
}

// vtep is the underlay's address of a host.
func (u *underlay) vtep(number int) netip.Addr { return lanAddress(number, u.six) }

// vm is a host of a tenant.
type vm struct {
	*netlab.Host
	port       *netlab.Port
	vtep       netip.Addr
	hypervisor *netlab.Host
}

// noneMalformed fails if the hypervisor's kernel has dropped UDP datagrams by their checksums.
func (v vm) noneMalformed(t *testing.T) {
	t.Helper()
	for _, file := range []string{"/proc/net/snmp6", "/proc/net/snmp"} {
		names, values := []string{}, []string{}
		for line := range strings.Lines(on(t, v.hypervisor, "cat", file)) {
			fields := strings.Fields(line)
			switch {
			case strings.HasPrefix(line, "Udp6InCsumErrors"):
				names, values = fields[:1], fields[1:]
			case strings.HasPrefix(line, "Udp:") && len(names) == 0:
				names = fields
			case strings.HasPrefix(line, "Udp:"):
				values = fields
			}
		}
		at := slices.IndexFunc(names, func(name string) bool { return strings.HasSuffix(name, "InCsumErrors") })
		if at < 0 || at >= len(values) || values[at] != "0" {
			t.Errorf("%s of %s counts checksums that are wrong, or does not say: %v %v", file, v.hypervisor.Name, names, values)
		}
	}
}

// add starts a virtual machine with these addresses on a hypervisor of its own, in the network of a VNI.
func (u *underlay) add(name string, vni int, addresses ...string) vm {
	u.Helper()
	u.hosts++
	number := u.hosts
	hypervisor, host := u.lab.Host("hv-"+name), u.lab.Host(name)
	u.plug(hypervisor, number)
	inside := u.lab.Link(host, hypervisor, netlab.LinkOptions{XDP: true, MTU: underlayMTU - 70, A: addresses, NameB: "tap0"})
	if err := u.lab.Err(); err != nil {
		u.Fatal(err)
	}
	others := []netip.Addr{u.vtep(directorHost)}
	for n := 2; n < 12; n++ {
		if n != number && n != directorHost {
			others = append(others, u.vtep(n))
		}
	}
	if err := hypervisor.Do(func() error { return bridgeVXLAN(vni, u.vtep(number), others) }); err != nil {
		u.Fatalf("%s: %v", hypervisor.Name, err)
	}
	return vm{host, inside.A, u.vtep(number), hypervisor}
}

// bridgeVXLAN connects tap0 to the network of a VNI: what is for no known host goes to all other VTEPs.
func bridgeVXLAN(vni int, own netip.Addr, others []netip.Addr) error {
	bridge := &netlink.Bridge{LinkAttrs: netlink.NewLinkAttrs()}
	bridge.Name = "br0"
	device := &netlink.Vxlan{LinkAttrs: netlink.NewLinkAttrs(), VxlanId: vni, SrcAddr: own.AsSlice(), Port: 4789, Learning: true, UDPCSum: true}
	device.Name, device.MTU = "vxlan0", underlayMTU-70 // as the hosts': a bridge loses what is larger
	for _, link := range []netlink.Link{bridge, device} {
		if err := netlink.LinkAdd(link); err != nil {
			return fmt.Errorf("add %s: %w", link.Attrs().Name, err)
		}
	}
	tap, err := netlink.LinkByName("tap0")
	if err != nil {
		return err
	}
	for _, link := range []netlink.Link{device, tap} {
		if err := netlink.LinkSetMaster(link, bridge); err != nil {
			return fmt.Errorf("put %s into the bridge: %w", link.Attrs().Name, err)
		}
	}
	for _, link := range []netlink.Link{bridge, device} {
		if err := netlink.LinkSetUp(link); err != nil {
			return err
		}
	}
	for _, to := range others {
		entry := &netlink.Neigh{LinkIndex: device.Attrs().Index, Family: unix.AF_BRIDGE, Flags: netlink.NTF_SELF, State: netlink.NUD_PERMANENT,
			HardwareAddr: make(net.HardwareAddr, 6), IP: to.AsSlice()}
		if err := netlink.NeighAppend(entry); err != nil {
			return fmt.Errorf("lead unknown hosts to %v: %w", to, err)
		}
	}
	return nil
}

// segments is the part of a director's file about networks with these numbers.
func (u *underlay) file(services string) string {
	return fmt.Sprintf("director: {interfaces: [eth0], vtep: {addresses: ['%v'], peers: ['%v', '%v']}}\nservices:\n%s",
		u.vtep(directorHost), lanPrefix(false), lanPrefix(true), services)
}

// lanPrefix is the network of lanAddress.
func lanPrefix(six bool) netip.Prefix {
	p, err := lanAddress(1, six).Prefix(map[bool]int{false: 24, true: 64}[six])
	if err != nil {
		panic(err)
	}
	return p
}

// A network whose hosts the director's file names, as docs/operate/tenants.md says.
func TestNetworkByHand(t *testing.T) {
	t.Parallel()
	u, code := newUnderlay(t, "vxlan", false), codeOf(t, "A network by hand")
	commands, file := code("A hypervisor", "sh"), code("Its director", "yaml")
	at := map[string]netip.Addr{"192.0.2.11": u.vtep(2), "192.0.2.12": u.vtep(3), "192.0.2.200": u.vtep(directorHost)}
	here := func(text string) string {
		for documented, address := range at {
			text = strings.ReplaceAll(text, documented+"\n", address.String()+"\n")
			for _, next := range []string{" ", "]", "}"} {
				text = strings.ReplaceAll(text, documented+next, address.String()+next)
			}
		}
		return text
	}
	guest := func(name string, hypervisor *netlab.Host, address, mac string) *netlab.Host {
		h := u.host(name, hypervisor, address)
		if mac != "" {
			on(t, h, "ip", "link", "set", "eth0", "address", mac)
		}
		return h
	}
	one, two := u.lab.Host("hypervisor1"), u.lab.Host("hypervisor2")
	u.plug(one, 2)
	u.plug(two, 3)
	u.does(two, here(commands))
	u.does(one, here(strings.NewReplacer("local 192.0.2.12", "local 192.0.2.11", "dst 192.0.2.11", "dst 192.0.2.12").Replace(commands)))
	client := guest("client", one, "172.16.0.50/24", "")
	for _, server := range []*netlab.Host{guest("a", one, "172.16.0.11/24", "02:00:00:00:00:0b"), guest("b", two, "172.16.0.12/24", "02:00:00:00:00:0c")} {
		u.does(server, code("Its servers", "sh"))
		startNginx(t, server)
	}
	d := startDaemon(t, u.director, "run", here(file))
	for _, name := range []string{"a", "b"} {
		d.waitFor("forward to "+name, func() bool {
			out, err := tryOn(t, client, "curl", "--silent", "--max-time", "5", "http://172.16.0.100/name")
			return err == nil && out == name
		})
	}
	if found := d.directorStatus().Problems; len(found) > 0 {
		t.Errorf("there are problems: %+v", found)
	}
}

// Two tenants have the same VIP, the same client, and the same member, whose address is the director's own. Each
// gets its own server, in l2dsr and in nat, over IPv4 and IPv6.
func TestTenantsInVXLAN(t *testing.T) {
	t.Parallel()
	for _, six := range []bool{false, true} {
		for _, mode := range []string{"l2dsr", "nat"} {
			t.Run(fmt.Sprintf("%s over 6: %v", mode, six), func(t *testing.T) {
				u := newUnderlay(t, "vxlan", six)
				const vip, member, client = "172.16.0.100", "172.16.0.11", "172.16.0.2"
				services, clients := "", map[string]vm{}
				for _, vni := range []int{5001, 5002} {
					server := u.add(fmt.Sprint("server", vni), vni, member+"/24")
					caller := u.add(fmt.Sprint("client", vni), vni, client+"/24")
					hosts := ""
					if mode == "l2dsr" {
						server.Address("lo", vip+"/32")
						server.Sysctl("net.ipv4.conf.all.arp_ignore", "1")
						server.Sysctl("net.ipv4.conf.all.arp_announce", "2")
					} else {
						server.Route(client+"/32", "172.16.0.3") // the director is the way back
					}
					startNginx(t, server.Host)
					clients[server.Name] = caller
					_ = hosts
					services += fmt.Sprintf("- {name: of%d, segment: 'vxlan:%d', vip: %s, protocol: tcp, port: 80, mode: %s, backends: [{address: %s, mac: '%s', vtep: '%v'}]}\n",
						vni, vni, vip, mode, member, server.port.MAC, server.vtep)
				}
				file := u.file(services)
				file += "segments:\n"
				for name, caller := range clients {
					var vni int
					fmt.Sscanf(name, "server%d", &vni)
					file += fmt.Sprintf("- {id: 'vxlan:%d', addresses: [172.16.0.3], hosts: [{address: %s, mac: '%s', vtep: '%v'}]}\n", vni, client, caller.port.MAC, caller.vtep)
				}
				startDaemon(t, u.director, "run", file)
				for range 5 {
					for server, caller := range clients {
						if out, err := tryOn(t, caller.Host, "curl", "--silent", "--max-time", "10", "http://"+vip+"/name"); err != nil || out != server {
							t.Errorf("%s gets %q (%v), want %s", caller.Name, out, err, server)
						}
					}
				}
			})
		}
	}
}

// Two tenants have the same VIP and the same member. The director probes each in its own network, where no
// interface of its host is, and finds the one whose server has ended. That is so, too, where the director's host
// has the member's addresses itself.
func TestProbesInTenantsNetworks(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ six, own bool }{{false, false}, {true, false}, {false, true}} {
		t.Run(fmt.Sprintf("over 6: %v, the director's own: %v", c.six, c.own), func(t *testing.T) {
			u := newUnderlay(t, "vxlan", c.six)
			if c.own {
				u.director.Address("lo", "172.16.0.11/32", "fd00:16::11/128")
			}
			const vip, vip6 = "172.16.0.100", "fd00:16::100"
			file, segments := "", "segments:\n"
			servers := map[string]vm{}
			for _, vni := range []int{5001, 5002} {
				server := u.add(fmt.Sprint("server", vni), vni, "172.16.0.11/24", "fd00:16::11/64")
				server.Address("lo", vip+"/32", vip6+"/128")
				server.Sysctl("net.ipv4.conf.all.arp_ignore", "1")
				server.Sysctl("net.ipv4.conf.all.arp_announce", "2")
				startNginx(t, server.Host)
				servers[server.Name] = server
				segments += fmt.Sprintf("- {id: 'vxlan:%d', addresses: [172.16.0.3, 'fd00:16::3'], hosts: [{address: 172.16.0.11, mac: '%s', vtep: '%v'}, {address: 'fd00:16::11', mac: '%s', vtep: '%v'}]}\n",
					vni, server.port.MAC, server.vtep, server.port.MAC, server.vtep)
				for name, health := range map[string]string{
					"tcp":  "{kind: tcp, interval: 200ms, panic: 0}",
					"http": "{kind: http, http: {path: /name}, interval: 200ms, panic: 0}",
					"own":  "{kind: http, to: address, http: {path: /name}, interval: 200ms, panic: 0}",
					"icmp": "{kind: icmp, interval: 200ms, panic: 0}",
					// A request of two packets: no checksum could be right for both, if they left as one.
					"long": fmt.Sprintf("{kind: http, http: {path: '/name?%s', host: %s}, interval: 200ms, panic: 0}", strings.Repeat("p", 1000), strings.Repeat("h", 1000)),
				} {
					port := map[string]int{"tcp": 80, "http": 81, "own": 82, "icmp": 83, "long": 84}[name]
					for family, addresses := range map[string][2]string{"4": {vip, "172.16.0.11"}, "6": {vip6, "fd00:16::11"}} {
						file += fmt.Sprintf("- {name: %s%s-of-%d, segment: 'vxlan:%d', vip: '%s', protocol: tcp, port: %d, mode: l2dsr, health: %s, backends: [{name: b, address: '%s'}]}\n",
							name, family, vni, vni, addresses[0], port, health, addresses[1])
					}
				}
			}
			for _, server := range servers {
				for _, port := range []uint16{81, 82, 84} {
					startNginxAt(t, server.Host, port)
				}
			}
			d := startDaemon(t, u.director, "run", u.file(file)+segments)
			var list []model.ServiceStatus
			states := func(wanted func(name string) model.HealthState) func() bool {
				return func() bool {
					var err error
					list, err = d.services()
					return err == nil && !slices.ContainsFunc(list, func(s model.ServiceStatus) bool { return s.Backends[0].Health.State != wanted(s.Name) })
				}
			}
			defer func() {
				if t.Failed() {
					for _, s := range list {
						t.Logf("%s: %+v", s.Name, s.Backends[0].Health)
					}
				}
			}()
			d.waitFor("find all up", states(func(string) model.HealthState { return model.HealthUp }))
			if strings.Contains(d.logged(), "backend is down") {
				t.Error("backends were called down before answers could come")
			}
			for _, server := range servers {
				server.noneMalformed(t)
			}
			if err := servers["server5001"].Kill(); err != nil {
				t.Fatal(err)
			}
			// Another datapath of this host that ends takes the addresses of the checks' sockets along.
			on(t, u.director, "ip", "route", "del", "local", "242.0.0.0/7", "table", "local")
			d.waitFor("have the addresses of its sockets again", func() bool {
				out, err := tryOn(t, u.director, "ip", "route", "show", "table", "local", "242.0.0.0/7")
				return err == nil && strings.Contains(out, "242.0.0.0/7")
			})
			d.waitFor("find the servers of one tenant down, but for its host", states(func(name string) model.HealthState {
				if strings.HasSuffix(name, "5001") && !strings.HasPrefix(name, "icmp") {
					return model.HealthDown
				}
				return model.HealthUp
			}))
		})
	}
}
