package model

import (
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// answering checks where a director answers for VIPs itself.
func (v *validation) answering() {
	n := &v.config.Director.Neighbor
	if n.IsZero() {
		return
	}
	const at = "director.neighbor"
	if !n.Given() {
		v.errs.add(at+".interfaces", "is required")
	}
	v.neighborInterfaces(at, n)
	v.duration(at+".lease", n.Lease, MinNeighborLease, MaxNeighborLease)
	if time.Duration(n.Lease)%time.Second != 0 {
		v.errs.add(at+".lease", "%s is not a whole number of seconds, in which etcd counts", n.Lease)
	}
	v.duration(at+".settle", n.Settle, MinNeighborSettle, MaxNeighborSettle)
	v.duration(at+".refresh", n.Refresh, MinNeighborRefresh, MaxNeighborRefresh)
	if n.Rate != 0 {
		v.limit(at+".rate", uint64(n.Rate), 1, MaxNeighborRate)
	}
	group, shared := v.config.Director.Group, v.config.Director.Store.Etcd.Given()
	switch {
	case shared && len(group) == 0:
		v.errs.add(at, "needs director.group: by their addresses in it the directors of an etcd know who answers for a VIP")
	case !shared && len(group) > 1:
		v.errs.addWithOther(at, "director.group", "needs director.store.etcd: without it all directors of the group would answer for every VIP")
	}
}

func (v *validation) neighborInterfaces(at string, n *Neighbor) {
	names := make([]string, len(n.Interfaces))
	for i := range n.Interfaces {
		names[i] = n.Interfaces[i].Name
	}
	v.interfaces(at+".interfaces", names)
	for i, name := range names {
		path := fmt.Sprintf("%s.interfaces[%d]", at, i)
		if !slices.Contains(v.config.Director.Interfaces, name) {
			v.errs.addWithOther(path, "director.interfaces", "%q is none of the director's, so what comes by it is not forwarded", name)
		}
		seen := map[netip.Prefix]int{}
		for j, p := range n.Interfaces[i].Prefixes {
			here := fmt.Sprintf("%s.prefixes[%d]", path, j)
			if problem := prefixProblem(p); problem != "" {
				v.errs.add(here, "%s %s", prefixText(p), problem)
				continue
			}
			if first, dup := seen[p]; dup {
				v.errs.addWithOther(here, fmt.Sprintf("%s.prefixes[%d]", path, first), "%s is there twice", prefixText(p))
			}
			seen[p] = j
		}
	}
}
