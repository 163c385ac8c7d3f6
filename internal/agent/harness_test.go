package agent

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"

	"weir.io/weir/internal/model"
	"weir.io/weir/lab/packet"
)

var (
	director4, director6 = netip.MustParseAddr("10.0.9.1"), netip.MustParseAddr("2001:db8:9::1")
	host4, host6         = netip.MustParseAddr("10.0.1.11"), netip.MustParseAddr("2001:db8:1::11")
	peer4, peer6         = netip.MustParseAddr("10.0.1.12"), netip.MustParseAddr("2001:db8:1::12")
	otherPeer4           = netip.MustParseAddr("10.0.1.13")
	stranger4, stranger6 = netip.MustParseAddr("10.0.7.7"), netip.MustParseAddr("2001:db8:7::7")
	vip4, vip6           = netip.MustParseAddr("192.0.2.10"), netip.MustParseAddr("2001:db8::10")
	rangeVIP4            = netip.MustParseAddr("192.0.2.11")
	rangeVIP6            = netip.MustParseAddr("2001:db8::11")
	notVIP4, notVIP6     = netip.MustParseAddr("192.0.2.99"), netip.MustParseAddr("2001:db8::99")
	podVIP4, podVIP6     = netip.MustParseAddr("192.0.2.20"), netip.MustParseAddr("2001:db8::20")
	otherPodVIP4         = netip.MustParseAddr("192.0.2.21")
	otherPodVIP6         = netip.MustParseAddr("2001:db8::21")
	client4, client6     = netip.MustParseAddr("198.51.100.7"), netip.MustParseAddr("2001:db8:c::7")
)

const uplinkMTU = 1500

// testConfig is what the host of the packet tables is told. It has backends of
// every service but "elsewhere".
func testConfig() model.Config {
	backends := func(addresses ...netip.Addr) []model.Backend {
		var list []model.Backend
		for _, a := range addresses {
			list = append(list, model.Backend{Name: a.String(), Address: a, Weight: 1, State: model.Active})
		}
		return list
	}
	pods := func(list ...string) []model.Backend {
		var backends []model.Backend
		for i := 0; i < len(list); i += 2 {
			b := model.NewBackend()
			at := netip.MustParseAddrPort(list[i])
			b.Name, b.Address, b.Port, b.Host = list[i], at.Addr(), at.Port(), netip.MustParseAddr(list[i+1])
			backends = append(backends, b)
		}
		return backends
	}
	port := func(first, last uint16) model.PortRange { return model.PortRange{First: first, Last: last} }
	return model.Config{
		Directors: []netip.Prefix{netip.MustParsePrefix("10.0.9.0/24"), netip.MustParsePrefix("2001:db8:9::/64")},
		Services: []model.Service{
			{Name: "web4", VIP: vip4, Protocol: model.TCP, Port: port(443, 443), Mode: model.GUE, Backends: backends(host4, peer4)},
			{Name: "dns4", VIP: vip4, Protocol: model.UDP, Port: port(53, 53), Mode: model.IPIP, Backends: backends(host4, otherPeer4)},
			{Name: "web6", VIP: vip6, Protocol: model.TCP, Port: port(443, 443), Mode: model.GUE, Backends: backends(host6, peer6)},
			{Name: "dns6", VIP: vip6, Protocol: model.UDP, Port: port(53, 53), Mode: model.IPIP, Backends: backends(host6)},
			{Name: "range4", VIP: rangeVIP4, Protocol: model.TCP, Port: port(8000, 8100), Mode: model.IPIP, Backends: backends(host4)},
			{Name: "all6", VIP: rangeVIP6, Protocol: model.TCP, Mode: model.L2DSR, Backends: backends(host6)},
			{Name: "talk4", VIP: vip4, Protocol: model.UDP, Port: port(3478, 3478), Mode: model.GUE, Backends: backends(host4, host6, peer4, peer6, third4, third6)},
			{Name: "talk6", VIP: vip6, Protocol: model.UDP, Port: port(3478, 3478), Mode: model.GUE, Backends: backends(host4, host6, peer4, peer6, third4, third6)},
			{Name: "chat4", VIP: vip4, Protocol: model.SCTP, Port: port(3478, 3478), Mode: model.GUE, Backends: backends(host4, host6, peer4, peer6, third4, third6)},
			{Name: "chat6", VIP: vip6, Protocol: model.SCTP, Port: port(3478, 3478), Mode: model.GUE, Backends: backends(host4, host6, peer4, peer6, third4, third6)},
			{Name: "pods4", VIP: podVIP4, Protocol: model.TCP, Port: port(80, 80), Mode: model.GUE,
				Backends: pods("10.244.1.5:8080", "10.0.1.11", "10.244.1.6:9090", "2001:db8:1::11", "10.244.2.9:8080", "10.0.1.12", "10.244.3.9:80", "2001:db8:1::12")},
			{Name: "pods6", VIP: podVIP6, Protocol: model.TCP, Port: port(80, 80), Mode: model.GUE,
				Backends: pods("[fd00:1::5]:8080", "10.0.1.11", "[fd00:1::6]:9090", "2001:db8:1::11", "[fd00:2::9]:8080", "10.0.1.12", "[fd00:3::9]:80", "2001:db8:1::12")},
			{Name: "poddns4", VIP: podVIP4, Protocol: model.UDP, Port: port(53, 53), Mode: model.GUE,
				Backends: pods("10.244.1.5:5353", "10.0.1.11", "10.244.1.6:53", "2001:db8:1::11", "10.244.2.9:53", "10.0.1.12", "10.244.3.9:53", "2001:db8:1::12")},
			{Name: "poddns6", VIP: podVIP6, Protocol: model.UDP, Port: port(53, 53), Mode: model.GUE,
				Backends: pods("[fd00:1::5]:5353", "10.0.1.11", "[fd00:1::6]:53", "2001:db8:1::11", "[fd00:2::9]:53", "10.0.1.12", "[fd00:3::9]:53", "2001:db8:1::12")},
			{Name: "again4", VIP: podVIP4, Protocol: model.TCP, Port: port(8000, 8100), Mode: model.GUE, Backends: pods("10.244.1.5:0", "10.0.1.11")},
			{Name: "other4", VIP: otherPodVIP4, Protocol: model.TCP, Port: port(80, 80), Mode: model.IPIP, Backends: pods("10.244.1.5:8080", "10.0.1.11")},
			{Name: "other6", VIP: otherPodVIP6, Protocol: model.TCP, Port: port(80, 80), Mode: model.IPIP, Backends: pods("[fd00:1::5]:8080", "10.0.1.11")},
			{Name: "elsewhere", VIP: notVIP4, Protocol: model.TCP, Port: port(80, 80), Mode: model.GUE, Backends: backends(peer4)},
		},
	}
}

