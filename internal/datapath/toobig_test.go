package datapath

import (
	"net/netip"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/packet"
)

// A packet that would not fit its backend's path is answered with an ICMP error
// from the VIP that says what would.
func testTooBig(t *testing.T) {
	w := &testWorld{}
	scenarios := w.scenarios(notFullNAT)
	d := loadTestDirector(t, w)
	for _, s := range scenarios {
		s.start(t, d)
		t.Run(s.name, func(t *testing.T) { d.check(t, s.tooBigRows()) })
	}
}

func (s scenario) tooBigRows() (rows []row) {
	for name, tags := range map[string][]packet.Header{
		"untagged": nil,
		"one tag":  {packet.VLANTag{Priority: 3}},
		"two tags": {packet.VLANTag{TPID: packet.EtherTypeQinQ}, packet.VLANTag{Priority: 3}},
	} {
		for _, size := range []int{1501, 1502, 3000, 9000} {
			rows = append(rows, s.tooBig(name, tags, s.sized(size)))
		}
	}
	free := s.sized(1501)
	if four, is4 := free[0].(packet.IPv4Header); is4 {
		four.DF = false
		rows = append(rows, s.tooBig("without DF", nil, append([]packet.Header{four}, free[1:]...)))
	}
	super := row{name: "longer than any link's MTU", in: build(s.sized(9001)...)}
	return append(rows, super.dropped(abi.ReasonDROP_SUPER_FRAME, s.testService))
}

// tooBig is the row of a packet that is answered; tags go back as they came.
func (s scenario) tooBig(name string, tags, headers []packet.Header) row {
	in := packet.Build(append(append([]packet.Header{arrived}, tags...), headers...)...)
	answer := append([]packet.Header{packet.EthernetHeader{Dst: clientMAC, Src: ownMAC}}, tags...)
	inner := packet.Build(headers...)
	if s.vip.Is4() {
		answer = append(answer, packet.IPv4Header{Src: s.vip, Dst: s.client, TTL: 64},
			packet.ICMPv4Header{Type: packet.Unreachable, Code: packet.FragmentationNeeded, Rest: 1500}, packet.Bytes(inner[:508]))
	} else {
		answer = append(answer, packet.IPv6Header{Src: s.vip, Dst: s.client, HopLimit: 64},
			packet.ICMPv6Header{Type: packet.PacketTooBig, Rest: 1500}, packet.Bytes(inner[:1232]))
	}
	return row{name: name, in: in}.answered(abi.ReasonANSWER_TOO_BIG, packet.Build(answer...))
}

// Without a budget nothing is answered; and never an error about an error.
func testTooBigLimited(t *testing.T) {
	w := &testWorld{silent: true}
	scenarios := w.scenarios(notNAT)
	d := loadTestDirector(t, w)
	for _, s := range scenarios {
		limited := row{name: s.name, in: build(s.sized(1501)...)}
		about := row{name: s.name + ", an error", in: build(s.router(), icmpErrors(s.vip.Is4())[0].header,
			packet.Quote(1600, append(s.reply(servicePort), packet.Zeros(1600))...))}
		d.check(t, []row{
			limited.dropped(abi.ReasonDROP_TOO_BIG_LIMITED, s.testService),
			about.dropped(abi.ReasonDROP_TOO_BIG_LIMITED, s.testService),
		})
	}
}

// One CPU answers as many packets in a second as it may.
func testTooBigRate(t *testing.T) {
	const rate = 3
	runtime.LockOSThread() // and never unlocked: the thread keeps its one CPU
	var one unix.CPUSet
	one.Set(0)
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		t.Fatalf("stay on one CPU: %v", err)
	}
	w := &testWorld{settings: abi.Settings{IcmpRate: rate}}
	s := scenario{testService: w.add(testService{vip: vipAddress(true, 1), protocol: 6, port: singlePort(servicePort),
		backends: []testBackend{{}}}), client: client4}
	d := loadTestDirector(t, w)
	frame := build(s.sized(1501)...)
	for second := range 3 {
		answers := 0
		for range 2 * rate {
			if action, _ := d.run(t, frame, 0); action == xdpTX {
				answers++
			}
		}
		if answers != rate {
			t.Errorf("%d answers in second %d, want %d", answers, second, rate)
		}
		d.advance(t, time.Second)
	}
}

