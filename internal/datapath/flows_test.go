package datapath

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"

	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/packet"
)

// flowWorld is a service with three l2dsr backends, all of whose flows are in one
// slot: owner 0, then 1, then 2, the oldest owner.
func flowWorld(protocol model.Protocol, is4 bool) (*testWorld, scenario) {
	w := &testWorld{}
	backends := make([]testBackend, 3)
	for i := range backends {
		backends[i] = testBackend{mode: model.L2DSR, address: backendAddress(is4, i)}
	}
	s := w.add(testService{vip: vipAddress(is4, 1), protocol: protocol, port: singlePort(servicePort), salt: 7, memory: true,
		backends: backends, ring: listedRing(0, 1, 2)})
	return w, scenario{testService: s, name: fmt.Sprint(protocol), client: clientOf(is4)}
}

// listedRing has one slot, whose candidates are by age from the last to the first.
func listedRing(row ...uint32) model.Ring {
	list := model.CandidateList{Next: row[1:]}
	for i := len(row) - 1; i >= 0; i-- {
		list.Oldest = append(list.Oldest, uint8(i))
	}
	return model.Ring{Slots: []model.Slot{{Owner: row[0], Next: model.ListFlag}}, Lists: []model.CandidateList{list}}
}

// goes sends a client's packet and returns the position of the backend that got
// it; -1: nobody.
func (s scenario) goes(t testing.TB, d *testDirector, port uint16, flags uint8) int {
	t.Helper()
	action, out := d.run(t, build(ip(s.client, s.vip), s.segment4(port, servicePort, flags), packet.Text("client")), 0)
	return s.receiver(t, action, out)
}

func (s *testService) receiver(t testing.TB, action uint32, out []byte) int {
	t.Helper()
	switch action {
	case xdpDrop:
		return -1
	case xdpTX:
		return int(binary.BigEndian.Uint16(out[4:])) - int(s.first)
	}
	t.Fatalf("verdict %d of a packet of the service", action)
	return 0
}

// setRing gives the service another ring.
func (s scenario) setRing(t testing.TB, d *testDirector, ring model.Ring) {
	t.Helper()
	s.ring = ring
	s.testService.ring = ring
	d.putRing(t, s.testService)
}

func testFlows(t *testing.T) {
	for _, test := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"stays", testFlowStays},
		{"unknown", testFlowUnknown},
		{"begins", testFlowBegins},
		{"settling slot", testFlowSettling},
		{"backends", testFlowBackends},
		{"suspect", testFlowSuspect},
		{"ends", testFlowEnds},
		{"first line", testFlowFirstLine},
		{"short way", testFlowShortWay},
		{"expires", testFlowExpires},
		{"icmp errors and fragments", testFlowErrorsAndFragments},
		{"not asked", testFlowNotAsked},
		{"moves", testFlowMoves},
		{"port on another CPU", testFlowPortOnAnotherCPU},
		{"pressure", testFlowPressure},
		{"share", testFlowShare},
		{"imported", testFlowImported},
		{"imported over what is known", testFlowImportedOwn},
		{"imported over what has gone on", testFlowImportedForged},
		{"imported of a port that is used again", testFlowImportedPortAgain},
		{"imported of the same backend", testFlowImportedSameBackend},
		{"imported of ends", testFlowImportedEnd},
		{"imported of numbers", testFlowImportedNumbers},
		{"imported under pressure", testFlowImportedPressure},
		{"imported in a crowd", testFlowImportedCrowded},
		{"imported of backends that left", testFlowImportedGone},
		{"guessed", testFlowGuessed},
		{"news", testFlowNews},
		{"news wakes", testFlowNewsWakes},
		{"unshared", testFlowUnshared},
		{"budget of fresh flows", testFreshBudget},
		{"random", testFlowRandom},
	} {
		t.Run(test.name, func(t *testing.T) { onCPU(t, 0, func() { test.run(t) }) })
	}
}

const ackFlag, synFlag, finFlag, rstFlag = packet.ACK, packet.SYN, packet.FIN | packet.ACK, packet.RST

// bothProtocols runs a test in every family and protocol.
func bothProtocols(t *testing.T, f func(t *testing.T, d *testDirector, s scenario)) {
	t.Helper()
	for _, is4 := range []bool{true, false} {
		for _, protocol := range []model.Protocol{model.TCP, model.UDP, model.SCTP} {
			w, s := flowWorld(protocol, is4)
			f(t, loadTestDirector(t, w), s)
		}
	}
}

