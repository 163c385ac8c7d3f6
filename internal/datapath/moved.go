package datapath

import (
	"bytes"
	"time"

	"weir.io/weir/internal/model"
)

// A director follows the MAC addresses of its next hops at once: a host may take an address over
// from another one. If nobody has meant that, another host now gets clients' packets, and may answer
// health checks, too. So each move is told and counted. It is told for a time only, because a host
// that was replaced looks the same. The director does not ask the link whether the former host still
// has the address: the kernel would take its answer in, and send packets to it again.

// movedHolds is how long a move is told.
const movedHolds = time.Minute

// movements are next hops whose MAC address has changed while a backend was reached by them.
// Changes from before that are not known: another host may have had the address rightly.
type movements struct {
	of    map[neighbor]movement
	last  time.Time // when one has moved
	total uint64
}

// movement is where a next hop is, and where it was.
type movement struct {
	now, before model.MAC
	at          time.Time // of the last move
	returned    bool      // it has moved to and fro: two hosts have its address
}

// follow notes where a backend's next hop is now.
func (m *movements) follow(b *backend, hop nextHop, at time.Time) {
	switch {
	case hop.via == neighbor{} && b.desired.MAC.IsZero(): // there is no way now
	case hop.via != b.via:
		b.via, b.mac = hop.via, hop.mac
	case !hop.mac.IsZero() && hop.mac != b.mac: // it answers
		if !b.mac.IsZero() {
			m.see(b.via, b.mac, hop.mac, at)
		}
		b.mac = hop.mac
	}
}

// see notes that a next hop has moved. Each backend that is reached by it says so.
func (m *movements) see(n neighbor, from, to model.MAC, at time.Time) {
	if at.Sub(m.last) >= movedHolds {
		m.of = map[neighbor]movement{} // all of them are old
	}
	is, known := m.of[n]
	if known && is.now == to {
		return
	}
	recent := known && at.Sub(is.at) < movedHolds
	m.of[n] = movement{now: to, before: from, at: at, returned: recent && (is.returned || to == is.before)}
	m.last = at
	m.total++
}

// recent are the moves that are to be told.
func (m *movements) recent(now time.Time) map[neighbor]movement {
	found := map[neighbor]movement{}
	if now.Sub(m.last) >= movedHolds {
		return found
	}
	for n, is := range m.of {
		if now.Sub(is.at) < movedHolds {
			found[n] = is
		}
	}
	return found
}

// Moved returns at most that many of the next hops whose MAC address has changed in the last minute,
// with the backends that are reached by them.
func (d *Datapath) Moved(most int) (found []model.MovedNeighbor) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.entries.memory == nil {
		return nil // closed
	}
	moves := d.movements.recent(time.Now())
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
			move, has := moves[b.via]
			if !has {
				continue
			}
			at, known := by[b.via]
			if !known {
				if len(found) == most {
					continue
				}
				at = len(found)
				by[b.via], found = at, append(found, d.movedNeighbor(b.via, move))
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
