package datapath

import (
	"testing"

	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/datapath/flows"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/packet"
)

// The states that segments lead flows to, by table. All tables go by bpf/lib/proof.h; a table that
// is not here has the same rows in its own package.

// said is a segment, or that time goes by.
type said struct {
	backend bool
	flags   uint8
	seq     uint32 // beyond the number of the sender's SYN
	ack     uint32 // beyond the number of the other side's SYN
	data    int
	lasts   bool // the flow has begun PROOF_LASTS before this one
}

const (
	proofSYN, proofACK, proofFIN, proofRST, proofPSH = packet.SYN, packet.ACK, packet.FIN, packet.RST, 0x08
	// proofFar is a number that nobody waits for.
	proofFar = 1 << 30
)

// steps that many rows have.
var (
	saidSYN       = said{flags: proofSYN}
	saidSYNACK    = said{backend: true, flags: proofSYN | proofACK, ack: 1}
	saidLast      = said{flags: proofACK, seq: 1, ack: 1} // of the handshake
	saidLater     = said{flags: proofACK, seq: 1, ack: 1, lasts: true}
	saidHandshake = []said{saidSYN, saidSYNACK, saidLast}
)

func after(steps []said, more ...said) []said { return append(append([]said{}, steps...), more...) }

const (
	asFresh     = model.FreshFlow
	asSustained = model.SustainedFlow
	asProved    = model.ProvedFlow
)

