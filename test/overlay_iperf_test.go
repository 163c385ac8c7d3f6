package test

import (
	"fmt"
	"net/netip"
	"testing"
)

// iperf3 measures in a tenant's network in VXLAN: TCP up and down, and UDP without a lost datagram.
func TestIperfInVXLAN(t *testing.T) {
	t.Parallel()
	for _, six := range []bool{false, true} {
		for _, mode := range []string{"l2dsr", "nat", "nat, snat: true"} {
			t.Run(fmt.Sprintf("%s over 6: %v", mode, six), func(t *testing.T) {
				u := newUnderlay(t, "vxlan", six)
				const vip, member, client = "172.16.0.100", "172.16.0.11", "172.16.0.2"
				server, caller := u.add("server", 5001, member+"/24"), u.add("client", 5001, client+"/24")
				at := netip.MustParseAddrPort(member + ":5201")
				switch mode {
				case "l2dsr":
					at = netip.MustParseAddrPort(vip + ":5201")
					server.Address("lo", vip+"/32")
					server.Sysctl("net.ipv4.conf.all.arp_ignore", "1")
					server.Sysctl("net.ipv4.conf.all.arp_announce", "2")
				case "nat":
					server.Route(client+"/32", "172.16.0.3") // the director is the way back
				}
				services := ""
				for _, protocol := range []string{"tcp", "udp"} {
					services += fmt.Sprintf("- {name: %s, segment: 'vxlan:5001', vip: %s, protocol: %s, port: 5201, mode: %s, backends: [{address: %s}]}\n", protocol, vip, protocol, mode, member)
				}
				startDaemon(t, u.director, "run", fmt.Sprintf(`director: {interfaces: [eth0], vtep: {addresses: ['%v']}, snat: {addresses: [172.16.0.4]}}
segments:
- {id: 'vxlan:5001', addresses: [172.16.0.3], hosts: [{address: %s, mac: '%s', vtep: '%v'}, {address: %s, mac: '%s', vtep: '%v'}]}
services:
%s`, u.vtep(directorHost), member, server.port.MAC, server.vtep, client, caller.port.MAC, caller.vtep, services))
				for name, args := range map[string][]string{
					"tcp up":   {"--bytes", "20M"},
					"tcp down": {"--bytes", "20M", "--reverse"},
					"udp":      {"--bytes", "36K", "--udp", "--length", "1200", "--bitrate", "1M"},
				} {
					t.Run(name, func(t *testing.T) {
						startServer(t, server.Host, at, "iperf3", "--server", "--one-off", "--bind", at.Addr().String())
						out := on(t, caller.Host, "iperf3", append([]string{"--client", vip, "--json"}, args...)...)
						wantMeasured(t, out, name == "udp")
					})
				}
			})
		}
	}
}
