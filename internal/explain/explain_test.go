package explain_test

import (
	"bytes"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"weir.io/weir/internal/engine"
	"weir.io/weir/internal/explain"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/packet"
)

var to = model.MAC{0x02, 0, 0, 0, 0, 0xd1}

// shortest is an Ethernet frame, without FCS.
const shortest = 60

func question(source, destination, protocol string, flags ...string) model.Question {
	from, _ := explain.Endpoint(source)
	end, _ := explain.Endpoint(destination)
	return model.Question{Source: from, Destination: end, Protocol: protocol, Flags: flags}
}

// A question's packet is the one that packet.Build makes of the same headers.
func TestBuild(t *testing.T) {
	ethernet := packet.EthernetHeader{Dst: to, Src: [6]byte{0x02, 'w', 'e', 'i', 'r', 0}}
	v4 := packet.IPv4Header{Src: netip.MustParseAddr("198.51.100.7"), Dst: netip.MustParseAddr("203.0.113.10"), DF: true}
	v6 := packet.IPv6Header{Src: netip.MustParseAddr("2001:db8::7"), Dst: netip.MustParseAddr("2001:db8:1::10")}
	tagged := question("198.51.100.7:5555", "203.0.113.10:443", "tcp")
	tagged.Segment, tagged.TTL = model.Segment{Kind: model.SegmentVLAN, ID: 7<<12 | 8}, 3
	v4short := v4
	v4short.TTL = 3
	long := question("[2001:db8::7]:5555", "[2001:db8:1::10]:53", "udp")
	long.Payload = model.Hex("question")
	for _, test := range []struct {
		name     string
		question model.Question
		want     []packet.Header
	}{
		{"syn", question("198.51.100.7:5555", "203.0.113.10:443", "tcp", "syn"), []packet.Header{ethernet, v4, packet.TCPHeader{Src: 5555, Dst: 443, Seq: 1, Flags: packet.SYN, Window: 0xffff}}},
		{"two tags", tagged, []packet.Header{ethernet, packet.VLANTag{TPID: packet.EtherTypeQinQ, ID: 7}, packet.VLANTag{ID: 8}, v4short,
			packet.TCPHeader{Src: 5555, Dst: 443, Seq: 1, Ack: 1, Flags: packet.ACK, Window: 0xffff}}},
		{"udp", long, []packet.Header{ethernet, v6, packet.UDPHeader{Src: 5555, Dst: 53}, packet.Text("question")}},
		{"ping", question("198.51.100.7", "203.0.113.10", "icmp"), []packet.Header{ethernet, v4, packet.ICMPv4Header{Type: packet.EchoRequest, Rest: packet.EchoID(1, 1)}}},
		{"ping 6", question("2001:db8::7", "2001:db8:1::10", "icmp"), []packet.Header{ethernet, v6, packet.ICMPv6Header{Type: packet.EchoRequest6, Rest: packet.EchoID(1, 1)}}},
	} {
		frame, err := explain.Build(&test.question, to)
		if err != nil {
			t.Fatalf("%s: %v", test.name, err)
		}
		want := packet.Build(test.want...)
		want = append(want, make([]byte, max(0, shortest-len(want)))...)
		t.Run(test.name, func(t *testing.T) { packet.Equal(t, frame, want) })
	}
}

