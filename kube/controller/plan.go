package controller

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"weir.io/weir/internal/model"
	"weir.io/weir/kube/gateway"
	"weir.io/weir/kube/pool"
	"weir.io/weir/kube/translate"
	"weir.io/weir/kube/v1alpha1"
)

// plan is what is wanted. It is kept from pass to pass; a pass looks only at Services that a change
// may concern.
type plan struct {
	allocations *pool.Allocations
	byName      map[pool.Service]*wish
	of          []*wish // the oldest first
	nodes       []translate.Node
	cluster     *translate.Cluster
	read        *resources
	ways        map[types.UID]*translate.Ways // by group
	allSeen     time.Time                     // when everything was last looked at

	unsettled   map[*wish]bool                          // that may still need something done
	others      map[pool.Service]bool                   // Services that were ours, and whose status still says so
	groupOfSets func(key string) string                 // the group that has a LoadBalancer already; nil: it is not known
	written     func(group, key string) []model.Service // what a DirectorSet has of a LoadBalancer; nil: it is not known
	owners      map[segmentVIP]*wish                    // the LoadBalancers that have addresses of segments
	claimsOver  bool                                    // LoadBalancers are gone, whose addresses others may have
	left        []types.UID                             // UIDs of Services that are gone, until all reports about them are forgotten
	release     []pool.Share                            // once no director forwards them
	view        *gateway.View
	unsaid      unsaid           // of Gateway API's objects
	refused     map[*wish]bool   // that directors refuse
	over        map[*wish]string // that have no room, and why
	waiting     map[*wish]bool   // that wait for directors to say that they have them
	recount     bool             // counts in the statuses of custom resources may have changed
	revision    uint64           // of everything that directors are to forward
	fitted      uint64           // the revision by which node ports were given out
	work        work
}

// work counts what was done.
type work struct {
	translated int // Services
	written    int // directors' services, as JSON
}

// wish is what one Service, Gateway or LoadBalancer is to become.
type wish struct {
	text         string                   // its name as a text; empty: not asked for yet
	service      *corev1.Service          // nil: it is no Service
	gateway      *gateway.Gateway         // nil: it is no Gateway
	balancer     *translate.LoadBalancer  // nil: it is no LoadBalancer
	chosen       *translate.DirectorGroup // the group that is to forward the LoadBalancer; nil: none may
	kept         bool                     // its spec is wrong, and what it was before goes on
	choice       string                   // which group was chosen for the LoadBalancer, as an event says it
	adoption     adoption
	choiceUntold bool      // no event has said so yet
	leaves       time.Time // when a LoadBalancer that is gone is forgotten; zero: it is there
	addresses    []netip.Addr
	policy       *translate.ServicePolicy // nil: no policy selects it
	group        *translate.DirectorGroup // the group that forwards it; nil: the file's directors
	made         made
	ports        []v1alpha1.ServiceNodePort // the node ports that its directors take
	problems     [stages][]translate.Problem
	fitted       *usage // what it took when it had room; nil: it has none, or it is not known yet
	over         bool   // it has no room
	forwarded    bool   // directors have taken it
	awaited      awaited
	waits        string // why it is not forwarded yet; empty: it is, or something is wrong
	told         bool   // its status was written, and no event has said so yet
}

// stage says where a problem was found.
type stage int

const (
	asking     stage = iota // what it asks for
	governing               // the group of a LoadBalancer
	assigning               // its addresses
	claiming                // its addresses as claims
	forwarding              // what it was translated to
	fitting                 // its node ports
	accepting               // what directors take
	stages
)

func newPlan() *plan {
	return &plan{allocations: pool.NewAllocations(), byName: map[pool.Service]*wish{}, others: map[pool.Service]bool{}, unsettled: map[*wish]bool{}, cluster: translate.NewCluster(nil), read: &resources{}, ways: map[types.UID]*translate.Ways{},
		view: &gateway.View{}, unsaid: unsaid{routes: map[*gateway.Route]bool{}}}
}

func (w *wish) name() pool.Service {
	switch {
	case w.gateway != nil:
		return w.gateway.Name()
	case w.balancer != nil:
		return w.balancer.Name()
	}
	return translate.Of(w.service)
}

// key is its name as a text.
func (w *wish) key() string {
	if w.text == "" {
		w.text = w.name().String()
	}
	return w.text
}

// object is the Service, the Gateway or the LoadBalancer.
func (w *wish) object() metav1.Object {
	switch {
	case w.gateway != nil:
		return w.gateway.Of
	case w.balancer != nil:
		return w.balancer.Of
	}
	return w.service
}

// byAge puts the oldest first.
func byAge(a, b *wish) int {
	x, y := a.object().GetCreationTimestamp(), b.object().GetCreationTimestamp()
	return cmp.Or(x.Compare(y.Time), a.name().Compare(b.name()))
}

// want takes in what a Service says, and which pools are not for it.
func (p *plan) want(s *corev1.Service, not map[string]string) {
	request, problems := translate.Wants(s)
	request.Not = not
	p.ask(wish{service: s}, request, problems)
}

