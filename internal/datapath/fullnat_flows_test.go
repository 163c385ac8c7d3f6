package datapath

import (
	"fmt"
	"testing"

	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/packet"
)

// How full NAT's table of flows works: which flow gets a place, keeps it, or loses it.

// snatCapacity is how many flows of one family and protocol there is room for.
const snatCapacity = 2 * 64

// A table that is full refuses new flows, and never takes an established one's
// place; flows never share a source.
func testFullTable(t *testing.T) {
	w := &testWorld{}
	scenarios := w.scenarios(isFullNAT)
	d := loadTestDirector(t, w)
	d.put(t, "egress", wireNumber, wireNumber)
	for _, s := range scenarios {
		t.Run(s.name, func(t *testing.T) {
			d.putSNAT(t, snatSources, snatPorts) // UDP and SCTP share their places
			s.fillTable(t, d)
			d.establishAll(t)
			d.ageAll(t, 10)
			fresh := row{name: "new flow when all are established", in: build(s.opening(60000)...)}
			d.check(t, []row{fresh.dropped(abi.ReasonDROP_SNAT_FULL, s.testService)})
			for port, source := range s.sources(t, d) {
				data := []packet.Header{ip(s.client, s.vip), l4(s.protocol, port, servicePort), packet.Zeros(3)}
				answer := translated(s.back(source, 3), end{}, end{}, 0)
				back := translated(answer, s.vipEnd(), end{s.client, port}, 1)
				d.check(t, []row{
					row{name: fmt.Sprintf("port %d", port), in: build(data...)}.forwarded(abi.ReasonFORWARD_NAT, s.testService, 0,
						packet.Build(append([]packet.Header{s.left(0)}, translated(data, source, s.backendEnd(), 1)...)...)),
					s.sent(fmt.Sprintf("reply to port %d", port), abi.ReasonFORWARD_REPLY, build(answer...), back...),
				})
			}
		})
	}
}

// fillTable begins flows until there is no place left.
func (s scenario) fillTable(t *testing.T, d *testDirector) {
	t.Helper()
	refused := 0
	for port := uint16(1000); port < 1000+4*snatCapacity; port++ {
		if action, _ := d.run(t, build(s.opening(port)...), 0); action == xdpDrop {
			refused++
		}
	}
	sources := s.sources(t, d)
	if len(sources) != snatCapacity || refused != 3*snatCapacity {
		t.Fatalf("%d flows have a place and %d were refused, want %d and %d", len(sources), refused, snatCapacity, 3*snatCapacity)
	}
	seen := map[end]uint16{}
	for port, source := range sources {
		if other, twice := seen[source]; twice {
			t.Errorf("ports %d and %d have the same source %v", port, other, source)
		}
		seen[source] = port
		s.checkSource(t, source)
	}
}

// sources returns the source of every flow of the service, by the client's port.
func (s scenario) sources(t *testing.T, d *testDirector) map[uint16]end {
	t.Helper()
	out := map[uint16]end{}
	for _, e := range d.flows(t) {
		if e.Vip != abiAddress(s.vip) {
			continue
		}
		port := be16(e.ClientPort)
		if _, twice := out[port]; twice {
			t.Errorf("port %d has two sources", port)
		}
		out[port] = e.source
	}
	return out
}

func (d *testDirector) establishAll(t *testing.T) {
	t.Helper()
	for at, e := range d.flows(t) {
		if e.State = uint8(abi.SnatStateSNAT_ESTABLISHED); (at/64)%2 == 1 {
			e.State = uint8(abi.SnatStateSNAT_TWO_WAY)
		}
		d.setFlow(t, at, e.SnatFlow)
	}
}

// ageAll makes every flow as old as this, in the table's units of 2^30 ns.
func (d *testDirector) ageAll(t *testing.T, age uint32) {
	t.Helper()
	for at, e := range d.flows(t) {
		e.Seen = d.now() - age
		d.setFlow(t, at, e.SnatFlow)
	}
}

