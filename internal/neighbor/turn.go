package neighbor

import (
	"context"
	"maps"
	"net"
	"net/netip"
	"slices"
	"time"

	"weir.io/weir/internal/model"
)

// lookAgain is how often interfaces are looked at without a notice: there is none when a program is
// detached from one.
const lookAgain = time.Second

// idle is the longest pause without VIPs to answer for.
const idle = time.Hour

// maxVIPs is how many a director offers to its group: what it offers is one value in etcd, of
// 1.5 MiB at most.
const maxVIPs = 16384

// turn is what one goroutine of a speaker owns: it takes a turn whenever something may have
// changed, or is due.
type turn struct {
	*Speaker
	want     want
	stations map[model.NeighborPlace]*station
	looked   time.Duration // when the interfaces were looked at; 0: they have to be
	version  int           // the version of want then
	self     netip.Addr    // this director's address in the group
	part     *part         // in the group; nil: none
	joined   netip.Addr    // the address with which it joined
	lease    model.Duration
	seen     map[netip.Addr]time.Duration // since when other members have been there
	holds    map[model.VIP]*holding
	lapsed   bool // the lease has ended while VIPs were held by it
	full     bool // there are more VIPs than a group can share
	taken    uint64
	lost     uint64
}

// holding is a VIP that this director answers for.
type holding struct {
	since    time.Time
	defended time.Duration // when it was announced because of another host's claim
	rival    *rival        // nil: no other host claims it
	on       map[model.NeighborPlace]*announced
}

// rival is another host that claims a VIP.
type rival struct {
	with  mac           // the first host that claimed it
	heard time.Duration // the time of the last claim
}

func newTurn(s *Speaker) *turn {
	return &turn{Speaker: s, stations: map[model.NeighborPlace]*station{}, seen: map[netip.Addr]time.Duration{}, holds: map[model.VIP]*holding{}}
}

// take does the work that is due, and returns the time until there may be more.
func (t *turn) take(ctx context.Context) time.Duration {
	t.mu.Lock()
	t.want = t.set
	claimed := t.claimed
	t.claimed = map[model.VIP]mac{}
	t.mu.Unlock()
	now := t.guard.clock()
	if t.looked == 0 || now >= t.looked+lookAgain || t.version != t.want.version {
		t.lookAround()
		t.looked, t.version = now, t.want.version
	}
	where := t.where()
	offers := slices.SortedFunc(maps.Keys(where), model.VIP.Compare)
	t.meet(ctx)
	t.noteLapse()
	group, holds, write := t.decide(now, offers)
	t.hold(now, where, holds)
	write(ctx)
	t.defend(now, claimed)
	next := t.announce(now)
	t.report(&group, where)
	if !t.want.config.Given() {
		return idle
	}
	return min(next, t.looked+lookAgain-now, t.unsettled(now))
}

// lookAround sets up the stations by the configuration and the interfaces.
func (t *turn) lookAround() {
	wanted := map[model.NeighborPlace]bool{}
	for i := range t.want.config.Interfaces {
		c := &t.want.config.Interfaces[i]
		at := c.Place()
		wanted[at] = true
		one := t.stations[at]
		if one == nil {
			one = &station{at: at, log: t.log, guard: t.guard, conflict: t.conflicted}
			t.stations[at] = one
		}
		l := look(c)
		var vips []netip.Addr
		for _, vip := range t.want.vips {
			if l.has(vip) {
				vips = append(vips, vip.Address)
			}
		}
		before := one.why()
		if one.set(l, vips) {
			for _, h := range t.holds {
				delete(h.on, at)
			}
		}
		if now := one.why(); now != before {
			if now == "" {
				now = "none any more"
			}
			t.log.Info("VIPs on an interface", "interface", at.String(), "problem", now)
		}
	}
	for at, one := range t.stations {
		if !wanted[at] {
			one.close()
			delete(t.stations, at)
		}
	}
	if t.self = (netip.Addr{}); t.want.config.Given() {
		t.self = t.ownAddress()
	}
}