func (s scenario) want(t testing.TB, d *testDirector, port uint16, flags uint8, backend int, why string) {
	t.Helper()
	if got := s.goes(t, d, port, flags); got != backend {
		t.Errorf("%s %v: backend %d got the packet, want %d: %s", s.name, s.vip, got, backend, why)
	}
}

// A known flow stays where it is, whatever ring comes.
func testFlowStays(t *testing.T) {
	bothProtocols(t, func(t *testing.T, d *testDirector, s scenario) {
		first := 0
		if s.protocol.Datagrams() {
			first = 2 // it may be older than what the director has seen
		}
		s.want(t, d, clientPort, synFlag, first, "the flow begins")
		s.setRing(t, d, listedRing(1, 0, 2))
		s.want(t, d, clientPort, synFlag, first, "a SYN again")
		s.want(t, d, clientPort, ackFlag, first, "another owner")
		s.setRing(t, d, listedRing(2, 1))
		s.want(t, d, clientPort, ackFlag, first, "not in the row any more")
		s.settling = true
		s.setRing(t, d, model.Ring{Slots: []model.Slot{{Owner: 1, Next: 2}}})
		s.want(t, d, clientPort, ackFlag, first, "no list any more")
	})
}

// An unknown flow is the oldest live owner's, and then known.
func testFlowUnknown(t *testing.T) {
	bothProtocols(t, func(t *testing.T, d *testDirector, s scenario) {
		s.want(t, d, clientPort, ackFlag, 2, "the oldest owner")
		s.setRing(t, d, listedRing(2, 1, 0))
		s.want(t, d, clientPort, ackFlag, 2, "it is known now")
		s.want(t, d, clientPort+1, ackFlag, 0, "the oldest owner of another ring")
		s.setBackend(t, d, 0, abi.BackendStateBACKEND_DOWN)
		s.want(t, d, clientPort+2, ackFlag, 1, "the oldest that is alive")
	})
	w, s := flowWorld(model.TCP, true)
	d := loadTestDirector(t, w)
	s.want(t, d, clientPort, rstFlag, 2, "a RST of an unknown flow")
	if n := len(s.remembered(t, d)); n != 0 {
		t.Errorf("%d flows are remembered after a RST of an unknown one", n)
	}
}

func testFlowBegins(t *testing.T) {
	w, s := flowWorld(model.TCP, true)
	d := loadTestDirector(t, w)
	s.want(t, d, clientPort, synFlag, 0, "the owner")
	s.setBackend(t, d, 0, abi.BackendStateBACKEND_DOWN)
	s.want(t, d, clientPort+1, synFlag, 1, "the next, as the owner is down")
	s.setBackend(t, d, 0, abi.BackendStateBACKEND_ACTIVE)
	s.want(t, d, clientPort+1, ackFlag, 1, "it stays when the owner is back")
	s.setBackend(t, d, 0, abi.BackendStateBACKEND_DOWN)
	s.setBackend(t, d, 1, abi.BackendStateBACKEND_DOWN)
	s.setBackend(t, d, 2, abi.BackendStateBACKEND_DOWN)
	s.want(t, d, clientPort+2, synFlag, -1, "nobody is alive")
	s.want(t, d, clientPort+3, ackFlag, -1, "nobody is alive")
}

// Without a list, an unknown flow is the owner's.
func testFlowSettling(t *testing.T) {
	bothProtocols(t, func(t *testing.T, d *testDirector, s scenario) {
		s.settling = true
		s.setRing(t, d, model.Ring{Slots: []model.Slot{{Owner: 1, Next: 2}}})
		s.want(t, d, clientPort, ackFlag, 1, "the owner")
		s.setBackend(t, d, 1, abi.BackendStateBACKEND_DOWN)
		s.want(t, d, clientPort+1, ackFlag, 2, "the backup")
		s.setBackend(t, d, 1, abi.BackendStateBACKEND_ACTIVE)
		s.want(t, d, clientPort+1, ackFlag, 2, "it stays")
	})
}

