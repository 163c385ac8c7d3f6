package gateway

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"weir.io/weir/kube/translate"
)

// Features are the features that weir's classes say they support, sorted, with the names of Gateway
// API's conformance tests (pkg/features).
var Features = []gatewayv1.FeatureName{"Gateway", "ReferenceGrant", TCPRoute, UDPRoute}

// Outcome is the outcome of a Gateway that was read.
type Outcome struct {
	Addresses []netip.Addr // the addresses that directors have, or that the Gateway keeps
	Problems  []translate.Problem
	// Unanswered says why it is not known whether directors have the Gateway; empty: it is known.
	Unanswered string
}

// set sets one of the conditions.
func set(conditions *[]metav1.Condition, kind string, no bool, reason, message string, generation int64, now metav1.Time) {
	c := metav1.Condition{Type: kind, Status: metav1.ConditionTrue, Reason: reason, Message: message, ObservedGeneration: generation, LastTransitionTime: now}
	if no {
		c.Status = metav1.ConditionFalse
	}
	meta.SetStatusCondition(conditions, c)
}

// ClassStatus returns the new status of one of the controller's classes.
func ClassStatus(class *gatewayv1.GatewayClass, now metav1.Time) gatewayv1.GatewayClassStatus {
	status := *class.Status.DeepCopy()
	v := verdict{false, string(gatewayv1.GatewayClassReasonAccepted), "weir forwards for Gateways of it"}
	if class.Spec.ParametersRef != nil {
		v = verdict{true, string(gatewayv1.GatewayClassReasonInvalidParameters), "spec.parametersRef: weir has no kind of parameters"}
	}
	set(&status.Conditions, string(gatewayv1.GatewayClassConditionStatusAccepted), v.no, v.reason, v.message, class.Generation, now)
	status.SupportedFeatures = nil
	for _, f := range Features {
		status.SupportedFeatures = append(status.SupportedFeatures, gatewayv1.SupportedFeature{Name: f})
	}
	return status
}

// Status returns the new status of a Gateway, by its status before.
func (g *Gateway) Status(before gatewayv1.GatewayStatus, o Outcome, now metav1.Time) gatewayv1.GatewayStatus {
	status := *before.DeepCopy()
	generation := g.Of.Generation
	set(&status.Conditions, string(gatewayv1.GatewayConditionAccepted), g.accepted.no, g.accepted.reason, g.accepted.message, generation, now)
	p := g.programmed(before, o)
	if o.Unanswered == "" || p.no {
		set(&status.Conditions, string(gatewayv1.GatewayConditionProgrammed), p.no, p.reason, p.message, generation, now)
	}
	if o.Unanswered == "" {
		status.Addresses = nil
		for _, a := range o.Addresses {
			status.Addresses = append(status.Addresses, gatewayv1.GatewayStatusAddress{Type: new(gatewayv1.IPAddressType), Value: a.String()})
		}
	}
	status.Listeners = make([]gatewayv1.ListenerStatus, len(g.Listeners))
	for i, l := range g.Listeners {
		one := gatewayv1.ListenerStatus{Name: l.Of.Name}
		if at := slices.IndexFunc(before.Listeners, func(s gatewayv1.ListenerStatus) bool { return s.Name == l.Of.Name }); at >= 0 {
			one = *before.Listeners[at].DeepCopy()
		}
		one.SupportedKinds, one.AttachedRoutes = l.kinds, int32(len(l.routes))
		for kind, v := range map[gatewayv1.ListenerConditionType]verdict{gatewayv1.ListenerConditionAccepted: l.accepted,
			gatewayv1.ListenerConditionConflicted: l.conflicted, gatewayv1.ListenerConditionResolvedRefs: l.resolved} {
			set(&one.Conditions, string(kind), v.no, v.reason, v.message, generation, now)
		}
		if v := l.programmed(p); o.Unanswered == "" || v.no {
			set(&one.Conditions, string(gatewayv1.ListenerConditionProgrammed), v.no, v.reason, v.message, generation, now)
		}
		slices.SortFunc(one.Conditions, func(a, b metav1.Condition) int { return strings.Compare(a.Type, b.Type) })
		status.Listeners[i] = one
	}
	return status
}

