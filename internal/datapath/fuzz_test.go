package datapath

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"weir.io/weir/internal/model"
	"weir.io/weir/lab/packet"
)

// fuzzWorld has services of every kind, and frames for and about them.
func fuzzWorld(t testing.TB) (w *testWorld, seeds [][]byte) {
	w = groupWorld()
	scenarios := w.scenarios(func(wayTo) bool { return true })
	tenant := w.add(testService{vip: vipAddress(true, 500), segment: vlan(100), protocol: model.TCP, backends: []testBackend{{vlan: 200}}})
	w.add(testService{vip: vipAddress(false, 500), segment: vlan(300<<12 | 100), protocol: model.UDP, port: model.PortRange{First: 1, Last: 999},
		backends: []testBackend{{keepTags: true}}})
	w.add(testService{vip: vipAddress(true, 501), protocol: model.TCP, port: singlePort(servicePort), backends: []testBackend{{local: true}}})
	for _, s := range scenarios {
		rows := slices.Concat(s.forwardRows(), s.errorRows(), s.tooBigRows()[:1], s.fragmentRows(1))
		if !s.backends[0].snat {
			rows = slices.Concat(rows, s.groupOwnRows(20), s.groupArrivedRows(40))
		}
		if s.vip.Is6() {
			rows = append(rows, s.chainRows()...)
		}
		for _, r := range rows {
			seeds = append(seeds, r.in)
		}
	}
	seeds = append(seeds, w.quicFrames(t)...)
	tagged := scenario{testService: tenant, client: client4}
	return w, append(seeds, packet.Build(append([]packet.Header{arrived, packet.VLANTag{ID: 100}}, tagged.data(3)...)...))
}

// FuzzDirector sends arbitrary frames through the program: whatever comes in,
// what comes out keeps the contract of bpf/abi/types.h.
func FuzzDirector(f *testing.F) {
	w, seeds := fuzzWorld(f)
	for _, frame := range seeds {
		f.Add(frame)
	}
	d := loadTestDirector(f, w)
	d.putGroup(f, groupSelf, groupSecond)
	f.Fuzz(func(t *testing.T, frame []byte) {
		if len(frame) < 14 || len(frame) > 9000 {
			return // no Ethernet frame, or none that BPF_PROG_TEST_RUN takes
		}
		d.checkContract(t, frame)
	})
}

// The fuzzer sees no coverage of BPF, so every test run also tries what it would
// hardly come to: good frames with a few bytes of their headers changed.
func TestMutatedFrames(t *testing.T) {
	w, seeds := fuzzWorld(t)
	d := loadTestDirector(t, w)
	d.putGroup(t, groupSelf, groupSecond)
	r := rand.New(rand.NewPCG(3, 4))
	for range rounds(8000) {
		d.checkContract(t, mutated(r, seeds[r.IntN(len(seeds))], 110))
		if t.Failed() {
			return
		}
	}
}

// mutated is a frame with up to three of its first bytes changed, and sometimes cut.
func mutated(r *rand.Rand, frame []byte, first int) []byte {
	frame = slices.Clone(frame)
	for range 1 + r.IntN(3) {
		at := 12 + r.IntN(min(len(frame), first)-12)
		frame[at] = []byte{0, 1, 4, 6, 0xff, byte(r.Uint32()), frame[at] + 1, frame[at] ^ 1<<r.IntN(8)}[r.IntN(8)]
	}
	if r.IntN(8) == 0 {
		frame = frame[:14+r.IntN(len(frame)-13)]
	}
	return frame
}

// checkContract runs one frame and checks what is true of every frame.
func (d *testDirector) checkContract(t *testing.T, frame []byte) {
	t.Helper()
	if reason, out := d.runOnce(t, frame); isSent(reason) {
		checkGroupEnds(t, reason, frame, out)
		d.checkSent(t, reason, asIP(frame), asIP(out), groupType(frame) != 0)
	}
}

// isSent says whether packets leave that are counted under a reason.
func isSent(reason string) bool {
	return strings.HasPrefix(reason, "ANSWER_") || strings.HasPrefix(reason, "FORWARD_")
}

// runOnce runs one frame and checks that it is counted once, under a reason that its verdict has, and that the
// kernel gets it as it came.
func (d *testDirector) runOnce(t *testing.T, frame []byte) (reason string, out []byte) {
	t.Helper()
	before := d.read(t)
	action, out := d.run(t, frame, 0)
	counted := d.read(t).since(before)
	for name, c := range counted {
		if strings.HasPrefix(name, "backend ") || strings.HasPrefix(name, "drops ") {
			continue
		}
		if reason != "" || c.Packets != 1 {
			t.Fatalf("counted %s, want one reason, once\n%s", counted, packet.Describe(frame))
		}
		reason = name
		if c.Bytes > uint64(len(frame)) {
			t.Errorf("%s counts %d bytes of a frame of %d", name, c.Bytes, len(frame))
		}
	}
	prefix, _, _ := strings.Cut(reason, "_")
	allowed := map[string][]uint32{"PASS": {xdpPass}, "DROP": {xdpDrop}, "ANSWER": {xdpTX}, "FORWARD": {xdpTX, xdpRedirect}}
	if !slices.Contains(allowed[prefix], action) {
		t.Fatalf("verdict %d for %q\n%s", action, reason, packet.Describe(frame))
	}
	if prefix == "PASS" && !bytes.Equal(out, frame) && !passChanges[reason] && groupType(frame) == 0 {
		t.Errorf("%s changed the frame: %s", reason, packet.Diff(out, frame))
	}
	return reason, out
}

