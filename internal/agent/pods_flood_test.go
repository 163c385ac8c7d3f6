package agent

import (
	"encoding/binary"
	"net/netip"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"weir.io/weir/lab/packet"
)

// TestPodsOutliveAFlood: SYNs, and segments that pretend to be of a connection, of clients
// that do not exist fill the memory of connections that are opened many times over. Those
// that are established stay, also if they say nothing meanwhile. All of it comes on one CPU,
// as with flows of UDP (TestFlowsInUseOutliveAFlood).
func TestPodsOutliveAFlood(t *testing.T) {
	runtime.LockOSThread() // and never unlocked: the thread keeps its one CPU
	var one unix.CPUSet
	one.Set(0)
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		t.Fatalf("stay on one CPU: %v", err)
	}
	p := newPodLab(t, true, true)
	var open []podTalk
	for port := range uint16(64) {
		c := p.talk(3000 + port)
		c.opens(t, p.first)
		open = append(open, c)
	}
	rows := [][]byte{podRow(1, p.here(p.first)), podRow(1, p.here(p.second))}
	flood := p.PodOpening.MaxEntries() * 2 // each takes two entries
	if testing.Short() {
		flood /= 2
	}
	for i := range flood {
		forged := netip.AddrPortFrom(netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, 0xcb007100+i))), 999)
		flags := uint8(packet.SYN)
		if i%2 == 1 {
			flags = packet.ACK
		}
		in := gue(p.director, p.host, rows[i/2%2], ended(forged, netip.AddrPortFrom(p.vip, 80), flags, i, i, ""))
		if verdict, _ := run(t, p.HostIngress, in, nil); verdict != tcNext {
			t.Fatalf("the verdict about segment %d is %d", i, verdict)
		}
	}
	if n := p.established(t); n != len(open) {
		t.Errorf("%d connections are established after the flood, want the %d of before", n, len(open))
	}
	for _, c := range open {
		c.says(t, "after the flood", rows[1], packet.ACK, 101, 901, decapPod, p.first)
		c.hears(t, "after the flood", p.first, packet.ACK, 901, 105)
	}
}