// ownAddress returns the group's address that this host has.
func (t *turn) ownAddress() netip.Addr {
	addresses, _ := net.InterfaceAddrs() // without them none is found
	for _, a := range t.want.group {
		for _, here := range addresses {
			if prefix, err := netip.ParsePrefix(here.String()); err == nil && prefix.Addr() == a {
				return a
			}
		}
	}
	return netip.Addr{}
}

// where returns at which places each VIP would be answered for; a VIP without a place is not in it.
func (t *turn) where() map[model.VIP][]model.NeighborPlace {
	where := map[model.VIP][]model.NeighborPlace{}
	if t.want.draining {
		return where
	}
	for i := range t.want.config.Interfaces {
		one := t.stations[t.want.config.Interfaces[i].Place()]
		if !one.works() {
			continue
		}
		for _, vip := range t.want.vips {
			if one.link.has(vip) {
				where[vip] = append(where[vip], one.at)
			}
		}
	}
	if t.full = t.join != nil && len(where) > maxVIPs; t.full {
		for _, vip := range slices.SortedFunc(maps.Keys(where), model.VIP.Compare)[maxVIPs:] {
			delete(where, vip)
		}
	}
	return where
}

// meet makes this director join its group, or leave it.
func (t *turn) meet(ctx context.Context) {
	wanted := netip.Addr{}
	if t.join != nil && t.want.config.Given() {
		wanted = t.self
	}
	if wanted == t.joined && (t.part == nil || t.lease == t.want.config.Lease) {
		return
	}
	t.leave()
	t.joined, t.lease = wanted, t.want.config.Lease
	if wanted.IsValid() {
		t.part = t.newPart(ctx, wanted, time.Duration(t.lease))
	}
}

// leave ends this director's part in its group. It stops answering before that.
func (t *turn) leave() {
	t.guard.set(nil)
	t.guard.allow(0)
	if t.part != nil {
		t.part.end()
		t.part = nil
	}
}

// noteLapse logs that a lease has ended: etcd cannot tell so if it cannot be asked.
func (t *turn) noteLapse() {
	lapsed := t.part != nil && len(t.holds) > 0 && t.guard.lapsed()
	if lapsed && !t.lapsed {
		t.log.Warn("the lease of the VIPs ends: this director answers for none", "vips", len(t.holds))
	}
	t.lapsed = lapsed
}

// decide returns what is known about the group, and the VIPs that this director answers for: in a
// group those that its etcd says are its own and the plan does not give up. Before it writes to the
// group it stops answering for the VIPs that it gives up.
func (t *turn) decide(now time.Duration, offers []model.VIP) (group model.NeighborGroup, hold []model.VIP, write func(context.Context)) {
	write = func(context.Context) {}
	switch {
	case !t.want.config.Given():
		return group, nil, write
	case t.join == nil:
		t.guard.allow(forever)
		return group, offers, write
	case t.part == nil:
		return group, nil, write
	}
	group = t.part.registry.Group()
	t.watch(now, &group)
	if !group.Known {
		return group, nil, write
	}
	settle := time.Duration(t.want.config.Settle)
	offers, home := t.want.sources.offered(offers, t.joined, group.Homes)
	d := plan(t.joined, offers, &group, func(a netip.Addr) bool { return now >= t.seen[a]+settle })
	d.hold, d.release = t.part.keep(&group, d)
	return group, d.hold, func(ctx context.Context) { t.part.write(ctx, &group, offers, home, d) }
}

// watch notes since when each director is there.
func (t *turn) watch(now time.Duration, group *model.NeighborGroup) {
	for a := range t.seen {
		if _, there := group.Members[a]; !there {
			delete(t.seen, a)
		}
	}
	for a := range group.Members {
		if _, known := t.seen[a]; !known && a != t.joined {
			t.seen[a] = now
		}
	}
}

// unsettled returns the time until the next new director may get VIPs.
func (t *turn) unsettled(now time.Duration) time.Duration {
	next := lookAgain
	for _, since := range t.seen {
		if at := since + time.Duration(t.want.config.Settle); at > now {
			next = min(next, at-now)
		}
	}
	return next
}

// end ends everything. The other directors of the group know it at once.
func (t *turn) end() {
	t.leave()
	for _, one := range t.stations {
		one.close()
	}
}
