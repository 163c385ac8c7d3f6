package checks

import (
	"encoding/binary"
	"net"
	"net/netip"
	"testing"
	"time"

	"weir.io/weir/internal/datapath/nexthop"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/memlab"
)

// Bindings of hosts that are no backends take no memory, however many names they use; the bindings of a
// backend are believed.
func TestBindingsOfStrangers(t *testing.T) {
	c, err := openBindings()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.close() })
	lo, err := net.InterfaceByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	vip := nexthop.Neighbor{Ifindex: lo.Index, Address: netip.MustParseAddr("192.0.2.1")}
	own := nexthop.Hop{Address: netip.MustParseAddr("192.0.2.2")}
	backend := model.MAC{2, 0, 0, 0, 0, 1}
	if c.by(backend, vip, own) {
		t.Error("a backend that has said nothing has the VIP")
	}
	reply := func(mac model.MAC) []byte {
		packet := binary.BigEndian.AppendUint16([]byte(arpKind), arpReply)
		packet = append(append(packet, mac[:]...), vip.Address.AsSlice()...)
		return append(append(packet, make([]byte, len(mac))...), own.Address.AsSlice()...)
	}
	const strangers = 100_000
	stranger := reply(model.MAC{6})
	memlab.Bound{AtLeast: 1 << 20}.Check(t, 0, func() {
		for i := range uint32(strangers) {
			binary.BigEndian.PutUint32(stranger[len(arpKind)+4:], i)
			c.hear(stranger, vip.Ifindex)
		}
	})
	if c.by(backend, vip, own) {
		t.Error("what strangers say is taken for a backend's")
	}
	c.hear(reply(backend), vip.Ifindex)
	if !c.by(backend, vip, own) {
		t.Error("a backend that says that it has the VIP is not believed")
	}
	c.mu.Lock()
	c.leaveOut(time.Now().Add(2 * bindingKept))
	left := len(c.said)
	c.mu.Unlock()
	if left > 0 {
		t.Errorf("%d claims are kept that no check has asked about for long", left)
	}
}

// TestNeighborsAreNotFlooded: however many probes fail, a host is asked for once a second, and
// fifty of them at most.
func TestNeighborsAreNotFlooded(t *testing.T) {
	var c confirmed
	now := time.Unix(1000, 0)
	asked := func(at time.Time) (count int) {
		for range 3 {
			for i := range 80 {
				if c.allow(nexthop.Neighbor{Ifindex: 2, Address: netip.AddrFrom4([4]byte{10, 0, 0, byte(i)})}, at) {
					count++
				}
			}
		}
		return count
	}
	if got := asked(now); got != confirmMost {
		t.Errorf("80 hosts whose probes fail three times are asked for %d times at once, want %d", got, confirmMost)
	}
	if got := asked(now.Add(confirmEvery / 2)); got != 0 {
		t.Errorf("half a second later they are asked for %d times, want 0", got)
	}
	if got := asked(now.Add(confirmEvery)); got != confirmMost {
		t.Errorf("a second later they are asked for %d times, want %d", got, confirmMost)
	}
}
