package controller

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"weir.io/weir/kube/follow"
	"weir.io/weir/kube/pool"
	"weir.io/weir/kube/translate"
	"weir.io/weir/kube/v1alpha1"
)

// resourcesOf returns which of weir's custom resources the cluster has.
func resourcesOf(ctx context.Context, config *rest.Config) (none custom, err error) {
	client, err := follow.Resources(config)
	if err != nil {
		return none, err
	}
	text, err := client.Get().AbsPath("/apis", v1alpha1.GroupVersion.Group, v1alpha1.GroupVersion.Version).Do(ctx).Raw()
	if apierrors.IsNotFound(err) {
		return none, nil
	}
	if err != nil {
		return none, fmt.Errorf("ask which resources there are of %s: %w", v1alpha1.GroupVersion, err)
	}
	var there metav1.APIResourceList
	if err := json.Unmarshal(text, &there); err != nil {
		return none, fmt.Errorf("read which resources there are of %s: %w", v1alpha1.GroupVersion, err)
	}
	has := func(resources ...string) bool { // half an installation counts as none
		for _, resource := range resources {
			if !slices.ContainsFunc(there.APIResources, func(r metav1.APIResource) bool { return r.Name == resource }) {
				return false
			}
		}
		return true
	}
	if !has(v1alpha1.AddressPools, v1alpha1.ServicePolicies) {
		return none, nil
	}
	return custom{client: client, directors: has(v1alpha1.DirectorGroups, v1alpha1.BGPPeers, v1alpha1.DirectorSets)}, nil
}

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
	r := &resources{allPools: list[v1alpha1.AddressPool](c.cache.pool), all: list[v1alpha1.ServicePolicy](c.cache.policy),
		namespaces: list[corev1.Namespace](c.cache.namespace), ready: map[metav1.Object]metav1.Condition{}}
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
	p.book.Pools(r.pools)
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
		if !equality.Semantic.DeepEqual(before.Status, after.Status) {
			errs = append(errs, c.writeStatus(ctx, v1alpha1.AddressPools, after, after))
		}
	}
	for _, before := range read.all {
		after := before.DeepCopy()
		after.Status.Services = forwarded[before]
		meta.SetStatusCondition(&after.Status.Conditions, read.ready[before])
		if !equality.Semantic.DeepEqual(before.Status, after.Status) {
			errs = append(errs, c.writeStatus(ctx, v1alpha1.ServicePolicies, after, after))
		}
	}
	err := errors.Join(errs...)
	p.recount = err != nil
	return err
}

// writeStatus replaces the status of an object. If what was read of it is too old, nothing is lost:
// the newer object is about to be read.
func (c *Controller) writeStatus(ctx context.Context, resource string, name metav1.Object, o runtime.Object) error {
	err := c.resources.client.Put().Resource(resource).NamespaceIfScoped(name.GetNamespace(), name.GetNamespace() != "").
		Name(name.GetName()).SubResource("status").Body(o).Do(ctx).Error()
	if err == nil || apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil
	}
	return fmt.Errorf("write the status of %s %s: %w", resource, name.GetName(), err)
}