func TestBuildRefuses(t *testing.T) {
	for want, q := range map[string]model.Question{
		"source: is required":                   question("", "203.0.113.10:443", "tcp"),
		"destination: is required":              question("198.51.100.7:1", "", "tcp"),
		"is of another family":                  question("198.51.100.7:1", "[2001:db8::1]:2", "tcp"),
		`protocol: unknown protocol "dccp"`:     question("198.51.100.7:1", "203.0.113.10:443", "dccp"),
		`flags: unknown flag "sin"`:             question("198.51.100.7:1", "203.0.113.10:443", "tcp", "sin"),
		"flags: udp has none":                   question("198.51.100.7:1", "203.0.113.10:443", "udp", "syn"),
		"frame: 3 bytes are no Ethernet frame":  {Frame: model.Hex{1, 2, 3}},
		"payload: 9001 bytes are more than":     {Source: netip.MustParseAddrPort("198.51.100.7:1"), Destination: netip.MustParseAddrPort("198.51.100.7:1"), Protocol: "udp", Payload: make(model.Hex, 9001)},
		"segment: packets of vxlan:5 cannot be": {Source: netip.MustParseAddrPort("198.51.100.7:1"), Destination: netip.MustParseAddrPort("198.51.100.7:1"), Protocol: "udp", Segment: model.Segment{Kind: model.SegmentVXLAN, ID: 5}},
	} {
		if _, err := explain.Build(&q, to); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", q, err, want)
		}
	}
	long := question("198.51.100.7:1", "203.0.113.10:443", "tcp", strings.Repeat("a", 100_000))
	if _, err := explain.Build(&long, to); err == nil || !strings.Contains(err.Error(), "unknown flag") || len(err.Error()) > 1000 {
		t.Errorf("a long flag: %.300v", err)
	}
	if _, err := explain.Endpoint("198.51.100.7:"); err == nil || !strings.Contains(err.Error(), `"198.51.100.7:" is no address with a port`) {
		t.Errorf("an address without a port's number: %v", err)
	}
}

func TestDescribe(t *testing.T) {
	inner := []packet.Header{packet.IPv6Header{Src: netip.MustParseAddr("2001:db8::7"), Dst: netip.MustParseAddr("2001:db8:1::10")},
		packet.TCPHeader{Src: 5555, Dst: 443, Flags: packet.SYN | packet.ACK}, packet.Text("hello")}
	frame := packet.Build(append([]packet.Header{packet.EthernetHeader{Dst: to}, packet.VLANTag{ID: 9},
		packet.IPv4Header{Src: netip.MustParseAddr("10.0.0.1"), Dst: netip.MustParseAddr("10.0.0.2"), TOS: 0x28},
		packet.UDPHeader{Src: 50000, Dst: 6080, NoChecksum: true},
		packet.GUEHeader{Protocol: packet.ProtocolIPv6, Private: []byte{0x57, 2, 0, 0, 10, 0, 0, 3, 10, 0, 0, 4}}}, inner...)...)
	want := []string{
		"ethernet: 00:00:00:00:00:00 > 02:00:00:00:00:d1",
		"vlan: 9",
		"ipv4: 10.0.0.1 > 10.0.0.2, ttl 64, tos 0x28, length 109",
		"udp: 50000 > 6080, length 89",
		"gue: ipv6, else to 10.0.0.3, 10.0.0.4",
		"ipv6: 2001:db8::7 > 2001:db8:1::10, hop limit 64, class 0x00, flow label 0x00000, length 65",
		"tcp: 5555 > 443, syn,ack",
		"payload: 5 bytes",
	}
	if got := explain.Describe(frame); !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if got := explain.Describe(frame[:30]); !strings.HasSuffix(got[len(got)-1], "cut short (12 bytes)") {
		t.Errorf("a frame that is cut short: %q", got)
	}
}

// inTunnel is a packet of a tenant in a tunnel to a port.
func inTunnel(port uint16, header packet.Header, inner ...packet.Header) []byte {
	all := []packet.Header{packet.EthernetHeader{Dst: to}, packet.IPv4Header{Src: netip.MustParseAddr("192.0.2.13"), Dst: netip.MustParseAddr("192.0.2.200")},
		packet.UDPHeader{Src: 33759, Dst: port}, header, packet.EthernetHeader{Dst: to}}
	return packet.Build(append(all, inner...)...)
}

