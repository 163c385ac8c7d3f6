package controller

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"weir.io/weir/internal/model"
	"weir.io/weir/kube/follow"
	"weir.io/weir/kube/group"
	"weir.io/weir/kube/translate"
	"weir.io/weir/kube/v1alpha1"
)

// loadStep is the difference of loads that counts: smaller ones are noise, and must not decide.
const loadStep = 0.05

// weight is how much a group has to do, for the choice of one. The lowest is chosen.
type weight struct {
	group    *translate.DirectorGroup
	empty    bool // it has no directors
	steps    int  // the greater of its directors' utilization and of the used shares of their limits, in steps
	services uint64
	order    int // of precedence
}

func (w weight) compare(o weight) int {
	order := func(b bool) int {
		if b {
			return 1
		}
		return 0
	}
	return cmp.Or(cmp.Compare(order(w.empty), order(o.empty)), cmp.Compare(w.steps, o.steps), cmp.Compare(w.services, o.services), cmp.Compare(w.order, o.order))
}

// choose chooses the group for a LoadBalancer that names none: of those that may forward it the one
// with the least load, then with the fewest services, then the first in the order of precedence. It
// stays the LoadBalancer's.
func (p *plan) choose(b *translate.LoadBalancer, namespace map[string]string) (*translate.DirectorGroup, []translate.Problem) {
	var may []weight
	var problems []translate.Problem
	for i, g := range p.read.groups {
		refused := g.Refuses(b, namespace)
		directors := p.read.staff[g.Of.Name].directors
		if family, lacks := lacksFamily(b, g, directors); lacks {
			refused = append(refused, translate.Problem{Reason: translate.NoGroup, Message: fmt.Sprintf("spec.group: directors of DirectorGroup %s have no %v address, from which mode nat sends", g.Of.Name, family)})
		}
		if len(refused) > 0 {
			problems = translate.AddNew(problems, refused)
			continue
		}
		w := weight{group: g, empty: len(directors) == 0, order: i}
		used := p.taken(g)
		w.services = used[0]
		w.steps = int(math.Floor(max(loadOf(directors), shareOf(used, spaceOf(g.Of).most)) / loadStep))
		may = append(may, w)
	}
	switch {
	case len(may) > 0:
		best := slices.MinFunc(may, weight.compare)
		if best.empty { // what is chosen stays
			return nil, []translate.Problem{{Reason: translate.NoGroup, Message: "spec.group: no DirectorGroup that could forward it has directors"}}
		}
		return best.group, nil
	case len(problems) > 0:
		return nil, problems
	}
	return nil, []translate.Problem{{Reason: translate.NoGroup, Message: "spec.group: there is no DirectorGroup that could forward it"}}
}

// loadOf returns the load of a group by what its directors report: the mean of their utilizations, or
// the greatest used share of a limit of one, whatever is more.
func loadOf(directors []group.Candidate) (load float64) {
	used := 0.0
	for i := range directors {
		l := &directors[i].Counts.Load
		load += l.Utilization / float64(len(directors))
		used = max(used, l.Used)
	}
	return max(load, used)
}

// taken returns how much of a group's limits is given out: directors report it only later, and many
// LoadBalancers may come at a time.
func (p *plan) taken(g *translate.DirectorGroup) (all usage) {
	for _, w := range p.of {
		switch {
		case len(w.made.services) > 0 && w.group == g:
			all = all.plus(w.usage())
		case w.balancer != nil && w.chosen == g:
			all = all.plus(estimate(w.balancer))
		}
	}
	return all
}

// estimate returns about how much a LoadBalancer takes that was not compiled yet.
func estimate(b *translate.LoadBalancer) (u usage) {
	vips := uint64(max(len(b.Addresses), len(b.Families())))
	for i := range b.Of.Spec.Listeners {
		l := &b.Of.Spec.Listeners[i]
		members := len(l.Members)
		if members == 0 {
			members = len(b.Of.Spec.Members)
		}
		u = u.plus(usage{vips, vips * uint64(members), vips * uint64(len(l.SourceRanges)), 0})
	}
	return u
}

// shareOf returns the greatest used share of some limits.
func shareOf(used, most usage) (share float64) {
	for i := range used {
		if most[i] > 0 {
			share = max(share, float64(used[i])/float64(most[i]))
		}
	}
	return share
}

// lacksFamily returns a family of the LoadBalancer's addresses of which a director has no address,
// where it needs one.
func lacksFamily(b *translate.LoadBalancer, g *translate.DirectorGroup, directors []group.Candidate) (family fmt.Stringer, lacks bool) {
	if !b.NeedsSource(g.Options) {
		return nil, false
	}
	for _, f := range b.Families() {
		for i := range directors {
			if !directors[i].Has(bool(f)) {
				return f, true
			}
		}
	}
	return nil, false
}

// groupOfSets returns the group that has a LoadBalancer in its DirectorSets; empty: none has. A choice
// may not have come into the status.
func (c *Controller) groupOfSets(key string) string {
	if c.cache.set == nil {
		return ""
	}
	for _, set := range follow.List[v1alpha1.DirectorSet](c.cache.set) {
		if slices.ContainsFunc(set.Spec.Services, func(s v1alpha1.CompiledService) bool { return s.Name == key }) {
			return set.Spec.Group
		}
	}
	return ""
}

// writtenServices returns what the DirectorSets of a group have of a LoadBalancer.
func (c *Controller) writtenServices(of, key string) (services []model.Service) {
	for _, set := range follow.List[v1alpha1.DirectorSet](c.cache.set) {
		for i := range set.Spec.Services {
			if s := &set.Spec.Services[i]; set.Spec.Group == of && s.Name == key && group.IsNamed(set) {
				documents, err := group.Decode(s)
				if err != nil {
					return nil
				}
				services = nil
				for j := range documents {
					services = append(services, documents[j].Service)
				}
			}
		}
	}
	return services
}

// groupChosen is the reason of the event that says which group was chosen for a LoadBalancer.
const groupChosen = "GroupChosen"

// noteChoice has an event say which group was chosen, once.
func (w *wish) noteChoice() {
	b := w.balancer.Of
	if w.chosen == nil || b.Spec.Group != "" || b.Status.Group == w.chosen.Of.Name {
		return
	}
	if text := "DirectorGroup " + w.chosen.Of.Name + " was chosen for it, and stays so"; w.choice != text {
		w.choice, w.choiceUntold = text, true
	}
}
