package datapath

import (
	"testing"

	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/datapath/nexthop"
	"weir.io/weir/lab/packet"
)

// TestFloodedFrames: a switch shows a director what another one has sent to a backend, which this
// director may not have any more. Frames for other hosts are not sent on, whatever this director's
// table says.
func TestFloodedFrames(t *testing.T) {
	virtual := [6]byte{0, 0, 0x5e, 0, 1, 1}
	elsewhere := [6]byte{2, 0xb, 0, 0, 0x77, 0x77} // a backend that this director does not have
	broadcast := [6]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	bothProtocols(t, func(t *testing.T, d *testDirector, s scenario) {
		goes := func(to [6]byte) (action uint32, chosen [6]byte) {
			frame := build(ip(s.client, s.vip), s.segment4(clientPort, servicePort, synFlag), packet.Text("client"))
			copy(frame, to[:])
			action, out := d.run(t, frame, 0)
			return action, [6]byte(out)
		}
		_, backend := goes(egressMAC)
		for _, known := range []bool{true, false} { // whether weir knows all addresses of this host
			d.world.settings.Flags &^= uint32(abi.SettingsFlagSETTINGS_OWN_MACS)
			if known {
				d.world.settings.Flags |= uint32(abi.SettingsFlagSETTINGS_OWN_MACS)
				for _, mac := range [][6]byte{egressMAC, virtual} {
					d.put(t, "own_macs", nexthop.MACWord(mac), uint8(1))
				}
			}
			d.put(t, "this_director", uint32(0), d.world.abiSettings())
			for _, c := range []struct {
				name  string
				to    [6]byte
				other bool // of another host
			}{
				{"the interface", egressMAC, false},
				{"a virtual address", virtual, false},
				{"another director's backend", elsewhere, true},
				{"all hosts", broadcast, false},
			} {
				want := uint32(xdpTX)
				if known && c.other {
					want = xdpPass
				}
				if action, _ := goes(c.to); action != want {
					t.Errorf("%s: verdict %d of a frame for %s, want %d (addresses known: %t)", s.name, action, c.name, want, known)
				}
			}
			if action, _ := goes(backend); action != xdpPass {
				t.Errorf("%s: verdict %d of a frame that is for its backend already, want it left alone", s.name, action)
			}
		}
	})
}