// A flow leaves a backend that is down or gone, also when its index is another's.
func testFlowBackends(t *testing.T) {
	bothProtocols(t, func(t *testing.T, d *testDirector, s scenario) {
		s.want(t, d, clientPort, ackFlag, 2, "the oldest")
		s.setBackend(t, d, 2, abi.BackendStateBACKEND_DRAINING)
		s.want(t, d, clientPort, ackFlag, 2, "draining")
		s.setBackend(t, d, 2, abi.BackendStateBACKEND_DOWN)
		s.want(t, d, clientPort, ackFlag, 0, "down: the first of the row")
		s.setBackend(t, d, 2, abi.BackendStateBACKEND_ACTIVE)
		s.want(t, d, clientPort, ackFlag, 0, "and there it stays")
		entry := s.abiBackend(0)
		entry.Epoch++
		d.put(t, "backends", s.first, entry)
		s.setRing(t, d, listedRing(1, 0, 2))
		s.want(t, d, clientPort, ackFlag, 1, "the index is another's: the first of the row")
	})
}

// A suspect keeps the connections that it has or may have, and begins none.
func testFlowSuspect(t *testing.T) {
	const active, suspect, down = abi.BackendStateBACKEND_ACTIVE, abi.BackendStateBACKEND_SUSPECT, abi.BackendStateBACKEND_DOWN
	bothProtocols(t, func(t *testing.T, d *testDirector, s scenario) {
		tcp := s.protocol == model.TCP
		udp := func(otherwise int) int {
			if tcp {
				return 2
			}
			return otherwise
		}
		s.want(t, d, clientPort, ackFlag, 2, "the oldest")
		s.want(t, d, clientPort, ackFlag, 2, "once more")
		s.want(t, d, clientPort+1, ackFlag, 2, "the oldest")
		s.setBackend(t, d, 2, suspect)
		s.want(t, d, clientPort, ackFlag, 2, "it goes on")
		s.want(t, d, clientPort+1, ackFlag, udp(0), "a connection goes on, a datagram may be a second try")
		s.want(t, d, clientPort+2, ackFlag, udp(1), "an unknown connection may have begun before; a datagram may be a first")
		begins := 0
		if !tcp {
			begins = 1 // the oldest except the suspect one
		}
		s.want(t, d, clientPort+3, synFlag, begins, "a new one goes by the row")
		s.setBackend(t, d, 2, active)
		s.want(t, d, clientPort, ackFlag, 2, "it has stayed")
		s.want(t, d, clientPort+1, ackFlag, udp(0), "it has stayed where it went")
		s.want(t, d, clientPort+2, ackFlag, udp(1), "it has stayed where it went")
		s.want(t, d, clientPort+3, ackFlag, begins, "it has stayed where it went")
		s.setBackend(t, d, 2, down)
		s.want(t, d, clientPort, ackFlag, 0, "it is down")
	})
	bothProtocols(t, func(t *testing.T, d *testDirector, s scenario) {
		s.settling = true
		s.setRing(t, d, model.Ring{Slots: []model.Slot{{Owner: 1, Next: 2}}})
		s.setBackend(t, d, 1, suspect)
		owner, backup := 1, 2
		if s.protocol.Datagrams() {
			owner = backup
		}
		s.want(t, d, clientPort, ackFlag, owner, "without a list: who was not remembered is the owner's")
		s.want(t, d, clientPort+1, synFlag, backup, "new ones are the backup's")
		s.want(t, d, clientPort+1, ackFlag, backup, "and stay there")
	})
}

// Packets without ports of their own, or about a flow, go with the flow.
func testFlowErrorsAndFragments(t *testing.T) {
	w, s := flowWorld(model.UDP, true)
	d := loadTestDirector(t, w)
	s.want(t, d, clientPort, 0, 2, "the flow begins")
	s.setRing(t, d, listedRing(2, 1, 0))
	quoted := packet.Quote(64, ip(s.vip, s.client), packet.UDPHeader{Src: servicePort, Dst: clientPort}, packet.Text("reply"))
	router := netip.MustParseAddr("198.51.100.1")
	toobig := func(quoted packet.Bytes) []byte {
		return build(ip(router, s.vip), packet.ICMPv4Header{Type: 3, Code: 4, Rest: 1400}, quoted)
	}
	action, out := d.run(t, toobig(quoted), 0)
	if got := s.receiver(t, action, out); got != 2 {
		t.Errorf("backend %d got the ICMP error about the flow, want 2", got)
	}
	for i, f := range packet.Fragments(99, 24, arrived, ip(s.client, s.vip), packet.UDPHeader{Src: clientPort, Dst: servicePort}, packet.Zeros(60)) {
		action, out := d.run(t, f, 0)
		if got := s.receiver(t, action, out); got != 2 {
			t.Errorf("backend %d got fragment %d of the flow, want 2", got, i)
		}
	}
	place := s.remembered(t, d)[clientPort]
	place.State, place.Seen = uint8(abi.FlowStateFLOW_ACTIVE), d.now()-20
	if d.run(t, toobig(quoted), 0); place.Seen != d.now()-20 {
		t.Error("an ICMP error, which anybody can send, has prolonged a flow")
	}
	other := packet.Quote(64, ip(s.vip, s.client), packet.UDPHeader{Src: servicePort, Dst: clientPort + 1}, packet.Text("reply"))
	d.run(t, toobig(other), 0)
	if s.remembered(t, d)[clientPort+1] != nil {
		t.Error("an ICMP error began a flow")
	}
}

