package datapath

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/packet"
)

// What comes back, or makes others that do: docs/internals/datapath.md, "What comes back".

// refusedWorld has services of one backend in each mode, and two VIPs without a backend: the
// kernel has a route to one, and the other is its own.
func refusedWorld(is4 bool, protocol model.Protocol) (*testWorld, []*testService) {
	w := &testWorld{}
	var services []*testService
	for i, way := range []model.Mode{model.L2DSR, model.IPIP, model.GUE, model.NAT} {
		services = append(services, w.add(testService{vip: vipAddress(is4, 0xfa00+i), protocol: protocol, port: singlePort(servicePort),
			backends: []testBackend{{mode: way, address: backendAddress(is4, 0x10+i), port: map[bool]uint16{true: 8080}[way == model.NAT]}}}))
	}
	full := testBackend{mode: model.NAT, snat: true, address: backendAddress(is4, 0x20), port: 8080}
	return w, append(services, w.add(testService{vip: vipAddress(is4, 0xfa10), protocol: protocol, port: singlePort(servicePort), backends: []testBackend{full}}))
}

// nobodys are addresses that nobody has, and near ones that somebody may have.
func nobodys(is4 bool) (nobody, somebody []netip.Addr) {
	lists := map[bool][2][]string{
		true: {{"0.0.0.0", "0.1.2.3", "127.0.0.1", "127.255.255.255", "224.0.0.1", "239.255.255.255", "255.255.255.255"},
			{"1.0.0.0", "126.255.255.255", "128.0.0.1", "223.255.255.255", "240.0.0.1", "255.255.255.254"}},
		false: {{"::", "::1", "::ffff:10.9.0.1", "ff02::1", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"},
			{"::2", "::1:0:0:1", "64:ff9b::10.9.0.1", "fe80::1", "fd00::1"}},
	}
	for i, list := range []*[]netip.Addr{&nobody, &somebody} {
		for _, a := range lists[is4][i] {
			*list = append(*list, netip.MustParseAddr(a))
		}
	}
	return nobody, somebody
}

// testRefused: whatever source a packet of a service has, it is dropped if nobody can be there
// that a client is, and goes to the backend if somebody can.
func testRefused(t *testing.T) {
	for _, is4 := range []bool{true, false} {
		for _, protocol := range []model.Protocol{model.TCP, model.UDP} {
			w, services := refusedWorld(is4, protocol)
			for _, s := range services {
				routeVIPs(t, is4, s.vip, vipAddress(is4, 0xfaff))
			}
			d := loadTestDirector(t, w)
			t.Run(fmt.Sprintf("IPv4 %v, %s", is4, protocol), func(t *testing.T) { d.check(t, refusedRows(is4, protocol, services)) })
		}
	}
}

func refusedRows(is4 bool, protocol model.Protocol, services []*testService) (rows []row) {
	nobody, somebody := nobodys(is4)
	for i, s := range services {
		from := func(source netip.Addr, port uint16) []byte {
			return build(ip(source, s.vip), l4(protocol, port, servicePort), packet.Text("an answer to an answer"))
		}
		add := func(reason abi.Reason, name string, source netip.Addr, port uint16) {
			rows = append(rows, row{name: fmt.Sprintf("service %d, %s", i, name), in: from(source, port)}.dropped(reason, s))
		}
		serves := s.backends[0].port
		if serves == 0 {
			serves = servicePort
		}
		add(abi.ReasonDROP_SOURCE_VIP, "its own VIP", s.vip, clientPort)
		add(abi.ReasonDROP_SOURCE_VIP, "land", s.vip, servicePort)
		add(abi.ReasonDROP_SOURCE_VIP, "another VIP", services[(i+1)%len(services)].vip, servicePort)
		add(abi.ReasonDROP_SOURCE_BACKEND, "its backend", s.backends[0].address, serves)
		for _, source := range nobody {
			add(abi.ReasonDROP_SOURCE_INVALID, source.String(), source, clientPort)
		}
		if s.backends[0].mode != model.L2DSR {
			continue // the others' headers are others' tests
		}
		for _, source := range append(somebody, s.backends[0].address, services[1].backends[0].address) {
			f := flowFrom(source, s)
			rows = append(rows, row{name: "passes from " + source.String(), in: from(source, clientPort)}.
				forwarded(abi.ReasonFORWARD_L2DSR, s, 0, s.leaves(f, 0, ip(source, s.vip), l4(protocol, clientPort, servicePort), packet.Text("an answer to an answer"))))
		}
	}
	return rows
}

func flowFrom(source netip.Addr, s *testService) model.Flow {
	return model.Flow{Segment: s.segment, Source: source, Destination: s.vip, SourcePort: clientPort, DestinationPort: servicePort, Protocol: uint8(s.protocol)}
}

// testRefusedOtherwise: pings, fragments and errors from addresses that cannot be clients, too.
func testRefusedOtherwise(t *testing.T) {
	for _, is4 := range []bool{true, false} {
		w, services := refusedWorld(is4, model.UDP)
		routeVIPs(t, is4, services[0].vip, vipAddress(is4, 0xfaff))
		d := loadTestDirector(t, w)
		s, vip := services[0], services[1].vip
		nobody, _ := nobodys(is4)
		to := func(source netip.Addr) packet.Header { return ip(source, s.vip) }
		plain := func(name string, reason abi.Reason, headers ...packet.Header) row {
			return row{name: name, in: build(headers...), reason: reason, action: xdpDrop}
		}
		rows := []row{
			plain("ping from a VIP", abi.ReasonDROP_SOURCE_VIP, echo(is4, true, to(vip), 8)...),
			plain("ping from nobody", abi.ReasonDROP_SOURCE_INVALID, echo(is4, true, to(nobody[3]), 8)...),
			plain("echo reply from a VIP", abi.ReasonDROP_SOURCE_VIP, echo(is4, false, to(vip), 8)...),
			plain("error from a VIP", abi.ReasonDROP_SOURCE_VIP, to(vip), icmpErrors(is4)[1].header,
				packet.Quote(8, ip(s.vip, clientOf(is4)), l4(model.UDP, servicePort, clientPort))),
			row{name: "error about what a VIP was sent", in: build(ip(numbered(is4, 9, 1), s.vip), icmpErrors(is4)[1].header,
				packet.Quote(8, ip(s.vip, vip), l4(model.UDP, servicePort, clientPort)))}.dropped(abi.ReasonDROP_SOURCE_VIP, s),
		}
		for _, piece := range pieces(7, to(vip), l4(model.UDP, servicePort, servicePort), packet.Zeros(600)) {
			rows = append(rows, row{name: "fragment from a VIP", in: piece, reason: abi.ReasonDROP_SOURCE_VIP, action: xdpDrop})
		}
		// A packet to an address that is no VIP is the kernel's, wherever it comes from: this host
		// may route it.
		rows = append(rows, row{name: "from a VIP to a client", in: build(ip(vip, clientOf(is4)), l4(model.UDP, servicePort, clientPort))}.passed(abi.ReasonPASS_NO_SERVICE))
		t.Run(fmt.Sprintf("IPv4 %v", is4), func(t *testing.T) { d.check(t, rows) })
	}
}

// testHostsThatAreVIPs: hosts whose own addresses are VIPs, as with NodePort, call each other, and
// their services do not.
func testHostsThatAreVIPs(t *testing.T) {
	for _, is4 := range []bool{true, false} {
		other, own := vipAddress(is4, 0xfd01), vipAddress(is4, 0xfd02)
		routeVIPs(t, is4, other, own)
		w := &testWorld{}
		there := w.add(testService{vip: other, protocol: model.UDP, port: singlePort(30053), backends: []testBackend{{address: backendAddress(is4, 0x30)}}})
		here := w.add(testService{vip: own, protocol: model.UDP, port: singlePort(30053), backends: []testBackend{{address: backendAddress(is4, 0x31)}}})
		ranged := w.add(testService{vip: other, protocol: model.UDP, port: model.PortRange{First: 31000, Last: 31999}, backends: []testBackend{{}}})
		w.settings.Flags |= uint32(abi.SettingsFlagSETTINGS_RANGES)
		d := loadTestDirector(t, w)
		to := func(port uint16) []packet.Header {
			return []packet.Header{ip(other, own), l4(model.UDP, port, 30053), packet.Text("from one host to another")}
		}
		f := model.Flow{Source: other, Destination: own, SourcePort: clientPort, DestinationPort: 30053, Protocol: uint8(model.UDP)}
		ping := echo(is4, true, ip(other, own), 8)
		answer := echo(is4, false, withTTL(ip(own, other), 64), 8)
		rows := []row{
			row{name: "from the other host", in: build(to(clientPort)...)}.forwarded(abi.ReasonFORWARD_L2DSR, here, 0, here.leaves(f, 0, to(clientPort)...)),
			row{name: "from the other host's service", in: build(to(there.port.First)...)}.dropped(abi.ReasonDROP_SOURCE_VIP, here),
			row{name: "from the other host's range of ports", in: build(to(ranged.port.First + 5)...)}.dropped(abi.ReasonDROP_SOURCE_VIP, here),
			row{name: "ping", in: build(ping...)}.answered(abi.ReasonANSWER_ECHO, packet.Build(append([]packet.Header{packet.EthernetHeader{Dst: clientMAC, Src: ownMAC}}, answer...)...)),
			row{name: "fragment", in: pieces(11, ip(other, own), l4(model.UDP, clientPort, 4789), packet.Zeros(600))[0]}.passed(abi.ReasonPASS_NO_SERVICE),
		}
		t.Run(fmt.Sprintf("IPv4 %v", is4), func(t *testing.T) { d.check(t, rows) })
	}
}

// testKeptFromKernel: what no service has goes to the kernel where that has the VIP itself, or does
// not forward, and not where it would go back to a router.
func testKeptFromKernel(t *testing.T) {
	for _, is4 := range []bool{true, false} {
		vip, own := vipAddress(is4, 0xfb01), vipAddress(is4, 0xfb02)
		routeVIPs(t, is4, vip, own)
		w := &testWorld{}
		w.add(testService{vip: vip, protocol: model.TCP, port: singlePort(servicePort), backends: []testBackend{{}}})
		w.add(testService{vip: own, protocol: model.TCP, port: singlePort(servicePort), backends: []testBackend{{}}})
		d := loadTestDirector(t, w)
		var rows []row
		add := func(name string, kept bool, passed abi.Reason, frames ...[]byte) {
			for _, frame := range frames {
				r := row{name: name, in: frame}.passed(passed)
				if kept {
					r = row{name: name, in: frame, reason: abi.ReasonDROP_NO_SERVICE, action: xdpDrop}
				}
				rows = append(rows, r)
			}
		}
		for to, kept := range map[netip.Addr]bool{vip: true, own: false, vipAddress(is4, 0xfb03): false} {
			from := ip(clientOf(is4), to)
			name := func(what string) string { return fmt.Sprintf("%s to %s", what, to) }
			for _, protocol := range []model.Protocol{model.TCP, model.UDP} {
				add(name(protocol.String()), kept, abi.ReasonPASS_NO_SERVICE, build(from, l4(protocol, clientPort, otherPort)))
			}
			add(name("GRE"), kept, abi.ReasonPASS_NO_SERVICE, build(withProtocol(from, 47), packet.Zeros(8)))
			add(name("echo reply"), kept, abi.ReasonPASS_NO_SERVICE, build(echo(is4, false, from, 8)...))
			add(name("cut TCP"), kept, abi.ReasonPASS_MALFORMED, build(withProtocol(from, packet.ProtocolTCP), packet.Zeros(8)))
			add(name("fragment"), kept, abi.ReasonPASS_NO_SERVICE, pieces(9, from, l4(model.UDP, clientPort, otherPort), packet.Zeros(600))[0])
		}
		t.Run(fmt.Sprintf("IPv4 %v", is4), func(t *testing.T) {
			d.check(t, rows)
			forwarding(t, is4, false)
			defer forwarding(t, is4, true)
			d.check(t, []row{{name: "forwarding off", in: build(ip(clientOf(is4), vip), l4(model.UDP, clientPort, otherPort)), reason: abi.ReasonPASS_NO_SERVICE, action: xdpPass}})
		})
	}
}

// routeVIPs gives the kernel a route to both VIPs, and makes it have one of them.
func routeVIPs(t *testing.T, is4 bool, vip, own netip.Addr) {
	t.Helper()
	router := router6
	if is4 {
		router = router4
	}
	for _, a := range []netip.Addr{vip, own} {
		must(t, netlink.RouteReplace(&netlink.Route{LinkIndex: int(wireNumber), Gw: router.AsSlice(),
			Dst: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}}))
	}
	lo, err := netlink.LinkByName("lo")
	must(t, err)
	address := &netlink.Addr{IPNet: &net.IPNet{IP: own.AsSlice(), Mask: net.CIDRMask(own.BitLen(), own.BitLen())}}
	must(t, netlink.AddrReplace(lo, address))
	// Linux writes the route of an IPv6 address after the call.
	eventually(t, fmt.Sprintf("%s is an address of this host", own), func() bool {
		routes, err := netlink.RouteGet(own.AsSlice())
		return err == nil && len(routes) == 1 && routes[0].Type == unix.RTN_LOCAL
	})
}

