package datapath

import (
	"net/netip"
	"os"
	"sync"
	"testing"

	"github.com/cilium/ebpf"

	"weir.io/weir/internal/model"
)

// TestSwapLosesNoPacket: while packets go through the program, all backends of
// their service are replaced again and again. A packet that looked at the ring just
// before must still find its backend.
func TestSwapLosesNoPacket(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	// Packets that the other end of the wire sends by itself would be counted, too.
	must(t, os.WriteFile("/proc/sys/net/ipv6/conf/wire1/disable_ipv6", []byte("1"), 0o644))
	const backends = 8
	var tables [2]model.Table
	for i := range tables {
		tables[i] = tableOf(1, backends, 0)
		for j := range tables[i].Services[0].Backends {
			b := &tables[i].Services[0].Backends[j]
			b.Address = netip.AddrFrom4([4]byte{10, 0, 0, byte(11 + i*backends + j)})
			addNeighbor(t, b.Address)
		}
	}
	d := openTest(t, model.Limits{})
	must(t, d.Set(tables[0]))
	frame := build(ip(netip.MustParseAddr("192.0.2.9"), tables[0].Services[0].VIP), l4(model.TCP, 40000, 80))
	stop := make(chan struct{})
	var running sync.WaitGroup
	for range 3 {
		running.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if _, err := d.kernel.program.Run(&ebpf.RunOptions{Data: frame, Repeat: 20_000}); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for i := range 300 {
		must(t, d.Set(tables[(i+1)%2]))
	}
	close(stop)
	running.Wait()
	forwarded := uint64(0)
	for _, reason := range statusOf(t, d).Reasons {
		switch {
		case reason.Name == "forward_l2dsr":
			forwarded = reason.Packets
		case reason.Name == "pass_sent_already": // a run hands over what it has forwarded again
		case reason.Packets > 0:
			t.Errorf("%d packets are %s", reason.Packets, reason.Name)
		}
	}
	if forwarded < 300 {
		t.Errorf("%d packets are forwarded, while 300 tables follow each other", forwarded)
	}
}
