package datapath

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/packet"
)

// The program and its twin choose the same backend, outer source and source port
// for random packets and random rings, and where loads decide, for random loads.
func TestTwin(t *testing.T) { testTwin(t) }

func testTwin(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	w := &testWorld{}
	for len(w.services) < 60 {
		w.add(randomService(r, len(w.services)))
	}
	d := loadTestDirector(t, w)
	var rows []row
	for i := range rounds(3000) {
		rows = append(rows, w.randomRow(r, fmt.Sprint(i)))
	}
	d.check(t, rows)
	d.kill(t, r)
	for i := range rows {
		rows[i] = w.randomRow(r, fmt.Sprintf("%d, others dead", i))
	}
	d.check(t, rows)
}

// kill changes the state of every backend to a random one.
func (d *testDirector) kill(t *testing.T, r *rand.Rand) {
	t.Helper()
	for _, s := range d.world.services {
		for i := range s.backends {
			s.backends[i].state = randomState(r)
			d.put(t, "backends", s.first+uint32(i), s.abiBackend(i))
		}
	}
}

func randomState(r *rand.Rand) abi.BackendState {
	return []abi.BackendState{abi.BackendStateBACKEND_ACTIVE, abi.BackendStateBACKEND_DRAINING,
		abi.BackendStateBACKEND_DOWN}[r.IntN(3)]
}

func randomAffinity(r *rand.Rand) model.Affinity {
	prefix := model.AffinityPrefix{V4: uint8(1 + r.IntN(32)), V6: uint8(1 + r.IntN(128))}
	return []model.Affinity{model.AffinityFlow, model.AffinitySourceIP, model.SourcePrefix(prefix), model.AffinityDestinationPort}[r.IntN(4)]
}

func randomService(r *rand.Rand, n int) testService {
	s := testService{
		vip:      vipAddress(r.IntN(2) == 0, n),
		protocol: []model.Protocol{model.TCP, model.UDP}[r.IntN(2)],
		affinity: randomAffinity(r),
		salt:     r.Uint64(),
		port:     singlePort(uint16(1 + r.IntN(65535))),
	}
	if s.protocol == model.TCP && r.IntN(2) == 0 {
		s.policy = model.P2C
	}
	if r.IntN(3) == 0 {
		s.segment = vlan(uint32(1 + r.IntN(4094)))
	}
	for range r.IntN(2) * r.IntN(5) {
		p, err := randomAddress(r, s.vip.Is4()).Prefix(r.IntN(s.vip.BitLen() + 1))
		if err != nil {
			panic(err)
		}
		s.sourceRanges = append(s.sourceRanges, p)
	}
	s.kernelSources = r.IntN(4) == 0
	for range 1 + r.IntN(8) {
		s.backends = append(s.backends, testBackend{mode: model.GUE, address: backendAddress(r.IntN(2) == 0, n), state: randomState(r), mtu: 9000,
			weight: uint32(r.IntN(4) * 50), opened: uint32(r.IntN(1000))})
	}
	candidate := func() uint32 { return uint32(r.IntN(len(s.backends))) }
	for range 1 + r.IntN(1021) {
		slot := model.Slot{Owner: candidate(), Next: candidate()}
		switch r.IntN(3) {
		case 0:
			slot.Next = model.NoBackend
		case 1:
			list := model.CandidateList{Next: make([]uint32, 1+r.IntN(model.MaxCandidates-1))}
			for i := range list.Next {
				list.Next[i] = candidate()
			}
			for _, position := range r.Perm(len(list.Next) + 1) {
				list.Oldest = append(list.Oldest, uint8(position))
			}
			slot.Next = model.ListFlag | uint32(len(s.ring.Lists))
			list.Fixed = r.IntN(4) == 0
			s.ring.Lists = append(s.ring.Lists, list)
		}
		s.ring.Slots = append(s.ring.Slots, slot)
	}
	return s
}

// isNobodys reports whether no host has an address: RFC 1122, 3.2.1.3; RFC 4291, 2.5 and 2.7.
func isNobodys(a netip.Addr) bool {
	if a.Is4() {
		b := a.As4()
		return b[0] == 0 || a.IsLoopback() || a.IsMulticast() || a == netip.AddrFrom4([4]byte{255, 255, 255, 255})
	}
	return a.IsUnspecified() || a.IsLoopback() || a.IsMulticast() || a.Is4In6()
}

