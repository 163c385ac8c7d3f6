package datapath

import (
	"bytes"
	"maps"
	"time"

	"weir.io/weir/internal/model"
)

// A director follows the MAC addresses of its next hops at once: a host may take an address over
// from another one. If nobody has meant that, another host now gets clients' packets, and may answer
// health checks, too. So each move is told, for a time.

// movedHolds is how long a move is told.
const movedHolds = time.Minute

// movements are what next hops' MAC addresses were. The resolver's lock is held.
type movements struct {
	of   map[neighbor]movement
	last time.Time // when one has moved
}

// movement is where a next hop is, and where it was.
type movement struct {
	now, before model.MAC // before is zero if it has not moved
	at          time.Time // of the last move
	returned    bool      // it has moved to and fro: two hosts have its address
}

// see notes where a next hop is.
func (m *movements) see(n neighbor, mac model.MAC, at time.Time) {
	is, known := m.of[n]
	switch {
	case mac.IsZero() || known && is.now == mac:
		return
	case !known:
		m.of[n] = movement{now: mac}
		return
	}
	recent := !is.before.IsZero() && at.Sub(is.at) < movedHolds
	m.of[n] = movement{now: mac, before: is.now, at: at, returned: recent && (is.returned || mac == is.before)}
	m.last = at
}

// recent are the moves that are to be told.
func (m *movements) recent(now time.Time) map[neighbor]movement {
	found := map[neighbor]movement{}
	if now.Sub(m.last) >= movedHolds {
		return found
	}
	for n, is := range m.of {
		if !is.before.IsZero() && now.Sub(is.at) < movedHolds {
			found[n] = is
		}
	}
	return found
}

// leaveOut forgets hosts that are no next hops any more, if there are many.
func (m *movements) leaveOut(managed map[neighbor]bool) {
	if len(m.of) <= 2*len(managed)+1024 {
		return
	}
	maps.DeleteFunc(m.of, func(n neighbor, _ movement) bool { return !managed[n] })
}

// Moved returns at most that many of the next hops whose MAC address has changed in the last minute,
// with the backends that are reached by them.
func (d *Datapath) Moved(most int) (found []model.MovedNeighbor) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.entries.memory == nil {
		return nil // closed
	}
	moves := d.hops.recentMoves()
	if len(moves) == 0 {
		return nil
	}
	by := map[neighbor]int{} // places in found
	for _, s := range d.table.Services {
		of := d.services[keyOf(&s)]
		if of == nil || !of.placed {
			continue
		}
		for _, b := range of.order {
			via := d.hops.routeTo(b.desired.TunnelEnd()).via
			move, has := moves[via]
			if !has || !b.desired.MAC.IsZero() {
				continue
			}
			at, known := by[via]
			if !known {
				if len(found) == most {
					continue
				}
				at = len(found)
				by[via], found = at, append(found, d.movedNeighbor(via, move))
			}
			found[at].Backends = append(found[at].Backends, s.Name+"/"+b.desired.Name)
		}
	}
	return found
}

func (d *Datapath) movedNeighbor(n neighbor, m movement) model.MovedNeighbor {
	if m.returned && bytes.Compare(m.now[:], m.before[:]) > 0 {
		m.now, m.before = m.before, m.now // the same text, however often it moves
	}
	return model.MovedNeighbor{Address: n.address, Interface: d.hops.nameOf(n.ifindex), Now: m.now, Before: m.before, InTurn: m.returned}
}

// recentMoves are the moves that are to be told.
func (r *resolver) recentMoves() map[neighbor]movement {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.movements.recent(time.Now())
}
