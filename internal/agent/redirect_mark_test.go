package agent

import (
	"encoding/binary"
	"testing"

	"github.com/cilium/ebpf"

	"weir.io/weir/lab/packet"
)

// Where the control bytes are in struct __sk_buff (linux/bpf.h).
const controlField = 48

// leaveWith lets a packet leave whose control bytes begin with a number, and returns with which
// they do afterwards.
func (h *redirectHost) leaveWith(in frame, control uint32) (verdict uint32, out []byte, left uint32) {
	h.t.Helper()
	return h.leaveFrame(build(frame{ether}, in), control)
}

// leaveFrame is leaveWith for what is a frame already.
func (h *redirectHost) leaveFrame(packet []byte, control uint32) (verdict uint32, out []byte, left uint32) {
	h.t.Helper()
	var before, after skContext
	binary.NativeEndian.PutUint32(before.Before[controlField:], control)
	options := &ebpf.RunOptions{Data: packet, DataOut: make([]byte, len(packet)+256), Context: before, ContextOut: &after}
	verdict, err := h.RedirectLeave.Run(options)
	if err != nil {
		h.t.Fatalf("run program: %v", err)
	}
	return verdict, options.DataOut, binary.NativeEndian.Uint32(after.Before[controlField:])
}

func (h *redirectHost) mark() (mark uint32) {
	h.t.Helper()
	if err := h.SentMark.Get(&mark); err != nil {
		h.t.Fatal(err)
	}
	return mark
}

// A packet that was sent to a backend has a mark, by which it is let go. The mark of another
// agent, or any other content of the control bytes, does not keep the program from its work.
func TestSentMark(t *testing.T) {
	spec, err := loadRedirect()
	if err != nil {
		t.Fatal(err)
	}
	other := &redirectHost{loadTestRedirector(t, spec), t}
	t.Cleanup(func() { _ = other.Close() })
	for _, c := range connections() {
		t.Run(c.service, func(t *testing.T) {
			h := newRedirectHost(t)
			mark := h.mark()
			if mark == 0 || mark == other.mark() {
				t.Fatalf("two agents have the marks %d and %d, want two, and none 0", mark, other.mark())
			}
			syn, data := c.asks(), c.sends(packet.ACK, 100)
			for _, control := range []uint32{0, other.mark(), ^uint32(0), mark + 1} {
				verdict, out, left := h.leaveWith(syn.in, control)
				packet.Equal(t, out, build(frame{ether}, syn.out))
				if verdict != tcNext || left != control {
					t.Errorf("a SYN with the control bytes %#x has the verdict %d, and then %#x", control, int32(verdict), left)
				}
				h.emptySlots(t)
			}
			h.check(c.asks(), c.taken())
			for _, control := range []uint32{0, other.mark(), ^uint32(0), mark + 1} {
				verdict, out, left := h.leaveWith(data.in, control)
				packet.Equal(t, out, build(frame{ether}, data.out))
				if verdict != tcRedirect || left != mark {
					t.Errorf("data with the control bytes %#x has the verdict %d, and then %#x, want the mark %#x", control, int32(verdict), left, mark)
				}
			}
			before := h.events()
			verdict, out, left := h.leaveWith(data.out, mark)
			packet.Equal(t, out, build(frame{ether}, data.out))
			if verdict != tcNext || left != 0 {
				t.Errorf("what has the mark has the verdict %d, and then %#x, want none", int32(verdict), left)
			}
			for name, n := range h.events() {
				if n != before[name] {
					t.Errorf("what has the mark is counted as %q", name)
				}
			}
		})
	}
}

// flow is a connection as its host knows it.
func (h *redirectHost) flow(c connection) redirectHostFlow {
	return redirectHostFlow{Client: redirectAddressOf(c.client.Addr()), Vip: redirectAddressOf(c.vip.Addr()),
		ClientPort: networkOrder(c.client.Port()), VipPort: networkOrder(c.vip.Port())}
}