// randomRow is a random client's packet to a random service.
func (w *testWorld) randomRow(r *rand.Rand, name string) row {
	service := w.services[r.IntN(len(w.services))]
	s := scenario{testService: service, client: randomAddress(r, service.vip.Is4())}
	if n := len(s.sourceRanges); n > 0 && r.IntN(2) == 0 {
		s.client = randomIn(r, s.sourceRanges[r.IntN(n)])
	}
	if s.kernelSources && r.IntN(4) == 0 {
		from := testKernelSources[r.IntN(len(testKernelSources))]
		if from.Addr().Is4() == s.vip.Is4() {
			s.client = randomIn(r, from)
		}
	}
	f := model.Flow{Segment: s.segment, Source: s.client, Destination: s.vip, Protocol: uint8(s.protocol),
		SourcePort: uint16(r.Uint32()), DestinationPort: s.port.First}
	headers := []packet.Header{ip(s.client, s.vip), l4(s.protocol, f.SourcePort, f.DestinationPort), packet.Zeros(r.IntN(100))}
	pick := twinPick
	if s.protocol == model.TCP && r.IntN(2) == 0 {
		headers[1] = packet.TCPHeader{Src: f.SourcePort, Dst: f.DestinationPort, Flags: packet.SYN}
		pick = twinPlace
	}
	in := []packet.Header{arrived}
	if s.segment.Kind == model.SegmentVLAN {
		in = append(in, packet.VLANTag{ID: uint16(s.segment.ID)})
	}
	frame := packet.Build(append(in, headers...)...)
	if isNobodys(s.client) {
		return row{name: name, in: frame}.dropped(abi.ReasonDROP_SOURCE_INVALID, service)
	}
	within := func(p netip.Prefix) bool { return p.Contains(s.client) }
	if s.kernelSources && slices.ContainsFunc(testKernelSources, within) {
		return row{name: name, in: frame}.passed(abi.ReasonPASS_KERNEL_SOURCE)
	}
	if len(s.sourceRanges) > 0 && !slices.ContainsFunc(s.sourceRanges, within) {
		return row{name: name, in: frame}.dropped(abi.ReasonDROP_SOURCE_RANGE, service)
	}
	backend, alive := pick(service, f)
	if !alive {
		return row{name: name, in: frame}.dropped(abi.ReasonDROP_NO_BACKEND, service)
	}
	out := s.forward(name, f, backend, headers...)
	out.in = frame
	return out
}

// randomIn is an address in a prefix.
func randomIn(r *rand.Rand, p netip.Prefix) netip.Addr {
	a, random := p.Addr().AsSlice(), randomAddress(r, p.Addr().Is4()).AsSlice()
	for bit := p.Bits(); bit < 8*len(a); bit++ {
		a[bit/8] |= random[bit/8] & (0x80 >> (bit % 8))
	}
	in, _ := netip.AddrFromSlice(a)
	return in
}

func randomAddress(r *rand.Rand, is4 bool) netip.Addr {
	b := make([]byte, 16)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	if is4 {
		b = b[:4]
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

// What the hash must do for rings: every bit of the flow matters, and slots are
// used alike. The numbers are for the fixed flows below, so they never change.
func TestTwinSpreads(t *testing.T) {
	const flows, slots = 1 << 16, 64
	ring := model.Ring{Slots: make([]model.Slot, slots)}
	var used [slots]int
	for i := range flows {
		f := model.Flow{Source: client4, Destination: vipAddress(true, 1), SourcePort: uint16(i), DestinationPort: 443, Protocol: 6}
		used[ring.SlotOf(f.Hash(1, model.AffinityFlow))]++
	}
	for slot, n := range used {
		if want := flows / slots; n < want*8/10 || n > want*12/10 {
			t.Errorf("slot %d has %d of %d flows, want about %d", slot, n, flows, want)
		}
	}
}

// rounds is how often a random test goes round: less under -short, for emulated
// machines, which are some 35 times slower.
func rounds(full int) int {
	if testing.Short() {
		return full / 8
	}
	return full
}
