package test

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"weir.io/weir/lab/netlab"
)

// sight is what a watcher has seen of a packet: the last word of its destination, in its own byte
// order, and the first word of its control bytes.
type sight struct {
	Destination uint32
	Control     uint32
}

// watcher counts packets that leave by an interface.
type watcher struct{ *ebpf.Map }

// watch attaches a program that sees all packets that leave by the client's uplink, before or after
// the other programs.
func watch(t *testing.T, h *netlab.Host, anchor link.Anchor) watcher {
	t.Helper()
	const (
		protocolField = 16 // offsets in struct __sk_buff (linux/bpf.h)
		controlField  = 48
		ipv4, ipv6    = 14 + 16, 14 + 24 + 12 // of the destination's last word
		ethertype6    = 0xdd86                // as it is read
	)
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Hash, KeySize: 8, ValueSize: 8, MaxEntries: 4096})
	if err != nil {
		t.Fatal(err)
	}
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "GPL", Instructions: asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.LoadMem(asm.R7, asm.R6, controlField, asm.Word),
		asm.StoreMem(asm.R10, -4, asm.R7, asm.Word),
		asm.StoreImm(asm.R10, -8, 0, asm.Word),
		asm.Mov.Imm(asm.R7, 1),
		asm.StoreMem(asm.R10, -16, asm.R7, asm.DWord),
		asm.Mov.Imm(asm.R2, ipv4),
		asm.LoadMem(asm.R7, asm.R6, protocolField, asm.Word),
		asm.JNE.Imm(asm.R7, ethertype6, "load"),
		asm.Mov.Imm(asm.R2, ipv6),
		asm.Mov.Reg(asm.R3, asm.R10).WithSymbol("load"),
		asm.Add.Imm(asm.R3, -8),
		asm.Mov.Imm(asm.R4, 4),
		asm.FnSkbLoadBytes.Call(),
		asm.LoadMapPtr(asm.R1, m.FD()),
		asm.Mov.Reg(asm.R2, asm.R10),
		asm.Add.Imm(asm.R2, -8),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "first"),
		asm.Mov.Imm(asm.R1, 1),
		asm.StoreXAdd(asm.R0, asm.R1, asm.DWord),
		asm.Ja.Label("pass"),
		asm.LoadMapPtr(asm.R1, m.FD()).WithSymbol("first"),
		asm.Mov.Reg(asm.R2, asm.R10),
		asm.Add.Imm(asm.R2, -8),
		asm.Mov.Reg(asm.R3, asm.R10),
		asm.Add.Imm(asm.R3, -16),
		asm.Mov.Imm(asm.R4, 0),
		asm.FnMapUpdateElem.Call(),
		asm.Mov.Imm(asm.R0, -1).WithSymbol("pass"),
		asm.Return(),
	}})
	if err != nil {
		t.Fatal(err)
	}
	var l link.Link
	if err := h.Do(func() error {
		port, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		l, err = link.AttachTCX(link.TCXOptions{Interface: port.Index, Program: program, Attach: ebpf.AttachTCXEgress, Anchor: anchor})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(l.Close(), program.Close(), m.Close()); err != nil {
			t.Error(err)
		}
	})
	return watcher{m}
}

// seen is how many packets went to a destination, by their control bytes.
func (w watcher) seen(t *testing.T, to netip.Addr) map[uint32]uint64 {
	t.Helper()
	all := w.all(t)
	bytes := to.AsSlice()
	return all[binary.NativeEndian.Uint32(bytes[len(bytes)-4:])]
}

func (w watcher) all(t *testing.T) map[uint32]map[uint32]uint64 {
	t.Helper()
	all := map[uint32]map[uint32]uint64{}
	var at sight
	var n uint64
	entries := w.Iterate()
	for entries.Next(&at, &n) {
		if all[at.Destination] == nil {
			all[at.Destination] = map[uint32]uint64{}
		}
		all[at.Destination][at.Control] = n
	}
	if err := entries.Err(); err != nil {
		t.Fatal(err)
	}
	return all
}

// Packets of a client's host to a backend pass the programs on its uplink twice, and the programs
// recognize them by their mark. No other packet has the mark, and none leaves with it.
func TestRedirectedPacketsAreKnownAgain(t *testing.T) {
	t.Parallel()
	l := newEndsLab(t)
	before, after := watch(t, l.client, link.Head()), watch(t, l.client, link.Tail())
	marks := map[uint32]bool{}
	for i, six := range []bool{false, true} {
		c := l.open(t, six, 22000+i)
		for range 20 {
			c.talk(t, "open")
		}
		passes(t, "much to the server", c.client, c.server, 1<<20)
		vip, backend := redirectVIP(1, six), lanAddress(backendHost, six)
		again := before.seen(t, backend)
		for mark := range again {
			marks[mark] = true
		}
		if len(again) != 1 || again[0] != 0 {
			t.Errorf("packets to %s come again with control bytes and in numbers of %v, want all with the mark", backend, again)
		}
		first := before.seen(t, vip)
		for mark := range marks {
			if first[mark] != 0 {
				t.Errorf("packets to %s have control bytes and are in numbers of %v, want none with a mark: %v", vip, first, marks)
			}
			if left := after.seen(t, backend); left[mark] != 0 || left[0] == 0 {
				t.Errorf("packets to %s leave with control bytes and in numbers of %v, want none with the mark: %v", backend, left, marks)
			}
		}
	}
	if len(marks) != 1 {
		t.Errorf("the marks are %v, want one", marks)
	}
}
