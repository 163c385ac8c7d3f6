package translate

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"weir.io/weir/kube/pool"
	"weir.io/weir/kube/v1alpha1"
)

// AddressPool is an AddressPool that was read.
type AddressPool struct {
	pool.Pool
	services, namespaces labels.Selector // nil: any
}

// ReadAddressPool returns what an AddressPool says, or what is wrong with it that its schema
// cannot refuse.
func ReadAddressPool(p *v1alpha1.AddressPool) (*AddressPool, error) {
	read := &AddressPool{Pool: pool.Pool{Name: p.Name, OnRequest: p.Spec.OnRequest, AvoidBuggy: p.Spec.AvoidBuggyIPs, Namespaces: p.Spec.Namespaces,
		AcrossNamespaces: p.Spec.ShareAcrossNamespaces}}
	for i, text := range p.Spec.Addresses {
		r, err := pool.ParseRange(string(text))
		if err != nil {
			return nil, fmt.Errorf("spec.addresses[%d]: %w", i, err)
		}
		read.Addresses = append(read.Addresses, r)
	}
	var err error
	if read.services, err = selector("spec.serviceSelector", p.Spec.ServiceSelector); err != nil {
		return nil, err
	}
	read.namespaces, err = selector("spec.namespaceSelector", p.Spec.NamespaceSelector)
	return read, err
}

func selector(field string, s *metav1.LabelSelector) (labels.Selector, error) {
	if s == nil {
		return nil, nil
	}
	read, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", field, err)
	}
	return read, nil
}

// Excludes says why the pool is not for a Service or a Gateway in a namespace with these labels;
// empty: it is.
func (p *AddressPool) Excludes(o metav1.Object, namespace map[string]string) string {
	switch {
	case p.services != nil && !p.services.Matches(labels.Set(o.GetLabels())):
		return "Services with its labels"
	case p.namespaces != nil && !p.namespaces.Matches(labels.Set(namespace)):
		return "namespaces with the labels of " + o.GetNamespace()
	}
	return ""
}
