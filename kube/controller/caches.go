package controller

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	discoveryv1client "k8s.io/client-go/kubernetes/typed/discovery/v1"
	networkingv1client "k8s.io/client-go/kubernetes/typed/networking/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"weir.io/weir/kube/pool"
	"weir.io/weir/kube/translate"
	"weir.io/weir/kube/v1alpha1"
)

// caches follow what the API server has. What is read from them is not to be changed.
type caches struct {
	serving, slice, node, address cache.SharedIndexInformer
	pool, policy, namespace       cache.SharedIndexInformer // nil: the cluster has no custom resources of weir's
}

// byService is the index of EndpointSlices by their Service.
const byService = "service"

// newCaches calls changed whenever something may matter that was read. Without resources
// there are no custom ones.
func newCaches(config *rest.Config, resources rest.Interface, changed func()) (*caches, error) {
	core, err1 := corev1client.NewForConfig(config)
	discovery, err2 := discoveryv1client.NewForConfig(config)
	networking, err3 := networkingv1client.NewForConfig(config)
	if err := errors.Join(err1, err2, err3); err != nil {
		return nil, fmt.Errorf("make a client of the API server: %w", err)
	}
	c := &caches{
		serving: informer(core.RESTClient(), "services", "", &corev1.Service{}, nil),
		slice: informer(discovery.RESTClient(), "endpointslices", discoveryv1.LabelServiceName, &discoveryv1.EndpointSlice{}, cache.Indexers{
			byService: func(o any) ([]string, error) {
				s := o.(*discoveryv1.EndpointSlice)
				return []string{s.Namespace + "/" + s.Labels[discoveryv1.LabelServiceName]}, nil
			}}),
		node:    informer(core.RESTClient(), "nodes", "", &corev1.Node{}, nil),
		address: informer(networking.RESTClient(), "ipaddresses", networkingv1.LabelManagedBy+"="+managedBy, &networkingv1.IPAddress{}, nil),
	}
	always := func(before, after any) bool { return true }
	// Kubelets say that they are alive every few seconds.
	nodes := func(before, after any) bool {
		return translate.NodeOf(before.(*corev1.Node)) != translate.NodeOf(after.(*corev1.Node))
	}
	err := errors.Join(c.tell(c.serving, changed, always), c.tell(c.slice, changed, always), c.tell(c.node, changed, nodes), c.tell(c.address, changed, always))
	if err != nil || resources == nil {
		return c, err
	}
	c.pool = informer(resources, v1alpha1.AddressPools, "", &v1alpha1.AddressPool{}, nil)
	c.policy = informer(resources, v1alpha1.ServicePolicies, "", &v1alpha1.ServicePolicy{}, nil)
	c.namespace = informer(core.RESTClient(), "namespaces", "", &corev1.Namespace{}, nil)
	// Their status is this process's own.
	specs := func(before, after any) bool {
		return before.(metav1.Object).GetGeneration() != after.(metav1.Object).GetGeneration()
	}
	namespaces := func(before, after any) bool {
		return !maps.Equal(before.(*corev1.Namespace).Labels, after.(*corev1.Namespace).Labels)
	}
	return c, errors.Join(c.tell(c.pool, changed, specs), c.tell(c.policy, changed, specs), c.tell(c.namespace, changed, namespaces))
}

func informer(client rest.Interface, resource, selector string, of runtime.Object, indexers cache.Indexers) cache.SharedIndexInformer {
	source := cache.NewFilteredListWatchFromClient(client, resource, metav1.NamespaceAll, func(o *metav1.ListOptions) { o.LabelSelector = selector })
	i := cache.NewSharedIndexInformer(source, of, 0, indexers)
	// Nobody asks who has written which field, and it is half of the memory.
	_ = i.SetTransform(func(o any) (any, error) {
		if m, err := meta.Accessor(o); err == nil {
			m.SetManagedFields(nil)
		}
		return o, nil
	})
	return i
}

// tell calls changed with what comes, goes, and differs in a way that matters.
func (c *caches) tell(i cache.SharedIndexInformer, changed func(), matters func(before, after any) bool) error {
	_, err := i.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { changed() },
		DeleteFunc: func(any) { changed() },
		UpdateFunc: func(before, after any) {
			if matters(before, after) {
				changed()
			}
		},
	})
	return err
}

// start follows until the context ends, and returns when all has been read once.
func (c *caches) start(ctx context.Context) error {
	all := []cache.SharedIndexInformer{c.serving, c.slice, c.node, c.address}
	if c.pool != nil {
		all = append(all, c.pool, c.policy, c.namespace)
	}
	var read []cache.InformerSynced
	for _, i := range all {
		go i.RunWithContext(ctx)
		read = append(read, i.HasSynced)
	}
	if !cache.WaitForCacheSync(ctx.Done(), read...) {
		return ctx.Err()
	}
	return nil
}

func (c *caches) services() []*corev1.Service { return list[corev1.Service](c.serving) }

func (c *caches) service(name pool.Service) *corev1.Service {
	return one[corev1.Service](c.serving, name.String())
}

func (c *caches) slices(s *corev1.Service) []*discoveryv1.EndpointSlice {
	found, err := c.slice.GetIndexer().ByIndex(byService, translate.Of(s).String())
	if err != nil {
		panic(err) // there is no such index
	}
	list := make([]*discoveryv1.EndpointSlice, len(found))
	for i, o := range found {
		list[i] = o.(*discoveryv1.EndpointSlice)
	}
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

// claims returns whose which address is, as it was read.
func (c *caches) claims() map[netip.Addr]claim {
	claims := map[netip.Addr]claim{}
	for _, a := range list[networkingv1.IPAddress](c.address) {
		if address, err := netip.ParseAddr(a.Name); err == nil {
			claims[address] = claimOf(a)
		}
	}
	return claims
}

func list[T any](i cache.SharedIndexInformer) []*T {
	if i == nil {
		return nil
	}
	objects := i.GetStore().List()
	list := make([]*T, len(objects))
	for n, o := range objects {
		list[n] = o.(*T)
	}
	return list
}

func one[T any](i cache.SharedIndexInformer, key string) *T {
	o, found, err := i.GetStore().GetByKey(key)
	if err != nil || !found {
		return nil
	}
	return o.(*T)
}