// Slots with one owner, and services without memory, keep nothing.
func testFlowNotAsked(t *testing.T) {
	bothProtocols(t, func(t *testing.T, d *testDirector, s scenario) {
		s.setRing(t, d, model.Ring{Slots: []model.Slot{{Owner: 1, Next: 2}}})
		s.want(t, d, clientPort, ackFlag, 1, "the owner")
		s.memory = false
		s.setRing(t, d, listedRing(0, 1, 2))
		s.want(t, d, clientPort, ackFlag, 0, "the owner")
		if n := len(s.remembered(t, d)); n > 0 {
			t.Errorf("%d flows are remembered", n)
		}
	})
}

// RSS sends a flow to another CPU, which finds it where the first one has remembered it.
func testFlowMoves(t *testing.T) {
	if ebpf.MustPossibleCPU() < 2 {
		t.Fatal("needs two CPUs")
	}
	bothProtocols(t, func(t *testing.T, d *testDirector, s scenario) {
		s.want(t, d, clientPort, ackFlag, 2, "learned")
		s.setRing(t, d, listedRing(0, 2, 1))
		place := s.remembered(t, d)[clientPort]
		onCPU(t, 1, func() { s.want(t, d, clientPort, ackFlag, 2, "on another CPU") })
		if at := s.remembered(t, d)[clientPort]; at != place { // remembered fails if it is there twice
			t.Errorf("the flow is remembered at %p, and was at %p", at, place)
		}
		s.want(t, d, clientPort, ackFlag, 2, "and back")
		if s.protocol != model.TCP {
			return
		}
		s.want(t, d, clientPort, finFlag, 2, "the client ends it")
		onCPU(t, 1, func() {
			s.want(t, d, clientPort, synFlag, 2, "the port is used again, and the backend may be the same")
			s.want(t, d, clientPort, ackFlag, 2, "it stands")
		})
		s.want(t, d, clientPort, ackFlag, 2, "also on the first CPU")
	})
}