// keepOneCPU keeps the test on one CPU, because each CPU has its own part of a budget.
func keepOneCPU(t *testing.T) {
	t.Helper()
	runtime.LockOSThread() // and never unlocked: the thread keeps its one CPU
	var one unix.CPUSet
	one.Set(0)
	must(t, unix.SchedSetaffinity(0, &one))
}

// testTooBigSources: whoever uses up the budget for errors leaves every other network a part of it.
func testTooBigSources(t *testing.T) {
	const rate = 640
	keepOneCPU(t)
	for _, is4 := range []bool{true, false} {
		w := &testWorld{settings: abi.Settings{IcmpRate: rate, FlowSalt: 4711}}
		s := scenario{testService: w.add(testService{vip: vipAddress(is4, 1), protocol: model.TCP, port: singlePort(servicePort),
			backends: []testBackend{{}}}), client: clientOf(is4)}
		d := loadTestDirector(t, w)
		flood := build(s.sized(1501)...)
		answersOf := func(frame []byte, packets int) (answers int) {
			for range packets {
				if action, _ := d.run(t, frame, 0); action == xdpTX {
					answers++
				}
			}
			return answers
		}
		greedy := answersOf(flood, 2*rate)
		served := 0
		const others = 32
		for n := range others {
			other := scenario{testService: s.testService, client: numbered(is4, byte(100+n), 1)}
			if answersOf(build(other.sized(1501)...), 1) == 1 {
				served++
			}
		}
		if want := rate + rate/64; greedy != want {
			t.Errorf("the network that sends too much got %d answers in a second, want %d and its own %d", greedy, rate, rate/64)
		}
		// A network with the same hash as the greedy one has no budget left.
		if served < others*3/4 {
			t.Errorf("of %d other networks %d got an answer", others, served)
		}
	}
}

// testTooBigSegments: a tenant that sends with sources of all networks in its segment uses up the common budget for
// errors and a few small ones, and leaves most others' segments, with the same clients, theirs.
func testTooBigSegments(t *testing.T) {
	const rate, others = 640, 32
	keepOneCPU(t)
	for _, is4 := range []bool{true, false} {
		w := &testWorld{settings: abi.Settings{IcmpRate: rate, FlowSalt: 4711}}
		var tenants []scenario
		for n := range uint32(others + 1) {
			tenants = append(tenants, scenario{client: clientOf(is4), testService: w.add(testService{vip: vipAddress(is4, 1), protocol: model.TCP, port: singlePort(servicePort),
				segment: model.Segment{Kind: model.SegmentVLAN, ID: 100 + n}, backends: []testBackend{{}}})})
		}
		d := loadTestDirector(t, w)
		answers := func(s scenario, client netip.Addr) int {
			s.client = client
			frame := build(s.sized(1501)...)
			tag := []byte{0x81, 0, byte(s.segment.ID >> 8), byte(s.segment.ID)}
			if action, _ := d.run(t, slices.Concat(frame[:12], tag, frame[12:]), 0); action == xdpTX {
				return 1
			}
			return 0
		}
		greedy, served := 0, 0
		for n := range 10 * rate {
			greedy += answers(tenants[0], numbered(is4, byte(n%200), 1))
		}
		if want := rate + 4*(rate/64); greedy != want {
			t.Errorf("a segment with sources of 200 networks got %d answers in a second, want %d and four parts of %d", greedy, rate, rate/64)
		}
		for _, s := range tenants[1:] {
			served += answers(s, s.client)
		}
		if served < others*3/4 {
			t.Errorf("of %d other segments %d got an answer", others, served)
		}
	}
}