// proofRows say the class, and whether the flow is over: of a table that sees both sides (full
// NAT), of one that sees a SYN-ACK (flow memory in nat) and of one that sees the client alone
// (flow memory in DSR).
var proofRows = []struct {
	name                  string
	steps                 []said
	both, syn, one        model.FlowClass
	bothOver, oneSideOver bool
}{
	{"SYN", []said{saidSYN}, asFresh, asFresh, asFresh, false, false},
	{"SYNs for long", []said{saidSYN, {flags: proofSYN, lasts: true}, {flags: proofSYN, lasts: true}}, asFresh, asFresh, asFresh, false, false},
	{"SYN and PSH without ACK", []said{saidSYN, {flags: proofPSH, seq: 1, lasts: true}}, asFresh, asFresh, asFresh, false, false},
	{"SYN and ACK of nothing", []said{saidSYN, {flags: proofACK, seq: 1, ack: 12345}}, asFresh, asFresh, asFresh, false, false},
	{"SYN-ACK alone", []said{saidSYN, saidSYNACK}, asFresh, asFresh, asFresh, false, false},
	{"handshake", saidHandshake, asProved, asProved, asFresh, false, false},
	{"handshake, sent again", []said{saidSYN, saidSYN, saidSYNACK, saidSYNACK, saidLast, saidLast}, asProved, asProved, asFresh, false, false},
	{"handshake with data", []said{saidSYN, saidSYNACK, {flags: proofACK | proofPSH, seq: 1, ack: 1, data: 100}}, asProved, asProved, asFresh, false, false},
	{"last step acknowledges too little", []said{saidSYN, saidSYNACK, {flags: proofACK, seq: 1, ack: 0}}, asFresh, asFresh, asFresh, false, false},
	{"last step acknowledges too much", []said{saidSYN, saidSYNACK, {flags: proofACK, seq: 1, ack: 2}}, asFresh, asFresh, asFresh, false, false},
	{"last step is out of sequence", []said{saidSYN, saidSYNACK, {flags: proofACK, seq: proofFar, ack: 1}}, asFresh, asProved, asFresh, false, false},
	{"last step has no ACK", []said{saidSYN, saidSYNACK, {flags: proofPSH, seq: 1, ack: 1}}, asFresh, asFresh, asFresh, false, false},
	{"SYN-ACK of another SYN", []said{saidSYN, {backend: true, flags: proofSYN | proofACK, ack: proofFar}, saidLast}, asFresh, asFresh, asFresh, false, false},
	{"SYN cookie: the SYN again, another number", []said{saidSYN, saidSYNACK, saidSYN, {backend: true, flags: proofSYN | proofACK, seq: 777, ack: 1}, {flags: proofACK, seq: 1, ack: 778}}, asProved, asProved, asFresh, false, false},
	{"SYN cookie: another SYN, a while after the first was answered", []said{saidSYN, saidSYNACK, {flags: proofSYN, seq: proofFar, lasts: true}, {backend: true, flags: proofSYN | proofACK, ack: proofFar + 1}, {flags: proofACK, seq: proofFar + 1, ack: 1}}, asProved, asProved, asFresh, false, false},
	{"another SYN at once: somebody's", []said{saidSYN, saidSYNACK, {flags: proofSYN, seq: proofFar}, saidLast}, asProved, asProved, asFresh, false, false},
	{"data in the SYN", []said{{flags: proofSYN, data: 100}, {backend: true, flags: proofSYN | proofACK, ack: 101}, {flags: proofACK, seq: 101, ack: 1}}, asProved, asProved, asFresh, false, false},
	{"a bare ACK of a listener", []said{saidSYN, saidSYNACK, {backend: true, flags: proofACK, seq: 1, ack: 1}}, asFresh, asFresh, asFresh, false, false},
	{"the backend acknowledges data", []said{saidSYN, saidSYNACK, {backend: true, flags: proofACK, seq: 1, ack: 101}}, asProved, asFresh, asFresh, false, false},
	{"the backend sends data", []said{saidSYN, saidSYNACK, {backend: true, flags: proofACK, seq: 1, ack: 1, data: 10}}, asProved, asFresh, asFresh, false, false},
	{"the backend sends data, and acknowledges what the client has not sent", []said{saidSYN, saidSYNACK, {backend: true, flags: proofACK, seq: 1, ack: proofFar, data: 10}}, asFresh, asFresh, asFresh, false, false},
	{"simultaneous open", []said{saidSYN, {backend: true, flags: proofSYN}, {flags: proofSYN | proofACK, ack: 1}, {backend: true, flags: proofSYN | proofACK, ack: 1}, saidLast}, asProved, asProved, asFresh, false, false},
	{"client alone, for long", []said{saidSYN, {flags: proofACK, seq: 1, ack: 1}, {flags: proofACK, seq: 1, ack: 1, data: 10, lasts: true}}, asFresh, asSustained, asSustained, false, false},
	{"client alone, out of sequence for long", []said{saidSYN, {flags: proofACK, seq: 1, ack: 1}, {flags: proofACK, seq: proofFar, ack: 1, lasts: true}}, asFresh, asFresh, asFresh, false, false},
	{"begun, idle, and more", after(saidHandshake, saidLater), asProved, asProved, asSustained, false, false},
	{"RST in sequence", after(saidHandshake, saidLater, said{flags: proofRST, seq: 1}), asProved, asProved, asSustained, true, true},
	{"RST behind data under way", after(saidHandshake, saidLater, said{flags: proofRST, seq: 900_000}), asProved, asProved, asSustained, true, true},
	{"RST of who guesses", after(saidHandshake, saidLater, said{flags: proofRST, seq: proofFar}), asProved, asProved, asSustained, false, false},
	{"RST far behind", after(saidHandshake, saidLater, said{flags: proofRST, seq: 1<<32 - 200_000}), asProved, asProved, asSustained, false, false},
	{"FIN in sequence", after(saidHandshake, saidLater, said{flags: proofFIN | proofACK, seq: 1, ack: 1}), asProved, asProved, asSustained, true, true},
	{"FIN of who guesses", after(saidHandshake, saidLater, said{flags: proofFIN | proofACK, seq: proofFar, ack: 1}), asProved, asProved, asSustained, false, false},
	{"FIN without ACK", after(saidHandshake, saidLater, said{flags: proofFIN, seq: 1}), asProved, asProved, asSustained, false, false},
	{"SYN in a connection", after(saidHandshake, saidLater, said{flags: proofSYN, seq: proofFar}), asProved, asProved, asSustained, false, false},
	{"data of who guesses, and a RST behind it", after(saidHandshake, saidLater, said{flags: proofACK, seq: proofFar, ack: 1, data: 9}, said{flags: proofRST, seq: proofFar + 9}), asProved, asProved, asSustained, false, false},
	{"backend's RST in sequence", after(saidHandshake, saidLater, said{backend: true, flags: proofRST, seq: 1}), asProved, asProved, asSustained, true, false},
	{"backend's RST of who guesses", after(saidHandshake, saidLater, said{backend: true, flags: proofRST, seq: proofFar}), asProved, asProved, asSustained, false, false},
	{"a gap is filled, and backend's RST behind all that was under way", after(saidHandshake, saidLater, said{flags: proofACK, seq: 1, ack: 2 << 20}, said{backend: true, flags: proofRST, seq: 2 << 20}), asProved, asProved, asSustained, true, false},
	{"backend's FIN of who guesses", after(saidHandshake, saidLater, said{backend: true, flags: proofFIN | proofACK, seq: proofFar, ack: 1}), asProved, asProved, asSustained, false, false},
}