// testFlows is how many UDP flows the host of the packet tables remembers.
const testFlows = model.MinUDPFlows

// testHost is the programs with the maps that testConfig gives.
type testHost struct {
	*bpfObjects
	plan    plan
	indexes map[identity]uint32
}

func newTestHost(t testing.TB) *testHost {
	t.Helper()
	p, err := newPlan(testConfig(), host{addresses: map[netip.Addr]int{host4: loopbackIndex, host6: loopbackIndex}})
	if err != nil {
		t.Fatal(err)
	}
	h := &testHost{bpfObjects: new(bpfObjects), plan: p}
	spec, err := loadBpf()
	if err != nil {
		t.Fatal(err)
	}
	spec.Maps[flowsName].MaxEntries = testFlows
	spec.Maps[freshName].MaxEntries = freshFlows(testFlows)
	if err := spec.Variables["udp_room"].Set(uint32(testFlows)); err != nil {
		t.Fatal(err)
	}
	if err := spec.LoadAndAssign(h.bpfObjects, nil); err != nil {
		var refusal *ebpf.VerifierError
		if errors.As(err, &refusal) {
			t.Fatalf("load programs: %+v", refusal)
		}
		t.Fatalf("load programs: %v", err)
	}
	t.Cleanup(func() { _ = h.Close() })
	tables, err := newTables(p, nil, nil, h.Services.MaxEntries())
	if err != nil {
		t.Fatal(err)
	}
	if err := tables.put(&h.bpfMaps); err != nil {
		t.Fatal(err)
	}
	h.indexes = tables.indexes
	// As if the services had had backends at these, too.
	for _, s := range p.services {
		for _, at := range formerBackends {
			err := h.Peers.Update(bpfHostPeer{Service: h.indexes[s.identity()], Address: address(at)}, formerPeer, ebpf.UpdateNoExist)
			if err != nil && !errors.Is(err, ebpf.ErrKeyExist) {
				t.Fatal(err)
			}
		}
	}
	return h
}

// formerBackends may be in rows of any service, and nothing comes from there.
var formerBackends = []netip.Addr{peer4, third4, peer6, third6}

// counts are all counters: by reason, and by service.
type counts struct {
	reasons  []bpfCounter
	services map[string]bpfCounter
}

func (h *testHost) counts(t testing.TB) counts {
	t.Helper()
	c := counts{services: map[string]bpfCounter{}}
	for i := range uint32(bpfHostReasonHOST_REASON_COUNT) {
		counter, err := readCounter(h.Reasons, i)
		if err != nil {
			t.Fatal(err)
		}
		c.reasons = append(c.reasons, counter)
	}
	for _, s := range h.plan.services {
		counter, err := readCounter(h.ServicePackets, h.indexes[s.identity()])
		if err != nil {
			t.Fatal(err)
		}
		c.services[serviceName(s)] = counter
	}
	return c
}

func serviceName(s service) string {
	if s.protocol == 0 {
		return s.vip.String()
	}
	return s.name
}

// verdicts are those of XDP and of tc.
const (
	xdpDrop, xdpPass = 1, 2
	tcNext, tcShot   = 0xffffffff, 2
)

// run gives the frame to the program and returns the verdict and what became of it.
func run(t testing.TB, program *ebpf.Program, frame []byte, context any) (uint32, []byte) {
	t.Helper()
	out := make([]byte, len(frame)+256)
	options := &ebpf.RunOptions{Data: frame, DataOut: out, Context: context}
	verdict, err := program.Run(options)
	if err != nil {
		t.Fatalf("run program: %v", err)
	}
	return verdict, options.DataOut
}

// reasonName is for messages.
func reasonName(t testing.TB, reason bpfHostReason) string {
	names, err := reasonNames()
	if err != nil {
		t.Fatal(err)
	}
	return names[reason]
}

var ether = packet.EthernetHeader{Dst: [6]byte{2, 0, 0, 0, 0, 0x11}, Src: [6]byte{2, 0, 0, 0, 0, 0x99}}

// frame is a list of headers, outermost first.
type frame []packet.Header

func join(parts ...frame) frame {
	var all frame
	for _, p := range parts {
		all = append(all, p...)
	}
	return all
}

func build(parts ...frame) []byte { return packet.Build(join(parts...)...) }

func ip(src, dst netip.Addr) packet.Header {
	if src.Is4() {
		return packet.IPv4Header{Src: src, Dst: dst}
	}
	return packet.IPv6Header{Src: src, Dst: dst}
}
