package datapath

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"weir.io/weir/lab/packet"
)

// testMutatedReplies: frames that nearly are full NAT's replies: what tc does not take it leaves as it is, and counts
// nothing; what it takes is counted once, and what it sends becomes what XDP makes of it.
func testMutatedReplies(t *testing.T) {
	w := &testWorld{}
	scenarios := w.scenarios(isFullNAT)
	d := loadTestDirector(t, w)
	d.put(t, "egress", wireNumber, wireNumber)
	var seeds, firsts [][]byte
	for i, s := range scenarios {
		d.check(t, []row{s.fullForward("begins", d, s.opening(clientPort)...)})
		_, e := s.flowOf(t, d, clientPort)
		for _, r := range s.fullFragmentRows(uint32(i*100), e.source)[:2] {
			firsts = append(firsts, r.in)
		}
		for _, r := range slices.Concat(s.fullReplyRows(e.source), s.fullErrorRows(e.source), s.fullFragmentRows(uint32(i*100), e.source)) {
			seeds = append(seeds, r.in)
		}
	}
	r := rand.New(rand.NewPCG(5, 6))
	sent := 0
	all := d.readAll(t)
	for n := range rounds(8000) {
		if n%100 == 0 {
			d.ageAll(t, 0) // no flow ends between a frame's two ways
			for _, first := range firsts {
				d.run(t, first, 0) // nor does what is remembered of fragments
			}
		}
		frame := slices.Clone(seeds[r.IntN(len(seeds))])
		for range 1 + r.IntN(3) {
			at := 12 + r.IntN(min(len(frame), 110)-12)
			frame[at] = []byte{0, 1, 4, 6, 0xff, byte(r.Uint32()), frame[at] + 1, frame[at] ^ 1<<r.IntN(8)}[r.IntN(8)]
		}
		if d.checkMutatedReply(t, frame) {
			sent++
		}
		if t.Failed() {
			t.Fatal(packet.Describe(frame))
		}
	}
	if got := d.readAll(t).without(d.read(t)).since(all.without(d.read(t))); len(got) > 0 {
		t.Errorf("counted for what is in no table: %s", got)
	}
	if sent == 0 || sent == rounds(8000) {
		t.Errorf("%d were sent, want some", sent)
	}
}

func (d *testDirector) checkMutatedReply(t *testing.T, frame []byte) (sent bool) {
	t.Helper()
	before := d.read(t)
	verdict, out := d.returning(t, frame)
	counted := d.read(t).since(before)
	if len(counted) == 0 {
		if verdict != tcxNext {
			t.Errorf("verdict %d, and nothing is counted", int32(verdict))
		}
		packet.Equal(t, out, frame)
		return false
	}
	if len(counted) != 1 {
		t.Errorf("counted %s, want one reason", counted)
	}
	for name, c := range counted {
		if c.Packets != 1 || c.Bytes > uint64(len(frame)) {
			t.Errorf("counted %s, want one packet of at most %d bytes", counted, len(frame))
		}
		if strings.HasPrefix(name, "drop") {
			t.Errorf("%s drops what it could leave to the kernel", name)
		}
	}
	before = d.read(t)
	action, by := d.run(t, frame, 0)
	if action != xdpRedirect {
		if verdict != tcxNext {
			t.Errorf("tc sends what XDP leaves to the kernel: verdict %d, counted %s", int32(verdict), d.read(t).since(before))
		}
		return false
	}
	if verdict == tcRedirect && !bytes.Equal(out[14:], by[14:]) {
		t.Errorf("tc makes of it\n%s\nXDP\n%s", packet.Describe(out), packet.Describe(by))
	}
	return verdict == tcRedirect
}