// groupType is the EtherType of a frame between directors; 0: it is none.
func groupType(frame []byte) uint16 {
	if at := typeAt(frame); at+3 <= len(frame) {
		if t := binary.BigEndian.Uint16(frame[at:]); t == groupMeet || t == groupTake {
			return t
		}
	}
	return 0
}

// asIP is a frame between directors as the IP packet that is in it.
func asIP(frame []byte) []byte {
	if groupType(frame) == 0 {
		return frame
	}
	at, clone := typeAt(frame), slices.Clone(frame)
	etherType := uint16(packet.EtherTypeIPv4)
	if frame[at+2]>>4 == 6 {
		etherType = packet.EtherTypeIPv6
	}
	binary.BigEndian.PutUint16(clone[at:], etherType)
	return clone
}

// checkGroupEnds checks that nothing goes round between directors for ever: what was to
// be taken is not sent on, and what waits has one trip more and not one hop.
func checkGroupEnds(t *testing.T, reason string, in, out []byte) {
	t.Helper()
	ttl := func(frame []byte) byte {
		at := typeAt(frame) + 2
		if frame[at]>>4 == 6 {
			return frame[at+7]
		}
		return frame[at+8]
	}
	switch {
	case groupType(out) == 0 || groupType(in) == 0:
	case groupType(in) == groupTake:
		t.Errorf("%s: sends on what was to be taken\n%s", reason, packet.Describe(in))
	case groupType(out) == groupMeet && (ttl(out) != ttl(in)+1 || ttl(out)&^7 != ttl(in)&^7):
		t.Errorf("%s: the TTL of what waits was %d and is %d", reason, ttl(in), ttl(out))
	}
}

// passChanges are the reasons for which the kernel gets another packet than came.
var passChanges = map[string]bool{"PASS_REPLY_UNROUTED": true, "PASS_LOCAL": true}

// checkSent checks a frame that the director sends.
func (d *testDirector) checkSent(t *testing.T, reason string, in, out []byte, fromPeer bool) {
	t.Helper()
	from, to, ok := addresses(in)
	if !ok {
		t.Fatalf("%s: sent something that is not IP\n%s", reason, packet.Describe(in))
	}
	// Requests go to a VIP; NAT replies come from a backend.
	known := func(a netip.Addr) bool {
		return slices.ContainsFunc(d.world.services, func(s *testService) bool {
			return s.vip == a || slices.ContainsFunc(s.backends, func(b testBackend) bool { return b.mode == model.NAT && b.address == a })
		})
	}
	if !known(to) && !known(from) && !fromPeer { // which answers for it
		t.Errorf("%s: sent a packet from %v to %v, neither of which is the director's\n%s", reason, from, to, packet.Describe(in))
	}
	if _, _, ok := addresses(out); !ok {
		t.Errorf("%s: sent no IP packet\n%s", reason, packet.Describe(out))
	}
	if packet.VerifyChecksums(in) == nil {
		if err := packet.VerifyChecksums(out); err != nil {
			t.Errorf("%s: %v\nin\n%s\nout\n%s", reason, err, packet.Describe(in), packet.Describe(out))
		}
	}
}

// typeAt is where a frame's EtherType is, behind its tags.
func typeAt(frame []byte) int {
	at := 12
	for at+2 <= len(frame) && slices.Contains([]uint16{packet.EtherTypeVLAN, packet.EtherTypeQinQ}, binary.BigEndian.Uint16(frame[at:])) {
		at += 4
	}
	return at
}

// addresses of a frame's outermost IP header, which must be whole.
func addresses(frame []byte) (from, to netip.Addr, ok bool) {
	at := typeAt(frame)
	if at+2 > len(frame) || !isIP(frame[at+2:]) {
		return from, to, false
	}
	b := frame[at+2:]
	if b[0]>>4 == 4 {
		from, _ = netip.AddrFromSlice(b[12:16])
		to, _ = netip.AddrFromSlice(b[16:20])
		return from, to, int(binary.BigEndian.Uint16(b[2:])) <= len(b)
	}
	from, _ = netip.AddrFromSlice(b[8:24])
	to, _ = netip.AddrFromSlice(b[24:40])
	return from, to, int(binary.BigEndian.Uint16(b[4:]))+40 <= len(b)
}
