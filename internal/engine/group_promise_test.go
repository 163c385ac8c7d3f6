package engine

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"weir.io/weir/internal/model"
	"weir.io/weir/lab/twin"
)

// promises says whether a connection that a director has placed is one that is found
// again: an owner of the slot has it, or a backup, for which there may be no room. In a
// slot that is held a backup may be first, because the owner was removed. Where a director
// sees owner and backup down, somebody else gets it, whose connections of that slot may be
// over in the log's eyes.
func (g *group) promises(d *director, backend netip.AddrPort, f model.Flow) (promised, backup bool) {
	now, table := g.revisions[d.revision], &d.service
	hash := func(a model.Affinity) uint32 { return uint32(f.Hash(table.Salt, a) >> 32) }
	row := rowOf(&table.Ring, hash(table.Affinity))
	is := func(position int) bool {
		return position < len(row) && now.service.Backends[row[position]].Endpoint() == backend
	}
	if is(0) {
		return true, !g.owned(now.log.InTier(table.Tier), backend, hash)
	}
	backup = is(1) && g.backup(now.log.InTier(table.Tier), hash) == backend
	return backup, backup
}

// owned says whether a backend owns a flow's slot in some generation of the log.
func (g *group) owned(log model.Log, backend netip.AddrPort, hash func(model.Affinity) uint32) bool {
	return slices.ContainsFunc(log.Generations, func(v model.Generation) bool {
		slot := uint64(hash(v.Affinity)) * uint64(v.Slots) >> 32
		if len(v.Members) == 0 || v.Kept != nil && !v.Kept.Has(int(slot)) {
			return false
		}
		id := ringDigest(&v)
		ring, known := g.rings[id]
		if !known {
			ring = makeRing(&v)
			g.rings[id] = ring
		}
		return v.Members[ring.Owners[slot]].Backend == backend
	})
}

func (g *group) segment(c *client, flags uint8) *twin.Segment {
	return &twin.Segment{Connection: connection(c.flow), Flags: flags, Sequence: c.next, Ack: c.ack}
}

// send sends a packet by some director, and checks that it comes to the host that has the
// connection. It returns the backend that gets the packet.
func (g *group) send(c *client, p twin.Packet) netip.Addr {
	d := g.anyDirector()
	to, path := g.walk(d, c.flow, p)
	if len(path) == 0 {
		return c.end // lost: the director sees nobody
	}
	if !c.promised {
		return to
	}
	if d.revision < c.revision {
		g.behind++
		if to != c.end {
			g.misdirected++
		}
		return c.end
	}
	row, full := g.candidates(d, c.flow)
	if g.walked++; len(path) > 1 {
		g.passed++
	}
	if g.tiers != nil && full && to != c.end { // older owners of other tiers are named where there is room
		if placing := g.placedBy(d, c); placing == c.backend {
			g.t.Fatalf("tier %d places connections on %v, and a director that uses tier %d does not name it: row %v\n%s", c.tier, c.end, d.service.Tier, names(&d.service, row), describe(g.revisions[d.revision].log))
		}
		if !c.backup {
			g.crowded++
		}
		c.promised = false
		return to
	}
	if to != c.end && !(c.backup && full) {
		g.t.Fatalf("a connection of %v (as backup: %v) that a director placed at revision %d in tier %d: a packet by one in tier %d at %d of %d went over %v\nrow %v, there %+v\nlog\n%s",
			c.end, c.backup, c.revision, c.tier, d.service.Tier, d.revision, len(g.revisions)-1, path, names(&d.service, row), g.hosts[path[len(path)-1]].Sockets[connection(c.flow)], describe(g.revisions[d.revision].log))
	}
	return c.end
}

// placedBy is the backend on which the tier that has placed a connection places it now, for a director that may use another one.
func (g *group) placedBy(d *director, c *client) netip.AddrPort {
	s := &d.service
	if int(c.tier) >= len(s.Tiers) || len(s.Tiers[c.tier].Ring.Slots) == 0 {
		return netip.AddrPort{}
	}
	r := &s.Tiers[c.tier]
	first := r.Ring.Row(r.Ring.SlotOf(c.flow.Hash(s.Salt, r.Affinity)))[0]
	if first == model.NoBackend {
		return netip.AddrPort{}
	}
	return s.Backends[first].Endpoint()
}

// candidates are whose a flow may be for a director; full says that there was no room for
// somebody else.
func (g *group) candidates(d *director, f model.Flow) (all []uint32, full bool) {
	now, s := &g.revisions[d.revision], &d.service
	bound, boundBefore := g.boundsOf(&now.service, now.log)
	all = s.Ring.Row(s.Ring.SlotOf(f.Hash(s.Salt, s.Affinity)))
	full = len(all) >= bound
	if s.Before == nil {
		return all, full
	}
	g.rehashed++
	before := rowOf(&s.Before.Ring, uint32(f.Hash(s.Salt, s.Before.Affinity)>>32))
	return append(before, all...), full || len(before) >= boundBefore
}

func names(s *model.TableService, row []uint32) (list []string) {
	for _, c := range row {
		list = append(list, fmt.Sprint(s.Backends[c].Address, " ", s.Backends[c].State))
	}
	return list
}

func describe(log model.Log) string {
	var text strings.Builder
	for _, g := range log.Generations {
		fmt.Fprintf(&text, "%d since %v, held %v: %d slots by %v, kept %v, gone %v:", g.Number, g.Since, g.Held, g.Slots, g.Affinity, g.Kept != nil, g.Gone)
		for _, m := range g.Members {
			fmt.Fprintf(&text, " %v*%d/%d", m.Backend.Addr(), m.Weight, m.Tier)
		}
		text.WriteString("\n")
	}
	return text.String()
}
