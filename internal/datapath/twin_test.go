package datapath

import "weir.io/weir/internal/model"

// The twin of bpf/pick.h is [model.Flow], written a second time from
// docs/datapath.md, so that a slip in one of the two shows. It works on addresses
// and numbers, never on the bytes of a frame.

// twinPick returns the position of the backend that a flow belongs to; false
// when no candidate of its row is alive.
func twinPick(s *testService, f model.Flow) (int, bool) {
	if len(s.ring.Slots) == 0 {
		return 0, false
	}
	for _, c := range s.ring.Row(s.ring.SlotOf(f.Hash(s.salt, s.affinity))) {
		state := s.backends[c].state
		if state == directorBackendStateBACKEND_ACTIVE || state == directorBackendStateBACKEND_DRAINING {
			return int(c), true
		}
	}
	return 0, false
}
