package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"weir.io/weir/kube/follow"
	"weir.io/weir/kube/pool"
	"weir.io/weir/kube/translate"
	"weir.io/weir/kube/v1alpha1"
)

// resources are the custom resources as they were read.
type resources struct {
	pools      []pool.Pool // with the file's, in the order in which addresses are taken from them
	selects    []*translate.AddressPool
	policies   translate.ServicePolicies
	allPools   []*v1alpha1.AddressPool // the oldest first
	all        []*v1alpha1.ServicePolicy
	namespaces []*corev1.Namespace                // pools select by their labels
	ready      map[metav1.Object]metav1.Condition // by object

	groups    []*translate.DirectorGroup // in order of precedence
	allGroups []*v1alpha1.DirectorGroup  // in order of precedence
	allPeers  []*v1alpha1.BGPPeer
	versions  []version                      // of groups and peers
	told      map[types.UID]metav1.Condition // of each group and peer
	peers     map[types.UID]int64            // how many groups use each peer
	staff     map[string]staff               // by the group's name
}

// readResources reads the custom resources and returns true, unless they are what the plan has read
// already. An invalid one is not used, and its status says why; the others are used.
func (c *Controller) readResources(p *plan) bool {
	r := &resources{allPools: follow.List[v1alpha1.AddressPool](c.cache.pool), all: follow.List[v1alpha1.ServicePolicy](c.cache.policy),
		namespaces: follow.List[corev1.Namespace](c.cache.namespace), ready: map[metav1.Object]metav1.Condition{}}
	slices.SortFunc(r.allPools, func(a, b *v1alpha1.AddressPool) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	slices.SortFunc(r.all, func(a, b *v1alpha1.ServicePolicy) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	slices.SortFunc(r.namespaces, func(a, b *corev1.Namespace) int { return cmp.Compare(a.Name, b.Name) })
	r.listGroups(c.cache)
	if p.read.ready != nil && slices.Equal(r.versions, p.read.versions) && slices.Equal(r.allPools, p.read.allPools) && slices.Equal(r.all, p.read.all) && slices.Equal(r.namespaces, p.read.namespaces) {
		p.read.allGroups, p.read.allPeers = r.allGroups, r.allPeers // their statuses may differ
		return false
	}
	c.readPools(r)
	var policies []*translate.ServicePolicy
	for _, p := range r.all {
		read, err := translate.ReadServicePolicy(p, c.Translate)
		if err == nil {
			policies = append(policies, read)
		}
		r.note(p, v1alpha1.ReasonInvalid, err, "Services that it selects are forwarded so")
	}
	r.policies = translate.NewServicePolicies(policies)
	c.readGroups(r)
	p.read, p.recount = r, true
	p.revision++
	p.allocations.Pools(r.pools)
	return true
}

// readPools reads AddressPools. If two have an address in common, the older one is used; the file's
// pools come before any.
func (c *Controller) readPools(r *resources) {
	var used pool.Used
	names := map[string]bool{}
	for i := range c.Pools {
		names[c.Pools[i].Name] = true
		_ = used.Add(&c.Pools[i]) // the file was checked when it was read
	}
	type ranked struct {
		pool.Pool
		priority int32
	}
	var pools []ranked
	for _, p := range c.Pools {
		pools = append(pools, ranked{p, 0})
	}
	var own []ranked
	for _, p := range r.allPools {
		read, err := translate.ReadAddressPool(p)
		reason := v1alpha1.ReasonInvalid
		if err == nil && names[p.Name] {
			err = errors.New("metadata.name: the controller's file has a pool with this name")
		}
		if err == nil {
			if err = used.Add(&read.Pool); err != nil {
				reason, err = v1alpha1.ReasonOverlap, fmt.Errorf("spec.%w", err)
			}
		}
		if err == nil {
			own = append(own, ranked{read.Pool, p.Spec.Priority})
			r.selects = append(r.selects, read)
		}
		r.note(p, reason, err, "Services get addresses of it")
	}
	slices.SortFunc(own, func(a, b ranked) int { return cmp.Compare(a.Name, b.Name) })
	pools = append(pools, own...)
	slices.SortStableFunc(pools, func(a, b ranked) int { return cmp.Compare(b.priority, a.priority) })
	for _, p := range pools {
		r.pools = append(r.pools, p.Pool)
	}
}

// note keeps the new condition of an object: what is wrong with it, or the text good.
func (r *resources) note(o metav1.Object, reason string, wrong error, good string) {
	r.ready[o] = conditionOf(o, reason, wrong, good)
}

func conditionOf(o metav1.Object, reason string, wrong error, good string) metav1.Condition {
	condition := metav1.Condition{Type: v1alpha1.Ready, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonInUse, Message: good, ObservedGeneration: o.GetGeneration()}
	if wrong != nil {
		condition.Status, condition.Reason, condition.Message = metav1.ConditionFalse, reason, "it is not used: "+wrong.Error()
	}
	return condition
}

// excluding returns the pools that are not for a Service or a Gateway, and why.
func (c *Controller) excluding(o metav1.Object, read *resources) map[string]string {
	var not map[string]string
	for _, p := range read.selects {
		if whom := p.Excludes(o, c.namespaceOf(o)); whom != "" {
			if not == nil {
				not = map[string]string{}
			}
			not[p.Name] = whom
		}
	}
	return not
}

// writeResources writes the statuses of custom resources that have changed.
func (c *Controller) writeResources(ctx context.Context, p *plan) error {
	if !p.recount {
		return nil
	}
	read := p.read
	assigned, forwarded := map[string]int64{}, map[*v1alpha1.ServicePolicy]int64{}
	counted := map[netip.Addr]bool{} // Services may share an address
	for _, w := range p.of {
		for _, a := range w.addresses {
			if counted[a] {
				continue
			}
			counted[a] = true
			if i := slices.IndexFunc(read.pools, func(p pool.Pool) bool { return p.Has(a) }); i >= 0 {
				assigned[read.pools[i].Name]++
			}
		}
		if w.policy != nil {
			forwarded[w.policy.Of]++
		}
	}
	var errs []error
	for _, before := range read.allPools {
		after := before.DeepCopy()
		condition := read.ready[before]
		if after.Status.Assigned = assigned[before.Name]; condition.Status != metav1.ConditionTrue {
			after.Status.Assigned = 0
		}
		meta.SetStatusCondition(&after.Status.Conditions, condition)
		errs = append(errs, c.writeStatus(ctx, v1alpha1.AddressPools, before.Status, after.Status, after))
	}
	for _, before := range read.all {
		after := before.DeepCopy()
		after.Status.Services = forwarded[before]
		meta.SetStatusCondition(&after.Status.Conditions, read.ready[before])
		errs = append(errs, c.writeStatus(ctx, v1alpha1.ServicePolicies, before.Status, after.Status, after))
	}
	err := errors.Join(errs...)
	p.recount = err != nil
	return err
}

// writeStatus replaces the status of one of weir's own objects, unless it is the same. If what was
// read of the object is too old, nothing is lost: the newer object is about to be read.
func (c *Controller) writeStatus(ctx context.Context, resource string, before, after any, o object) error {
	if err := putStatus(ctx, c.resources.client, resource, before, after, o); !apierrors.IsConflict(err) {
		return err
	}
	return nil
}
