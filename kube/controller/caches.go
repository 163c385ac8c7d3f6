package controller

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	discoveryv1client "k8s.io/client-go/kubernetes/typed/discovery/v1"
	networkingv1client "k8s.io/client-go/kubernetes/typed/networking/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"weir.io/weir/kube/follow"
	"weir.io/weir/kube/pool"
	"weir.io/weir/kube/translate"
	"weir.io/weir/kube/v1alpha1"
)

// caches follow what the API server has. Objects that are read from them must not be changed.
type caches struct {
	serving, slice, node, address cache.SharedIndexInformer
	weighted                      cache.SharedIndexInformer // Pods that are labelled with a weight
	namespace                     cache.SharedIndexInformer
	pool, policy                  cache.SharedIndexInformer // nil: the cluster has none of weir's custom resources
	group, peer, set, lease       cache.SharedIndexInformer // nil: it has no custom resources for directors
	agent                         cache.SharedIndexInformer // the Leases of nodes' agents; nil: the same

	// Nil: the cluster has none of these.
	gatewayClass, gateway, tcpRoute, udpRoute, grant cache.SharedIndexInformer

	// For readers of the caches: slices of weighted Pods, and whether there are any such Pods.
	with       map[types.UID]weightedSlice
	anyWeights bool
}

// custom says which of weir's custom resources a cluster has.
type custom struct {
	client rest.Interface // nil: none
	// directors says that the cluster has those for directors, too: older definitions lack them.
	directors bool
}

// byService is the index of EndpointSlices by their Service.
const byService = "service"

// newCaches makes caches that note every change that may matter. Without resources they follow no
// custom resources.
func newCaches(config *rest.Config, resources custom, weighs bool, noted *changes, heard *heard) (*caches, error) {
	core, err1 := corev1client.NewForConfig(config)
	discovery, err2 := discoveryv1client.NewForConfig(config)
	networking, err3 := networkingv1client.NewForConfig(config)
	if err := errors.Join(err1, err2, err3); err != nil {
		return nil, fmt.Errorf("make a client of the API server: %w", err)
	}
	c := &caches{
		with:    map[types.UID]weightedSlice{},
		serving: informer(core.RESTClient(), "services", "", &corev1.Service{}, nil),
		slice: informer(discovery.RESTClient(), "endpointslices", discoveryv1.LabelServiceName, &discoveryv1.EndpointSlice{}, cache.Indexers{
			byService: func(o any) ([]string, error) {
				return []string{servedBy(o.(*discoveryv1.EndpointSlice)).String()}, nil
			}}),
		node:    informer(core.RESTClient(), "nodes", "", &corev1.Node{}, nil),
		address: informer(networking.RESTClient(), "ipaddresses", networkingv1.LabelManagedBy+"="+managedBy, &networkingv1.IPAddress{}, nil),
	}
	// Kubelets report every few seconds that they are alive.
	nodes := func(before, after any) bool {
		return translate.NodeOf(before.(*corev1.Node)) != translate.NodeOf(after.(*corev1.Node))
	}
	weights := func(before, after any) bool {
		return before.(*corev1.Pod).Labels[translate.LabelWeight] != after.(*corev1.Pod).Labels[translate.LabelWeight]
	}
	always := func(_, _ any) bool { return true }
	err := errors.Join(tell(c.serving, always, func(o any) { noted.note(func(n *news) { n.services[nameOf(o)] = true }) }),
		tell(c.slice, always, func(o any) { noted.note(func(n *news) { n.services[servedBy(o.(*discoveryv1.EndpointSlice))] = true }) }),
		tell(c.node, nodes, func(any) { noted.note(func(n *news) { n.nodes = true }) }),
		tell(c.address, always, func(o any) {
			if a, err := netip.ParseAddr(o.(metav1.Object).GetName()); err == nil {
				noted.note(func(n *news) { n.addresses[a] = true })
			}
		}))
	if weighs {
		c.weighted = informer(core.RESTClient(), "pods", translate.LabelWeight, &corev1.Pod{}, nil)
		err = errors.Join(err, tell(c.weighted, weights, func(o any) { noted.note(func(n *news) { n.pods[nameOf(o)] = true }) }))
	}
	c.namespace = informer(core.RESTClient(), "namespaces", "", &corev1.Namespace{}, nil)
	namespaces := func(before, after any) bool {
		return !maps.Equal(before.(*corev1.Namespace).Labels, after.(*corev1.Namespace).Labels)
	}
	err = errors.Join(err, tell(c.namespace, namespaces, func(any) { noted.note(func(n *news) { n.resources, n.gateways = true, true }) }))
	if err != nil || resources.client == nil {
		return c, err
	}
	c.pool = informer(resources.client, v1alpha1.AddressPools, "", &v1alpha1.AddressPool{}, nil)
	c.policy = informer(resources.client, v1alpha1.ServicePolicies, "", &v1alpha1.ServicePolicy{}, nil)
	// This process itself writes their statuses.
	specs := func(before, after any) bool {
		return before.(metav1.Object).GetGeneration() != after.(metav1.Object).GetGeneration()
	}
	read := func(any) { noted.note(func(n *news) { n.resources = true }) }
	err = errors.Join(tell(c.pool, specs, read), tell(c.policy, specs, read))
	if err != nil || !resources.directors {
		return c, err
	}
	coordination, err := coordinationv1client.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make a client of the API server: %w", err)
	}
	c.group = informer(resources.client, v1alpha1.DirectorGroups, "", &v1alpha1.DirectorGroup{}, nil)
	c.peer = informer(resources.client, v1alpha1.BGPPeers, "", &v1alpha1.BGPPeer{}, nil)
	c.set = informer(resources.client, v1alpha1.DirectorSets, "", &v1alpha1.DirectorSet{}, nil)
	c.lease = follow.Informer(coordination.RESTClient(), "leases", &coordinationv1.Lease{}, follow.What{Labels: v1alpha1.LabelGroup})
	_, err = c.lease.AddEventHandler(heard.handler(func() { noted.note(func(*news) {}) }))
	c.agent = follow.Informer(coordination.RESTClient(), "leases", &coordinationv1.Lease{}, follow.What{Labels: v1alpha1.LabelAgent})
	_, agentErr := c.agent.AddEventHandler(heard.handler(func() { noted.note(func(n *news) { n.nodes = true }) }))
	sets := func(any) { noted.note(func(n *news) { n.sets = true }) }
	return c, errors.Join(err, agentErr, tell(c.group, specs, read), tell(c.peer, specs, read), tell(c.set, specs, sets))
}

