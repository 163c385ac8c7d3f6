package controller

import (
	"bytes"
	"encoding/json"
	"fmt"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"weir.io/weir/kube/pool"
	"weir.io/weir/kube/v1alpha1"
)

// holdersKey is the annotation of a claim that has an array of the address's holders, if they are
// more than its parentRef can say. A later version that has more to say about holders uses more
// keys, or writes an object with the array as "holders"; this version then believes the names, and
// changes nothing.
const holdersKey = "weir.io/holders"

// claim has the holders of an address, by one version of its object.
type claim struct {
	holders pool.Holders
	version string
	newer   bool // a later version of weir has written it: it says more than this one knows
}

// before reports whether the other claim is of a newer version.
func (c claim) before(other claim) bool {
	order, err := resourceversion.CompareResourceVersion(c.version, other.version)
	return err == nil && order < 0
}

// foreignError says why an address cannot be claimed.
type foreignError struct {
	claim
	why, by string
}

func (e *foreignError) Error() string {
	if e.by == "" {
		return "it " + e.why
	}
	return fmt.Sprintf("it %s, says %s", e.why, e.by)
}

// with returns the holders of the address after other Services have joined, or its holders want
// something else of it; or why they cannot.
func (c claim) with(more pool.Holders, by string) (want pool.Holders, changed bool, refused *foreignError) {
	want = c.holders
	for _, h := range more {
		before, is := want.Of(h.Service)
		if c.newer && is {
			continue
		}
		why := want.Clash(h)
		if c.newer {
			why = "is claimed as a newer version of weir writes it, and nobody else gets it"
		}
		if by != managedBy {
			why = "belongs to " + c.holders[0].String()
		}
		if why != "" {
			return nil, false, &foreignError{claim: c, why: why, by: by}
		}
		if !is || !before.Same(h) {
			want, changed = want.With(h), true
		}
	}
	return want, changed, nil
}

// isOf reports whether the claim has exactly these holders.
func (c claim) isOf(holders pool.Holders) bool {
	for _, h := range holders {
		if _, is := c.holders.Of(h.Service); !is {
			return false
		}
	}
	return len(c.holders) == len(holders)
}

// write writes the holders of its address into a claim.
func write(a *networkingv1.IPAddress, holders pool.Holders) error {
	if len(holders) == 1 && holders[0].Same(pool.Holder{Service: parentOf(a)}) {
		delete(a.Annotations, holdersKey)
		return nil
	}
	text, err := json.Marshal(holders)
	if err != nil {
		return fmt.Errorf("write who has %s: %w", a.Name, err)
	}
	metav1.SetMetaDataAnnotation(&a.ObjectMeta, holdersKey, string(text))
	return nil
}

// claimOf reads the holders of an address. The parentRef cannot be changed, so it may name a Service
// that has left.
func claimOf(a *networkingv1.IPAddress) claim {
	c := claim{version: a.ResourceVersion}
	if text := a.Annotations[holdersKey]; text != "" {
		c.holders, c.newer = readHolders([]byte(text))
	}
	if len(c.holders) == 0 {
		c.holders = pool.Holders{{Service: parentOf(a)}}
	}
	return c
}

// readHolders reads the annotation; no holders: it is damaged.
func readHolders(text []byte) (holders pool.Holders, newer bool) {
	strict := json.NewDecoder(bytes.NewReader(text))
	strict.DisallowUnknownFields()
	if strict.Decode(&holders) == nil {
		return holders, false
	}
	holders = nil
	if json.Unmarshal(text, &holders) == nil {
		return holders, true
	}
	var later struct{ Holders pool.Holders }
	if json.Unmarshal(text, &later) != nil || len(later.Holders) == 0 {
		return nil, false
	}
	return later.Holders, true
}

// parentOf returns the Service or Gateway in a claim's parentRef.
func parentOf(a *networkingv1.IPAddress) pool.Service {
	if p := a.Spec.ParentRef; p != nil {
		owner := pool.Service{Namespace: p.Namespace, Name: p.Name}
		switch {
		case p.Group == gatewayv1.GroupName && p.Resource == gateways:
			owner.Kind = pool.Gateway
		case p.Group == v1alpha1.GroupVersion.Group && p.Resource == v1alpha1.LoadBalancers:
			owner.Kind = pool.LoadBalancer
		}
		return owner
	}
	return pool.Service{}
}

// parentRef returns the parentRef from which parentOf reads the owner.
func parentRef(owner pool.Service) *networkingv1.ParentReference {
	p := &networkingv1.ParentReference{Resource: "services", Namespace: owner.Namespace, Name: owner.Name}
	switch owner.Kind {
	case pool.Gateway:
		p.Group, p.Resource = gatewayv1.GroupName, gateways
	case pool.LoadBalancer:
		p.Group, p.Resource = v1alpha1.GroupVersion.Group, v1alpha1.LoadBalancers
	}
	return p
}
