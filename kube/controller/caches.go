package controller

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"

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
	balancer                      cache.SharedIndexInformer // nil: it has no LoadBalancers
	agent                         cache.SharedIndexInformer // the Leases of nodes' agents; nil: the same

	// Nil: the cluster has none of these.
	gatewayClass, gateway, tcpRoute, udpRoute, grant cache.SharedIndexInformer

	// For readers of the caches: slices of weighted Pods, and whether there are any such Pods.
	with       map[types.UID]weightedSlice
	anyWeights bool
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
	err := errors.Join(notify(c.serving, always, func(o any) { noted.note(func(n *news) { n.services[translate.Of(o.(metav1.Object))] = true }) }),
		notify(c.slice, always, func(o any) { noted.note(func(n *news) { n.services[servedBy(o.(*discoveryv1.EndpointSlice))] = true }) }),
		notify(c.node, nodes, func(any) { noted.note(func(n *news) { n.nodes = true }) }),
		notify(c.address, always, func(o any) {
			if a, err := netip.ParseAddr(o.(metav1.Object).GetName()); err == nil {
				noted.note(func(n *news) { n.addresses[a] = true })
			}
		}))
	if weighs {
		c.weighted = informer(core.RESTClient(), "pods", translate.LabelWeight, &corev1.Pod{}, nil)
		err = errors.Join(err, notify(c.weighted, weights, func(o any) { noted.note(func(n *news) { n.pods[translate.Of(o.(metav1.Object))] = true }) }))
	}
	c.namespace = informer(core.RESTClient(), "namespaces", "", &corev1.Namespace{}, nil)
	namespaces := func(before, after any) bool {
		return !maps.Equal(before.(*corev1.Namespace).Labels, after.(*corev1.Namespace).Labels)
	}
	err = errors.Join(err, notify(c.namespace, namespaces, func(any) { noted.note(func(n *news) { n.resources, n.gateways = true, true }) }))
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
	err = errors.Join(notify(c.pool, specs, read), notify(c.policy, specs, read))
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
	if resources.balancers {
		c.balancer = informer(resources.client, v1alpha1.LoadBalancers, "", &v1alpha1.LoadBalancer{}, nil)
		err = errors.Join(err, notify(c.balancer, wishes, func(any) { noted.note(func(n *news) { n.balancers = true }) }))
	}
	sets := func(any) { noted.note(func(n *news) { n.sets = true }) }
	return c, errors.Join(err, agentErr, notify(c.group, specs, read), notify(c.peer, specs, read), notify(c.set, specs, sets))
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

// notify calls changed with objects that come, go, or change in a way that matters; for a change,
// with the object before it, too.
func notify(i cache.SharedIndexInformer, matters func(before, after any) bool, changed func(any)) error {
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
	for _, i := range []cache.SharedIndexInformer{c.weighted, c.pool, c.policy, c.group, c.peer, c.set, c.lease, c.agent, c.balancer,
		c.gatewayClass, c.gateway, c.tcpRoute, c.udpRoute, c.grant} {
		if i != nil {
			all = append(all, i)
		}
	}
	return follow.Run(ctx, all...)
}

func (c *caches) services() []*corev1.Service { return follow.List[corev1.Service](c.serving) }

func (c *caches) service(name pool.Service) *corev1.Service {
	return follow.One[corev1.Service](c.serving, name.String())
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
	for _, n := range follow.List[corev1.Node](c.node) {
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
	if o := follow.One[networkingv1.IPAddress](c.address, a.String()); o != nil {
		return claimOf(o), true
	}
	return none, false
}

// news is what may have changed.
type news struct {
	services  map[pool.Service]bool // that changed, or whose EndpointSlices did
	pods      map[pool.Service]bool // whose weights changed
	addresses map[netip.Addr]bool   // that are or were claimed
	nodes     bool
	resources bool // custom resources, and namespaces, by whose labels they select
	sets      bool // what is written for groups of directors
	gateways  bool // objects of Gateway API, and namespaces
	balancers bool // LoadBalancers
	all       bool
}

// changes collects news until it is taken. What has changed twice is reported once.
type changes struct {
	wake func() // called with each change

	mu  sync.Mutex
	got news
}

func newNews() news {
	return news{services: map[pool.Service]bool{}, pods: map[pool.Service]bool{}, addresses: map[netip.Addr]bool{}}
}

func newChanges(wake func()) *changes { return &changes{wake: wake, got: newNews()} }

// note adds to the news.
func (c *changes) note(f func(*news)) {
	c.mu.Lock()
	f(&c.got)
	c.mu.Unlock()
	c.wake()
}

// take returns the news and forgets it.
func (c *changes) take() news {
	c.mu.Lock()
	defer c.mu.Unlock()
	got := c.got
	c.got = newNews()
	return got
}

// withWeights returns the slice with the weights of its Pods' labels.
func (c *caches) withWeights(s *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
	if !c.anyWeights { // as in most clusters
		return s
	}
	with := translate.WithWeights(s, func(pod string) (string, bool) {
		p := follow.One[corev1.Pod](c.weighted, s.Namespace+"/"+pod)
		if p == nil {
			return "", false
		}
		return p.Labels[translate.LabelWeight], true
	})
	if with == s {
		delete(c.with, s.UID)
		return s
	}
	if before := c.with[s.UID]; before.of == s && before.with.Annotations[translate.AnnotationWeights] == with.Annotations[translate.AnnotationWeights] {
		return before.with
	}
	c.with[s.UID] = weightedSlice{s, with}
	return with
}

// readWeights finds out whether any Pod has a weight. All slices with weights are made anew.
func (c *caches) readWeights() {
	c.anyWeights = c.weighted != nil && len(c.weighted.GetStore().ListKeys()) > 0
	clear(c.with)
}

// weightedSlice is a slice with the weights of its Pods, and the slice that it was made from.
type weightedSlice struct{ of, with *discoveryv1.EndpointSlice }

// servedByPods returns the Services that some Pods serve.
func (c *caches) servedByPods(pods map[pool.Service]bool) []pool.Service {
	if len(pods) == 0 {
		return nil
	}
	var of []pool.Service
	for _, s := range follow.List[discoveryv1.EndpointSlice](c.slice) {
		for i := range s.Endpoints {
			if target := s.Endpoints[i].TargetRef; target != nil && target.Kind == "Pod" && pods[pool.Service{Namespace: s.Namespace, Name: target.Name}] {
				of = append(of, servedBy(s))
				break
			}
		}
	}
	return of
}