// programmed says whether directors forward for the Gateway.
func (g *Gateway) programmed(before gatewayv1.GatewayStatus, o Outcome) verdict {
	var texts []string
	var reason gatewayv1.GatewayConditionReason
	for _, p := range o.Problems {
		texts = append(texts, p.Message)
		switch {
		case p.Reason != translate.NoAddress:
			reason = gatewayv1.GatewayReasonInvalid
		case reason == "" && len(g.wants.addresses) > 0:
			reason = gatewayv1.GatewayReasonAddressNotUsable
		case reason == "":
			reason = gatewayv1.GatewayReasonAddressNotAssigned
		}
	}
	switch {
	case !g.Accepted():
		return verdict{true, string(gatewayv1.GatewayReasonInvalid), "it is not accepted"}
	case reason != "":
		return verdict{true, string(reason), strings.Join(texts, "; ")}
	case o.Unanswered != "" && !meta.IsStatusConditionTrue(before.Conditions, string(gatewayv1.GatewayConditionProgrammed)):
		return verdict{true, string(gatewayv1.GatewayReasonPending), o.Unanswered}
	}
	return verdict{false, string(gatewayv1.GatewayReasonProgrammed), "the directors have it"}
}

// programmed says whether directors forward for the listener.
func (l *Listener) programmed(g verdict) verdict {
	switch {
	case l.wrong():
		return verdict{true, string(gatewayv1.ListenerReasonInvalid), "nothing can be forwarded for it"}
	case g.no:
		return verdict{true, string(gatewayv1.ListenerReasonPending), "the Gateway is not programmed"}
	case len(l.routes) == 0:
		return verdict{false, string(gatewayv1.ListenerReasonProgrammed), "it waits for a route"}
	}
	return verdict{false, string(gatewayv1.ListenerReasonProgrammed), "it is " + l.routes[0].String() + "'s"}
}

// RouteStatus returns the new status of a route, by its status before. What other controllers say
// about their own Gateways stays.
func (v *View) RouteStatus(r *Route, before gatewayv1.RouteStatus, now metav1.Time) gatewayv1.RouteStatus {
	ours := func(p gatewayv1.RouteParentStatus) bool { return p.ControllerName == v.cluster.Controller }
	status := *before.DeepCopy()
	status.Parents = slices.DeleteFunc(status.Parents, ours)
	for _, p := range r.parents {
		one := gatewayv1.RouteParentStatus{ParentRef: p.ref, ControllerName: v.cluster.Controller}
		for _, b := range before.Parents {
			if ours(b) && reflect.DeepEqual(b.ParentRef, p.ref) {
				one.Conditions = slices.Clone(b.Conditions)
			}
		}
		set(&one.Conditions, string(gatewayv1.RouteConditionAccepted), p.accepted.no, p.accepted.reason, p.accepted.message, r.Of.GetGeneration(), now)
		resolved := r.reached(v.cluster.Backends(p.to.Of))
		set(&one.Conditions, string(gatewayv1.RouteConditionResolvedRefs), resolved.no, resolved.reason, resolved.message, r.Of.GetGeneration(), now)
		status.Parents = append(status.Parents, one)
	}
	if status.Parents == nil {
		status.Parents = []gatewayv1.RouteParentStatus{} // the schema wants a list
	}
	return status
}

// Problems returns what a user has to know about a Gateway that cannot be served, or only in part.
func (g *Gateway) Problems() (list []translate.Problem) {
	if g.accepted.no {
		list = append(list, problemOf("", g.accepted))
	}
	for _, l := range g.Listeners {
		for _, v := range []verdict{l.accepted, l.resolved} {
			if v.no {
				list = append(list, problemOf(fmt.Sprintf("listener %s: ", l.Of.Name), v))
			}
		}
	}
	return list
}

// Problems returns what a user has to know about a route to Gateways of ours.
func (v *View) Problems(r *Route) (list []translate.Problem) {
	seen := map[translate.Problem]bool{}
	add := func(p translate.Problem) {
		if !seen[p] {
			seen[p] = true
			list = append(list, p)
		}
	}
	for _, p := range r.parents {
		if p.accepted.no {
			add(problemOf(fmt.Sprintf("Gateway %s/%s: ", p.to.Of.Namespace, p.to.Of.Name), p.accepted))
		}
		if resolved := r.reached(v.cluster.Backends(p.to.Of)); resolved.no {
			add(problemOf("", resolved))
		}
	}
	return list
}

func problemOf(where string, v verdict) translate.Problem {
	return translate.Problem{Reason: translate.Reason(v.reason), Message: where + v.message}
}
