package datapath

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/datapath/flows"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/packet"
)

// twinProgram is the program by itself, whose maps are filled by hand, with the
// twin's own flags in the slots.
type twinProgram struct {
	scenario
	director *testDirector
}

func newTwinProgram(t testing.TB, segment model.Segment, protocol model.Protocol, affinity model.Affinity, is4 bool) (*twinProgram, *history) {
	w := &testWorld{}
	s := testService{vip: vipAddress(is4, 1), segment: segment, protocol: protocol, port: singlePort(servicePort), salt: 7, memory: true, affinity: affinity, noRing: true}
	for n := range twinBackends {
		s.backends = append(s.backends, testBackend{mode: model.L2DSR, address: backendAddress(is4, n)})
	}
	p := &twinProgram{scenario: scenario{testService: w.add(s)}}
	p.director = loadTestDirector(t, w)
	source := netip.MustParseAddr("203.0.113.9")
	if !is4 {
		source = netip.MustParseAddr("2001:db8:99::9")
	}
	return p, &history{
		twin:        newTwin(protocol, affinity, s.salt, twinBackends),
		original:    p,
		source:      source,
		destination: netip.AddrPortFrom(s.vip, servicePort),
		segment:     p.segment,
		hashed:      affinity,
	}
}

func (p *twinProgram) set(t *testing.T, m *twin) {
	t.Helper()
	for number, state := range m.states {
		b := &p.backends[number]
		b.state, b.gone, b.epoch = abi.BackendState(state), state == 0, uint8(m.lives[number])
		p.director.put(t, "backends", p.first+uint32(number), p.abiBackend(number))
	}
	p.affinity, p.ring, p.before, p.settles, p.policy = m.affinity, m.ring, m.before, m.settling, m.policy()
	if p.director.lines > mapSizes["ring_lines"]/2 {
		p.director.lines = 1 // nobody is in the rings before
	}
	p.director.putRing(t, p.testService)
}

// sweep is the control plane's: only the flags are here. The twin has swept.
func (p *twinProgram) sweep(t *testing.T) {
	t.Helper()
	p.director.putRing(t, p.testService)
}

func (p *twinProgram) restart(*testing.T, *twin) {}

func (p *twinProgram) memory(t *testing.T) []abi.FlowPlace {
	t.Helper()
	return p.director.flowPlaces(t)
}

func (p *twinProgram) now(*testing.T) uint32 { return p.director.now() }

func (p *twinProgram) send(t *testing.T, cpu int, f model.Flow, flags uint8) (backend int) {
	t.Helper()
	onCPU(t, cpu, func() {
		frame := []packet.Header{arrived}
		switch {
		case f.Segment.Kind != model.SegmentVLAN:
		case f.Segment.ID > 0xfff:
			frame = append(frame, packet.VLANTag{TPID: packet.EtherTypeQinQ, ID: uint16(f.Segment.ID >> 12)}, packet.VLANTag{ID: uint16(f.Segment.ID & 0xfff)})
		default:
			frame = append(frame, packet.VLANTag{ID: uint16(f.Segment.ID)})
		}
		in := packet.Build(append(frame, ip(f.Source, f.Destination), p.segment4(f.SourcePort, f.DestinationPort, flags), packet.Text("x"))...)
		if inTunnels != nil {
			in = inTunnels.arrives(in)
		}
		action, out := p.director.run(t, in, 0)
		if inTunnels != nil && action == xdpTX {
			out, _ = p.director.insideOf(out)
		}
		backend = p.receiver(t, action, out)
	})
	return backend
}

// twinSegments are where the twin's service is, if it is in no tunnel.
var twinSegments = [...]model.Segment{{}, vlan(100), vlan(300<<12 | 100)}

// testFlowRandom compares program and twin over random histories: of real rows, with
// what these promise, and of any rows.
func testFlowRandom(t *testing.T) {
	for seed := range uint64(10) {
		r := rand.New(rand.NewPCG(seed, 6))
		protocol := []model.Protocol{model.TCP, model.UDP}[seed%2]
		if seed >= 8 {
			protocol = model.SCTP
		}
		p, h := newTwinProgram(t, twinSegments[seed%3], protocol, model.Affinity(r.IntN(2)), seed%4 < 2)
		h.choose, h.invented, h.twin.lasts = r.IntN, seed >= 4, seed%4 >= 2
		refused := p.director.flowCount(t, abi.FlowEventFLOW_REFUSED)
		h.run(t, rounds(150), func() bool { return true })
		if p.director.flowCount(t, abi.FlowEventFLOW_REFUSED) != refused {
			t.Errorf("seed %d: flows were refused: the twin cannot know", seed)
		}
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

// FuzzTwin does the same with histories that the fuzzer makes.
func FuzzTwin(f *testing.F) {
	for seed := range byte(4) {
		r := rand.New(rand.NewPCG(uint64(seed), 7))
		data := []byte{seed}
		for range 400 {
			data = append(data, byte(r.Uint32()))
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) == 0 {
			return
		}
		kind, data := data[0], data[1:]
		_, h := newTwinProgram(t, twinSegments[kind>>5%3], []model.Protocol{model.TCP, model.UDP}[kind%2], model.Affinity(kind>>1%2), kind>>2%2 == 0)
		h.invented, h.twin.lasts = kind>>3%2 == 1, kind>>4%2 == 1
		h.choose = func(n int) int {
			if len(data) == 0 {
				return 0
			}
			next := int(data[0])
			data = data[1:]
			return next % n
		}
		h.run(t, len(data), func() bool { return len(data) > 0 })
	})
}

// twinDatapath is the whole: Set, sweeps and restarts, in a namespace.
type twinDatapath struct {
	*Datapath
	vip     netip.AddrPort
	numbers map[model.MAC]int // by next hop
}

func twinAddress(number int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, byte(11 + number)}) }

