package datapath

import (
	"fmt"
	"testing"
	"unsafe"

	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/model"
)

// Flows are remembered where no agent knows better, or only for as long as their row
// names the backend that has them; and a ring is made even if that is its only change.
func TestWhatIsRemembered(t *testing.T) {
	for _, test := range []struct {
		protocol model.Protocol
		modes    []model.Mode
		reported bool
		want     bool
	}{
		{model.TCP, []model.Mode{model.L2DSR}, false, true},
		{model.UDP, []model.Mode{model.IPIP}, true, true},
		{model.TCP, []model.Mode{model.GUE, model.GUE}, false, false},
		{model.UDP, []model.Mode{model.GUE, model.GUE}, false, true},
		{model.UDP, []model.Mode{model.GUE, model.GUE}, true, false},
		{model.UDP, []model.Mode{model.GUE, model.IPIP}, true, true},
	} {
		s := model.TableService{Protocol: test.protocol, Reported: test.reported, Ring: model.Ring{Slots: []model.Slot{{Next: model.NoBackend}}}}
		var index []uint32
		for i, mode := range test.modes {
			s.Backends = append(s.Backends, model.TableBackend{Mode: mode})
			index = append(index, uint32(1+i))
		}
		image, err := buildRing(nil, &s, 1, index)
		must(t, err)
		header := (*abi.RingHeader)(unsafe.Pointer(&image[0]))
		if got := header.Flags&uint8(abi.RingFlagRING_MEMORY) != 0; got != test.want {
			t.Errorf("%s: flows are remembered: %v, want %v", fmt.Sprint(test.protocol, test.modes, " reported ", test.reported), got, test.want)
		}
		other := s
		other.Reported = !s.Reported
		if sameService(&s, &other) {
			t.Errorf("%v: agents begin to report, and nothing is said to have changed", test.modes)
		}
	}
}
