package controller

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"weir.io/weir/internal/model"
	"weir.io/weir/kube/follow"
	"weir.io/weir/kube/pool"
	"weir.io/weir/kube/translate"
	"weir.io/weir/kube/v1alpha1"
)

// segmentVIP is an address in a segment. Tenants may have the same addresses, each in their own.
type segmentVIP struct {
	segment model.Segment
	address netip.Addr
}

// readBalancers takes in all LoadBalancers. What is gone forwards on for its drain, without new
// connections: a deleted object's connections need not break.
func (c *Controller) readBalancers(p *plan, now time.Time) {
	if c.cache.balancer == nil {
		return
	}
	there := map[pool.Service]bool{}
	for _, of := range follow.List[v1alpha1.LoadBalancer](c.cache.balancer) {
		if of.DeletionTimestamp != nil {
			continue
		}
		name := translate.LoadBalancerName(of)
		there[name] = true
		read, problems := p.readBalancer(name, of)
		request := read.Request()
		request.Not = c.excluding(of, p.read)
		p.ask(wish{balancer: read}, request, problems)
	}
	for name, w := range p.byName {
		if w.balancer == nil || there[name] || !w.leaves.IsZero() {
			continue
		}
		if !w.forwarded || len(w.made.services) == 0 {
			p.forget(name)
			continue
		}
		w.leaves = now.Add(longestRetention(w.made.services))
		w.balancer = w.balancer.Leaving()
		p.unsettled[w] = true
	}
}

// readBalancer reads a LoadBalancer, unless it was read already. What cannot be read changes
// nothing but its conditions.
func (p *plan) readBalancer(name pool.Service, of *v1alpha1.LoadBalancer) (*translate.LoadBalancer, []translate.Problem) {
	before := p.byName[name]
	if before != nil && before.leaves.IsZero() && before.balancer.Of.UID == of.UID && !wishes(before.balancer.Of, of) {
		return before.balancer, before.problems[asking]
	}
	read, err := translate.ReadLoadBalancer(of)
	if err == nil {
		return read, nil
	}
	if before != nil && before.leaves.IsZero() && before.balancer.Of.UID == of.UID {
		last := *before.balancer
		last.Of = of
		read = &last
	}
	return read, []translate.Problem{{Reason: translate.Unsupported, Message: err.Error()}}
}

func longestRetention(services []model.Service) (longest time.Duration) {
	for i := range services {
		longest = max(longest, services[i].RetentionOrDefault())
	}
	return longest
}

// drained forgets LoadBalancers that are gone and whose drain is over, and returns when the next one's
// is; the zero time: never.
func (p *plan) drained(now time.Time) (next time.Time) {
	for name, w := range p.byName {
		switch {
		case w.leaves.IsZero():
		case now.Before(w.leaves):
			next = sooner(next, w.leaves)
		default:
			p.forget(name)
		}
	}
	return next
}

// govern finds the group of each LoadBalancer, and which of them has which address of a segment.
func (p *plan) govern(namespaceOf func(metav1.Object) map[string]string) {
	changed := p.claimsOver
	for _, w := range p.of {
		if w.balancer != nil && w.chosen == nil && w.leaves.IsZero() {
			p.unsettled[w] = true // a group may have got directors
		}
	}
	for w := range p.unsettled {
		if w.balancer == nil || !w.leaves.IsZero() {
			continue
		}
		group, problems := p.groupOf(w, namespaceOf(w.balancer.Of))
		w.problems[governing], w.chosen = problems, group
		w.noteChoice()
		changed = true
	}
	if changed {
		p.settleSegments()
	}
}

// groupOf returns the group that is to forward a LoadBalancer, or says why there is none.
func (p *plan) groupOf(w *wish, namespace map[string]string) (*translate.DirectorGroup, []translate.Problem) {
	b := w.balancer
	name := cmp.Or(b.Of.Spec.Group, w.sticks())
	if name == "" && p.groupOfSets != nil {
		name = p.groupOfSets(w.key())
	}
	var own *translate.DirectorGroup
	for _, g := range p.read.groups {
		if g.Of.Name == name {
			own = g
		}
	}
	switch {
	case own != nil:
		if problems := own.Refuses(b, namespace); len(problems) > 0 {
			return nil, problems
		}
		return own, nil
	case b.Of.Spec.Group != "":
		return nil, []translate.Problem{{Reason: translate.NoGroup, Message: fmt.Sprintf("spec.group: there is no DirectorGroup %s that can be used", name)}}
	case slices.ContainsFunc(p.read.allGroups, func(g *v1alpha1.DirectorGroup) bool { return g.Name == name }):
		return nil, []translate.Problem{{Reason: translate.NoGroup, Message: fmt.Sprintf("DirectorGroup %s, which was chosen for it, cannot be used now; its condition Ready says why", name)}}
	}
	return p.choose(b, namespace)
}

// sticks returns the name of the group that was chosen for a LoadBalancer; empty: none was.
func (w *wish) sticks() string {
	switch {
	case w.chosen != nil:
		return w.chosen.Of.Name
	case w.group != nil:
		return w.group.Of.Name
	}
	return w.balancer.Of.Status.Group
}