func (d *twinDatapath) set(t *testing.T, m *twin) {
	t.Helper()
	must(t, d.Set(d.tableOf(m)))
}

// tableOf is the twin's service, with the backends that there are.
func (d *twinDatapath) tableOf(m *twin) model.Table {
	s := model.TableService{Name: "twin", VIP: d.vip.Addr(), Protocol: m.protocol, Policy: m.policy(), Affinity: m.affinity, Salt: m.salt,
		Port: model.PortRange{First: d.vip.Port(), Last: d.vip.Port()}}
	positions := map[uint32]uint32{model.NoBackend: model.NoBackend}
	for number, state := range m.states {
		if state != 0 {
			positions[uint32(number)] = uint32(len(s.Backends))
			address := twinAddress(number)
			s.Backends = append(s.Backends, model.TableBackend{Name: fmt.Sprint(number), Address: address, Mode: model.L2DSR, State: state})
		}
	}
	s.Ring = placed(&m.ring, positions)
	if m.before != nil {
		s.Before = &model.RingBefore{Affinity: m.before.Affinity, Ring: placed(&m.before.Ring, positions)}
	}
	return model.Table{Interfaces: []string{"wire0"}, ICMPRate: 100, Services: []model.TableService{s}}
}

// placed is a ring whose candidates are positions, not numbers.
func placed(of *model.Ring, positions map[uint32]uint32) model.Ring {
	ring := model.Ring{Older: of.Older}
	for _, slot := range of.Slots { // of a ring before, some may be nobody's
		next := slot.Next
		if next == model.NoBackend || next&model.ListFlag == 0 {
			next = positions[next]
		}
		ring.Slots = append(ring.Slots, model.Slot{Owner: positions[slot.Owner], Next: next})
	}
	for _, list := range of.Lists {
		named := model.CandidateList{Oldest: list.Oldest, Beyond: list.Beyond}
		for _, number := range list.Next {
			named.Next = append(named.Next, positions[number])
		}
		ring.Lists = append(ring.Lists, named)
	}
	for _, number := range of.Turns {
		ring.Turns = append(ring.Turns, positions[number])
	}
	return ring
}

func (d *twinDatapath) sweep(*testing.T) { d.Datapath.sweep() }

func (d *twinDatapath) memory(*testing.T) []abi.FlowPlace { return d.flows.Entries }

func (d *twinDatapath) now(t *testing.T) uint32 {
	t.Helper()
	now, err := flows.Clock()
	must(t, err)
	return now
}

// twinLimits is room for the flows of a history, and no more: the test goes over all of it for each
// packet.
func twinLimits() model.Limits { return model.Limits{Flows: 2048} }

func (d *twinDatapath) restart(t *testing.T, m *twin) {
	t.Helper()
	must(t, d.Close())
	d.Datapath = openTest(t, twinLimits())
	must(t, d.Set(d.tableOf(m)))
	clear(m.clean) // what a process has swept, it has forgotten
}

func (d *twinDatapath) send(t *testing.T, cpu int, f model.Flow, flags uint8) (backend int) {
	t.Helper()
	var l4 packet.Header = packet.TCPHeader{Src: f.SourcePort, Dst: f.DestinationPort, Flags: flags}
	if model.Protocol(f.Protocol) == model.UDP { // histories of Datapath have no SCTP
		l4 = packet.UDPHeader{Src: f.SourcePort, Dst: f.DestinationPort}
	}
	onCPU(t, cpu, func() {
		action, out, err := d.kernel.program.Test(build(ip(f.Source, f.Destination), l4, packet.Text("x")))
		must(t, err)
		backend = -1
		if action == xdpRedirect {
			backend = d.numbers[model.MAC(out[:6])]
		} else if action != xdpDrop {
			t.Fatalf("verdict %d of a packet of the service", action)
		}
	})
	return backend
}

// A random history of a director: whatever happens, packets come to the backend that
// the twin says, and a connection that sends something between two changes stays where
// it is for as long as its backend is up and configured.
func TestTwinHistory(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	d := &twinDatapath{vip: netip.MustParseAddrPort("198.51.100.1:80"), numbers: map[model.MAC]int{}}
	for number := range twinBackends {
		addNeighbor(t, twinAddress(number))
		d.numbers[model.MAC(neighborMAC(twinAddress(number)))] = number
	}
	for seed := range uint64(2) {
		r := rand.New(rand.NewPCG(seed, 8))
		protocol := []model.Protocol{model.TCP, model.UDP}[seed%2]
		m := newTwin(protocol, model.AffinityFlow, 7+seed, twinBackends)
		m.lasts = true
		h := &history{twin: m, original: d, destination: d.vip, choose: r.IntN,
			// The next history finds the flows of this one's service, and has a service with its index.
			source: netip.AddrFrom4([4]byte{203, 0, 113, byte(9 + seed)})}
		d.Datapath = openTest(t, twinLimits())
		h.run(t, rounds(150), func() bool { return true })
		h.level(t)
		status := statusOf(t, d.Datapath).Flows
		if want := h.remembers(); status.Remembered != want {
			t.Errorf("seed %d: %d flows are remembered, want %d", seed, status.Remembered, want)
		}
		must(t, d.Set(model.Table{Interfaces: []string{"wire0"}}))
		must(t, d.Close())
	}
}
