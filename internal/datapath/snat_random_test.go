package datapath

import (
	"math/rand/v2"
	"testing"

	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/packet"
)

// The twin of full NAT's flows, written a second time: random packets of a few
// clients, with time, health and membership changing under them. It works on
// states and numbers, and learns sources from what the program sends.

type twinFull struct {
	scenario
	epochs [2]uint8
	flows  map[uint16]*twinFullFlow // by the client's port
}

type twinFullFlow struct {
	state abi.SnatState
	fins  int
	seen  uint32
	began uint32
	// TCP: the backend has answered, and the client has acknowledged that.
	answered, proved bool
	backend          uint32
	epoch            uint8
	source           end
}

const (
	twinClient  = 1
	twinBackend = 2
)

func (f *twinFullFlow) live(now uint32) bool { return now-f.seen <= lifetime(f.state) }

func (f *twinFullFlow) over() bool {
	return f.state == abi.SnatStateSNAT_CLOSED || f.state == abi.SnatStateSNAT_RESET
}

// fresh says that somebody may have made it up.
func (f *twinFullFlow) fresh() bool {
	switch f.state {
	case abi.SnatStateSNAT_SYN, abi.SnatStateSNAT_ANSWERED, abi.SnatStateSNAT_ONE_WAY, abi.SnatStateSNAT_TRIED:
		return true
	}
	return false
}

// hear is what a packet makes of the flow. guessed says that its numbers are wrong.
func (f *twinFullFlow) hear(from int, protocol model.Protocol, flags uint8, guessed bool, now uint32) {
	if protocol.Datagrams() {
		f.seen = now
		switch {
		case from == twinBackend && f.state == abi.SnatStateSNAT_ONE_WAY:
			f.state = abi.SnatStateSNAT_TRIED
		case from == twinClient && f.state == abi.SnatStateSNAT_TRIED && now-f.began >= 3:
			f.state = abi.SnatStateSNAT_TWO_WAY
		}
		return
	}
	if flags&packet.RST == 0 && flags&packet.SYN != 0 {
		f.hearSYN(from, flags, guessed, now)
		return
	}
	// While the backend has not answered nobody knows its number.
	if guessed && (from == twinClient || f.answered) {
		if !f.fresh() && f.state != abi.SnatStateSNAT_RESET && flags&(packet.RST|packet.FIN) == 0 {
			f.seen = now
		}
		return
	}
	switch {
	case flags&packet.RST != 0:
		f.seen, f.state = now, abi.SnatStateSNAT_RESET
	case f.state == abi.SnatStateSNAT_RESET && (from == twinBackend || now-f.seen < 2 || !f.proved):
	case f.fresh() && (f.state != abi.SnatStateSNAT_ANSWERED || from == twinBackend):
	default:
		f.seen, f.proved = now, true
		if flags&packet.FIN != 0 {
			f.fins |= from
		}
		f.state = map[int]abi.SnatState{0: abi.SnatStateSNAT_ESTABLISHED, twinClient: abi.SnatStateSNAT_CLOSING,
			twinBackend: abi.SnatStateSNAT_CLOSING, twinClient | twinBackend: abi.SnatStateSNAT_CLOSED}[f.fins]
	}
}

func (f *twinFullFlow) hearSYN(from int, flags uint8, guessed bool, now uint32) {
	switch {
	case from == twinClient && flags&packet.ACK == 0:
		f.seen = now
		if f.over() {
			*f = twinFullFlow{state: abi.SnatStateSNAT_SYN, seen: now, began: now, backend: f.backend, epoch: f.epoch, source: f.source}
		}
	case from == twinBackend && flags&packet.ACK != 0 && !guessed && f.fresh():
		f.seen, f.state, f.answered = now, abi.SnatStateSNAT_ANSWERED, true
	}
}

// segment is a segment in sequence, or one with a guessed number.
func (w *twinFull) segment(from, to uint16, flags uint8, guessed, ofBackend bool) []packet.Header {
	headers := w.numbered(from, to, flags, ofBackend)
	if h, is := headers[0].(packet.TCPHeader); is && guessed {
		h.Seq, h.Ack = h.Seq+1<<30, h.Ack+1<<30
		headers[0] = h
	}
	return headers
}

// known returns the flow that a client's packet goes on with.
func (w *twinFull) known(port uint16, flags uint8, now uint32) *twinFullFlow {
	f := w.flows[port]
	if f == nil || !f.live(now) || f.epoch != w.epochs[f.backend] {
		return nil
	}
	state := w.backends[f.backend].state
	opens := w.protocol == model.TCP && flags == packet.SYN || f.state == abi.SnatStateSNAT_ONE_WAY
	if state == abi.BackendStateBACKEND_DOWN || state == abi.BackendStateBACKEND_SUSPECT && opens ||
		state == abi.BackendStateBACKEND_DRAINING && f.over() && w.protocol == model.TCP && flags == packet.SYN {
		return nil
	}
	return f
}