func forwarding(t *testing.T, is4, on bool) {
	t.Helper()
	text := map[bool]string{true: "1", false: "0"}[on]
	family := map[bool]string{true: "ipv4", false: "ipv6"}[is4]
	for _, of := range []string{"all", "lo"} {
		must(t, os.WriteFile("/proc/sys/net/"+family+"/conf/"+of+"/forwarding", []byte(text), 0))
	}
}

// testLateAnswers: what a VIP answers to a socket of this host is the socket's, and when there is
// none any more nobody resets it.
func testLateAnswers(t *testing.T) {
	for _, is4 := range []bool{true, false} {
		for _, protocol := range []model.Protocol{model.TCP, model.UDP} {
			vip := vipAddress(is4, 0xfc00+int(protocol))
			w := &testWorld{}
			w.add(testService{vip: vip, protocol: protocol, port: singlePort(servicePort), backends: []testBackend{{}}})
			d := loadTestDirector(t, w)
			own, port := call(t, protocol, end{vip, servicePort})
			answer := func(port uint16) []byte {
				return build(ip(vip, own), l4(protocol, servicePort, port), packet.Text("late"))
			}
			t.Run(fmt.Sprintf("%s, IPv4 %v", protocol, is4), func(t *testing.T) {
				d.check(t, []row{
					row{name: "to who called the VIP", in: answer(port)}.passed(abi.ReasonPASS_NO_SERVICE),
					{name: "to who does not any more", in: answer(port ^ 1), reason: abi.ReasonDROP_ANSWER_LATE, action: xdpDrop},
					row{name: "through this host", in: build(ip(vip, clientOf(is4)), l4(protocol, servicePort, port^1))}.passed(abi.ReasonPASS_NO_SERVICE),
					row{name: "of no VIP", in: build(ip(vipAddress(is4, 0xfcff), own), l4(protocol, servicePort, port^1))}.passed(abi.ReasonPASS_NO_SERVICE),
				})
			})
		}
	}
}