// Tunnels of tenants' networks are looked into, at the usual ports, and at any port where the segment is known.
func TestTenantsPackets(t *testing.T) {
	syn := []packet.Header{packet.IPv4Header{Src: netip.MustParseAddr("172.16.0.50"), Dst: netip.MustParseAddr("172.16.0.100")}, packet.TCPHeader{Src: 5555, Dst: 80, Flags: packet.SYN}, packet.Text("hello")}
	vxlan, geneve := packet.VXLANHeader{VNI: 5001}, packet.GeneveHeader{VNI: 5001}
	many := packet.GeneveHeader{VNI: 5001, Options: bytes.Repeat([]byte{1, 2, 3, 2, 0, 0, 0, 0, 0, 0, 0, 0}, 21)}
	const client = "tcp 172.16.0.50:5555 > 172.16.0.100:80 syn"
	for _, test := range []struct {
		frame         []byte
		segment       string
		summary, line string
	}{
		{inTunnel(4789, vxlan, syn...), "", client + ", in vxlan VNI 5001 192.0.2.13 > 192.0.2.200", "vxlan: VNI 5001"},
		{inTunnel(6081, geneve, syn...), "", client + ", in geneve VNI 5001 192.0.2.13 > 192.0.2.200", "geneve: VNI 5001"},
		{inTunnel(6081, many, syn...), "", client + ", in geneve VNI 5001, options of 252 bytes 192.0.2.13 > 192.0.2.200", "geneve: VNI 5001, options of 252 bytes"},
		{inTunnel(8472, vxlan, syn...), "vxlan:77", client + ", in vxlan VNI 5001 192.0.2.13 > 192.0.2.200", "vxlan: VNI 5001"},
		{inTunnel(8472, vxlan, syn...), "none", "udp 192.0.2.13:33759 > 192.0.2.200:8472", ""},
		// Inside of a tenant's network, a tenant's own datagram is no tunnel of the director's.
		{inTunnel(8472, vxlan, syn[0], packet.UDPHeader{Src: 5555, Dst: 8472}, packet.Text("hello to you")), "vxlan:77", "udp 172.16.0.50:5555 > 172.16.0.100:8472, in vxlan VNI 5001 192.0.2.13 > 192.0.2.200", "vxlan: VNI 5001"},
	} {
		var segment model.Segment
		if err := segment.UnmarshalText([]byte(test.segment)); err != nil {
			t.Fatal(err)
		}
		if got := explain.Summary(test.frame, segment); got != test.summary {
			t.Errorf("in %s: %q is said, and not %q", segment, got, test.summary)
		}
		e := model.Explanation{Frame: test.frame, Flow: &model.ExplainedFlow{Segment: segment}}
		var lines []string
		for _, s := range explain.Steps(&e) {
			if s.Step == model.StepPacketIn {
				lines = append(lines, s.Says)
			}
		}
		if last := lines[len(lines)-1]; slices.Contains(lines, "tcp: 5555 > 80, syn") != strings.HasPrefix(test.summary, "tcp") || test.line != "" && !slices.Contains(lines, test.line) || strings.HasPrefix(test.summary, "tcp") && last != "payload: 5 bytes" {
			t.Errorf("in %s the packet is\n%s", segment, strings.Join(lines, "\n"))
		}
	}
	if got, want := explain.Summary(inTunnel(4789, vxlan)[:14+20+8+4], model.Segment{}), "udp 192.0.2.13:33759 > 192.0.2.200:4789"; got != want {
		t.Errorf("of a tunnel that is cut is said %q, and not %q", got, want)
	}
}

// A packet of a tenant's network is in a tunnel that is made up, and that is said; as is where the backend is.
func TestStepsOfTenants(t *testing.T) {
	e := model.Explanation{Tunnel: &model.ExplainedTunnel{Wire: model.Segment{Kind: model.SegmentVXLAN, ID: 5001}, VTEP: netip.MustParseAddr("192.0.2.11"), Source: netip.MustParseAddr("172.16.0.50")},
		Backend: &model.ExplainedBackend{Name: "a", Backend: netip.MustParseAddrPort("172.16.0.11:0"), Mode: model.L2DSR, Interface: "eth0", NextHop: model.MAC{0xfa, 0x16, 0x3e, 0, 0, 1}, MTU: 1550,
			VTEP: netip.MustParseAddr("192.0.2.12"), Wire: model.Segment{Kind: model.SegmentGeneve, ID: 9}}}
	says := func(step model.Decision, want string) {
		t.Helper()
		if !slices.Contains(explain.Steps(&e), model.ExplainedStep{Step: step, Says: want}) {
			t.Errorf("of the %s is not said %q: %v", step, want, explain.Steps(&e))
		}
	}
	says(model.StepTunnel, "made up: vxlan:5001 on the wire, from VTEP 192.0.2.11, one that is known; nothing says where 172.16.0.50 is, and from a VTEP that is none of the segment its packets are dropped (drop_overlay_peer)")
	says(model.StepWay, "l2dsr, by eth0 to fa:16:3e:00:00:01 at VTEP 192.0.2.12, geneve:9 on the wire, MTU 1550")
	e.Tunnel.Known = true
	says(model.StepTunnel, "made up: vxlan:5001 on the wire, from VTEP 192.0.2.11, where 172.16.0.50 is")
}

