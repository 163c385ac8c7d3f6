package controller

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/flowcontrol"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"weir.io/weir/kube/gateway"
	"weir.io/weir/kube/pool"
	"weir.io/weir/kube/translate"
)

// repeat is how often a lasting problem is reported again: the API server forgets events after an
// hour.
const repeat = 20 * time.Minute

// addressAssigned is the reason of the event that a Service got its addresses.
const addressAssigned = "AddressAssigned"

// The most events that are sent at once, and then per second. The client's library keeps a thousand
// unsent events and drops the rest.
const (
	eventsAtOnce    = 500
	eventsPerSecond = 50
)

// reporter tells users by events what is wrong with their Services, Gateways and routes: once, and
// again while it lasts.
type reporter struct {
	events record.EventRecorder
	said   map[types.UID]map[translate.Problem]time.Time
	routes map[types.UID]bool // the keys of said that are routes
	may    flowcontrol.PassiveRateLimiter
}

func newReporter(events record.EventRecorder) *reporter {
	return &reporter{events: events, said: map[types.UID]map[translate.Problem]time.Time{}, routes: map[types.UID]bool{},
		may: flowcontrol.NewTokenBucketPassiveRateLimiter(eventsPerSecond, eventsAtOnce)}
}

// report returns the Services and Gateways that not everything was said about, because it was too
// much at once.
func (r *reporter) report(p *plan, now time.Time) (rest map[*wish]bool) {
	for _, uid := range p.left {
		delete(r.said, uid)
	}
	p.left = nil
	rest = map[*wish]bool{}
	for w := range p.unsettled {
		if !r.of(w, now) {
			rest[w] = true
		}
	}
	return rest
}

// of reports whether everything has been said about one.
func (r *reporter) of(w *wish, now time.Time) bool {
	all := true
	if w.told {
		if all = r.may.TryAccept(); all {
			w.told = false
			r.events.Event(w.reference(), corev1.EventTypeNormal, addressAssigned, "it is reached at "+addressText(w))
		}
	}
	if w.choiceUntold && all {
		if all = r.may.TryAccept(); all {
			w.choiceUntold = false
			r.events.Event(w.reference(), corev1.EventTypeNormal, groupChosen, w.choice)
		}
	}
	problems := slices.Concat(w.problems[:]...)
	if w.gateway != nil {
		problems = append(w.gateway.Problems(), problems...)
	}
	return r.say(w.reference(), problems, now) && all
}

// reportRoutes tells users what is wrong with these routes.
func (r *reporter) reportRoutes(view *gateway.View, routes []*gateway.Route, now time.Time) {
	if len(routes) == 0 {
		return
	}
	there := map[types.UID]bool{}
	for _, route := range view.Routes {
		there[route.Of.GetUID()] = true
	}
	for uid := range r.routes {
		if !there[uid] {
			delete(r.routes, uid)
			delete(r.said, uid)
		}
	}
	for _, route := range routes {
		uid := route.Of.GetUID()
		r.routes[uid] = true
		r.say(gatewayReference(string(route.Kind), route.Of), view.Problems(route), now)
	}
}

// say tells users what is wrong with an object, and reports whether everything has been said.
func (r *reporter) say(of *corev1.ObjectReference, problems []translate.Problem, now time.Time) bool {
	before, all := r.said[of.UID], true
	said := map[translate.Problem]time.Time{} // problems that are over are forgotten
	for _, problem := range problems {
		when, known := before[problem]
		if !known || now.Sub(when) >= repeat {
			if !r.may.TryAccept() {
				all = false
				continue
			}
			r.events.Event(of, corev1.EventTypeWarning, string(problem.Reason), shortened(problem.Message))
			when = now
		}
		said[problem] = when
	}
	if r.said[of.UID] = said; len(said) == 0 {
		delete(r.said, of.UID)
	}
	return all
}

// reference returns the object that events are about.
func (w *wish) reference() *corev1.ObjectReference {
	switch {
	case w.gateway != nil:
		return gatewayReference(pool.Gateway, w.gateway.Of)
	case w.balancer != nil:
		return balancerReference(w.balancer.Of)
	}
	s := w.service
	return &corev1.ObjectReference{Kind: "Service", APIVersion: "v1", Namespace: s.Namespace, Name: s.Name, UID: s.UID, ResourceVersion: s.ResourceVersion}
}

func gatewayReference(kind string, o metav1.Object) *corev1.ObjectReference {
	return &corev1.ObjectReference{Kind: kind, APIVersion: gatewayv1.GroupVersion.String(), Namespace: o.GetNamespace(), Name: o.GetName(), UID: o.GetUID(), ResourceVersion: o.GetResourceVersion()}
}

// longest is the longest text of an event.
const longest = 1024

func shortened(text string) string {
	if len(text) <= longest {
		return text
	}
	const more = " ..."
	return strings.ToValidUTF8(text[:longest-len(more)], "") + more
}

func addressText(w *wish) string {
	var list []string
	for _, a := range w.addresses {
		list = append(list, fmt.Sprint(a))
	}
	return strings.Join(list, " and ")
}
