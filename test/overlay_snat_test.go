package test

import (
	"fmt"
	"strings"
	"testing"
)

// Full NAT for tenants whose networks have other prefixes: their servers have no route but to their own network, and get
// requests from the director's address there. A client outside of both reaches a server of one.
//
//	client --- underlay --- director
//	                    --- a VTEP for each host of the tenants
func TestFullNATOfTenants(t *testing.T) {
	t.Parallel()
	u := newUnderlay(t, "vxlan", false)
	outside := u.lab.Host("outside")
	u.plug(outside, 50)
	outside.Route("203.0.113.10/32", u.vtep(directorHost).String())
	segments, services, callers := "", "", map[string]vm{}
	for vni, prefix := range map[int][2]string{5001: {"172.16.0.", "fd00:16::"}, 5002: {"10.1.0.", "fd00:1::"}} {
		at := func(host int) []string {
			return []string{fmt.Sprint(prefix[0], host, "/24"), fmt.Sprint(prefix[1], host, "/64")}
		}
		server := u.add(fmt.Sprint("server", vni), vni, at(11)...)
		startNginx(t, server.Host)
		caller := u.add(fmt.Sprint("client", vni), vni, at(2)...)
		callers[server.Name] = caller
		segments += fmt.Sprintf("- {id: 'vxlan:%d', addresses: [%s3, '%[3]s3'], snat-addresses: [%[2]s4, '%[3]s4'], hosts: [{address: %[2]s2, mac: '%[4]s', vtep: '%[5]v'}, {address: '%[3]s2', mac: '%[4]s', vtep: '%[5]v'}]}\n",
			vni, prefix[0], prefix[1], caller.port.MAC, caller.vtep)
		for family, of := range prefix {
			services += fmt.Sprintf("- {name: 'of%d-%d', segment: 'vxlan:%[1]d', vip: '%[3]s100', protocol: tcp, port: 80, mode: nat, snat: true, health: {kind: tcp, interval: 200ms}, backends: [{address: '%[3]s11', mac: '%[4]s', vtep: '%[5]v'}]}\n",
				vni, family, of, server.port.MAC, server.vtep)
		}
		if vni == 5002 {
			services += fmt.Sprintf("- {name: outside, vip: 203.0.113.10, protocol: tcp, port: 80, mode: nat, snat: true, backends: [{address: %s11, segment: 'vxlan:%d', mac: '%s', vtep: '%v'}]}\n",
				prefix[0], vni, server.port.MAC, server.vtep)
		}
	}
	d := startDaemon(t, u.director, "run", fmt.Sprintf("director: {interfaces: [eth0], vtep: {addresses: ['%v'], peers: ['%v']}, snat: {addresses: [192.0.2.77, '2001:db8::77']}}\nsegments:\n%sservices:\n%s",
		u.vtep(directorHost), lanPrefix(false), segments, services))
	for range 5 {
		for server, caller := range callers {
			of := map[string][2]string{"server5001": {"172.16.0.", "fd00:16::"}, "server5002": {"10.1.0.", "fd00:1::"}}[server]
			for i, prefix := range of {
				url := fmt.Sprintf([]string{"http://%s100/name", "http://[%s100]/name"}[i], prefix)
				if out, err := tryOn(t, caller.Host, "curl", "--silent", "--globoff", "--max-time", "10", url); err != nil || out != server {
					t.Errorf("%s gets %q of %s (%v), want %s", caller.Name, out, url, err, server)
				}
			}
		}
		if out, err := tryOn(t, outside, "curl", "--silent", "--max-time", "10", "http://203.0.113.10/name"); err != nil || out != "server5002" {
			t.Errorf("a client outside gets %q (%v), want server5002", out, err)
		}
	}
	out := on(t, d.host, weir, "flows", "-o", "json", "--socket", d.socket)
	for _, want := range []string{"172.16.0.4:", "10.1.0.4:", "fd00:16::4", "fd00:1::4"} {
		if !strings.Contains(out, want) {
			t.Errorf("weir flows names no flow from %s:\n%s", want, out)
		}
	}
	if strings.Contains(out, "192.0.2.77") {
		t.Errorf("weir flows names flows from 192.0.2.77, which no server gets:\n%s", out)
	}
}