// Every decision is told: each field has its step, in the order of the decisions.
func TestSteps(t *testing.T) {
	a, b := netip.MustParseAddrPort("10.0.1.1:0"), netip.MustParseAddrPort("10.0.1.2:8080")
	vip := netip.MustParseAddr("203.0.113.10")
	frame := packet.Build(packet.EthernetHeader{Dst: to}, packet.IPv4Header{Src: netip.MustParseAddr("198.51.100.7"), Dst: vip}, packet.UDPHeader{Src: 5555, Dst: 443})
	e := model.Explanation{Interface: "eth0", Frame: frame, Out: frame[:20], Leaves: "eth1", Reason: "forward_snat", Chosen: model.ChosenByTurn,
		Flow: &model.ExplainedFlow{Segment: model.Segment{Kind: model.SegmentVLAN, ID: 9}, Protocol: 17, Source: netip.MustParseAddrPort("198.51.100.7:5555"),
			Destination: netip.AddrPortFrom(vip, 443), TTL: 64, Length: 40, Fragment: "first", ICMPError: true},
		Service: &model.ExplainedService{Name: "web", ID: model.ServiceID{VIP: vip, Protocol: model.UDP, Port: model.PortRange{First: 443, Last: 443}}, Policy: model.RoundRobin,
			SourceRange: &model.ExplainedSource{Range: netip.MustParsePrefix("198.51.100.0/24"), Of: 3}},
		Memory:  &model.ExplainedMemory{Backend: a, Class: "proved", State: "open", Age: model.Duration(1e9)},
		Slot:    &model.ExplainedSlot{Number: 1, Of: 251, Candidates: []model.ExplainedCandidate{{Name: "a", Backend: a, State: model.Active, Generations: []model.ExplainedGeneration{{Number: 2}, {Number: 1, Backup: true}}}}},
		Before:  &model.ExplainedSlot{Number: 2, Of: 251, Settling: true},
		Backend: &model.ExplainedBackend{Name: "b", Backend: b, Mode: model.NAT, Interface: "eth1", NextHop: model.MAC{2, 0, 0, 0, 0, 2}, VLAN: 7, MTU: 1500, Source: netip.MustParseAddrPort("10.0.0.2:1024")}}
	want := []model.ExplainedStep{
		{Step: model.StepComesIn, Says: "eth0"},
		{Step: model.StepSegment, Says: "vlan:9"},
		{Step: model.StepFlow, Says: "udp 198.51.100.7:5555 > 203.0.113.10:443, an ICMP error about it, first fragment, TTL 64, 40 bytes"},
		{Step: model.StepService, Says: "web: 203.0.113.10 udp port 443, policy round-robin, affinity flow"},
		{Step: model.StepClient, Says: "in source range 198.51.100.0/24, one of 3"},
		{Step: model.StepRemembered, Says: "open (proved) at 10.0.1.1, last packet 1s ago, not followed"},
		{Step: model.StepSlot, Says: "1 of 251"},
		{Step: model.StepCandidate, Says: "a 10.0.1.1, active, owner in generation 2; backup in generation 1"},
		{Step: model.StepSlotBefore, Says: "2 of 251, flows of others may be remembered"},
		{Step: model.StepBackend, Says: "b 10.0.1.2:8080: its turn is the next one"},
		{Step: model.StepWay, Says: "nat, by eth1 to 02:00:00:00:00:02, tag 7, from 10.0.0.2:1024, MTU 1500"},
		{Step: model.StepOutcome, Says: "forward_snat: " + model.ReasonText("forward_snat")},
		{Step: model.StepLeavesBy, Says: "eth1"},
		{Step: model.StepPacketIn, Says: "ethernet: 00:00:00:00:00:00 > 02:00:00:00:00:d1"},
		{Step: model.StepPacketIn, Says: "ipv4: 198.51.100.7 > 203.0.113.10, ttl 64, tos 0x00, length 28"},
		{Step: model.StepPacketIn, Says: "udp: 5555 > 443, length 8"},
		{Step: model.StepPacketOut, Says: "ethernet: 00:00:00:00:00:00 > 02:00:00:00:00:d1"},
		{Step: model.StepPacketOut, Says: "ipv4: cut short (6 bytes)"},
	}
	if diff := cmp.Diff(want, explain.Steps(&e)); diff != "" {
		t.Errorf("the steps differ (-want +got):\n%s", diff)
	}
	e.Service.SourceRange.Range = netip.Prefix{}
	none := model.ExplainedStep{Step: model.StepClient, Says: "in none of the service's source ranges (3)"}
	if !slices.Contains(explain.Steps(&e), none) {
		t.Errorf("nothing says that the client is in none of the source ranges: %v", explain.Steps(&e))
	}
}