// client sends a packet of a client and compares what comes of it.
func (w *twinFull) client(t *testing.T, d *testDirector, port uint16, flags uint8, guessed bool) {
	t.Helper()
	now := d.now()
	guessed = guessed && flags != packet.SYN // whose number is anybody's to choose
	headers := append([]packet.Header{ip(w.scenario.client, w.vip)}, w.segment(port, servicePort, flags, guessed, false)...)
	action, out := d.run(t, build(headers...), 0)
	f := w.known(port, flags, now)
	if f == nil {
		picked, alive := twinPick(w.testService, w.flow())
		if !alive || w.protocol == model.TCP && flags != packet.SYN {
			if action != xdpDrop {
				t.Fatalf("port %d, flags %#x: verdict %d for a packet of no flow", port, flags, action)
			}
			return
		}
		f = &twinFullFlow{state: abi.SnatStateSNAT_SYN, backend: uint32(picked), epoch: w.epochs[picked]}
		if w.protocol.Datagrams() {
			f.state = abi.SnatStateSNAT_ONE_WAY
		}
		_, e := w.flowOf(t, d, port)
		f.source = e.source
		w.unique(t, port, f.source, now)
		w.flows[port] = f
		f.seen, f.began = now, now
	}
	f.hear(twinClient, w.protocol, flags, guessed, now)
	w.same(t, d, port, f)
	b := w.backends[f.backend]
	if action != xdpTX {
		t.Fatalf("port %d, flags %#x: verdict %d for a packet of a flow", port, flags, action)
	}
	packet.Equal(t, out, packet.Build(append([]packet.Header{w.left(int(f.backend))}, translated(headers, f.source, end{b.address, b.port}, 1)...)...))
}

// same checks that the program has come to the same state.
func (w *twinFull) same(t *testing.T, d *testDirector, port uint16, f *twinFullFlow) {
	t.Helper()
	if _, e := w.flowOf(t, d, port); abi.SnatState(e.State) != f.state {
		t.Fatalf("port %d: the program has state %d, want %d: %+v", port, e.State, f.state, f)
	}
}

// unique checks that no other live flow has the source.
func (w *twinFull) unique(t *testing.T, port uint16, source end, now uint32) {
	t.Helper()
	for other, f := range w.flows {
		if other != port && f.source == source && f.live(now) && f.epoch == w.epochs[f.backend] {
			t.Fatalf("ports %d and %d both have source %v", port, other, source)
		}
	}
}

// backend sends a packet to the source that a flow has or had.
func (w *twinFull) backend(t *testing.T, d *testDirector, port uint16, flags uint8, guessed bool) {
	t.Helper()
	now, f := d.now(), w.flows[port]
	if f == nil {
		return
	}
	for other, g := range w.flows {
		if other != port && g.source == f.source {
			return // the source has a new owner
		}
	}
	b := w.backends[f.backend]
	headers := append([]packet.Header{ip(b.address, f.source.address)}, w.segment(b.port, f.source.port, flags, guessed, true)...)
	_, out := d.run(t, build(headers...), 0)
	if !f.live(now) || f.epoch != w.epochs[f.backend] {
		packet.Equal(t, out, build(headers...))
		return
	}
	f.hear(twinBackend, w.protocol, flags, guessed, now)
	w.same(t, d, port, f)
	packet.Equal(t, out, build(translated(headers, w.vipEnd(), end{w.scenario.client, port}, 0)...))
}

// pass lets time go by for all flows.
func (w *twinFull) elapse(t *testing.T, d *testDirector, units uint32) {
	t.Helper()
	for at, e := range d.flows(t) {
		e.Seen -= units
		if w.protocol.Datagrams() {
			e.Proof -= uint8(units)
		}
		d.setFlow(t, at, e.SnatFlow)
	}
	for _, f := range w.flows {
		f.seen -= units
		f.began -= units
	}
}

func (w *twinFull) change(t *testing.T, d *testDirector, i int, state abi.BackendState, epoch uint8) {
	t.Helper()
	w.backends[i].state, w.epochs[i] = state, epoch
	entry := w.abiBackend(i)
	entry.Epoch = epoch
	d.put(t, "backends", w.first+uint32(i), entry)
}

func testSNATRandom(t *testing.T) {
	flags := []uint8{packet.SYN, packet.SYN, packet.ACK, packet.ACK, packet.ACK, packet.FIN | packet.ACK, packet.RST}
	answers := []uint8{packet.SYN, packet.SYN | packet.ACK, packet.SYN | packet.ACK, packet.ACK, packet.ACK, packet.FIN | packet.ACK, packet.RST}
	states := []abi.BackendState{abi.BackendStateBACKEND_ACTIVE, abi.BackendStateBACKEND_ACTIVE,
		abi.BackendStateBACKEND_DRAINING, abi.BackendStateBACKEND_DOWN, abi.BackendStateBACKEND_SUSPECT}
	ages := []uint32{1, 4, 20, 40, 100, 400, 8000}
	for seed := range uint64(8) {
		random := rand.New(rand.NewPCG(seed, 1))
		world, tcp, udp := snatWorld(seed%2 == 0)
		s := tcp
		if seed%4 > 1 {
			s = udp
		}
		d := loadTestDirector(t, world)
		w := &twinFull{scenario: s, flows: map[uint16]*twinFullFlow{}}
		for range rounds(3000) {
			port := clientPort + uint16(random.IntN(12))
			switch n := random.IntN(100); {
			case n < 55:
				w.client(t, d, port, flags[random.IntN(len(flags))], random.IntN(5) == 0)
			case n < 90:
				w.backend(t, d, port, answers[random.IntN(len(answers))], random.IntN(5) == 0)
			case n < 96:
				w.elapse(t, d, ages[random.IntN(len(ages))])
			case n < 99:
				i := random.IntN(2)
				w.change(t, d, i, states[random.IntN(len(states))], w.epochs[i])
			default:
				i := random.IntN(2)
				w.change(t, d, i, abi.BackendStateBACKEND_ACTIVE, w.epochs[i]+1)
			}
			if t.Failed() {
				t.Fatalf("with seed %d", seed)
			}
		}
	}
}
