package datapath

import (
	"maps"
	"slices"
	"time"

	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/model"
)

// A backend that this director loses sight of, because its next hop does not answer this host or a
// check of this host fails, may be there for all other hosts. If its connections went to another
// backend they would end at once. So the director keeps them for a while, if no host behind it can
// send them on: BACKEND_SUSPECT. New connections go by the row, as those of a backend that is down
// do, and are remembered.

// suspicions says until when backends are suspects.
type suspicions struct {
	until map[uint32]time.Time // by index
	timer *time.Timer          // for the first time in until
}

// suspect is a backend's entry as it should be now, given the entry that it would have otherwise.
func (d *Datapath) suspect(b *backend, entry abi.Backend) abi.Backend {
	const down, suspect = uint8(abi.BackendStateBACKEND_DOWN), uint8(abi.BackendStateBACKEND_SUSPECT)
	stored := &d.entries.Entries[b.index]
	lost := (entry.State == down || entry.State == suspect) && b.desired.State != model.Down
	if lost && b.desired.Mode != model.GUE && (aliveIn(stored.State) || stored.State == suspect) {
		if d.suspicions.holds(b.index, d.table.Suspect) {
			return suspected(*stored, entry)
		}
	} else {
		delete(d.suspicions.until, b.index)
	}
	if entry.State == suspect {
		entry.State = down
	}
	return entry
}

// isSuspect says whether a backend is a suspect now. Packets of its connections go the way that they
// went, even if no way is known any more.
func (d *Datapath) isSuspect(b *backend) bool {
	return d.entries.Entries[b.index].State == uint8(abi.BackendStateBACKEND_SUSPECT)
}

// suspected is the entry of a suspect: packets take the way that they took before, if no other is
// known.
func suspected(stored, entry abi.Backend) abi.Backend {
	if entry.Flags&uint8(abi.BackendFlagBACKEND_LOCAL) == 0 && model.MAC(entry.Mac).IsZero() {
		entry.Mac, entry.Vlan, entry.SourceMac = stored.Mac, stored.Vlan, stored.SourceMac
		entry.Mtu, entry.Ifindex = stored.Mtu, stored.Ifindex
	}
	entry.State = uint8(abi.BackendStateBACKEND_SUSPECT)
	return entry
}

// holds says whether a backend that is lost is still a suspect. The first call starts the time.
func (s *suspicions) holds(index uint32, lasts time.Duration) bool {
	until, known := s.until[index]
	if !known {
		if s.until == nil {
			s.until = map[uint32]time.Time{}
		}
		until = time.Now().Add(lasts)
		s.until[index] = until
	}
	return time.Now().Before(until)
}

// awaitSuspects arranges for suspects to be looked at again when their time is over.
func (d *Datapath) awaitSuspects() {
	s := &d.suspicions
	if s.timer != nil {
		s.timer.Stop()
		s.timer = nil
	}
	now := time.Now()
	var first time.Time
	for _, until := range s.until {
		if until.After(now) && (first.IsZero() || until.Before(first)) {
			first = until
		}
	}
	if !first.IsZero() {
		s.timer = time.AfterFunc(first.Sub(now), d.condemn)
	}
}

// condemn counts suspects as down when their time is over.
func (d *Datapath) condemn() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed() {
		return // closed
	}
	now := time.Now()
	over := func(b *backend) bool {
		until, suspect := d.suspicions.until[b.index]
		return suspect && !until.After(now)
	}
	for _, s := range slices.Collect(maps.Values(d.services)) {
		if slices.ContainsFunc(s.order, over) {
			d.writeBackends(s)
		}
	}
	d.awaitSuspects()
}