// Each way to choose a backend is said.
func TestStepsSayWhatChose(t *testing.T) {
	for _, chosen := range []model.Chosen{model.ChosenByFragment, model.ChosenBySNAT, model.ChosenByQUIC, model.ChosenByMemory, model.ChosenByLoad,
		model.ChosenByTurn, model.ChosenAtRandom, model.ChosenByLeast, model.ChosenByRow, model.ChosenByAge} {
		e := model.Explanation{Chosen: chosen, Backend: &model.ExplainedBackend{Name: "b", Backend: netip.MustParseAddrPort("10.0.1.2:0")}}
		for _, s := range explain.Steps(&e) {
			if s.Step == model.StepBackend && !strings.HasPrefix(s.Says, "b 10.0.1.2: ") {
				t.Errorf("of %s is said: %q", chosen, s.Says)
			}
		}
	}
}

// FuzzDescribe: there is something to say of every frame.
func FuzzDescribe(f *testing.F) {
	f.Add(packet.Build(packet.EthernetHeader{}, packet.IPv4Header{Src: netip.MustParseAddr("10.0.0.1"), Dst: netip.MustParseAddr("10.0.0.2")},
		packet.UDPHeader{Dst: 6080}, packet.GUEHeader{Protocol: 4, Private: []byte{0x57, 1, 0, 0, 10, 0, 0, 1}}, packet.IPv4Header{Src: netip.MustParseAddr("10.0.0.1"), Dst: netip.MustParseAddr("10.0.0.2")}))
	f.Add(inTunnel(4789, packet.VXLANHeader{VNI: 1}, packet.IPv4Header{Src: netip.MustParseAddr("10.0.0.1"), Dst: netip.MustParseAddr("10.0.0.2")}))
	f.Add(inTunnel(6081, packet.GeneveHeader{VNI: 1, Options: bytes.Repeat([]byte{1, 2, 3, 0}, 63)}))
	f.Fuzz(func(t *testing.T, frame []byte) {
		if explain.Summary(frame, model.Segment{Kind: model.SegmentGeneve, ID: 1}) == "" {
			t.Errorf("no word is said of %x", frame)
		}
		if lines := explain.Describe(frame); len(frame) > 0 && len(lines) == 0 {
			t.Errorf("nothing is said of %x", frame)
		}
	})
}

