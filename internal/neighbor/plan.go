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
	hold    []model.VIP // it answers for them
	claim   []model.VIP // no director does, and this one should
	release []model.VIP // it should no longer answer for them
}

// plan returns what a director does that could answer for the VIPs that it offers. It is a pure
// function of what the group knows: the decisions of directors that know the same fit together.
//
// A VIP stays where it is as long as its owner offers it, and the loss of a director moves only its
// VIPs: each goes to the director that has the fewest. VIPs move to a returning or new director as
// long as that makes the numbers more equal, and only when it is settled: one that comes and goes
// takes no VIPs.
//
// VIPs in segments are spread by themselves: directors of version 0.1 do not know of them, and would
// count otherwise, so that each of two directors might leave a VIP to the other.
func plan(self netip.Addr, offers []model.VIP, group *model.NeighborGroup, settled func(netip.Addr) bool) decision {
	d := planPart(self, offers, group, false, settled)
	tenants := planPart(self, offers, group, true, settled)
	d.hold = append(d.hold, tenants.hold...)
	d.claim = append(d.claim, tenants.claim...)
	d.release = append(d.release, tenants.release...)
	return d
}

// partOf returns those of some VIPs, which are in order, that are in segments, or those that are not.
func partOf(vips []model.VIP, inSegments bool) []model.VIP {
	first := slices.IndexFunc(vips, model.VIP.InSegment)
	switch {
	case first < 0 && inSegments:
		return nil
	case first < 0:
		return vips
	case inSegments:
		return vips[first:]
	}
	return vips[:first]
}

// planPart plans the VIPs in segments, or the others.
func planPart(self netip.Addr, offers []model.VIP, group *model.NeighborGroup, inSegments bool, settled func(netip.Addr) bool) decision {
	members := make(map[netip.Addr][]model.VIP, len(group.Members)+1)
	for director, vips := range group.Members {
		members[director] = partOf(vips, inSegments)
	}
	members[self] = partOf(offers, inSegments)
	p := placement{members: members, owned: map[netip.Addr][]model.VIP{}, coming: map[netip.Addr]int{}}
	for director := range members {
		p.directors = append(p.directors, director)
	}
	slices.SortFunc(p.directors, netip.Addr.Compare)
	var d decision
	var mine []model.VIP
	for vip, owner := range group.Owners {
		switch {
		case vip.InSegment() != inSegments:
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
		slices.SortFunc(vips, model.VIP.Compare)
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
	slices.SortFunc(d.hold, model.VIP.Compare)
	slices.SortFunc(d.release, model.VIP.Compare)
	return d
}

// unowned returns the VIPs that are offered and have no owner, in order.
func unowned(members map[netip.Addr][]model.VIP, group *model.NeighborGroup) []model.VIP {
	free := map[model.VIP]bool{}
	for _, vips := range members {
		for _, vip := range vips {
			if _, owned := group.Owners[vip]; !owned {
				free[vip] = true
			}
		}
	}
	return slices.SortedFunc(maps.Keys(free), model.VIP.Compare)
}

// placement is which director has, or will soon have, which VIPs.
type placement struct {
	members   map[netip.Addr][]model.VIP // what each director offers, in order
	directors []netip.Addr               // in order
	owned     map[netip.Addr][]model.VIP
	coming    map[netip.Addr]int // VIPs without an owner yet: they do not move before they have one
}

func (p *placement) load(director netip.Addr) int { return len(p.owned[director]) + p.coming[director] }

func (p *placement) offers(director netip.Addr, vip model.VIP) bool {
	_, does := slices.BinarySearchFunc(p.members[director], vip, model.VIP.Compare)
	return does
}

// fewest returns the director with the fewest VIPs among those that offer one.
func (p *placement) fewest(vip model.VIP) (director netip.Addr) {
	for _, d := range p.directors {
		if p.offers(d, vip) && (!director.IsValid() || p.load(d) < p.load(director)) {
			director = d
		}
	}
	return director
}

// balance moves VIPs to settled directors from those that have at least two more, until none has to
// move, and returns what one director should give up. The others do the same for theirs.
func (p *placement) balance(self netip.Addr, settled func(netip.Addr) bool) (leaving map[model.VIP]bool) {
	leaving = map[model.VIP]bool{}
	for {
		vip, from := p.move(func(d netip.Addr) bool { return d == self || settled(d) })
		switch {
		case !vip.Address.IsValid():
			return leaving
		case from == self:
			leaving[vip] = true
		}
	}
}

// move moves one VIP from the director with the most to the one with the fewest, among those
// allowed.
func (p *placement) move(may func(netip.Addr) bool) (vip model.VIP, from netip.Addr) {
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
	return model.VIP{}, netip.Addr{}
}
