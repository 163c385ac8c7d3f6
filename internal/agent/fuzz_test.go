package agent

import (
	"bytes"
	"testing"

	"weir.io/weir/lab/packet"
)

// FuzzIngress gives any bytes to both programs. Whatever they are, both must come to
// the same reason and the same packet, and what is not unwrapped must not change.
func FuzzIngress(f *testing.F) {
	h := newTestHost(f)
	for _, rows := range [][]ingressRow{refused(), congestion()[:8]} {
		for _, row := range rows {
			f.Add(row.in)
		}
	}
	for _, tunnel := range tunnels() {
		for _, inner := range inners() {
			f.Add(build(frame{ether}, tunnel.outer, inner.headers))
		}
	}
	for _, o := range outers() {
		for _, inner := range inners() {
			f.Add(o.wrap(o.from, o.to, row(0, o.hops...), inner.headers))
			f.Add(o.wrap(o.from, o.to, row(2, o.hops...), inner.headers))
			f.Add(o.wrap(o.from, o.to, row(3, o.hops...), inner.headers))
		}
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		if len(in) < 14+40 || len(in) > 2000 { // what newer kernels make socket buffers of
			return
		}
		reason, out := fuzzed(t, h, true, in)
		if tag := in[12:14]; bytes.Equal(tag, []byte{0x81, 0}) || bytes.Equal(tag, []byte{0x88, 0xa8}) {
			return // the kernel takes tags off before tc
		}
		tcReason, tcOut := fuzzed(t, h, false, in)
		if reason != tcReason {
			t.Fatalf("XDP says %s, tc says %s\n%s", reasonName(t, reason), reasonName(t, tcReason), packet.Describe(in))
		}
		if reason == bpfHostReasonHOST_PASSED_ON {
			checkPassedOn(t, in, tcOut)
		} else if out != nil && tcOut != nil && !bytes.Equal(out[14:], tcOut[14:]) {
			t.Fatalf("XDP and tc differ:\n%s", packet.Diff(tcOut, out))
		}
	})
}

// fuzzed runs a program and checks what holds for every packet. It returns what
// became of it, nil if it was dropped.
func fuzzed(t *testing.T, h *testHost, xdp bool, in []byte) (bpfHostReason, []byte) {
	t.Helper()
	program, pass, drop := h.HostIngress, uint32(tcNext), uint32(tcShot)
	if xdp {
		program, pass, drop = h.HostXdp, xdpPass, xdpDrop
	}
	before := h.counts(t)
	verdict, out := run(t, program, in, nil)
	after := h.counts(t)
	counted, reason := uint64(0), bpfHostReason(0)
	for i := range after.reasons {
		if n := after.reasons[i].Packets - before.reasons[i].Packets; n > 0 {
			counted, reason = counted+n, bpfHostReason(i)
		}
	}
	if xdp && counted == 0 && verdict == pass && bytes.Equal(in, out) {
		return bpfHostReasonHOST_PASSED_ON, out // tc does it, and counts it
	}
	if counted != 1 || isEgress(reason) {
		t.Fatalf("counted %d times, last as %s", counted, reasonName(t, reason))
	}
	switch {
	case isDrop(reason):
		if verdict != drop {
			t.Fatalf("%s, but the verdict is %d", reasonName(t, reason), verdict)
		}
		return reason, nil
	case reason == bpfHostReasonHOST_PASSED_ON && !xdp:
		if verdict != tcRedirect {
			t.Fatalf("%s, but the verdict is %d", reasonName(t, reason), verdict)
		}
		return reason, out
	case verdict != pass:
		t.Fatalf("%s, but the verdict is %d", reasonName(t, reason), verdict)
	case reason >= bpfHostReasonHOST_DECAP_IPIP && reason <= bpfHostReasonHOST_DECAP_LAST_RESORT:
		if shorter := len(in) - len(out); shorter < 20 || shorter > 40+8+4+124 {
			t.Fatalf("%d bytes were taken off", shorter)
		}
	case !bytes.Equal(in, out):
		t.Fatalf("%s, but the packet changed:\n%s", reasonName(t, reason), packet.Diff(out, in))
	}
	return reason, out
}

// checkPassedOn checks that nothing changed but addresses, checksums and the number
// of the next hop, which went up.
func checkPassedOn(t *testing.T, in, out []byte) {
	t.Helper()
	changed, udp := 14+10, 14+20 // from the checksum of IPv4 on
	if in[12] == 0x86 {
		changed, udp = 14+8, 14+40
	}
	next := udp + 8 + 4 + 2
	if len(in) != len(out) || out[next] <= in[next] || out[next] > in[next-1] {
		t.Fatalf("the next hop went from %d to %d of %d", in[next], out[next], in[next-1])
	}
	for i := range in {
		changes := i >= changed && i < udp || i == udp+6 || i == udp+7 || i == next
		if !changes && in[i] != out[i] {
			t.Fatalf("byte %d changed:\n%s", i, packet.Diff(out, in))
		}
	}
}
