package controller

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"weir.io/weir/internal/model"
	"weir.io/weir/kube/pool"
	"weir.io/weir/kube/translate"
)

// plan is what one pass wants.
type plan struct {
	assignment pool.Assignment
	of         []*wish
	byName     map[pool.Service]*wish
}

// wish is what is to become of one Service.
type wish struct {
	service   *corev1.Service
	addresses []netip.Addr
	policy    *translate.ServicePolicy // nil: none selects it
	problems  []translate.Problem
	forwarded bool // directors have taken it
	told      bool // its status was written in this pass
}

// part is a service for directors, and whose it is.
type part struct {
	service model.Service
	whose   *wish
}

func compareNames(a, b pool.Service) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

// plan assigns addresses.
func (c *Controller) plan(services []*corev1.Service, read *resources) *plan {
	p := &plan{byName: map[pool.Service]*wish{}}
	var requests []pool.Request
	for _, s := range services {
		request, problems := translate.Wants(s)
		request.Not = c.excluding(s, read)
		w := &wish{service: s, problems: problems, forwarded: true}
		p.of = append(p.of, w)
		p.byName[request.Service] = w
		requests = append(requests, request)
	}
	p.assignment = pool.Assign(read.pools, c.claims.all(), requests)
	for _, w := range p.of {
		name := translate.Of(w.service)
		w.addresses = p.assignment.Of[name]
		for _, text := range p.assignment.Problems[name] {
			w.problem(translate.NoAddress, "%s", text)
		}
	}
	return p
}

func (w *wish) problem(r translate.Reason, format string, args ...any) {
	w.problems = append(w.problems, translate.Problem{Reason: r, Message: fmt.Sprintf(format, args...)})
}

// without takes addresses away that turned out to be somebody else's.
func (p *plan) without(taken map[pool.Share]string) {
	for _, w := range p.of {
		w.addresses = slices.DeleteFunc(w.addresses, func(a netip.Addr) bool {
			why, is := taken[pool.Share{Address: a, Service: translate.Of(w.service)}]
			if is {
				w.problem(translate.NoAddress, "%s cannot be claimed: %s", a, why)
			}
			return is
		})
	}
}

// translate returns the whole set.
func (c *Controller) translate(p *plan, read *resources) []part {
	cluster := translate.NewCluster(c.cache.nodes())
	var parts []part
	for _, w := range p.of {
		options := c.Translate
		if w.policy = read.policies.For(w.service); w.policy != nil {
			options = w.policy.Options
		}
		services, problems := translate.Services(options, w.service, c.cache.slices(w.service), w.addresses, cluster)
		w.problems = append(w.problems, problems...)
		w.forwarded = len(services) > 0
		for _, s := range services {
			parts = append(parts, part{s, w})
		}
	}
	return parts
}

// refused notes what directors do not take.
func (p *plan) refused(refusals []refusal) {
	for _, r := range refusals {
		r.whose.forwarded = false
		r.whose.problem(translate.NotForward, "%s", r.why)
	}
}

// pending notes that nobody has taken the set, for those who have heard nothing yet: what was
// forwarded before goes on.
func (p *plan) pending(err error) {
	for _, w := range p.of {
		if w.forwarded && len(w.addresses) > 0 && len(w.service.Status.LoadBalancer.Ingress) == 0 {
			w.problem(translate.NotForward, "%v", err)
		}
	}
}
