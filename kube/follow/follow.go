// Package follow reads objects from an API server and follows their changes: the part that the
// controller and the sidecars of directors have in common.
package follow

import (
	"context"
	"encoding/json"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"weir.io/weir/kube/v1alpha1"
)

// Resources returns a client of weir's custom resources.
func Resources(config *rest.Config) (rest.Interface, error) {
	return Client(config, v1alpha1.GroupVersion, v1alpha1.AddToScheme)
}

// Client returns a client of a group's custom resources in one version.
func Client(config *rest.Config, version schema.GroupVersion, install func(*runtime.Scheme) error) (rest.Interface, error) {
	scheme := runtime.NewScheme()
	if err := install(scheme); err != nil {
		return nil, fmt.Errorf("name the resources of %s: %w", version, err)
	}
	config = rest.CopyConfig(config)
	config.GroupVersion, config.APIPath = &version, "/apis"
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	client, err := rest.RESTClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("make a client of the API server: %w", err)
	}
	return client, nil
}

// Served returns which resources of a group the API server has in one version.
func Served(ctx context.Context, client rest.Interface, version schema.GroupVersion) (map[string]bool, error) {
	text, err := client.Get().AbsPath("/apis", version.Group, version.Version).Do(ctx).Raw()
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("ask which resources there are of %s: %w", version, err)
	}
	var list metav1.APIResourceList
	if err := json.Unmarshal(text, &list); err != nil {
		return nil, fmt.Errorf("read which resources there are of %s: %w", version, err)
	}
	there := map[string]bool{}
	for _, r := range list.APIResources {
		there[r.Name] = true
	}
	return there, nil
}

// What says which objects of a resource are followed; the zero value is all of them.
type What struct {
	Namespace string
	Labels    string // a selector
	Fields    string // a selector
	Indexers  cache.Indexers
	Shrink    func(any) // removes unused fields from an object; nil: none
}

// Informer returns an informer that follows the objects of a resource once it is run. Objects that
// are read from it must not be changed.
func Informer(client rest.Interface, resource string, of runtime.Object, what What) cache.SharedIndexInformer {
	source := cache.NewFilteredListWatchFromClient(client, resource, what.Namespace, func(o *metav1.ListOptions) {
		o.LabelSelector, o.FieldSelector = what.Labels, what.Fields
	})
	i := cache.NewSharedIndexInformer(patient(source, resource), of, 0, what.Indexers)
	// Nothing uses the record of the writers of fields, and it takes half of the memory.
	_ = i.SetTransform(func(o any) (any, error) {
		if m, err := meta.Accessor(o); err == nil {
			m.SetManagedFields(nil)
		}
		if what.Shrink != nil {
			what.Shrink(o)
		}
		return o, nil
	})
	return i
}

// Run starts to follow until the context ends, and returns when everything has been read once.
func Run(ctx context.Context, all ...cache.SharedIndexInformer) error {
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

// List returns all objects that were read; none without an informer.
func List[T any](i cache.SharedIndexInformer) []*T {
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

// One returns the object with a key, NAMESPACE/NAME or NAME, or nil if there is none.
func One[T any](i cache.SharedIndexInformer, key string) *T {
	if i == nil {
		return nil
	}
	o, found, err := i.GetStore().GetByKey(key)
	if err != nil || !found {
		return nil
	}
	return o.(*T)
}
