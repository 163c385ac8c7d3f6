package gateway

import (
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"weir.io/weir/internal/model"
)

// Listener is one port of a Gateway.
type Listener struct {
	Of       *gatewayv1.Listener
	Protocol model.Protocol // if it is accepted

	kinds      []gatewayv1.RouteGroupKind // the kinds of routes that may be attached
	namespaces func(route, gateway string, of func(string) map[string]string) bool
	accepted   verdict
	conflicted verdict // no: there is no conflict
	resolved   verdict
	routes     []*Route // attached, the oldest first: the oldest has the listener
}

// The kinds of routes.
const (
	TCPRoute = "TCPRoute"
	UDPRoute = "UDPRoute"
)

// served has the protocols that listeners may have here, and the kinds of their routes.
var served = map[gatewayv1.ProtocolType]struct {
	protocol model.Protocol
	route    gatewayv1.Kind
}{
	gatewayv1.TCPProtocolType: {model.TCP, TCPRoute},
	gatewayv1.UDPProtocolType: {model.UDP, UDPRoute},
}

func readListeners(g *gatewayv1.Gateway) []*Listener {
	list := make([]*Listener, len(g.Spec.Listeners))
	// All protocols except UDP run over TCP, and a TCP packet belongs to one listener.
	users := map[gatewayv1.PortNumber]int{}
	for _, l := range g.Spec.Listeners {
		if l.Protocol != gatewayv1.UDPProtocolType {
			users[l.Port]++
		}
	}
	for i := range g.Spec.Listeners {
		of := &g.Spec.Listeners[i]
		l := &Listener{Of: of,
			accepted:   verdict{false, string(gatewayv1.ListenerReasonAccepted), "it can be served"},
			conflicted: verdict{true, string(gatewayv1.ListenerReasonNoConflicts), "no other listener has its port"},
			resolved:   verdict{false, string(gatewayv1.ListenerReasonResolvedRefs), "all kinds of routes are known"}}
		list[i] = l
		serves, known := served[of.Protocol]
		if !known {
			l.accepted = verdict{true, string(gatewayv1.ListenerReasonUnsupportedProtocol), fmt.Sprintf("protocol %s is not served; TCP and UDP are", of.Protocol)}
			l.resolved.message = "it refers to nothing that is looked at"
		}
		l.Protocol = serves.protocol
		l.readKinds(serves.route)
		l.readNamespaces()
		if known && of.Protocol != gatewayv1.UDPProtocolType && users[of.Port] > 1 {
			l.conflicted = verdict{false, string(gatewayv1.ListenerReasonProtocolConflict), fmt.Sprintf("another listener has port %d too, and both are in TCP", of.Port)}
			l.accepted = verdict{true, string(gatewayv1.ListenerReasonPortUnavailable), l.conflicted.message}
		}
	}
	return list
}

// readKinds says which of the kinds of routes that the listener allows may be attached to it.
func (l *Listener) readKinds(serves gatewayv1.Kind) {
	group := gatewayv1.Group(gatewayv1.GroupName)
	kind := gatewayv1.RouteGroupKind{Group: &group, Kind: serves}
	l.kinds = []gatewayv1.RouteGroupKind{}
	if l.Of.AllowedRoutes == nil || len(l.Of.AllowedRoutes.Kinds) == 0 {
		if serves != "" {
			l.kinds = append(l.kinds, kind)
		}
		return
	}
	for _, k := range l.Of.AllowedRoutes.Kinds {
		if ptr.Deref(k.Group, group) == group && k.Kind == serves {
			if len(l.kinds) == 0 {
				l.kinds = append(l.kinds, kind)
			}
		} else if !l.resolved.no {
			l.resolved = verdict{true, string(gatewayv1.ListenerReasonInvalidRouteKinds), fmt.Sprintf("allowedRoutes.kinds: a %s cannot be attached to a listener of protocol %s", k.Kind, l.Of.Protocol)}
		}
	}
}

// readNamespaces says of which namespaces routes may be attached.
func (l *Listener) readNamespaces() {
	var allowed gatewayv1.RouteNamespaces
	if l.Of.AllowedRoutes != nil && l.Of.AllowedRoutes.Namespaces != nil {
		allowed = *l.Of.AllowedRoutes.Namespaces
	}
	switch from := ptr.Deref(allowed.From, gatewayv1.NamespacesFromSame); from {
	case gatewayv1.NamespacesFromAll:
		l.namespaces = func(string, string, func(string) map[string]string) bool { return true }
		return
	case gatewayv1.NamespacesFromSelector:
		selector, err := metav1.LabelSelectorAsSelector(allowed.Selector) // nil: no namespace
		if err == nil {
			l.namespaces = func(route, _ string, of func(string) map[string]string) bool {
				return selector.Matches(labels.Set(of(route)))
			}
			return
		}
		l.refuse("allowedRoutes.namespaces.selector: %v", err)
	case gatewayv1.NamespacesFromSame:
	default:
		l.refuse("allowedRoutes.namespaces.from: %q is none of All, Selector and Same", from)
	}
	l.namespaces = func(route, gateway string, _ func(string) map[string]string) bool { return route == gateway }
}

func (l *Listener) refuse(format string, args ...any) {
	if !l.accepted.no {
		l.accepted = verdict{true, string(gatewayv1.ListenerReasonUnsupportedValue), fmt.Sprintf(format, args...)}
	}
}

// wrong reports whether nothing can be forwarded for the listener.
func (l *Listener) wrong() bool { return l.accepted.no || len(l.kinds) == 0 }

// allows reports whether routes of the kind may be attached.
func (l *Listener) allows(kind gatewayv1.Kind) bool {
	return slices.ContainsFunc(l.kinds, func(k gatewayv1.RouteGroupKind) bool { return k.Kind == kind })
}
