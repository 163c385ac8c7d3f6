package datapath

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"
	"unsafe"

	"weir.io/weir/internal/contents"
	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/datapath/checks"
	"weir.io/weir/internal/datapath/nexthop"
	"weir.io/weir/internal/model"
	"weir.io/weir/internal/upkeep"
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
	of    map[nexthop.Neighbor]movement
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
func (m *movements) follow(b *backend, hop nexthop.Hop, at time.Time) {
	switch {
	case hop.Via == nexthop.Neighbor{} && b.desired.MAC.IsZero(): // there is no way now
	case hop.Via != b.via:
		b.via, b.mac = hop.Via, hop.MAC
	case !hop.MAC.IsZero() && hop.MAC != b.mac: // it answers
		if !b.mac.IsZero() {
			m.see(b.via, b.mac, hop.MAC, at)
		}
		b.mac = hop.MAC
	}
}

// see notes that a next hop has moved. Each backend that is reached by it says so.
func (m *movements) see(n nexthop.Neighbor, from, to model.MAC, at time.Time) {
	if at.Sub(m.last) >= movedHolds {
		m.of = map[nexthop.Neighbor]movement{} // all of them are old
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
func (m *movements) recent(now time.Time) map[nexthop.Neighbor]movement {
	found := map[nexthop.Neighbor]movement{}
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
	if d.closed() {
		return nil
	}
	moves := d.movements.recent(time.Now())
	if len(moves) == 0 {
		return nil
	}
	by := map[nexthop.Neighbor]int{} // places in found
	for _, s := range d.table.Services {
		of := d.services[keyOf(&s)]
		if of == nil || !of.assigned {
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

func (d *Datapath) movedNeighbor(n nexthop.Neighbor, m movement) model.MovedNeighbor {
	if m.returned && bytes.Compare(m.now[:], m.before[:]) > 0 {
		m.now, m.before = m.before, m.now // the same text, however often it moves
	}
	return model.MovedNeighbor{Address: n.Address, Interface: d.hops.NameOf(n.Ifindex), Now: m.now, Before: m.before, InTurn: m.returned}
}

// Unreached returns the VIPs that have a backend which is to get packets and gets none, because its
// next hop is not known. That is so after a Set with backends that are new here,
// until their neighbors have answered, and for as long as one does not answer.
func (d *Datapath) Unreached() map[model.VIP]bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	unreached := map[model.VIP]bool{}
	if d.closed() {
		return unreached
	}
	for _, s := range d.services {
		if s.assigned && d.lacksWay(s) {
			unreached[model.VIP{Segment: s.desired.Segment, Address: s.desired.VIP}] = true
		}
	}
	return unreached
}

// HasVLAN reports whether the host has an interface for a VLAN on one of the director's, by which packets to backends
// in it leave.
func (d *Datapath) HasVLAN(id uint32) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return !d.closed() && d.hops.HasVLAN(d.own, id)
}

// Unreachable returns backends that should get packets and to which there is no way, each with the reason: at
// most that many of each segment's services.
func (d *Datapath) Unreachable(most int) (found []model.UnreachableBackend) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed() {
		return nil
	}
	many := map[model.Segment]int{}
	for _, s := range d.table.Services {
		of := d.services[keyOf(&s)]
		if of == nil || !of.assigned {
			continue
		}
		for _, b := range of.order {
			if many[s.Segment] == most {
				break
			}
			if why := d.whyUnreachable(b); why != "" && !d.isSuspect(b) {
				many[s.Segment]++
				found = append(found, model.UnreachableBackend{Service: s.Name, Segment: s.Segment, Backend: b.desired.Name, Why: why})
			}
		}
	}
	return found
}

// whyUnreachable says why there is no way to a backend; empty: there is one, or none is needed.
func (d *Datapath) whyUnreachable(b *backend) string {
	entry := &d.entries.Entries[b.index]
	if !b.desired.State.Alive() || entry.Flags&uint8(abi.BackendFlagBACKEND_LOCAL) != 0 || !model.MAC(entry.Mac).IsZero() && !d.isSuspect(b) {
		return ""
	}
	hop := d.hops.Resolve(b.desired, d.own)
	switch {
	case hop.Local || !hop.MAC.IsZero():
		return "" // the entry is about to be written
	case hop.Problem != "":
		return hop.Problem
	}
	return fmt.Sprintf("nothing answers for %v on %s", d.hops.NeighborOf(b.desired), d.hops.NameOf(hop.Link))
}

func (d *Datapath) lacksWay(s *service) bool {
	for _, b := range s.order {
		entry := &d.entries.Entries[b.index]
		local := entry.Flags&uint8(abi.BackendFlagBACKEND_LOCAL) != 0
		if b.desired.State.Alive() && !local && model.MAC(entry.Mac).IsZero() {
			return true
		}
	}
	return false
}

// A switch that does not know where a host is floods the frames for it to all. l2dsr leaves these
// frames alone, and so has to know which MAC addresses are this host's: an interface may take frames
// for several (macvlan, a MAC address that VRRP moves).

// followOwnMACs brings own_macs up to date, and returns the flag of the settings that goes with it. If
// the addresses are not known, frames for any address are this host's.
func (d *Datapath) followOwnMACs(services []*service) (flag uint32, err error) {
	d.unknownMACs = nil
	if !useL2DSR(services) {
		d.hops.IgnoreHostMACs()
		return 0, nil
	}
	own, err := d.hops.HostMACs()
	if most := int(d.kernel.OwnMacs.MaxEntries()) / 2; err == nil && len(own) > most { // the old ones beside the new ones
		err = fmt.Errorf("the host has %d MAC addresses, and weir compares at most %d", len(own), most)
	}
	if err != nil {
		d.unknownMACs = err
		return 0, nil
	}
	if !maps.Equal(own, d.wrote.own) {
		byHand, err := contents.Replace(d.kernel.OwnMacs, own, d.wrote.own)
		if d.countHands("own_macs", byHand); err != nil {
			return 0, fmt.Errorf("MAC addresses of this host: %w", err)
		}
		d.wrote.own = own
	}
	return uint32(abi.SettingsFlagSETTINGS_OWN_MACS), nil
}

// useL2DSR reports whether some backend gets packets by its MAC address.
func useL2DSR(services []*service) bool {
	return slices.ContainsFunc(services, func(s *service) bool {
		return slices.ContainsFunc(s.order, func(b *backend) bool { return b.desired.Mode == model.L2DSR })
	})
}

// ownMACDifference says that frames for other hosts are not recognized.
func (d *Datapath) ownMACDifference() []upkeep.Difference {
	if d.unknownMACs == nil {
		return nil
	}
	return []upkeep.Difference{{What: upkeep.MACs, Found: fmt.Sprintf("are not known, so l2dsr forwards frames that a switch floods for other hosts, too: %v", d.unknownMACs)}}
}

// Checks returns what leads probes by the way of this datapath's packets.
func (d *Datapath) Checks() *checks.Ways {
	return checks.New(checks.Deps{Log: d.log, Hops: d.hops, Pin: d.options.Pin, Limit: d.options.Limits.Backends, Entry: checkEntryOf, Expect: d.overlay.expect, StandIn: d.overlay.standIn, Hears: d.hears.Load})
}

// checkEntry is struct check_way, made of the director's own types.
type checkEntry struct {
	To       abi.Backend
	Settings abi.Settings
	Own      abi.Address
	Target   abi.Address
	Self     abi.VtepSelf
	Place    abi.VtepPlace
	Pad      uint32
}

// The two are the same structure: this does not compile when they differ in size.
const _ = -(unsafe.Sizeof(checkEntry{}) ^ checks.EntrySize)

// checkEntryOf is the way as the program knows it. Packets have these addresses; invalid: those of their socket.
func checkEntryOf(way *model.CheckWay, hop nexthop.Hop, source, target netip.Addr) (any, error) {
	var entry checkEntry
	b := way.Backend
	entry.To = entryOf(&model.TableService{VIP: way.VIP}, 0, b, hop)
	if way.Direct {
		entry.To.Mode = uint8(model.L2DSR)
	}
	if b.Segment.Kind == model.SegmentVLAN && b.Segment.ID <= 0xfff && entry.To.Vlan == 0 && !hop.Routed {
		entry.To.Vlan = abi.BigEndian16(uint16(b.Segment.ID)) // clients' packets have it already
	}
	if source.IsValid() {
		entry.Own = abi.AddressBytes(source)
	}
	if target.IsValid() {
		entry.Target = abi.AddressBytes(target)
	}
	if hop.Outer.Kind != model.SegmentNone {
		entry.Self = selfOf(&way.VTEP)
		entry.Place = placeKey{hop.Outer.Kind, hop.Outer.VNI, hop.Outer.VTEP, hop.Outer.Options}.entry(&hop.Outer, hop.Ifindex)
	}
	if b.Mode == model.L2DSR || way.Direct {
		return entry, nil
	}
	outer, err := outerSource(way, hop)
	if err != nil {
		return entry, err
	}
	setTunnelSource(&entry.Settings, outer)
	return entry, nil
}

// outerSource is this director's own address in the backend's segment, the configured tunnel source of the
// backend's family, or this host's address.
func outerSource(way *model.CheckWay, hop nexthop.Hop) (netip.Prefix, error) {
	inside := slices.IndexFunc(way.Own, func(a netip.Addr) bool { return a.Is4() == way.Backend.Address.Is4() })
	if inside >= 0 {
		return netip.PrefixFrom(way.Own[inside], way.Own[inside].BitLen()), nil
	}
	i := slices.IndexFunc(way.TunnelSource, func(p netip.Prefix) bool { return p.Addr().Is4() == way.Backend.Address.Is4() })
	if i >= 0 {
		return way.TunnelSource[i], nil
	}
	own := nexthop.OwnAddress(hop, way.Directors)
	if !own.IsValid() {
		return netip.Prefix{}, errors.New("this host has no address to send tunnels from")
	}
	return netip.PrefixFrom(own, own.BitLen()), nil
}
