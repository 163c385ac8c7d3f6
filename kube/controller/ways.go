package controller

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"weir.io/weir/kube/group"
	"weir.io/weir/kube/pool"
	"weir.io/weir/kube/translate"
	"weir.io/weir/kube/v1alpha1"
)

// ways are how the directors of a group reach pods' addresses, for Services in mode ipip. The
// group's status names one pod of each node and family; the directors look how they reach it, and
// say so in their Leases. When that pod is gone, another is asked about, and what was found stays
// until directors have looked at the other pod.
type ways struct {
	asked map[translate.Place]netip.AddrPort
	found map[translate.Place]string
}

// newWays continues from a group's status.
func newWays(g *v1alpha1.DirectorGroup) *ways {
	w := &ways{asked: map[translate.Place]netip.AddrPort{}, found: map[translate.Place]string{}}
	for _, way := range g.Status.Ways {
		pod, err := netip.ParseAddrPort(way.Pod)
		if err != nil {
			continue // not written by a controller
		}
		at := translate.Place{Node: way.Node, Family: pool.FamilyOf(pod.Addr())}
		w.asked[at] = pod
		if way.Problem != translate.NotLooked {
			w.found[at] = way.Problem
		}
	}
	return w
}

// hear takes in what directors say about ways.
func (w *ways) hear(directors []group.Candidate) {
	for at, pod := range w.asked {
		answers, found := 0, ""
		for _, d := range directors {
			why, known := d.Ways[pod.String()]
			if known {
				answers++
			}
			if why != "" && found == "" {
				found = fmt.Sprintf("director %s: %s", d.Node, why)
			}
		}
		if answers > 0 && (answers == len(directors) || found != "") {
			w.found[at] = found
		}
	}
}

// ask takes in the existing pods.
func (w *ways) ask(pods map[translate.Place][]netip.AddrPort) {
	for at, there := range pods {
		if !slices.Contains(there, w.asked[at]) {
			w.asked[at] = slices.MinFunc(there, netip.AddrPort.Compare)
		}
	}
	gone := func(at translate.Place) bool { return len(pods[at]) == 0 }
	maps.DeleteFunc(w.asked, func(at translate.Place, _ netip.AddrPort) bool { return gone(at) })
	maps.DeleteFunc(w.found, func(at translate.Place, _ string) bool { return gone(at) })
}

// status returns the ways for the group's status.
func (w *ways) status() (list []v1alpha1.Way) {
	for at, pod := range w.asked {
		problem, known := w.found[at]
		if !known {
			problem = translate.NotLooked
		}
		list = append(list, v1alpha1.Way{Node: at.Node, Pod: pod.String(), Problem: problem})
	}
	slices.SortFunc(list, func(a, b v1alpha1.Way) int { return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Pod, b.Pod)) })
	return list
}

// hearWays takes in how the groups' directors reach pods.
func (c *Controller) hearWays(p *plan) {
	for _, g := range p.read.groups {
		w := c.ways[g.Of.UID]
		if w == nil {
			w = newWays(g.Of)
			c.ways[g.Of.UID] = w
		}
		w.hear(p.read.staff[g.Of.Name].directors)
		if p.ways[g.Of.UID].Same(w.found) {
			continue
		}
		p.ways[g.Of.UID] = translate.NewWays(w.found)
		for _, one := range p.of {
			if one.group == g && len(one.made.asks) > 0 {
				p.unsettled[one] = true
			}
		}
	}
}

// askWays notes which ways directors have to look at.
func (c *Controller) askWays(p *plan) {
	pods := map[types.UID]map[translate.Place][]netip.AddrPort{}
	for _, w := range p.of {
		if w.group == nil || len(w.made.asks) == 0 {
			continue
		}
		of := pods[w.group.Of.UID]
		if of == nil {
			of = map[translate.Place][]netip.AddrPort{}
			pods[w.group.Of.UID] = of
		}
		for at, list := range w.made.asks {
			of[at] = append(of[at], list...)
		}
	}
	for _, g := range p.read.groups {
		if w := c.ways[g.Of.UID]; w != nil {
			w.ask(pods[g.Of.UID])
		}
	}
}
