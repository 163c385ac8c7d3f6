package datapath

import (
	"math/rand/v2"
	"slices"
	"testing"

	"weir.io/weir/internal/model"
	"weir.io/weir/lab/packet"
)

// insideSeeds are services of every mode and frames for and about them, in tunnels.
func insideSeeds() (w *testWorld, seeds [][]byte) {
	w = &testWorld{}
	for _, s := range w.scenarios(func(wayTo) bool { return true }) {
		rows := slices.Concat(s.forwardRows(), s.errorRows(), s.tooBigRows()[:1], s.fragmentRows(1))
		if s.vip.Is6() {
			rows = append(rows, s.chainRows()...)
		}
		for _, r := range rows {
			seeds = append(seeds, inTunnels.arrives(r.in))
		}
	}
	return w, seeds
}

// testMutatedInside: whatever comes in a tunnel, or nearly so, has one reason, the kernel gets what it came as, and
// what leaves is a whole packet from this VTEP.
func testMutatedInside(t *testing.T) {
	w, seeds := insideSeeds()
	d := loadTestDirector(t, w)
	r := rand.New(rand.NewPCG(5, 6))
	for range rounds(1000) {
		d.checkInside(t, mutated(r, seeds[r.IntN(len(seeds))], 180))
		if t.Failed() {
			return
		}
	}
}

// checkInside runs one frame and checks what is true of every frame at a VTEP.
func (d *testDirector) checkInside(t *testing.T, frame []byte) {
	t.Helper()
	reason, out := d.runOnce(t, frame)
	if !isSent(reason) {
		return
	}
	from, _, ok := addresses(out)
	if !ok {
		t.Fatalf("%s: sent no IP packet\nin\n%s\nout\n%s", reason, packet.Describe(frame), packet.Describe(out))
	}
	came, inTunnel := d.insideOf(frame)
	left, leftInside := d.insideOf(out)
	switch {
	case !inTunnel: // an ordinary packet, to a VIP that is in no tenant's network
		return
	case !leftInside || from != vtepAddress4 && from != vtepAddress6:
		t.Fatalf("%s: what came in a tunnel has left from %v\nin\n%s\nout\n%s", reason, from, packet.Describe(frame), packet.Describe(out))
	}
	if packet.VerifyChecksums(came) != nil {
		return
	}
	for _, sent := range [][]byte{out, left} {
		if err := packet.VerifyChecksums(sent); err != nil {
			t.Fatalf("%s: %v\nin\n%s\nout\n%s", reason, err, packet.Describe(frame), packet.Describe(out))
		}
	}
}

// insideOf returns the frame in a tunnel.
func (d *testDirector) insideOf(frame []byte) ([]byte, bool) {
	at := typeAt(frame) + 2
	if at >= len(frame) {
		return nil, false
	}
	l4 := at + 20
	if frame[at]>>4 == 6 {
		l4 = at + 40
	}
	if l4+16 > len(frame) {
		return nil, false
	}
	inside := l4 + 16
	if d.tunnels.kind == model.SegmentGeneve {
		inside += int(frame[l4+8]&0x3f) * 4
	}
	return frame[min(inside, len(frame)):], inside+14 <= len(frame)
}
