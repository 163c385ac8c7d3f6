package twin

import (
	"net/netip"

	"weir.io/weir/internal/model"
)

// A row names at most so many others.
const (
	hops4 = 7
	hops6 = 5
)

// Forward says to which of a service's backends a director sends a packet of a flow in
// gue, -1 for nobody, and with which row; nil if there is nobody else to name. A SYN and
// a fragment carry none.
func Forward(s *model.TableService, f model.Flow) (backend int, row *Row) {
	if len(s.Ring.Slots) == 0 {
		return -1, nil
	}
	slot := s.Ring.SlotOf(f.Hash(s.Salt, s.Affinity))
	candidates := s.Ring.Row(slot)
	backend = -1
	for _, c := range candidates {
		if alive(s, c) {
			backend = int(c)
			break
		}
	}
	if backend < 0 {
		return -1, nil
	}
	if hops := others(s, slot, candidates, uint32(backend)); len(hops) > 0 {
		row = &Row{Hops: hops}
	}
	return backend, row
}

// others are the candidates that a packet to one of them names besides: the likeliest
// to have an unknown connection first, those that are down last.
func others(s *model.TableService, slot int, candidates []uint32, to uint32) (hops []netip.Addr) {
	address, most := s.Backends[to].Address, hops4
	if address.Is6() {
		most = hops6
	}
	order := candidates
	if next := s.Ring.Slots[slot].Next; next != model.NoBackend && next&model.ListFlag != 0 {
		order = nil
		for _, position := range s.Ring.Lists[next&^model.ListFlag].Oldest {
			order = append(order, candidates[position])
		}
	}
	for _, down := range []bool{false, true} {
		for _, c := range order {
			if c == model.NoBackend || c == to || alive(s, c) == down || s.Backends[c].Mode != model.GUE ||
				s.Backends[c].Address.Is4() != address.Is4() || len(hops) == most {
				continue
			}
			hops = append(hops, s.Backends[c].Address)
		}
	}
	return hops
}

func alive(s *model.TableService, c uint32) bool {
	return c != model.NoBackend && (s.Backends[c].State == model.Active || s.Backends[c].State == model.Draining)
}