// settleSegments says which LoadBalancer has which address of a segment: the one that has it
// already, else the oldest. One that may not use the segment has none.
func (p *plan) settleSegments() {
	p.claimsOver = false
	before, owners := p.owners, map[segmentVIP]*wish{}
	better := func(at segmentVIP, w, than *wish) bool {
		switch {
		case than == nil:
			return true
		case w.leaves.IsZero() != than.leaves.IsZero(): // what is gone keeps nothing from others
			return w.leaves.IsZero()
		case before[at] == than:
			return false
		case before[at] == w:
			return true
		}
		return before[at] == nil && w.hadInSegment(at) && !than.hadInSegment(at) // w is younger
	}
	for _, w := range p.of { // the oldest first
		if !w.claimsSegment() {
			continue
		}
		for _, a := range w.balancer.Addresses {
			if at := (segmentVIP{w.balancer.Segment, a}); better(at, w, owners[at]) {
				owners[at] = w
			}
		}
	}
	p.owners = owners
	for _, w := range p.of {
		if w.balancer == nil || w.balancer.Segment == (model.Segment{}) {
			continue
		}
		if addresses, problems := p.inSegment(w); !slices.Equal(addresses, w.addresses) || !slices.Equal(problems, w.problems[claiming]) {
			p.unsettled[w], p.recount = true, true
		}
	}
}

// claimsSegment reports whether it is a LoadBalancer that may have addresses of a segment.
func (w *wish) claimsSegment() bool {
	return w.balancer != nil && w.balancer.Segment != (model.Segment{}) && (w.chosen != nil || !w.leaves.IsZero())
}

// hadInSegment reports whether its status has an address of a segment.
func (w *wish) hadInSegment(at segmentVIP) bool {
	s := &w.balancer.Of.Status
	return s.Segment == at.segment.String() && slices.Contains(s.Addresses, at.address.String())
}

// inSegment returns which of its addresses in a segment a LoadBalancer has, and who has the others.
func (p *plan) inSegment(w *wish) (addresses []netip.Addr, problems []translate.Problem) {
	if !w.claimsSegment() {
		return nil, nil
	}
	for i, a := range w.balancer.Addresses {
		owner := p.owners[segmentVIP{w.balancer.Segment, a}]
		if owner == w {
			addresses = append(addresses, a)
			continue
		}
		if owner != nil {
			problems = append(problems, translate.Problem{Reason: translate.Conflict, Message: fmt.Sprintf("spec.addresses[%d]: %s in segment %s belongs to %s", i, a, w.balancer.Segment, owner.name())})
		}
	}
	return addresses, problems
}

// judgeBalancer returns no error if the API server confirms what was read of a LoadBalancer.
func (c *Controller) judgeBalancer(ctx context.Context, owner pool.Service) error {
	var now v1alpha1.LoadBalancer
	if c.resources.client == nil {
		return errTooOld
	}
	if err := c.resources.client.Get().Namespace(owner.Namespace).Resource(v1alpha1.LoadBalancers).Name(owner.Name).Do(ctx).Into(&now); err != nil {
		return ignoreNotFound(err)
	}
	if c.cache.balancer == nil {
		return errTooOld
	}
	read := follow.One[v1alpha1.LoadBalancer](c.cache.balancer, key(&now))
	if now.DeletionTimestamp == nil && (read == nil || read.UID != now.UID || read.Generation != now.Generation) {
		return errTooOld
	}
	return nil
}

func balancerReference(b *v1alpha1.LoadBalancer) *corev1.ObjectReference {
	return &corev1.ObjectReference{Kind: pool.LoadBalancer, APIVersion: v1alpha1.GroupVersion.String(), Namespace: b.Namespace, Name: b.Name, UID: b.UID, ResourceVersion: b.ResourceVersion}
}

// lookPace is how often the statuses of all LoadBalancers are compared with what directors report,
// if nothing else has changed.
const lookPace = time.Second

// writeBalancers writes the statuses of LoadBalancers that have changed.
func (c *Controller) writeBalancers(ctx context.Context, p *plan, now time.Time) error {
	if c.cache.balancer == nil {
		return nil
	}
	all := now.Sub(c.looked) >= lookPace
	if c.lookAt = c.looked.Add(lookPace); all {
		c.looked, c.lookAt = now, time.Time{}
		for key, k := range c.counts {
			if w := p.byName[k.name]; w == nil || w.balancer == nil {
				delete(c.counts, key)
			}
		}
	}
	var writes []func() error
	for _, w := range p.of {
		if w.balancer == nil || !w.leaves.IsZero() || !all && !p.unsettled[w] {
			continue
		}
		is := follow.One[v1alpha1.LoadBalancer](c.cache.balancer, key(w.balancer.Of))
		if !current(is, w.balancer.Of) {
			continue // it is looked at next time
		}
		after := is.DeepCopy()
		c.balancerStatus(p, w, &after.Status, now)
		writes = append(writes, func() error { return c.writeStatus(ctx, v1alpha1.LoadBalancers, is.Status, after.Status, after) })
	}
	return each(writes, func(f func() error) error { return f() })
}

// texts joins the messages of problems.
func texts(stages ...[]translate.Problem) (reason translate.Reason, text string) {
	var list []string
	for _, problems := range stages {
		for _, one := range problems {
			reason, list = cmp.Or(reason, one.Reason), append(list, one.Message)
		}
	}
	return reason, strings.Join(list, "; ")
}