// A client uses its port again, and the new connection's SYN comes to another CPU than the packets
// of the old one did. It goes where a SYN on the first CPU would, and its packets find its backend on
// both.
func testFlowPortOnAnotherCPU(t *testing.T) {
	const old, fresh = 1000, 1 << 30 // numbers of the connections
	for _, test := range []struct {
		name  string
		flags []int // of the old one
		gone  bool  // its backend
		stays bool  // it is not over: another host may have sent what follows
	}{
		{name: "begun", flags: []int{int(ackFlag)}},
		{name: "ended", flags: []int{int(ackFlag), int(finFlag)}},
		{name: "reset", flags: []int{int(ackFlag), int(rstFlag)}},
		{name: "sustained, and ended", flags: []int{int(ackFlag), int(ackFlag) | lasting, int(finFlag)}},
		{name: "sustained, and reset", flags: []int{int(ackFlag), int(ackFlag) | lasting, int(rstFlag)}},
		{name: "sustained", flags: []int{int(ackFlag), int(ackFlag) | lasting}, stays: true},
		{name: "of a backend that is gone", flags: []int{int(ackFlag), int(rstFlag)}, gone: true},
	} {
		for _, is4 := range []bool{true, false} {
			w, s := flowWorld(model.TCP, is4)
			s.name = test.name
			d := loadTestDirector(t, w)
			sends := func(flags uint8, number uint32, backend int, why string) {
				t.Helper()
				action, out := d.run(t, build(ip(s.client, s.vip), packet.TCPHeader{Src: clientPort, Dst: servicePort, Flags: flags, Seq: number}, packet.Text("client")), 0)
				if got := s.receiver(t, action, out); got != backend {
					t.Errorf("%s, %v: backend %d got the packet, want %d: %s", test.name, s.vip, got, backend, why)
				}
			}
			sends(synFlag, old, 0, "the owner")
			for _, f := range test.flags {
				if f&lasting != 0 {
					s.lasts(t, d, clientPort)
				}
				sends(uint8(f), old+7, 0, "it is remembered")
			}
			s.remembered(t, d)[clientPort].Seen -= 3
			s.setRing(t, d, listedRing(1, 0, 2))
			if test.gone {
				s.remembered(t, d)[clientPort].Epoch++
			}
			backend := 0
			if test.gone {
				backend = 1 // the new owner
			}
			onCPU(t, 1, func() { sends(synFlag, fresh, backend, "a new connection") })
			sends(ackFlag, fresh+7, backend, "it goes on where the old one was remembered")
			onCPU(t, 1, func() { sends(ackFlag, fresh+13, backend, "and where it began") })
			if test.stays {
				sends(ackFlag, old+13, 0, "packets of the old one, too")
			}
			if e := s.remembered(t, d)[clientPort]; e == nil || int(e.Backend-s.first) != backend { // remembered fails if it is there twice
				t.Errorf("%s, %v: remembered is %+v", test.name, s.vip, e)
			}
		}
	}
}

// A flood pushes out no established flow, and is refused by name where there is no room:
// of SYNs, and of packets that pretend to be of a connection.
func testFlowPressure(t *testing.T) {
	for name, flags := range map[string]uint8{"SYN": synFlag, "ACK": ackFlag, "RST": packet.RST, "FIN": packet.FIN | packet.ACK} {
		t.Run(name, func(t *testing.T) { floodFlows(t, flags, 1<<13) })
	}
}

func TestFlowFlood(t *testing.T) {
	onCPU(t, 0, func() { floodFlows(t, synFlag, rounds(1<<20)) })
}

func floodFlows(t *testing.T, flags uint8, flood int) {
	t.Helper()
	w, s := flowWorld(model.TCP, true)
	d := loadTestDirector(t, w)
	const established = 40
	for i := range uint16(established) {
		s.sends(t, d, clientPort+i, int(synFlag), int(ackFlag), int(ackFlag)|lasting)
	}
	inserted, refused := d.flowCount(t, abi.FlowEventFLOW_INSERTED), d.flowCount(t, abi.FlowEventFLOW_REFUSED)
	frame := build(ip(s.client, s.vip), s.segment4(0, servicePort, flags))
	for i := range flood {
		binary.BigEndian.PutUint32(frame[26:], 0x64000000+uint32(i)) // from everywhere; nobody checks sums
		binary.BigEndian.PutUint16(frame[34:], uint16(i))
		if action, _, err := d.program.Test(frame); err != nil || action != xdpTX {
			t.Fatalf("packet %d: verdict %d, %v", i, action, err)
		}
	}
	inserted = d.flowCount(t, abi.FlowEventFLOW_INSERTED) - inserted
	refused = d.flowCount(t, abi.FlowEventFLOW_REFUSED) - refused
	want := uint64(flood)
	if flags&packet.RST != 0 {
		want = 0 // nothing is remembered of what ends
	}
	if inserted+refused != want || want > 0 && refused == 0 {
		t.Errorf("of %d packets %d were inserted and %d refused", flood, inserted, refused)
	}
	s.setRing(t, d, listedRing(1, 0, 2))
	for i := range uint16(established) {
		s.want(t, d, clientPort+i, ackFlag, 0, "established before the flood")
	}
	// One for which there is no place goes where its other packets will: to the owner of before.
	if flags != synFlag {
		return
	}
	for i := range uint16(established) {
		refused, owner := d.flowCount(t, abi.FlowEventFLOW_REFUSED), 2
		port := clientPort + established + i
		got := s.goes(t, d, port, synFlag)
		if d.flowCount(t, abi.FlowEventFLOW_REFUSED) == refused {
			owner = 1
		}
		if got != owner {
			t.Errorf("a SYN goes to backend %d, want %d", got, owner)
		}
		s.want(t, d, port, ackFlag, owner, "the packet behind it")
	}
}
