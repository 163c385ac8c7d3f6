package neighbor

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"weir.io/weir/internal/model"
)

// decision is what a director does about the VIPs now.
type decision struct {
	hold    []netip.Addr // it answers for them
	claim   []netip.Addr // no director does, and this one should
	release []netip.Addr // it should no longer answer for them
}

// plan returns what a director does that could answer for the VIPs that it offers. It is a pure
// function of what the group knows: the decisions of directors that know the same fit together.
//
// A VIP stays where it is as long as its owner offers it, and the loss of a director moves only its
// VIPs: each goes to the director that has the fewest. VIPs move to a returning or new director as
// long as that makes the numbers more equal, and only when it is settled: one that comes and goes
// takes no VIPs.
func plan(self netip.Addr, offers []netip.Addr, group *model.NeighborGroup, settled func(netip.Addr) bool) decision {
	members := maps.Clone(group.Members)
	members[self] = offers
	p := placement{members: members, owned: map[netip.Addr][]netip.Addr{}, coming: map[netip.Addr]int{}}
	for director := range members {
		p.directors = append(p.directors, director)
	}
	slices.SortFunc(p.directors, netip.Addr.Compare)
	var d decision
	var mine []netip.Addr
	for vip, owner := range group.Owners {
		switch {
		case owner.Mine && !p.offers(self, vip):
			d.release = append(d.release, vip)
		case owner.Mine:
			mine = append(mine, vip)
			p.owned[self] = append(p.owned[self], vip)
		default:
			p.owned[owner.Director] = append(p.owned[owner.Director], vip)
		}
	}
	for _, vips := range p.owned {
		slices.SortFunc(vips, netip.Addr.Compare)
	}
	for _, vip := range unowned(members, group) {
		to := p.fewest(vip)
		p.coming[to]++
		if to == self {
			d.claim = append(d.claim, vip)
		}
	}
	leaving := p.balance(self, settled)
	for _, vip := range mine {
		if leaving[vip] {
			d.release = append(d.release, vip)
		} else {
			d.hold = append(d.hold, vip)
		}
	}
	slices.SortFunc(d.hold, netip.Addr.Compare)
	slices.SortFunc(d.release, netip.Addr.Compare)
	return d
}

// unowned returns the VIPs that are offered and have no owner, in order.
func unowned(members map[netip.Addr][]netip.Addr, group *model.NeighborGroup) []netip.Addr {
	free := map[netip.Addr]bool{}
	for _, vips := range members {
		for _, vip := range vips {
			if _, owned := group.Owners[vip]; !owned {
				free[vip] = true
			}
		}
	}
	return slices.SortedFunc(maps.Keys(free), netip.Addr.Compare)
}

// placement is which director has, or will soon have, which VIPs.
type placement struct {
	members   map[netip.Addr][]netip.Addr // what each director offers, in order
	directors []netip.Addr                // in order
	owned     map[netip.Addr][]netip.Addr
	coming    map[netip.Addr]int // VIPs without an owner yet: they do not move before they have one
}

func (p *placement) load(director netip.Addr) int { return len(p.owned[director]) + p.coming[director] }

func (p *placement) offers(director, vip netip.Addr) bool {
	_, does := slices.BinarySearchFunc(p.members[director], vip, netip.Addr.Compare)
	return does
}

// fewest returns the director with the fewest VIPs among those that offer one.
func (p *placement) fewest(vip netip.Addr) (director netip.Addr) {
	for _, d := range p.directors {
		if p.offers(d, vip) && (!director.IsValid() || p.load(d) < p.load(director)) {
			director = d
		}
	}
	return director
}

// balance moves VIPs to settled directors from those that have at least two more, until none has to
// move, and returns what one director should give up. The others do the same for theirs.
func (p *placement) balance(self netip.Addr, settled func(netip.Addr) bool) (leaving map[netip.Addr]bool) {
	leaving = map[netip.Addr]bool{}
	for {
		vip, from := p.move(func(d netip.Addr) bool { return d == self || settled(d) })
		switch {
		case !vip.IsValid():
			return leaving
		case from == self:
			leaving[vip] = true
		}
	}
}

// move moves one VIP from the director with the most to the one with the fewest, among those
// allowed.
func (p *placement) move(may func(netip.Addr) bool) (vip, from netip.Addr) {
	byLoad := slices.Clone(p.directors)
	slices.SortStableFunc(byLoad, func(a, b netip.Addr) int { return cmp.Compare(p.load(a), p.load(b)) })
	for i := len(byLoad) - 1; i >= 0; i-- {
		from := byLoad[i]
		for _, to := range byLoad {
			if p.load(from)-p.load(to) < 2 {
				break
			}
			if !may(to) {
				continue
			}
			// From the end, where moved VIPs are added.
			for j := len(p.owned[from]) - 1; j >= 0; j-- {
				if vip := p.owned[from][j]; p.offers(to, vip) {
					p.owned[from] = slices.Delete(p.owned[from], j, j+1)
					p.owned[to] = append(p.owned[to], vip)
					return vip, from
				}
			}
		}
	}
	return netip.Addr{}, netip.Addr{}
}