// TCP's numbers: both sides' wrap soon.
const proofClientISN, proofBackendISN = 0xffffff00, 0xfffffff0

func (said said) header(from, to uint16) []packet.Header {
	h := packet.TCPHeader{Src: from, Dst: to, Seq: said.seq, Flags: said.flags}
	own, other := uint32(proofClientISN), uint32(proofBackendISN)
	if said.backend {
		own, other = other, own
	}
	if h.Seq += own; said.flags&packet.ACK != 0 {
		h.Ack = said.ack + other
	}
	if said.data == 0 {
		return []packet.Header{h}
	}
	return []packet.Header{h, packet.Zeros(said.data)}
}

func testProof(t *testing.T) {
	for _, row := range proofRows {
		t.Run("full nat, "+row.name, func(t *testing.T) {
			w, s, _ := snatWorld(true)
			d := loadTestDirector(t, w)
			for _, step := range row.steps {
				if step.lasts {
					s.age(t, d, clientPort, 3)
				}
				frame := build(append([]packet.Header{ip(s.client, s.vip)}, step.header(clientPort, servicePort)...)...)
				if step.backend {
					_, e := s.flowOf(t, d, clientPort)
					b := s.backendEnd()
					frame = build(append([]packet.Header{ip(b.address, e.source.address)}, step.header(b.port, e.source.port)...)...)
				}
				d.run(t, frame, 0)
			}
			_, e := s.flowOf(t, d, clientPort)
			class, over := asProved, false
			switch abi.SnatState(e.State) {
			case abi.SnatStateSNAT_SYN, abi.SnatStateSNAT_ANSWERED:
				class = asFresh
			case abi.SnatStateSNAT_CLOSING, abi.SnatStateSNAT_CLOSED, abi.SnatStateSNAT_RESET:
				over = true
			}
			if class != row.both || over != row.bothOver {
				t.Errorf("%s, over: %v (state %d), want %s, %v", class, over, e.State, row.both, row.bothOver)
			}
		})
		for _, seesSYNACK := range []bool{false, true} {
			name, want := "flow memory", row.one
			if seesSYNACK {
				name, want = "flow memory in nat", row.syn
			}
			t.Run(name+", "+row.name, func(t *testing.T) {
				w, s := proofMemory(t, seesSYNACK)
				d := loadTestDirector(t, w)
				for _, step := range row.steps {
					frame := build(append([]packet.Header{ip(s.client, s.vip)}, step.header(clientPort, servicePort)...)...)
					if step.backend {
						if !seesSYNACK {
							continue
						}
						b := s.backendEnd()
						frame = build(append([]packet.Header{ip(b.address, s.client)}, step.header(b.port, clientPort)...)...)
					}
					if step.lasts {
						s.lasts(t, d, clientPort)
					}
					d.run(t, frame, 0)
				}
				e := s.remembered(t, d)[clientPort]
				if e == nil {
					t.Fatal("nothing is remembered")
				}
				means := flows.MeaningOf(abi.FlowState(e.State))
				over := means.State == model.FlowClosing || means.State == model.FlowReset
				if over && means.Class == asSustained {
					means.Class = want // it was what it was
				}
				if means.Class != want || over != row.oneSideOver {
					t.Errorf("%s, over: %v (state %d), want %s, %v", means.Class, over, e.State, want, row.oneSideOver)
				}
			})
		}
	}
}

// proofMemory is a service that remembers flows: in nat, whose replies come back here, or not.
func proofMemory(t *testing.T, nat bool) (*testWorld, scenario) {
	t.Helper()
	if !nat {
		return flowWorld(model.TCP, true)
	}
	w := &testWorld{}
	for _, s := range w.scenarios(func(way wayTo) bool { return way.mode == model.NAT && !way.snat }) {
		if s.vip.Is4() && s.protocol == model.TCP {
			s.memory, s.settling = true, true
			return w, s
		}
	}
	t.Fatal("there is no scenario of nat")
	return nil, scenario{}
}