func nameOf(o any) pool.Service {
	m := o.(metav1.Object)
	return pool.Service{Namespace: m.GetNamespace(), Name: m.GetName()}
}

// servedBy returns the Service that a slice belongs to.
func servedBy(s *discoveryv1.EndpointSlice) pool.Service {
	return pool.Service{Namespace: s.Namespace, Name: s.Labels[discoveryv1.LabelServiceName]}
}

func informer(client rest.Interface, resource, selector string, of runtime.Object, indexers cache.Indexers) cache.SharedIndexInformer {
	return follow.Informer(client, resource, of, follow.What{Labels: selector, Indexers: indexers, Shrink: func(o any) {
		if pod, is := o.(*corev1.Pod); is { // only its labels matter
			pod.Spec, pod.Status, pod.Annotations = corev1.PodSpec{}, corev1.PodStatus{}, nil
		}
	}})
}

// tell calls changed with objects that come, go, or change in a way that matters; for a change,
// with the object before it, too.
func tell(i cache.SharedIndexInformer, matters func(before, after any) bool, changed func(any)) error {
	_, err := i.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: changed,
		DeleteFunc: func(o any) {
			if missed, is := o.(cache.DeletedFinalStateUnknown); is {
				o = missed.Obj
			}
			changed(o)
		},
		UpdateFunc: func(before, after any) {
			if matters(before, after) {
				changed(before)
				changed(after)
			}
		},
	})
	return err
}

// start begins to follow until the context ends, and returns when everything has been read once.
func (c *caches) start(ctx context.Context) error {
	all := []cache.SharedIndexInformer{c.serving, c.slice, c.node, c.address, c.namespace}
	for _, i := range []cache.SharedIndexInformer{c.weighted, c.pool, c.policy, c.group, c.peer, c.set, c.lease, c.agent,
		c.gatewayClass, c.gateway, c.tcpRoute, c.udpRoute, c.grant} {
		if i != nil {
			all = append(all, i)
		}
	}
	return follow.Run(ctx, all...)
}

func (c *caches) services() []*corev1.Service { return list[corev1.Service](c.serving) }

func (c *caches) service(name pool.Service) *corev1.Service {
	return one[corev1.Service](c.serving, name.String())
}

// slices returns the EndpointSlices of a Service, with the weights of their Pods: the same objects
// while nothing in them changes.
func (c *caches) slices(s *corev1.Service) []*discoveryv1.EndpointSlice {
	found, err := c.slice.GetIndexer().ByIndex(byService, translate.Of(s).String())
	if err != nil {
		panic(err) // there is no such index
	}
	list := make([]*discoveryv1.EndpointSlice, len(found))
	for i, o := range found {
		list[i] = c.withWeights(o.(*discoveryv1.EndpointSlice))
	}
	slices.SortFunc(list, func(a, b *discoveryv1.EndpointSlice) int { return strings.Compare(a.Name, b.Name) })
	return list
}

func (c *caches) nodes() []translate.Node {
	var nodes []translate.Node
	for _, n := range list[corev1.Node](c.node) {
		nodes = append(nodes, translate.NodeOf(n))
	}
	slices.SortFunc(nodes, func(a, b translate.Node) int { return strings.Compare(a.Name, b.Name) })
	return nodes
}

// addresses returns the claimed addresses.
func (c *caches) addresses() (list []netip.Addr) {
	for _, name := range c.address.GetStore().ListKeys() {
		if a, err := netip.ParseAddr(name); err == nil {
			list = append(list, a)
		}
	}
	return list
}

// claim returns the holders of an address, as it was read.
func (c *caches) claim(a netip.Addr) (none claim, read bool) {
	if o := one[networkingv1.IPAddress](c.address, a.String()); o != nil {
		return claimOf(o), true
	}
	return none, false
}

func list[T any](i cache.SharedIndexInformer) []*T { return follow.List[T](i) }

func one[T any](i cache.SharedIndexInformer, key string) *T { return follow.One[T](i, key) }
