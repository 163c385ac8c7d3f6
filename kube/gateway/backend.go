package gateway

import (
	"cmp"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"weir.io/weir/kube/pool"
	"weir.io/weir/kube/translate"
)

// ReasonNoNodePort is a reason of weir's own: directors cannot reach the Service's pods, and
// nodes do not forward to them.
const ReasonNoNodePort gatewayv1.RouteConditionReason = "NoNodePort"

// grants say which references into other namespaces are allowed.
type grants map[grant]bool

type grant struct {
	fromNamespace string
	fromKind      gatewayv1.Kind
	toNamespace   string
	to            string // the name of a Service; empty: all Services
}

func readGrants(list []*gatewayv1.ReferenceGrant) grants {
	all := grants{}
	for _, g := range list {
		for _, from := range g.Spec.From {
			for _, to := range g.Spec.To {
				if from.Group == gatewayv1.GroupName && to.Group == "" && to.Kind == "Service" {
					all[grant{string(from.Namespace), from.Kind, g.Namespace, string(ptr.Deref(to.Name, ""))}] = true
				}
			}
		}
	}
	return all
}

func (g grants) allow(r *Route, s pool.Service) bool {
	one := grant{r.Of.GetNamespace(), r.Kind, s.Namespace, s.Name}
	all := one
	all.to = ""
	return s.Namespace == one.fromNamespace || g[one] || g[all]
}

// resolve finds the Services that the route's backends are.
func (r *Route) resolve(c *Cluster, g grants) {
	r.to = nil
	r.resolved = verdict{false, string(gatewayv1.RouteReasonResolvedRefs), "all of its backends are known"}
	var wrong []string
	for i := range r.backends {
		to, bad := r.resolveOne(c, g, &r.backends[i])
		if !bad.no {
			r.to = append(r.to, to)
			continue
		}
		if !r.resolved.no {
			r.resolved = bad // the first wrong backend's reason
		}
		wrong = append(wrong, bad.message)
	}
	if r.resolved.no {
		r.resolved.message = strings.Join(wrong, "; ") + "; connections meant for it go to the other backends, as far as there are any"
	}
}

func (r *Route) resolveOne(c *Cluster, g grants, ref *gatewayv1.BackendRef) (to backend, bad verdict) {
	refuse := func(reason gatewayv1.RouteConditionReason, format string, args ...any) (backend, verdict) {
		return backend{}, verdict{true, string(reason), fmt.Sprintf(format, args...)}
	}
	if group, kind := ptr.Deref(ref.Group, ""), ptr.Deref(ref.Kind, "Service"); group != "" || kind != "Service" {
		return refuse(gatewayv1.RouteReasonInvalidKind, "backend %s is a %s, and only Services can be", ref.Name, strings.Trim(string(kind)+"."+string(group), "."))
	}
	name := r.serviceOf(ref)
	if !g.allow(r, name) {
		return refuse(gatewayv1.RouteReasonRefNotPermitted, "no ReferenceGrant in namespace %s allows a %s of namespace %s to use Service %s", name.Namespace, r.Kind, r.Of.GetNamespace(), name.Name)
	}
	s := c.Service(name)
	switch {
	case s == nil:
		return refuse(gatewayv1.RouteReasonBackendNotFound, "there is no Service %s", name)
	case s.Spec.Type == corev1.ServiceTypeExternalName:
		return refuse(gatewayv1.RouteReasonInvalidKind, "Service %s is of type ExternalName, which has no pods", name)
	}
	number, protocol := ptr.Deref(ref.Port, 0), corev1.ProtocolTCP
	if r.Kind == UDPRoute {
		protocol = corev1.ProtocolUDP
	}
	others := false
	for i := range s.Spec.Ports {
		p := &s.Spec.Ports[i]
		if p.Port == number && cmp.Or(p.Protocol, corev1.ProtocolTCP) == protocol {
			return backend{service: s, port: p, name: r.nameOf(s), weight: ptr.Deref(ref.Weight, 1)}, bad
		}
		others = others || p.Port == number
	}
	if others {
		return refuse(gatewayv1.RouteReasonUnsupportedProtocol, "port %d of Service %s is not of protocol %s", number, name, protocol)
	}
	return refuse(gatewayv1.RouteReasonBackendNotFound, "Service %s has no port %d", name, number)
}

// reached says whether the known backends can also be reached, as nodes or as pods.
func (r *Route) reached(by translate.Target) verdict {
	for i := range r.to {
		if b := &r.to[i]; !b.reached(by) && !r.resolved.no {
			return verdict{true, string(ReasonNoNodePort), fmt.Sprintf("port %d of Service %s has no node port, by which nodes are reached: it has to be of type NodePort, or directors to have routes to pods, and then backends: pods", b.port.Port, translate.Of(b.service))}
		}
	}
	return r.resolved
}

func (b *backend) reached(by translate.Target) bool {
	return by != translate.Nodes || b.port.NodePort != 0
}

// serviceOf returns the name of the Service that a backend refers to, if it refers to a Service.
func (r *Route) serviceOf(ref *gatewayv1.BackendRef) pool.Service {
	return pool.Service{Namespace: string(ptr.Deref(ref.Namespace, gatewayv1.Namespace(r.Of.GetNamespace()))), Name: string(ref.Name)}
}

// nameOf returns the prefix of the names of a Service's pods and nodes in the route.
func (r *Route) nameOf(s *corev1.Service) string {
	if s.Namespace == r.Of.GetNamespace() {
		return s.Name + "/"
	}
	return s.Namespace + "/" + s.Name + "/"
}
