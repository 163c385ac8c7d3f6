package twin

import (
	"net/netip"
	"slices"

	"weir.io/weir/internal/model"
)

// A row names at most this many other hosts.
const (
	hops4 = 7
	hops6 = 5
)

// Forward says to which of a service's backends a director sends a packet of a flow in gue, -1 for
// none, and with which row; nil if there is no other backend to name. A SYN and a fragment carry no
// row.
func Forward(s *model.TableService, f model.Flow) (backend int, row *Row) {
	if len(s.Ring.Slots) == 0 {
		return -1, nil
	}
	backend = -1
	for _, c := range s.Ring.Row(s.Ring.SlotOf(f.Hash(s.Salt, s.Affinity))) {
		if alive(s, c) {
			backend = int(c)
			break
		}
	}
	if backend < 0 {
		return -1, nil
	}
	if hops := others(s, mayHave(s, f), uint32(backend)); len(hops) > 0 {
		row = &Row{Hops: hops}
	}
	return backend, row
}

// RowOf is the row of a datagram of a flow that a director sends to one of a service's backends,
// whichever that is; nil if there is none. The owner of a slot without a list is sure to have the
// flow.
func RowOf(s *model.TableService, f model.Flow, backend int) *DatagramRow {
	slot := s.Ring.Slots[s.Ring.SlotOf(f.Hash(s.Salt, s.Affinity))]
	candidates := mayHave(s, f)
	if listed := slot.Next != model.NoBackend && slot.Next&model.ListFlag != 0; !listed && !rehashed(s, f) {
		other := slot.Owner
		if int(other) == backend {
			return nil
		}
		candidates = []uint32{other}
	}
	hops := others(s, candidates, uint32(backend))
	if len(hops) == 0 {
		return nil
	}
	row := &DatagramRow{Hops: hops}
	for _, b := range s.Backends {
		if !b.State.Alive() && slices.Contains(hops, b.Address) {
			row.Down++
		}
	}
	return row
}

// rehashed says that a flow may be where the earlier affinity puts it.
func rehashed(s *model.TableService, f model.Flow) bool {
	return s.Before != nil && byAge(&s.Before.Ring, s.Before.Ring.SlotOf(f.Hash(s.Salt, s.Before.Affinity))) != nil
}

// mayHave are all backends that may have a flow's connection, the likeliest first: if the affinity
// has changed, those by the earlier affinity, and then those by this one.
func mayHave(s *model.TableService, f model.Flow) []uint32 {
	now := byAge(&s.Ring, s.Ring.SlotOf(f.Hash(s.Salt, s.Affinity)))
	if s.Before == nil {
		return now
	}
	ring := &s.Before.Ring
	all := byAge(ring, ring.SlotOf(f.Hash(s.Salt, s.Before.Affinity)))
	for _, c := range now {
		if !slices.Contains(all, c) {
			all = append(all, c)
		}
	}
	return all
}

// byAge is a slot's row, the oldest owner first; an earlier ring may have none left.
func byAge(r *model.Ring, slot int) (order []uint32) {
	row := r.Row(slot)
	if row[0] == model.NoBackend {
		return nil
	}
	next := r.Slots[slot].Next
	if next == model.NoBackend || next&model.ListFlag == 0 {
		return row
	}
	for _, position := range r.Lists[next&^model.ListFlag].Oldest {
		order = append(order, row[position])
	}
	return order
}

// others are the hosts that a packet to one of them names, too; those that are down come last.
func others(s *model.TableService, order []uint32, to uint32) (hops []netip.Addr) {
	address, most := s.Backends[to].Address, hops4
	if address.Is6() {
		most = hops6
	}
	for _, down := range []bool{false, true} {
		for _, c := range order {
			if c == to || alive(s, c) == down || s.Backends[c].Mode != model.GUE ||
				s.Backends[c].Address.Is4() != address.Is4() || len(hops) == most {
				continue
			}
			hops = append(hops, s.Backends[c].Address)
		}
	}
	return hops
}

func alive(s *model.TableService, c uint32) bool {
	return c != model.NoBackend && s.Backends[c].State.Alive()
}
