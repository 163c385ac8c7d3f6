package neighbor

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"weir.io/weir/internal/model"
)

// hold sets the VIPs that are answered for.
func (t *turn) hold(now time.Duration, where map[model.VIP][]model.NeighborPlace, vips []model.VIP) {
	held := map[model.NeighborPlace]map[model.VIP]bool{}
	var taken, lost []model.VIP
	is := map[model.VIP]bool{}
	for _, vip := range vips {
		is[vip] = true
		if t.holds[vip] == nil {
			t.holds[vip] = &holding{since: time.Now().Truncate(time.Second), on: map[model.NeighborPlace]*announced{}}
			taken = append(taken, vip)
		}
		for _, at := range where[vip] {
			if held[at] == nil {
				held[at] = map[model.VIP]bool{}
			}
			held[at][vip] = true
			if t.holds[vip].on[at] == nil {
				t.holds[vip].on[at] = again(now)
			}
		}
	}
	for vip := range t.holds {
		if !is[vip] {
			delete(t.holds, vip)
			lost = append(lost, vip)
		}
	}
	t.mu.Lock()
	t.guard.set(held)
	if t.set.draining != t.want.draining { // it changed since this turn began
		t.guard.only(nil)
	}
	t.guard.only(t.set.vips)
	t.mu.Unlock()
	t.taken, t.lost = t.taken+uint64(len(taken)), t.lost+uint64(len(lost))
	t.logVIPs("this director answers for VIPs", taken)
	t.logVIPs("this director does not answer for VIPs any more", lost)
}

// someVIPs is how many VIPs a turn names in the log.
const someVIPs = 8

// logVIPs logs some of the VIPs, and how many there are.
func (t *turn) logVIPs(what string, vips []model.VIP) {
	if len(vips) == 0 {
		return
	}
	slices.SortFunc(vips, model.VIP.Compare)
	text := ""
	for i, vip := range vips[:min(someVIPs, len(vips))] {
		if i > 0 {
			text += " "
		}
		text += vip.String()
	}
	if more := len(vips) - someVIPs; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	t.log.Info(what, "vips", text)
}

// defend announces VIPs anew that other hosts have claimed, and remembers these hosts until no host
// claims the VIP.
func (t *turn) defend(now time.Duration, claimed map[model.VIP]mac) {
	defended := 0
	for vip, h := range t.holds {
		if h.rival != nil && now >= h.rival.heard+contested {
			h.rival = nil
		}
		with, is := claimed[vip]
		if !is {
			continue
		}
		if h.rival == nil {
			h.rival = &rival{with: with}
		}
		h.rival.heard = now
		if h.defended != 0 && now < h.defended+defence {
			continue
		}
		h.defended = now
		for _, a := range h.on {
			a.due = now
		}
		if defended++; defended <= someVIPs {
			t.log.Warn("another host says that a VIP of this director is its own", "vip", vip, "mac", with)
		}
	}
	if more := defended - someVIPs; more > 0 {
		t.log.Warn("other hosts say the same of more VIPs", "vips", more)
	}
}

// announce sends the announcements that are due, as far as the rate allows, and returns the time
// until there are more.
func (t *turn) announce(now time.Duration) time.Duration {
	type due struct {
		vip model.VIP
		on  model.NeighborPlace
		*announced
	}
	var list []due
	next := lookAgain
	for vip, h := range t.holds {
		for at, a := range h.on {
			if a.due <= now {
				list = append(list, due{vip, at, a})
			} else {
				next = min(next, a.due-now)
			}
		}
	}
	// VIPs that have not been announced yet come before repetitions.
	slices.SortFunc(list, func(a, b due) int {
		return cmp.Or(cmp.Compare(a.done, b.done), cmp.Compare(a.due, b.due), a.vip.Compare(b.vip))
	})
	for _, d := range list {
		one := t.stations[d.on]
		if one == nil || !one.works() {
			continue
		}
		if !one.pace(t.want.config.Rate, now) {
			next = min(next, time.Second/20) // the time for half of the packets that may come at once
			continue
		}
		if one.announce(d.vip.Address) {
			d.next(d.vip.Address, now, time.Duration(t.want.config.Refresh))
		}
	}
	return next
}