// A new flow takes the place of one that has ended or was never answered, once
// that was quiet for a while.
func testReplacedFlows(t *testing.T) {
	w := &testWorld{}
	scenarios := w.scenarios(isFullNAT)
	d := loadTestDirector(t, w)
	for _, s := range scenarios {
		states := map[string][]abi.SnatState{"replaceable": {abi.SnatStateSNAT_SYN, abi.SnatStateSNAT_ANSWERED, abi.SnatStateSNAT_CLOSED, abi.SnatStateSNAT_RESET}, "kept": {abi.SnatStateSNAT_ESTABLISHED, abi.SnatStateSNAT_CLOSING}}
		if s.protocol.Datagrams() {
			states = map[string][]abi.SnatState{"replaceable": {abi.SnatStateSNAT_ONE_WAY, abi.SnatStateSNAT_TRIED}, "kept": {abi.SnatStateSNAT_TWO_WAY}}
		}
		for kind, list := range states {
			for _, state := range list {
				t.Run(fmt.Sprintf("%s, state %d", s.name, state), func(t *testing.T) {
					d.putSNAT(t, snatSources, snatPorts)
					s.fillTable(t, d)
					for _, age := range []uint32{0, 4} {
						for at, e := range d.flows(t) {
							e.State, e.Seen = uint8(state), d.now()-age
							d.setFlow(t, at, e.SnatFlow)
						}
						action, _ := d.run(t, build(s.opening(50000)...), 0)
						if forwarded := action == xdpTX; forwarded != (kind == "replaceable" && age > 0) {
							t.Errorf("quiet for %d: verdict %d of a new flow", age, action)
						}
					}
				})
			}
		}
	}
}

// step is a packet of one side and the state that the flow must have after it.
type step struct {
	fromBackend bool
	flags       uint8
	want        abi.SnatState
}

// The states of a flow.
func testFlowStates(t *testing.T) {
	const syn, ack, fin, rst = packet.SYN, packet.ACK, packet.FIN, packet.RST
	const opening, answered, established, closing, closed, reset = abi.SnatStateSNAT_SYN, abi.SnatStateSNAT_ANSWERED, abi.SnatStateSNAT_ESTABLISHED,
		abi.SnatStateSNAT_CLOSING, abi.SnatStateSNAT_CLOSED, abi.SnatStateSNAT_RESET
	w := &testWorld{}
	scenarios := w.scenarios(isFullNAT)
	d := loadTestDirector(t, w)
	stories := map[string][]step{
		"opened, closed by the client":  {{false, syn, opening}, {true, syn | ack, answered}, {false, ack, established}, {true, ack, established}, {false, fin | ack, closing}, {true, ack, closing}, {true, fin | ack, closed}, {false, ack, closed}},
		"closed by the backend":         {{false, syn, opening}, {true, syn | ack, answered}, {false, ack, established}, {true, fin | ack, closing}, {false, ack, closing}, {false, fin | ack, closed}},
		"SYN again":                     {{false, syn, opening}, {false, syn, opening}, {true, syn | ack, answered}, {false, syn, answered}, {true, syn | ack, answered}, {false, ack, established}, {false, syn, established}},
		"reset by the client":           {{false, syn, opening}, {true, syn | ack, answered}, {false, ack, established}, {false, rst, reset}, {true, ack, reset}},
		"refused by the backend":        {{false, syn, opening}, {true, rst | ack, reset}},
		"port used again after closing": {{false, syn, opening}, {true, syn | ack, answered}, {false, fin | ack, closing}, {true, fin | ack, closed}, {false, syn, opening}, {true, syn | ack, answered}, {false, ack, established}},
		"port used again after reset":   {{false, syn, opening}, {true, rst, reset}, {false, syn, opening}},
	}
	for _, s := range scenarios {
		if s.protocol.Datagrams() {
			t.Run(s.name, func(t *testing.T) { s.datagramStates(t, d) })
			continue
		}
		for name, story := range stories {
			inTC := false
			claim := func(t *testing.T) {
				d.putSNAT(t, snatSources, snatPorts)
				var source end
				for i, step := range story {
					frame := build(ip(s.client, s.vip), s.numbered(clientPort, servicePort, step.flags, false)[0])
					if step.fromBackend {
						frame = build(ip(s.backendEnd().address, source.address), s.numbered(s.backendEnd().port, source.port, step.flags, true)[0])
					}
					if inTC && step.fromBackend {
						d.returning(t, frame)
					} else {
						d.run(t, frame, 0)
					}
					_, e := s.flowOf(t, d, clientPort)
					if abi.SnatState(e.State) != step.want || i > 0 && e.source != source {
						t.Fatalf("step %d: state %d from %v, want %d from %v", i, e.State, e.source, step.want, source)
					}
					source = e.source
				}
			}
			t.Run(s.name+", "+name, claim)
			inTC = true
			t.Run(s.name+", "+name+", replies in tc", claim)
		}
	}
}

