package datapath

import (
	"testing"

	"weir.io/weir/internal/model"
	"weir.io/weir/internal/packet"
)

// TestFloodedFrames: a switch shows a director what another one has sent to a backend.
// Whichever of the slot's candidates that is, it is not sent on, and not to another one.
func TestFloodedFrames(t *testing.T) {
	for _, ring := range []model.Ring{listedRing(0, 1, 2), {Slots: []model.Slot{{Owner: 0, Next: 1}}}} {
		bothProtocols(t, func(t *testing.T, d *testDirector, s scenario) {
			s.setRing(t, d, ring)
			named := 1 + len(ring.Lists) // behind the owner
			goes := func(to [6]byte) uint32 {
				frame := build(ip(s.client, s.vip), s.segment4(clientPort, servicePort, ackFlag), packet.Text("client"))
				copy(frame, to[:])
				action, _ := d.run(t, frame, 0)
				return action
			}
			for i := range uint32(named + 1) {
				if action := goes(backendMAC(s.first + i)); action != xdpPass {
					t.Errorf("%s: verdict %d of a frame for candidate %d, want it left alone", s.name, action, i)
				}
			}
			for name, mac := range map[string][6]byte{"the interface": egressMAC, "a virtual address": {0, 0, 0x5e, 0, 1, 1}} {
				if action := goes(mac); action != xdpTX {
					t.Errorf("%s: verdict %d of a frame for %s, want it forwarded", s.name, action, name)
				}
			}
		})
	}
}