// report makes the status that others can ask for.
func (t *turn) report(group *model.NeighborGroup, where map[model.VIP][]model.NeighborPlace) {
	status := model.NeighborStatus{Draining: t.want.draining, Taken: t.taken, Lost: t.lost,
		Interfaces: []model.NeighborInterfaceStatus{}, VIPs: []model.NeighborVIP{}}
	if t.want.config.Given() && t.join != nil {
		status.Director, status.Lease = t.joined, model.LeaseNone
		switch {
		case t.part == nil:
			status.Problem = "none of the addresses in director.group is this host's"
		case group.Joined:
			status.Lease = model.LeaseHeld
		}
	}
	stations := make([]*station, 0, len(t.stations))
	for i := range t.want.config.Interfaces {
		if one := t.stations[t.want.config.Interfaces[i].Place()]; one != nil {
			stations = append(stations, one)
			status.Interfaces = append(status.Interfaces, one.status())
		}
	}
	if t.want.config.Given() {
		status.VIPs = t.vips(group, where)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last, t.counted = status, stations
}

// vips returns which director answers for each VIP that is up, or that has an owner.
func (t *turn) vips(group *model.NeighborGroup, where map[model.VIP][]model.NeighborPlace) []model.NeighborVIP {
	all := map[model.VIP]bool{}
	for _, vip := range t.want.vips {
		all[vip] = true
	}
	for vip := range group.Owners {
		all[vip] = true
	}
	list := []model.NeighborVIP{}
	for _, vip := range slices.SortedFunc(maps.Keys(all), model.VIP.Compare) {
		one := model.NeighborVIP{Segment: vip.Segment, VIP: vip.Address, State: model.NeighborNobody, Interfaces: []string{}}
		for _, at := range where[vip] {
			one.Interfaces = append(one.Interfaces, at.Interface)
		}
		owner, owned := group.Owners[vip]
		one.Owner = owner.Director
		switch h := t.holds[vip]; {
		case h != nil && !t.guard.lapsed():
			one.State, one.Since = model.NeighborAnswers, h.since
			if h.rival != nil {
				one.Problem = h.rival.text()
			}
		case owned && !owner.Mine:
			one.State = model.NeighborOther
		}
		// Another director's address of full NAT comes here only if that director is lost.
		home, has := group.Homes[vip.Address]
		has = has && !vip.InSegment()
		if len(where[vip]) == 0 && !t.want.draining && !(has && home != t.joined) {
			one.Problem = t.whyNot(vip)
		}
		list = append(list, one)
	}
	return list
}

// text says which host has claimed a VIP. It names only the first of several: a forger chooses the
// sources of claims, and each would be another problem.
func (r *rival) text() string {
	return fmt.Sprintf("another host, %v, says that it has it, and gets packets of those that believe it", r.with)
}

// whyNot returns why this director could not answer for a VIP.
func (t *turn) whyNot(vip model.VIP) string {
	_, up := slices.BinarySearchFunc(t.want.vips, vip, model.VIP.Compare)
	switch {
	case !t.want.config.In(vip.Segment) && !vip.InSegment():
		return "no interface of director.neighbor is for VIPs in no segment"
	case !t.want.config.In(vip.Segment):
		return fmt.Sprintf("no interface of director.neighbor is for segment %s", vip.Segment)
	case !up:
		return "it is not up here"
	case t.full:
		return fmt.Sprintf("it is in no network of director.neighbor.interfaces, or beyond the %d VIPs that a group can share", maxVIPs)
	}
	return "it is in no network of an interface of director.neighbor that works"
}