func (s scenario) datagramStates(t *testing.T, d *testDirector) {
	d.run(t, build(s.data(1)...), 0)
	_, e := s.flowOf(t, d, clientPort)
	if got := abi.SnatState(e.State); got != abi.SnatStateSNAT_ONE_WAY {
		t.Errorf("after the first datagram: state %d", got)
	}
	d.run(t, build(s.back(e.source, 1)...), 0)
	d.run(t, build(s.data(1)...), 0)
	at, e := s.flowOf(t, d, clientPort)
	if abi.SnatState(e.State) != abi.SnatStateSNAT_TRIED {
		t.Errorf("after the answer and one more: state %d", e.State)
	}
	e.Proof -= 3 // it has gone on for a while
	d.setFlow(t, at, e.SnatFlow)
	d.run(t, build(s.back(e.source, 1)...), 0)
	if _, e = s.flowOf(t, d, clientPort); abi.SnatState(e.State) != abi.SnatStateSNAT_TRIED {
		t.Errorf("the backend alone goes on: state %d", e.State)
	}
	d.run(t, build(s.data(1)...), 0)
	if _, e = s.flowOf(t, d, clientPort); abi.SnatState(e.State) != abi.SnatStateSNAT_TWO_WAY {
		t.Errorf("both have gone on: state %d", e.State)
	}
}

// Each state has its time: a flow that is quiet for longer is over.
func testFlowTimeouts(t *testing.T) {
	w := &testWorld{}
	scenarios := w.scenarios(isFullNAT)
	d := loadTestDirector(t, w)
	seconds := map[abi.SnatState]float64{
		abi.SnatStateSNAT_SYN: 60, abi.SnatStateSNAT_ESTABLISHED: 7440, abi.SnatStateSNAT_CLOSING: 240,
		abi.SnatStateSNAT_CLOSED: 60, abi.SnatStateSNAT_RESET: 60,
		abi.SnatStateSNAT_ONE_WAY: 30, abi.SnatStateSNAT_TWO_WAY: 300, abi.SnatStateSNAT_ANSWERED: 60, abi.SnatStateSNAT_TRIED: 30,
	}
	for _, s := range scenarios {
		for state, after := range seconds {
			isUDP := state == abi.SnatStateSNAT_ONE_WAY || state == abi.SnatStateSNAT_TWO_WAY || state == abi.SnatStateSNAT_TRIED
			if isUDP != s.protocol.Datagrams() {
				continue
			}
			t.Run(fmt.Sprintf("%s, state %d", s.name, state), func(t *testing.T) {
				units := uint32(after * 1e9 / (1 << 30))
				for age, alive := range map[uint32]bool{0: true, units - 1: true, units + 4: false} {
					s.checkAge(t, d, state, age, alive)
				}
			})
		}
	}
}

