// Package gateway turns Kubernetes' Gateways and the routes to them into weir's services, and says
// what has become of each, in the terms of Gateway API (gateway-api.sigs.k8s.io, v1.6). It is pure:
// no clock, no API server.
package gateway

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"weir.io/weir/kube/pool"
	"weir.io/weir/kube/translate"
)

// Cluster is what is read from a cluster. None of it is changed.
type Cluster struct {
	Controller gatewayv1.GatewayController // whose classes are ours
	Classes    []*gatewayv1.GatewayClass
	Gateways   []*gatewayv1.Gateway
	TCPRoutes  []*gatewayv1.TCPRoute
	UDPRoutes  []*gatewayv1.UDPRoute
	Grants     []*gatewayv1.ReferenceGrant

	Backends  func(*gatewayv1.Gateway) translate.Target // what the backends of a Gateway are
	Namespace func(name string) map[string]string       // the labels of a namespace
	Service   func(name pool.Service) *corev1.Service   // nil: no such Service
}

// View is what the Gateways of a controller have, before it is known which addresses they get.
type View struct {
	Gateways []*Gateway // the oldest first
	Classes  []*gatewayv1.GatewayClass
	Routes   []*Route // all routes, the oldest first

	cluster *Cluster
	grants  grants
	users   map[pool.Service][]*Route // by Service, whether it exists or not
}

// Gateway is a Gateway of this controller.
type Gateway struct {
	Of        *gatewayv1.Gateway
	Listeners []*Listener

	accepted verdict
	wants    wants
}

// verdict is what a condition says.
type verdict struct {
	no      bool
	reason  string
	message string
}

// Read says which routes each Gateway's listeners have, and what is wrong with any of them.
func Read(c *Cluster) *View {
	v := &View{cluster: c, grants: readGrants(c.Grants), users: map[pool.Service][]*Route{}}
	classes := map[gatewayv1.ObjectName]*gatewayv1.GatewayClass{}
	for _, class := range c.Classes {
		if class.Spec.ControllerName == c.Controller && class.DeletionTimestamp == nil {
			classes[gatewayv1.ObjectName(class.Name)] = class
			v.Classes = append(v.Classes, class)
		}
	}
	byName := map[pool.Service]*Gateway{}
	for _, of := range c.Gateways {
		class := classes[of.Spec.GatewayClassName]
		if class == nil || of.DeletionTimestamp != nil {
			continue
		}
		g := &Gateway{Of: of, Listeners: readListeners(of), wants: readWants(of)}
		g.accept(class)
		byName[g.Name()] = g
		v.Gateways = append(v.Gateways, g)
	}
	slices.SortFunc(v.Gateways, func(a, b *Gateway) int { return older(a.Of, b.Of) })
	v.Routes = readRoutes(c)
	for _, r := range v.Routes {
		r.resolve(c, v.grants)
		r.attach(byName, c.Namespace)
		for i := range r.backends {
			if name := r.serviceOf(&r.backends[i]); !slices.Contains(v.users[name], r) {
				v.users[name] = append(v.users[name], r)
			}
		}
	}
	return v
}

// Touch resolves the routes that refer to a Service again, and returns them and the Gateways that
// they are attached to.
func (v *View) Touch(s pool.Service) (routes []*Route, gateways []*Gateway) {
	for _, r := range v.users[s] {
		r.resolve(v.cluster, v.grants)
		gateways = append(gateways, r.gateways...)
	}
	return v.users[s], gateways
}

// Name returns the name that the Gateway's addresses are assigned to.
func (g *Gateway) Name() pool.Service { return NameOf(g.Of) }

// NameOf returns the name that a Gateway's addresses are assigned to.
func NameOf(g *gatewayv1.Gateway) pool.Service {
	return pool.Service{Kind: pool.Gateway, Namespace: g.Namespace, Name: g.Name}
}

// Accepted reports whether the Gateway is to have addresses.
func (g *Gateway) Accepted() bool { return !g.accepted.no }

// accept says whether any part of the Gateway can be served.
func (g *Gateway) accept(class *gatewayv1.GatewayClass) {
	wrong := 0
	for _, l := range g.Listeners {
		if l.wrong() {
			wrong++
		}
	}
	infrastructure := g.Of.Spec.Infrastructure
	switch {
	case class.Spec.ParametersRef != nil:
		g.accepted = verdict{true, string(gatewayv1.GatewayReasonInvalidParameters), "its GatewayClass has parametersRef, and weir has no kind of parameters"}
	case infrastructure != nil && infrastructure.ParametersRef != nil:
		g.accepted = verdict{true, string(gatewayv1.GatewayReasonInvalidParameters), "spec.infrastructure.parametersRef: weir has no kind of parameters"}
	case g.wants.unsupported != "":
		g.accepted = verdict{true, string(gatewayv1.GatewayReasonUnsupportedAddress), g.wants.unsupported}
	case wrong == len(g.Listeners):
		g.accepted = verdict{true, string(gatewayv1.GatewayReasonListenersNotValid), "none of its listeners can be served; their conditions say why"}
	case wrong > 0:
		g.accepted = verdict{false, string(gatewayv1.GatewayReasonListenersNotValid), "some of its listeners cannot be served; their conditions say why"}
	default:
		g.accepted = verdict{false, string(gatewayv1.GatewayReasonAccepted), "it can be served"}
	}
}

// older sorts objects by age, the older first, and those of the same second by name.
func older(a, b metav1.Object) int {
	x, y := a.GetCreationTimestamp(), b.GetCreationTimestamp()
	return cmp.Or(x.Compare(y.Time), cmp.Compare(a.GetNamespace(), b.GetNamespace()), cmp.Compare(a.GetName(), b.GetName()))
}
