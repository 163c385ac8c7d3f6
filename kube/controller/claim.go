package controller

import (
	"encoding/json"
	"fmt"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"weir.io/weir/kube/pool"
)

// holdersKey is the annotation of a claim that says who has the address, where that is more
// than its parentRef can say.
const holdersKey = "weir.io/holders"

// claim is who has an address, by one version of its object.
type claim struct {
	holders pool.Holders
	version string
}

// before reports whether the other one is of a newer version.
func (c claim) before(other claim) bool {
	order, err := resourceversion.CompareResourceVersion(c.version, other.version)
	return err == nil && order < 0
}

// foreignError says why an address is not to be had.
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

// with returns who has the address after others have joined, or the same want something else
// of it; or why not.
func (c claim) with(more pool.Holders, by string) (want pool.Holders, changed bool, refused *foreignError) {
	want = c.holders
	for _, h := range more {
		why := want.Refuse(h)
		if by != managedBy {
			why = "belongs to " + c.holders[0].String()
		}
		if why != "" {
			return nil, false, &foreignError{claim: c, why: why, by: by}
		}
		if before, is := want.Of(h.Service); !is || !before.Same(h) {
			want, changed = want.With(h), true
		}
	}
	return want, changed, nil
}

// write makes a claim say who has its address.
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

// claimOf reads who has an address. The parentRef cannot be changed, so it may be of one that
// has left.
func claimOf(a *networkingv1.IPAddress) claim {
	c := claim{version: a.ResourceVersion}
	if text := a.Annotations[holdersKey]; text == "" || json.Unmarshal([]byte(text), &c.holders) != nil || len(c.holders) == 0 {
		c.holders = pool.Holders{{Service: parentOf(a)}}
	}
	return c
}

// parentOf returns whose an address is.
func parentOf(a *networkingv1.IPAddress) pool.Service {
	if p := a.Spec.ParentRef; p != nil {
		owner := pool.Service{Namespace: p.Namespace, Name: p.Name}
		if p.Group == gatewayv1.GroupName && p.Resource == gateways {
			owner.Kind = pool.Gateway
		}
		return owner
	}
	return pool.Service{}
}

// parentRef is what parentOf reads.
func parentRef(owner pool.Service) *networkingv1.ParentReference {
	p := &networkingv1.ParentReference{Resource: "services", Namespace: owner.Namespace, Name: owner.Name}
	if owner.Kind == pool.Gateway {
		p.Group, p.Resource = gatewayv1.GroupName, gateways
	}
	return p
}
