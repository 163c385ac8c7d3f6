package controller

import (
	"fmt"

	"weir.io/weir/internal/model"
	"weir.io/weir/kube/group"
)

// An administrator may have put services into the directors of a group by their API. A LoadBalancer of
// the same addresses and ports that names their owner takes them over: it begins with their history, as
// a director has reported it, and each director takes them out of that owner's set when it takes the
// LoadBalancer. Without that name they are in its way.

// adoption is what a LoadBalancer has to do with services of others.
type adoption struct {
	obstacle string           // why it cannot be forwarded beside them; empty: it can
	owner    string           // whose services it takes over; empty: nobody's
	before   []model.Document // these, as a director has them
}

func (a adoption) same(o adoption) bool {
	return a.obstacle == o.obstacle && a.owner == o.owner && len(a.before) == len(o.before)
}

// lookAtOthers finds out what LoadBalancers have to do with services of others.
func (p *plan) lookAtOthers() {
	for _, w := range p.of {
		if w.balancer == nil || w.group == nil {
			continue
		}
		if a := w.adoptionFrom(p.read.staff[w.group.Of.Name].directors); !a.same(w.adoption) {
			p.revision++
			p.unsettled[w] = true
			w.adoption = a
		}
	}
}

// adoptionFrom returns what a LoadBalancer has to do with what is reported of others' services.
func (w *wish) adoptionFrom(directors []group.Candidate) (a adoption) {
	a.owner = w.balancer.Of.Spec.Adopt
	for _, d := range directors {
		found := 0
		for i := range d.Others.Services {
			other := &d.Others.Services[i]
			s := w.meets(&other.Document.Service)
			switch {
			case s == nil:
			case other.Owner == a.owner && !other.Fixed && s.ID() == other.Document.Service.ID():
				if found++; len(a.before) < found {
					a.before = append(a.before, other.Document)
				}
			case a.obstacle == "":
				a.obstacle = obstacleText(d.Node, s, other, a.owner)
			}
		}
		if d.Others.Missing > 0 && a.owner != "" && found == 0 && len(w.made.services) > 0 && a.obstacle == "" && !w.forwarded {
			a.obstacle = fmt.Sprintf("spec.adopt: director %s has %d services of others without room in its report, and which of these are %s's is not known", d.Node, d.Others.Missing, a.owner)
		}
	}
	return a
}

// meets returns the service of a LoadBalancer that a director would not forward beside another's; nil:
// none. Of ports inside of others' the more specific ones win, and both are forwarded.
func (w *wish) meets(other *model.Service) *model.Service {
	for i := range w.made.services {
		s := &w.made.services[i]
		if s.Segment != other.Segment || s.VIP != other.VIP || s.Protocol != other.Protocol {
			continue
		}
		a, b := span(s.Port), span(other.Port)
		overlap, nested := a.First <= b.Last && b.First <= a.Last, a.First <= b.First && b.Last <= a.Last || b.First <= a.First && a.Last <= b.Last
		if overlap && (!nested || a == b) {
			return s
		}
	}
	return nil
}

func span(r model.PortRange) model.PortRange {
	if r.All() {
		return model.PortRange{First: 0, Last: 65535}
	}
	return r
}

func obstacleText(director string, s *model.Service, other *group.Other, adopts string) string {
	at := fmt.Sprintf("%s %s port %s", group.VIP{Segment: s.Segment, Address: s.VIP}, s.Protocol, s.Port)
	is := fmt.Sprintf("is of service %s of owner %s in director %s", other.Document.Service.Name, other.Owner, director)
	switch {
	case other.Fixed:
		return fmt.Sprintf("%s %s: take it out of the director's file", at, is)
	case other.Owner == adopts:
		return fmt.Sprintf("spec.adopt: %s %s, whose ports are %s: only a service with the same ports is taken over", at, is, other.Document.Service.Port)
	}
	return fmt.Sprintf("%s %s: remove it there, or take it over with spec.adopt: %s", at, is, other.Owner)
}