// checkAge: after so long a reply still reaches the client, or does not.
func (s scenario) checkAge(t *testing.T, d *testDirector, state abi.SnatState, age uint32, alive bool) {
	t.Helper()
	d.putSNAT(t, snatSources, snatPorts)
	d.run(t, build(s.opening(clientPort)...), 0)
	at, e := s.flowOf(t, d, clientPort)
	e.State, e.Seen = uint8(state), d.now()-age
	d.setFlow(t, at, e.SnatFlow)
	before := d.read(t)
	d.run(t, build(s.back(e.source, 1)...), 0)
	counted := d.read(t).since(before)
	// No route and no neighbor are needed: what matters is whose packet it is.
	_, foreign := counted[reasonName(abi.ReasonPASS_NO_SERVICE)]
	if foreign == alive {
		t.Errorf("state %d quiet for %d: reply counted as %s", state, age, counted)
	}
}

// A flow keeps its backend when its slot gets another one, and only as long as
// there still is the backend that it began with.
func testFlowsAndBackends(t *testing.T) {
	w := &testWorld{}
	scenarios := w.scenarios(isFullNAT)
	d := loadTestDirector(t, w)
	for _, s := range scenarios {
		t.Run(s.name, func(t *testing.T) {
			d.run(t, build(s.opening(clientPort)...), 0)
			_, e := s.flowOf(t, d, clientPort)
			s.ring.Slots = []model.Slot{{Owner: 1, Next: 0}}
			d.putRing(t, s.testService)
			d.check(t, []row{s.fullForward("slot has another owner", d, s.data(3)...)})
			d.run(t, build(s.opening(clientPort+1)...), 0)
			if _, other := s.flowOf(t, d, clientPort+1); other.Backend != s.testService.first+1 {
				t.Errorf("a new flow went to backend %d, want %d", other.Backend, s.testService.first+1)
			}
			s.backends[0].state = abi.BackendStateBACKEND_DRAINING
			d.put(t, "backends", s.testService.first, s.abiBackend(0))
			d.check(t, []row{s.fullForward("backend drains", d, s.data(3)...)})
			s.backends[0].state = abi.BackendStateBACKEND_DOWN
			d.put(t, "backends", s.testService.first, s.abiBackend(0))
			s.checkLost(t, d, e)
			s.backends[0].state = abi.BackendStateBACKEND_ACTIVE
			reused := s.abiBackend(0)
			reused.Epoch++
			d.put(t, "backends", s.testService.first, reused)
			d.check(t, []row{s.pass("reply of an index that was used again", s.back(e.source, 3)...)})
		})
	}
}

// checkLost: the flow's backend is down. TCP cannot go on; UDP goes elsewhere.
func (s scenario) checkLost(t *testing.T, d *testDirector, e flowEntry) {
	t.Helper()
	if s.protocol == model.TCP {
		lost := row{name: "backend is down", in: build(s.data(3)...)}
		d.check(t, []row{lost.dropped(abi.ReasonDROP_SNAT_UNKNOWN, s.testService)})
		return
	}
	d.run(t, build(s.data(3)...), 0)
	if _, now := s.flowOf(t, d, clientPort); now.Backend != s.testService.first+1 {
		t.Errorf("the flow is with backend %d, want %d", now.Backend, s.testService.first+1)
	}
}

// Without an address of the client's family there is no source to be had.
func testNoSource(t *testing.T) {
	w := &testWorld{}
	scenarios := w.scenarios(isFullNAT)
	d := loadTestDirector(t, w)
	for _, is4 := range []bool{true, false} {
		other := snatSources[2:]
		if !is4 {
			other = snatSources[:2]
		}
		d.putSNAT(t, other, snatPorts)
		for _, s := range scenarios {
			if s.vip.Is4() == is4 {
				full := row{name: s.name, in: build(s.opening(clientPort)...)}
				d.check(t, []row{full.dropped(abi.ReasonDROP_SNAT_FULL, s.testService)})
			}
		}
	}
}