// ask takes in what a Service or a Gateway wants.
func (p *plan) ask(now wish, request pool.Request, problems []translate.Problem) {
	name := now.name()
	if w := p.byName[name]; w != nil && (w.object().GetUID() != now.object().GetUID() || !w.leaves.IsZero()) { // another object of the same name
		p.forget(name)
	}
	w := p.byName[name]
	if w == nil {
		w = &now
		at, _ := slices.BinarySearchFunc(p.of, w, byAge)
		p.of, p.byName[name] = slices.Insert(p.of, at, w), w
	}
	w.service, w.gateway, w.balancer, w.problems[asking] = now.service, now.gateway, now.balancer, problems
	p.allocations.Request(now.object().GetCreationTimestamp().Unix(), request)
	p.unsettled[w] = true
}

// forget takes out a Service or a Gateway that is not ours any more.
func (p *plan) forget(name pool.Service) {
	w := p.byName[name]
	if w == nil {
		return
	}
	if at, is := slices.BinarySearchFunc(p.of, w, byAge); is {
		p.of = slices.Delete(p.of, at, at+1)
	}
	delete(p.byName, name)
	delete(p.unsettled, w)
	delete(p.refused, w)
	delete(p.waiting, w)
	delete(p.over, w)
	p.allocations.Forget(name)
	p.claimsOver = p.claimsOver || w.balancer != nil
	p.left = append(p.left, w.object().GetUID())
	p.recount = true
	p.revision++
}

// allUnsettled has everything looked at, because something has changed that everything depends on.
func (p *plan) allUnsettled() {
	for _, w := range p.of {
		p.unsettled[w] = true
	}
}

// setNodes takes in the nodes.
func (p *plan) setNodes(nodes []translate.Node) {
	if !slices.Equal(nodes, p.nodes) {
		p.nodes, p.cluster = nodes, translate.NewCluster(nodes)
		p.allUnsettled()
	}
}

// assign gives addresses, and returns what has to be claimed for that.
func (p *plan) assign() pool.Claims {
	change := p.allocations.Assign()
	p.release = change.Release
	for _, s := range change.Services {
		p.unsettled[p.byName[s]], p.recount = true, true
	}
	for w := range p.unsettled {
		addresses, lacks := p.allocations.Of(w.name())
		w.addresses, w.problems[assigning], w.problems[claiming] = addresses, nil, nil
		for _, text := range lacks {
			w.problem(assigning, translate.NoAddress, "%s", text)
		}
		if w.balancer != nil && w.balancer.Segment != (model.Segment{}) {
			w.addresses, w.problems[claiming] = p.inSegment(w)
		}
	}
	return change.Claim
}

func (w *wish) problem(at stage, r translate.Reason, format string, args ...any) {
	w.problems[at] = append(w.problems[at], translate.Problem{Reason: r, Message: fmt.Sprintf(format, args...)})
}

// without takes away addresses that turned out to belong to others.
func (p *plan) without(taken map[pool.Share]string) {
	for share, why := range taken {
		w := p.byName[share.Service]
		if w == nil {
			continue
		}
		p.unsettled[w], p.recount = true, true
		w.addresses = slices.DeleteFunc(w.addresses, func(a netip.Addr) bool { return a == share.Address })
		w.problem(claiming, translate.NoAddress, "%s cannot be claimed: %s", share.Address, why)
	}
}

// refuse notes Services that directors do not take.
func (p *plan) refuse(refusals []refusal) {
	for w := range p.refused {
		p.unsettled[w] = true
	}
	for w := range p.waiting {
		p.unsettled[w] = true
	}
	p.refused = map[*wish]bool{}
	for _, r := range refusals {
		p.refused[r.whose], p.unsettled[r.whose] = true, true
	}
	for w := range p.unsettled {
		w.problems[accepting], w.forwarded = nil, w.forwardable() && !p.refused[w]
	}
	for _, r := range refusals {
		r.whose.problem(accepting, translate.NotForward, "%s", r.why)
	}
}

// forwardable reports whether directors can forward a Service, or could forward a Gateway if it had
// a route: a Gateway's address is known before its routes.
func (w *wish) forwardable() bool {
	if w.gateway != nil {
		return w.gateway.Accepted() && len(w.problems[forwarding]) == 0
	}
	return len(w.made.services) > 0
}

// pending notes that no director has taken the set, for Services whose status has no address yet:
// what was forwarded before goes on.
func (p *plan) pending(err error) {
	p.unsaid.unanswered = err.Error()
	for w := range p.unsettled {
		if w.service != nil && w.forwarded && len(w.addresses) > 0 && len(w.service.Status.LoadBalancer.Ingress) == 0 {
			w.problem(accepting, translate.NotForward, "no director has taken it yet: %s", strings.ReplaceAll(err.Error(), "\n", "; "))
		}
	}
}

// settle notes that everything was done, except for the rest.
func (p *plan) settle(err error, rest map[*wish]bool) {
	if err == nil {
		p.unsettled = rest
	}
}
