package translate

import (
	"cmp"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"weir.io/weir/kube/v1alpha1"
)

// ServicePolicy is a ServicePolicy that was read.
type ServicePolicy struct {
	Of       *v1alpha1.ServicePolicy
	Options  Options // for Services that it selects
	selector labels.Selector
}

// ReadServicePolicy returns the options that Services have by a ServicePolicy over those that they
// have without one, or what is wrong with the policy that its schema cannot refuse.
func ReadServicePolicy(p *v1alpha1.ServicePolicy, o Options) (*ServicePolicy, error) {
	matches, err := selector("spec.selector", &p.Spec.Selector)
	if err != nil {
		return nil, err
	}
	for _, text := range []struct {
		field, text string
		into        interface{ UnmarshalText([]byte) error }
	}{
		{"mode", p.Spec.Mode, &o.Mode}, {"policy", p.Spec.Policy, &o.Policy}, {"affinity", p.Spec.Affinity, &o.Affinity},
		{"drain", duration(p.Spec.Drain), &o.Drain}, {"maxDrain", duration(p.Spec.MaxDrain), &o.MaxDrain},
	} {
		if text.text == "" {
			continue
		}
		if err := text.into.UnmarshalText([]byte(text.text)); err != nil {
			return nil, fmt.Errorf("spec.%s: %w", text.field, err)
		}
	}
	if why := o.Check(); why != "" {
		return nil, fmt.Errorf("spec.mode: %s", why)
	}
	if o.Health, err = health(p.Spec.Health); err != nil {
		return nil, err
	}
	if n := p.Spec.MinHealthy; n != nil {
		least := uint32(max(*n, 0))
		o.MinHealthy = &least
	}
	return &ServicePolicy{Of: p, Options: o, selector: matches}, nil
}

func duration(d *v1alpha1.Duration) string {
	if d == nil {
		return ""
	}
	return string(*d)
}

// ServicePolicies are a cluster's ServicePolicies by namespace, each list in order of precedence.
type ServicePolicies map[string][]*ServicePolicy

// NewServicePolicies sorts policies by namespace and precedence.
func NewServicePolicies(list []*ServicePolicy) ServicePolicies {
	p := ServicePolicies{}
	for _, one := range list {
		p[one.Of.Namespace] = append(p[one.Of.Namespace], one)
	}
	for _, list := range p {
		slices.SortFunc(list, func(a, b *ServicePolicy) int {
			return cmp.Or(cmp.Compare(b.Of.Spec.Priority, a.Of.Spec.Priority),
				a.Of.CreationTimestamp.Compare(b.Of.CreationTimestamp.Time), cmp.Compare(a.Of.Name, b.Of.Name))
		})
	}
	return p
}

// For returns the policy that counts for a Service or a Gateway; nil: none.
func (p ServicePolicies) For(o metav1.Object) *ServicePolicy {
	for _, one := range p[o.GetNamespace()] {
		if one.selector.Matches(labels.Set(o.GetLabels())) {
			return one
		}
	}
	return nil
}
