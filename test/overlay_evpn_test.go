package test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"weir.io/weir/lab/netlab"
	"weir.io/weir/lab/routerlab"
)

const rackBGP = `
router bgp 65000
 bgp router-id 10.2.0.NUMBER
 no bgp default ipv4-unicast
 neighbor rack peer-group
 neighbor rack remote-as 65000
 neighbor rack advertisement-interval 0
 neighbor rack timers 1 3
 neighbor rack timers connect 1
LINES
 address-family l2vpn evpn
  neighbor rack activate
AFLINES
  advertise-all-vni
 exit-address-family
`

// addLeaf makes a host a VTEP of Linux whose FRR tells where its hosts are, and learns it of others.
func (u *underlay) addLeaf(name string, reflects bool) (*netlab.Host, int) {
	u.Helper()
	u.hosts++
	leaf := u.lab.Host(name)
	u.plug(leaf, u.hosts)
	if err := u.lab.Err(); err != nil {
		u.Fatal(err)
	}
	own := u.vtep(u.hosts)
	err := leaf.Do(func() error {
		bridge := &netlink.Bridge{LinkAttrs: netlink.NewLinkAttrs()}
		bridge.Name = "br0"
		device := &netlink.Vxlan{LinkAttrs: netlink.NewLinkAttrs(), VxlanId: 5001, SrcAddr: own.AsSlice(), Port: 4789}
		device.Name = "vxlan0"
		for _, link := range []netlink.Link{bridge, device} {
			if err := netlink.LinkAdd(link); err != nil {
				return err
			}
		}
		if err := netlink.LinkSetMaster(device, bridge); err != nil {
			return err
		}
		if err := netlink.LinkSetUp(bridge); err != nil {
			return err
		}
		return netlink.LinkSetUp(device)
	})
	leaf.Address("br0", fmt.Sprintf("172.16.0.%d/24", 250-u.hosts)) // FRR tells of hosts in this bridge's ARP table
	if err != nil {
		u.Fatal(err)
	}
	on(u.T, leaf, "bridge", "link", "set", "dev", "vxlan0", "neigh_suppress", "on", "learning", "off")
	lines, families := " neighbor 10.2.0.2 peer-group rack", ""
	if reflects {
		lines, families = " bgp listen range 10.2.0.0/24 peer-group rack", "  neighbor rack route-reflector-client"
	}
	fill := strings.NewReplacer("NUMBER", fmt.Sprint(u.hosts), "AFLINES", families, "LINES", lines)
	startFRR(u.T, leaf, routerlab.FRRConfig{BGP: fill.Replace(rackBGP)})
	return leaf, u.hosts
}

// host plugs a tenant's host into a leaf.
func (u *underlay) host(name string, leaf *netlab.Host, addresses ...string) *netlab.Host {
	u.Helper()
	h := u.lab.Host(name)
	u.lab.Link(h, leaf, netlab.LinkOptions{XDP: true, MTU: underlayMTU - 50, A: addresses, NameB: name})
	if err := u.lab.Err(); err != nil {
		u.Fatal(err)
	}
	on(u.T, leaf, "ip", "link", "set", name, "master", "br0")
	return h
}

// A rack with EVPN: the director knows of no host of the tenant but what the leaves say by BGP, and the leaves
// learn of the VIP from the director. A member that moves to another leaf is followed.
//
//	client --- leaf1 (reflector) --- underlay --- director
//	server --- leaf2
//	           leaf3
func TestTenantsByEVPN(t *testing.T) {
	t.Parallel()
	u := newUnderlay(t, "vxlan", false)
	const vip, member = "172.16.0.100", "172.16.0.11"
	leaf1, _ := u.addLeaf("leaf1", true)
	leaf2, at := u.addLeaf("leaf2", false)
	leaf3, later := u.addLeaf("leaf3", false)
	client, server := u.host("client", leaf1, "172.16.0.2/24"), u.host("server", leaf2, member+"/24")
	server.Address("lo", vip+"/32")
	server.Sysctl("net.ipv4.conf.all.arp_ignore", "1")
	server.Sysctl("net.ipv4.conf.all.arp_announce", "2")
	startNginx(t, server)
	file := fmt.Sprintf(`director: {interfaces: [eth0], vtep: {addresses: ['%v']}}
bgp: {asn: 65000, router-id: %v, neighbors: [{address: %v, asn: 65000, families: [evpn]}]}
segments:
- {id: 'vxlan:5001', addresses: [172.16.0.3]}
services:
- {name: web, segment: 'vxlan:5001', vip: %s, protocol: tcp, port: 80, mode: l2dsr, health: {kind: tcp, interval: 200ms}, backends: [{address: %s}]}
`, u.vtep(directorHost), u.vtep(directorHost), u.vtep(2), vip, member)
	d := launchDaemon(t, u.director, "run", file) // it is ready when the server has spoken, below
	tried := ""
	served := func() bool {
		// A leaf tells of a host that has asked it for something.
		_, _ = tryOn(t, server, "curl", "--silent", "--max-time", "1", fmt.Sprintf("http://172.16.0.%d:9/", 250-at))
		out, err := tryOn(t, client, "curl", "--silent", "--max-time", "2", "http://"+vip+"/name")
		tried = fmt.Sprint(out, err)
		return err == nil && out == "server"
	}
	defer func() {
		if t.Failed() {
			t.Logf("last: %s", tried)
		}
	}()
	d.waitFor("forward to the member behind leaf2", served)
	if where := on(t, leaf1, "bridge", "fdb", "show", "dev", "vxlan0"); !strings.Contains(where, "dst "+u.vtep(directorHost).String()) {
		t.Errorf("leaf1 has not learned of the director: %s", where)
	}
	// The member moves.
	on(t, leaf2, "ip", "link", "set", "server", "nomaster")
	on(t, leaf2, "ip", "link", "set", "server", "netns", leaf3.Namespace())
	on(t, leaf3, "ip", "link", "set", "server", "master", "br0", "up")
	at = later
	d.waitFor("follow the member to leaf3", served)

	// A leaf's kernel forgets the addresses of quiet hosts, and then FRR tells of their MAC addresses alone.
	received := func() int { return d.bgp().Neighbors[0].EVPN.Received }
	before := received()
	on(t, leaf3, "ip", "neigh", "flush", "dev", "br0")
	d.waitFor("be told that no address is known of the member", func() bool { return received() < before })
	asks := func() string {
		out, err := tryOn(t, client, "curl", "--silent", "--max-time", "5", "http://"+vip+"/name")
		return fmt.Sprint(out, err)
	}
	if got := asks(); got != "server<nil>" {
		t.Errorf("when only the MAC address of the member is told, the VIP answers %q", got)
	}
	// The same of a member that no leaf has told an address of.
	mac := strings.Fields(on(t, server, "cat", "/sys/class/net/eth0/address"))[0]
	d.edit(strings.NewReplacer(member, "172.16.0.12, mac: '"+mac+"'").Replace(file))
	server.Address("lo", "172.16.0.12/32")
	d.waitFor("find the member by its MAC address", func() bool { return asks() == "server<nil>" })
}
