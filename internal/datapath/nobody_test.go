package datapath

import (
	"net/netip"
	"testing"

	"weir.io/weir/internal/model"
	"weir.io/weir/lab/packet"
)

// Slots whose owner and backup were removed while all others drain are nobody's: that is no
// reason to refuse the table.
func TestSlotsOfNobody(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	addNeighbor(t, netip.AddrFrom4([4]byte{10, 0, 0, 11}))
	d := openTest(t, model.Limits{})
	table := tableOf(1, 1, 0)
	s := &table.Services[0]
	for i := range s.Ring.Slots {
		s.Ring.Slots[i] = model.Slot{Owner: 0, Next: model.NoBackend}
		if i%2 == 0 {
			s.Ring.Slots[i].Owner = model.NoBackend
		}
	}
	must(t, d.Set(table))
	verdicts := map[uint32]int{}
	for port := range uint16(200) {
		f := model.Flow{Source: client4, Destination: s.VIP, SourcePort: 1000 + port, DestinationPort: 80, Protocol: uint8(model.TCP)}
		verdict, _, err := d.kernel.program.Test(build(ip(f.Source, f.Destination), packet.TCPHeader{Src: f.SourcePort, Dst: 80, Flags: packet.SYN}, packet.Text("")))
		must(t, err)
		want := uint32(xdpRedirect)
		if s.Ring.SlotOf(f.Hash(s.Salt, s.Affinity))%2 == 0 {
			want = xdpDrop
		}
		if verdict != want {
			t.Fatalf("slot %d: the verdict is %d, want %d", s.Ring.SlotOf(f.Hash(s.Salt, s.Affinity)), verdict, want)
		}
		verdicts[verdict]++
	}
	for _, reason := range statusOf(t, d).Reasons {
		if reason.Name == "drop_no_backend" && int(reason.Packets) != verdicts[xdpDrop] {
			t.Errorf("%d packets were counted as %s, want %d", reason.Packets, reason.Name, verdicts[xdpDrop])
		}
	}
	if len(verdicts) != 2 {
		t.Errorf("the verdicts are %v", verdicts)
	}
}
