package gateway

import (
	"fmt"

	"weir.io/weir/kube/translate"
)

// Problems returns what a user has to know about a Gateway that cannot be served, or only in part.
func (g *Gateway) Problems() (list []translate.Problem) {
	if g.accepted.no {
		list = append(list, problemOf("", g.accepted))
	}
	for _, l := range g.Listeners {
		for _, v := range []verdict{l.accepted, l.resolved} {
			if v.no {
				list = append(list, problemOf(fmt.Sprintf("listener %s: ", l.Of.Name), v))
			}
		}
	}
	return list
}

// Problems returns what a user has to know about a route to Gateways of ours.
func (v *View) Problems(r *Route) (list []translate.Problem) {
	seen := map[translate.Problem]bool{}
	add := func(p translate.Problem) {
		if !seen[p] {
			seen[p] = true
			list = append(list, p)
		}
	}
	for _, p := range r.parents {
		if p.accepted.no {
			add(problemOf(fmt.Sprintf("Gateway %s/%s: ", p.to.Of.Namespace, p.to.Of.Name), p.accepted))
		}
		if resolved := r.reached(v.cluster.Backends(p.to.Of)); resolved.no {
			add(problemOf("", resolved))
		}
	}
	return list
}

func problemOf(where string, v verdict) translate.Problem {
	return translate.Problem{Reason: translate.Reason(v.reason), Message: where + v.message}
}
