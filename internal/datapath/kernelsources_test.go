package datapath

import (
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"

	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/packet"
)

// Packets from kernel sources are left to the kernel unchanged, in every mode, of every kind, and
// whether or not the service is for them. All other packets are forwarded, or refused.
func testKernelSourcesPass(t *testing.T) {
	w := &testWorld{}
	scenarios := append(w.scenarios(notFullNAT), w.scenarios(isFullNAT)...)
	some := scenario{client: client4, testService: w.add(testService{vip: vipAddress(true, 0x310), protocol: model.TCP, port: singlePort(servicePort), kernelSources: true,
		backends: []testBackend{{address: backendAddress(true, 0x310)}}, sourceRanges: prefixes("198.51.100.0/25")})}
	others := scenario{client: client4, testService: w.add(testService{vip: vipAddress(true, 0x311), protocol: model.TCP, port: singlePort(servicePort),
		backends: []testBackend{{address: backendAddress(true, 0x311)}}})}
	for _, s := range scenarios {
		s.kernelSources = true
	}
	d := loadTestDirector(t, w)
	for i, s := range scenarios {
		t.Run(s.name, func(t *testing.T) { d.check(t, s.kernelRows(uint32(100*i))) })
	}
	some, others = some.ofKernel(), others.ofKernel()
	outside := some
	outside.client = netip.MustParseAddr("198.51.100.131")
	d.check(t, []row{
		row{name: "in no range, the kernel's", in: build(some.data(5)...)}.passed(abi.ReasonPASS_KERNEL_SOURCE),
		row{name: "in no range", in: build(outside.data(5)...)}.dropped(abi.ReasonDROP_SOURCE_RANGE, some.testService),
		others.forward("of a service that leaves nothing", others.flow(), 0, others.data(5)...),
	})
}

// ofKernel is the scenario with a client whose packets are the kernel's.
func (s scenario) ofKernel() scenario {
	s.client = netip.MustParseAddr("198.51.100.130")
	if s.vip.Is6() {
		s.client = netip.MustParseAddr("2001:db8:c::6")
	}
	return s
}

func (s scenario) kernelRows(id uint32) []row {
	of := s.ofKernel()
	passed := func(name string, frame []byte) row {
		return row{name: name, in: frame}.passed(abi.ReasonPASS_KERNEL_SOURCE)
	}
	rows := []row{
		passed("the kernel's", build(of.data(5)...)),
		passed("the kernel's, too long", build(of.data(1600)...)),
	}
	if s.protocol == model.TCP {
		rows = append(rows, passed("SYN", build(ip(of.client, s.vip), packet.TCPHeader{Src: clientPort, Dst: servicePort, Flags: packet.SYN})))
	}
	pieces := pieces(id+95, of.data(600)...)
	rows = append(rows, passed("first fragment", pieces[0]),
		row{name: "later fragment", in: pieces[1], before: pieces[:1]}.passed(abi.ReasonPASS_NO_SERVICE))
	e := icmpErrors(s.vip.Is4())[0]
	return append(rows, passed("error about its flow", build(s.router(), e.header, packet.Quote(8, of.reply(servicePort)...))))
}

// Kernel sources come, change and go with a Set, also for a process that starts again, and with
// them whose packets are passed. Nothing of those before is left.
func TestKernelSourcesSet(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	addNeighbors(t, 2)
	d := openVersion(t, nil)
	passes := func(client string) bool {
		t.Helper()
		action, _, err := d.kernel.program.Test(build(ip(netip.MustParseAddr(client), netip.MustParseAddr("198.51.0.1")),
			packet.TCPHeader{Src: 7, Dst: 80, Flags: packet.ACK}, packet.Text("client")))
		must(t, err)
		if action != xdpRedirect && action != xdpPass {
			t.Errorf("verdict %d for a packet of %s", action, client)
		}
		return action == xdpPass
	}
	set := func(what string, leaves bool, vary int, sources []string, nine, eight bool) {
		t.Helper()
		table := tableOf(3, 2, vary)
		table.KernelSources, table.Services[1].KernelSources = prefixes(sources...), leaves
		must(t, d.Set(table))
		if passes("10.9.0.1") != nine || passes("10.8.0.1") != eight {
			t.Errorf("%s: packets of 10.9.0.1 are passed: %v, want %v; of 10.8.0.1: %v, want %v", what, passes("10.9.0.1"), nine, passes("10.8.0.1"), eight)
		}
		if n := d.sourcesInKernel(t); n != len(sources) {
			t.Errorf("%s: the kernel has %d prefixes, want %d", what, n, len(sources))
		}
	}
	set("none", true, 0, nil, false, false)
	set("some, of no service", false, 0, []string{"10.9.0.1"}, false, false)
	set("of a service", true, 0, []string{"10.9.0.1"}, true, false)
	set("others, of the same ring", true, 0, []string{"10.8.0.0/16", "2001:db8::/64"}, false, true)
	set("both, and another ring", true, 1, []string{"10.8.0.0/16", "10.9.0.1"}, true, true)
	for _, version := range []func(*ebpf.CollectionSpec){nil, otherABI, nil} {
		must(t, d.Close())
		d = openVersion(t, version)
		set("started again", true, 1, []string{"10.9.0.1"}, true, false)
	}
	set("not any more", false, 1, []string{"10.9.0.1"}, false, false)
	set("nobody's", true, 1, nil, false, false)
}