// Each generation is named at the candidate that it places the flow on.
func TestNameGenerations(t *testing.T) {
	s := model.Service{Name: "web", VIP: netip.MustParseAddr("203.0.113.10"), Protocol: model.TCP, Port: model.PortRange{First: 443, Last: 443}}
	a, b := netip.MustParseAddrPort("10.0.0.1:0"), netip.MustParseAddrPort("10.0.0.2:0")
	of := func(number uint64, e netip.AddrPort) model.Generation {
		return model.Generation{Number: number, Slots: 251, Members: []model.Member{{Backend: e, Weight: 1}}}
	}
	log := model.Log{Generations: []model.Generation{of(2, b), of(1, a)}}
	e := model.Explanation{
		Service: &model.ExplainedService{ID: s.ID()},
		Flow:    &model.ExplainedFlow{Protocol: 6, Source: netip.MustParseAddrPort("198.51.100.7:5555"), Destination: netip.MustParseAddrPort("203.0.113.10:443")},
		Slot:    &model.ExplainedSlot{Candidates: []model.ExplainedCandidate{{Backend: b}, {Backend: a}}},
	}
	explain.NameGenerations(&e, log, &engine.Placements{})
	for i, want := range []uint64{2, 1} {
		if got := e.Slot.Candidates[i].Generations; len(got) != 1 || got[0] != (model.ExplainedGeneration{Number: want}) {
			t.Errorf("candidate %d is named by %+v, want generation %d", i, got, want)
		}
	}
}

// A packet in a tenant's network comes in a tunnel to the director's VTEP, with its MAC address there.
func TestBuildInside(t *testing.T) {
	q := question("172.16.0.2:5555", "172.16.0.100:443", "tcp", "syn")
	plain, err := explain.Build(&q, model.MAC{2, 0, 0, 0, 0, 9})
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		kind     model.SegmentKind
		from, to string
		vlan     uint16
		want     string
	}{
		{model.SegmentVXLAN, "192.0.2.11", "192.0.2.1", 0, "Ethernet IPv4 UDP VXLAN"},
		{model.SegmentVXLAN, "2001:db8::11", "2001:db8::1", 7, "Ethernet Dot1Q IPv6 UDP VXLAN"},
		{model.SegmentGeneve, "192.0.2.11", "192.0.2.1", 0, "Ethernet IPv4 UDP Geneve"},
	} {
		wire := model.Segment{Kind: test.kind, ID: 5001}
		port := map[model.SegmentKind]uint16{model.SegmentVXLAN: model.DefaultVXLANPort, model.SegmentGeneve: model.DefaultGenevePort}[test.kind]
		q.Segment = wire
		frame, err := explain.BuildInside(&q, &explain.Tunnel{Wire: wire, From: netip.MustParseAddr(test.from), To: netip.MustParseAddr(test.to), Port: port, VLAN: test.vlan, MAC: model.MAC{2, 0, 0, 0, 0, 9}}, to)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		parsed := gopacket.NewPacket(frame, layers.LayerTypeEthernet, gopacket.Default)
		for _, layer := range parsed.Layers() {
			names = append(names, layer.LayerType().String())
		}
		if got := strings.Join(names, " "); !strings.HasPrefix(got, test.want+" Ethernet IPv4 TCP") {
			t.Errorf("%s is in %s, want %s", wire, got, test.want)
		}
		if !bytes.HasSuffix(frame, plain) {
			t.Errorf("%s has another packet inside", wire)
		}
	}
}

// A candidate that is down says why its health check fails.
func TestUnhealthyCandidates(t *testing.T) {
	e := model.Explanation{Slot: &model.ExplainedSlot{Number: 7, Of: 251, Candidates: []model.ExplainedCandidate{
		{Name: "a", Backend: netip.MustParseAddrPort("10.0.0.1:0"), State: model.Down, Unhealthy: "status: GET /b was answered with 503 Service Unavailable"},
		{Name: "b", Backend: netip.MustParseAddrPort("10.0.0.2:0"), State: model.Active},
	}}}
	var says []string
	for _, step := range explain.Steps(&e) {
		if step.Step == model.StepCandidate {
			says = append(says, step.Says)
		}
	}
	want := []string{"a 10.0.0.1, down (status: GET /b was answered with 503 Service Unavailable)", "b 10.0.0.2, active"}
	if !slices.Equal(says, want) {
		t.Errorf("the candidates are %q, want %q", says, want)
	}
}
