package gateway

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"weir.io/weir/kube/pool"
)

// Route is a TCPRoute or a UDPRoute.
type Route struct {
	Kind gatewayv1.Kind
	Of   metav1.Object

	refs     []gatewayv1.ParentReference
	backends []gatewayv1.BackendRef

	to       []backend // its backends that can be used
	resolved verdict
	parents  []parent
	gateways []*Gateway // the Gateways that it is attached to
}

// backend is a port of a Service, and its share.
type backend struct {
	service *corev1.Service
	port    *corev1.ServicePort
	name    string // the prefix of the names of pods and nodes
	weight  int32
}

// parent is the outcome of one of a route's references to a Gateway of ours.
type parent struct {
	ref      gatewayv1.ParentReference
	to       *Gateway
	accepted verdict
}

// readRoutes returns the routes of all kinds, the oldest first.
func readRoutes(c *Cluster) []*Route {
	list := make([]*Route, 0, len(c.TCPRoutes)+len(c.UDPRoutes))
	for _, of := range c.TCPRoutes {
		r := &Route{Kind: TCPRoute, Of: of, refs: of.Spec.ParentRefs}
		for _, rule := range of.Spec.Rules {
			r.backends = append(r.backends, rule.BackendRefs...)
		}
		list = append(list, r)
	}
	for _, of := range c.UDPRoutes {
		r := &Route{Kind: UDPRoute, Of: of, refs: of.Spec.ParentRefs}
		for _, rule := range of.Spec.Rules {
			r.backends = append(r.backends, rule.BackendRefs...)
		}
		list = append(list, r)
	}
	list = slices.DeleteFunc(list, func(r *Route) bool { return r.Of.GetDeletionTimestamp() != nil })
	slices.SortFunc(list, func(a, b *Route) int { return older(a.Of, b.Of) })
	return list
}

// String returns the kind and the name.
func (r *Route) String() string {
	return fmt.Sprintf("%s %s/%s", r.Kind, r.Of.GetNamespace(), r.Of.GetName())
}

// attach attaches the route to the listeners of ours that it refers to and that take it.
func (r *Route) attach(gateways map[pool.Service]*Gateway, labels func(string) map[string]string) {
	for _, ref := range r.refs {
		if ptr.Deref(ref.Group, gatewayv1.GroupName) != gatewayv1.GroupName || ptr.Deref(ref.Kind, pool.Gateway) != pool.Gateway {
			continue
		}
		namespace := string(ptr.Deref(ref.Namespace, gatewayv1.Namespace(r.Of.GetNamespace())))
		g := gateways[pool.Service{Kind: pool.Gateway, Namespace: namespace, Name: string(ref.Name)}]
		if g == nil {
			continue // another controller has to say what is wrong
		}
		r.parents = append(r.parents, parent{ref, g, r.attachTo(g, &ref, labels)})
	}
}

func (r *Route) attachTo(g *Gateway, ref *gatewayv1.ParentReference, labels func(string) map[string]string) verdict {
	meant, attached := 0, 0
	var why, second string
	for _, l := range g.Listeners {
		if ptr.Deref(ref.SectionName, l.Of.Name) != l.Of.Name || ptr.Deref(ref.Port, l.Of.Port) != l.Of.Port {
			continue
		}
		meant++
		switch {
		case !l.allows(r.Kind):
			why = fmt.Sprintf("listener %s takes no %s", l.Of.Name, r.Kind)
			continue
		case !l.namespaces(r.Of.GetNamespace(), g.Of.Namespace, labels):
			why = fmt.Sprintf("listener %s takes no routes of namespace %s", l.Of.Name, r.Of.GetNamespace())
			continue
		}
		attached++
		if !slices.Contains(l.routes, r) {
			l.routes = append(l.routes, r)
		}
		if first := l.routes[0]; first != r {
			second = fmt.Sprintf("; %s is older, so listener %s is its own, and this one gets nothing there", first, l.Of.Name)
		}
	}
	switch {
	case meant == 0:
		return verdict{true, string(gatewayv1.RouteReasonNoMatchingParent), "the Gateway has no listener with this name and port"}
	case attached == 0:
		return verdict{true, string(gatewayv1.RouteReasonNotAllowedByListeners), why}
	}
	if !slices.Contains(r.gateways, g) {
		r.gateways = append(r.gateways, g)
	}
	return verdict{false, string(gatewayv1.RouteReasonAccepted), "it is attached" + second}
}
