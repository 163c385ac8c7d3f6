package datapath

import (
	"math/big"

	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/model"
)

// The twin of bpf/director/pick/ring.h is [model.Flow], written a second time from
// docs/internals/datapath.md, so that a slip in one of the two shows. It works on addresses
// and numbers, never on the bytes of a frame.

// twinPlace is twinPick for a packet that opens a connection. With p2c it counts it.
func twinPlace(s *testService, f model.Flow) (int, bool) {
	chosen, found := twinPick(s, f)
	if !found || s.policy != model.P2C {
		return chosen, found
	}
	slot := s.ring.SlotOf(f.Hash(s.salt, s.affinity))
	row := s.ring.Row(slot)
	list, _ := listed(&s.ring, slot)
	if len(row) > 1 && int(row[0]) == chosen && !list.Fixed && s.backends[row[1]].lessLoaded(&s.backends[row[0]]) {
		chosen = int(row[1])
	}
	s.backends[chosen].opened += twinConnection
	return chosen, true
}

const twinConnection = 16 // units of load

// lessLoaded says whether a backup gets a connection of an owner that is up: it could
// have it, and would still have less than eight ninths of the owner's load, by weight.
func (b *testBackend) lessLoaded(owner *testBackend) bool {
	gue := b.mode == model.GUE && owner.mode == model.GUE && b.address.Is4() == owner.address.Is4()
	if !gue || b.local || owner.local || b.gone || b.state != abi.BackendStateBACKEND_ACTIVE || b.weight == 0 || owner.weight == 0 {
		return false
	}
	its := big.NewRat(int64(b.opened)+twinConnection, int64(b.weight))
	owners := big.NewRat(int64(owner.opened), int64(owner.weight))
	return its.Cmp(owners.Mul(owners, big.NewRat(8, 9))) < 0
}

// twinPick returns the position of the backend that a flow belongs to; false
// when no candidate of its row is alive.
func twinPick(s *testService, f model.Flow) (int, bool) {
	if len(s.ring.Slots) == 0 {
		return 0, false
	}
	for _, c := range s.ring.Row(s.ring.SlotOf(f.Hash(s.salt, s.affinity))) {
		state := s.backends[c].state
		if state == abi.BackendStateBACKEND_ACTIVE || state == abi.BackendStateBACKEND_DRAINING {
			return int(c), true
		}
	}
	return 0, false
}
